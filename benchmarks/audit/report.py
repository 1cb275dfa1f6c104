"""docs/privacy/audit.md from findings."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from benchmarks.audit.attacks import Attack
from benchmarks.audit.faults import HONEST
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
    ran = _LIVE.format(where=where) if setup.served else _MOCK
    cores, python = os.cpu_count(), platform.python_version()
    machine = f"{cores} CPUs ({platform.machine()}, shared with other work), Python {python}, torch {torch.__version__}"
    parts = [
        _HEAD.format(
            title="Audit by canary attacks" if setup.served else "Audit of every mechanism",
            command=setup.command,
            delta=f"{setup.delta:g}",
            confidence=f"{100 * (1 - setup.alpha):g}",
            minutes=f"{setup.minutes:.0f}",
            ran=ran,
            machine=machine,
        ),
        "## The attacks\n",
        _table(
            ("attack", "mechanism", "one trial", "n", "b", "d", "k", "T"),
            [
                (a.name, f"`{a.mechanism}`", a.what, a.records, a.batch, a.features, a.directions or "", a.steps)
                for a in attacks
            ],
        ),
        "## The honest curator\n",
        _findings(findings[HONEST]) if HONEST in findings else "",
        _HONEST,
    ]
    broken = {name: found for name, found in findings.items() if name != HONEST}
    if broken:
        rows = []
        for name, found in broken.items():
            caught = [one for one in found if one.caught]
            best = max(found, key=lambda one: one.proved - one.claim.ledger)
            rows.append(
                (
                    name,
                    "**caught**" if caught else "NOT CAUGHT",
                    ", ".join(dict.fromkeys(f"{one.attack} ({one.score})" for one in caught)) or "-",
                    f"{best.claim.ledger:.2f}",
                    f"{best.free.epsilon:.2f}",
                    _bound(best.noise),
                )
            )
        parts += [
            "## Curators with one fault each\n",
            _table(("fault", "", "by", "claimed (best row)", "proved", "proved, noise's law"), rows),
        ]
    limits = {"other": _OTHER, "live": _LIVE_LIMITS} if setup.served else {"other": _OTHER_MOCK, "live": ""}
    return "\n".join(parts) + _TAIL.format(**limits)


def _findings(found: Sequence[Finding]) -> str:
    rows = [
        (
            one.attack,
            one.score,
            one.trials,
            f"{one.claim.ledger:.3f}",
            f"{one.claim.exact:.3f}",
            f"{one.free.epsilon:.2f}",
            _bound(one.noise),
            "-" if one.dependence is None else f"{one.dependence:.2g}",
            "**caught**" if one.caught else "no",
        )
        for one in found
    ]
    heads = (
        "attack", "score", "trials (each side)", "claimed by the ledger", "exact", "proved", "proved, noise's law",
        "p, steps independent", "refuted",
    )  # fmt: skip
    return _table(heads, rows)


def _bound(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


_HEAD = """# {title}

Written by `{command}` in {minutes} minutes
on {machine}. Nothing here is seeded: the curator's noise,
samples and directions come from the operating system, so another run gives other figures within the stated confidence.

{ran} D holds n records of value 1; in D' the last one is -10,000. A
client uploads an extractor that puts what the canary adds opposite to what it added before, takes many
releases from both, and scores each by the exact log-likelihood ratio of the honest mechanism given the published
directions. On a quarter of the trials the threshold is chosen; the rest give Clopper-Pearson limits of its two error
rates.

- *claimed by the ledger*: epsilon at delta = {delta} that a fresh ledger quotes for one trial; *exact*: of the exact
  profile or the privacy loss distribution.
- *proved*: lower bound on epsilon at that delta, whatever the mechanism is. A correct claim lies above it.
- *proved, noise's law*: the same if the mechanism is the declared one but for the size of its noise.
- *p, steps independent*: permutation test that two halves of a run share nothing but the data set.
- *refuted*: a bound above the ledger's claim, or p below its part of the error. All rows of one curator together are
  right with {confidence} % confidence; the error is split evenly over the rows, and over the three figures of each.
"""

_LIVE = """For each attack two live curators ran ({where}; gRPC with mutual TLS over loopback, a real
ledger that verified afterwards), one on D and one on D'."""
_MOCK = """For each attack two mock curators ran, one on D and one on D': the product's mechanisms, admission and
charges in the auditor's process, without service and ledger, which [another page](audit.md) audits live."""

_HONEST = """
No bound may lie above its claim here. How far below it stays is the price of few trials (without any false positive
among N, no bound can exceed about log(N/7)), of the secret order of rows, and of what the price does not credit.
"""

_TAIL = """
## What the faults are

Each is made by `benchmarks/audit/faults.py`, which replaces a name of the curator's modules while it runs; the product
has no such switch; each is attacked by those that may see it. *Noise halved*: half the declared standard deviation.
*Clipped for additions*: records clipped to norm 1 and gradients to 2C, as if one record were added and not replaced.

*Batch maximum*: rows divided by twice the largest norm of the batch, as the papers write it. *Target gradient
unsanitized*: the plain sum. *Generated points clipped one by one*: the noise of one clip for all of them. *Directions
chosen by the client*: the seed of U is one that the client knew when it chose the extractor. *Sample reused*: one
sample for all steps of a run, which voids the amplification by sampling that the price counts on.

## Limits

An audit proves faults, never their absence: these attacks are the worst that we know, for linear extractors and the
release's own likelihood ratio. Single releases are steps of one long run; each draws a fresh sample, directions and
noise, so trials are independent. `tests/benchmarks/test_audit.py` runs a small version with every test.
{other}

{live}- Honest bounds are well below the claims: a few hundred trials cannot prove more. Distribution-free bounds at
  delta = 1e-5 would need millions.
"""

_OTHER = "[Every mechanism](audit-mechanisms.md) is audited without a service."
_OTHER_MOCK = "`rows`, `quantiles` and `gradient` are audited on [live curators](audit.md)."
_LIVE_LIMITS = """\
- The sample reused across steps is refuted by the test of independence. By epsilon's own bound it would take some 2,000
  runs on each side (calculated, not run), because the canary is in one sample of eight only.
- Only releases are audited: replies were not padded and extractors ran in the curator's process
  (`limits.reply_quantum_ms = 0`, `compute.isolation = in-process`); confinement and timing have tests of their own.
"""
