"""docs/privacy/audit.md from findings."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from benchmarks.audit import canaries
from benchmarks.audit.attacks import Attack
from benchmarks.audit.faults import FAULTLESS
from benchmarks.audit.trials import Finding


@dataclass(frozen=True)
class Setup:
    """How the audit was run.

    Attributes:
        command: what was typed.
        delta: of all figures.
        alpha: probability of a false alarm among all rows of one curator.
        minutes: it took.
        process: whether the honest curators were processes of their own.
        served: whether curators were live.
    """

    command: str
    delta: float
    alpha: float
    minutes: float
    process: bool
    served: bool = True


def page(findings: Mapping[str, Sequence[Finding]], attacks: Sequence[Attack], setup: Setup) -> str:
    """The whole page."""
    where = "the honest ones as processes of their own" if setup.process else "in the auditor's process"
    head = _HEAD if setup.served else _MOCK
    cores, python = os.cpu_count(), platform.python_version()
    machine = f"{cores} CPUs ({platform.machine()}, shared with other work), Python {python}, torch {torch.__version__}"
    parts = [
        head.format(
            canaries=canaries.page(), where=where, delta=f"{setup.delta:g}", confidence=f"{100 * (1 - setup.alpha):g}"
        ),
        "## The attacks\n",
        _table(
            ("attack", "mechanism", "one trial", "n", "b", "T"),
            [(a.name, f"`{a.mechanism}`", a.what, a.records, a.batch, a.steps) for a in attacks],
        ),
        "## The honest curator\n",
        _findings(findings[FAULTLESS]) if FAULTLESS in findings else "",
    ]
    broken = {name: rows for name, rows in findings.items() if name != FAULTLESS}
    if broken:
        rows = []
        for name, own in broken.items():
            caught = [one for one in own if one.caught]
            best = max(own, key=lambda one: one.proved - one.claim.ledger)
            rows.append(
                (
                    name,
                    "**caught**" if caught else "NOT CAUGHT",
                    ", ".join(dict.fromkeys(_named(one) for one in caught)) or "-",
                    f"{best.claim.ledger:.2f}",
                    f"{best.free.epsilon:.2f}",
                    _bound(best.noise),
                )
            )
        parts += [
            "## Curators with one fault each\n",
            _table(("fault", "", "by", "claimed", "proved", "proved, noise's law"), rows),
        ]
    made = f"\n`{setup.command}` ran {setup.minutes:.0f} minutes on {machine}.\n"
    return "\n".join(parts) + (_TAIL if setup.served else "") + made


def _named(one: Finding) -> str:
    return one.attack if one.score == LIKELIHOOD_RATIO else f"{one.attack} ({one.score})"


def _findings(findings: Sequence[Finding]) -> str:
    alone = all(one.dependence is None for one in findings)
    rows = [
        (
            _named(one),
            one.trials,
            f"{one.claim.ledger:.3f}",
            f"{one.claim.exact:.3f}",
            f"{one.free.epsilon:.2f}",
            _bound(one.noise),
            *([] if alone else ["-" if one.dependence is None else f"{one.dependence:.2g}"]),
            "**caught**" if one.caught else "no",
        )
        for one in findings
    ]
    heads = ["attack", "trials (each side)", "claimed", "exact", "proved", "proved, noise's law", "refuted"]
    return _table(heads if alone else [*heads[:-1], "p", heads[-1]], rows)


def _bound(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


LIKELIHOOD_RATIO = "likelihood ratio"
"""The score of nearly every attack."""

_HEAD = """# Audit by canary attacks

For each attack two live curators ran ({where}; gRPC with mutual TLS, a real ledger), one on D and one on D'. D holds n
records of value 1; in D' the last one is -10,000. A client uploads an extractor that puts what the canary adds opposite
to what it added before, takes many releases from both, and scores each by the exact log-likelihood ratio of the honest
mechanism. On a quarter of the trials the threshold is chosen; the rest give Clopper-Pearson limits of its two error
rates. [Every mechanism](audit-mechanisms.md) is audited without a service.

| column | meaning |
|---|---|
| claimed | epsilon at delta = {delta} that a fresh ledger quotes for one trial |
| exact | of the exact profile or the privacy loss distribution |
| proved | lower bound on epsilon at that delta, whatever the mechanism is: a correct claim lies above it |
| proved, noise's law | the same if the mechanism is the declared one but for the size of its noise |
| p | permutation test that two halves of a run share nothing but the data set |
| refuted | a bound above the claim, or p below its part of the error; all rows of one curator together are right \
with {confidence} % confidence |

Nothing is seeded: another run gives other figures within that confidence. It proves faults, never their absence.
Honest bounds stay far below the claims: without any false positive among N trials no bound exceeds about log(N/7).
"""

_MOCK = """# Audit of every mechanism

As [the live audit](audit.md), which explains columns and faults and has `rows`, `quantiles` and `gradient`; here the
product's mechanisms, admission and charges run in the auditor's process, without service and ledger. Epsilon at
delta = {delta}; all rows of one curator together are right with {confidence} % confidence.

## Canaries in one run

What one release of 2,000 canaries at epsilon 1 and delta 1e-5 proves, each put to one of two places by a coin; mean
(least) of ten runs, 95 % confidence. *By its law*: Gaussian noise on clipped sums, both of unknown size
(proof: `public_client/testing/canaries.py`). *Whatever it is*: Steinke, Nasr and Jagielski (2023, Theorem 5.2).

{canaries}
Half the noise, none, and a clip as if records were added are refuted each time, at one false alarm in a million.
`python -m benchmarks.audit.canaries run`; `dpswd-client audit FILE` does this for a file's releases.
"""

_TAIL = """
## What the faults are

`benchmarks/audit/faults.py` replaces a name of the curator's modules while it runs; the product has no such switch.

| fault | what is done |
|---|---|
| batch maximum | rows divided by twice the largest norm of the batch, as the papers write it |
| directions chosen by the client | the seed of U is one that the client knew when it chose the extractor |
| sample reused | one sample for all steps of a run, which voids the amplification |
| clipped for additions | records clipped to norm 1 and gradients to 2C, as if one record were added and not replaced |
| generated points clipped one by one | the noise of one clip for all of them |

## Limits

The attacks are the worst that we know for linear extractors. Confinement and timing have tests of their own.
"""
