"""The page docs/privacy/audit.md: canary attacks on live curators, honest and broken.

Takes no seeds: an attacker chooses no curator's randomness.
"""

from __future__ import annotations

import argparse
import functools
import os
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: the matrices here are tiny

from benchmarks.audit.attacks import Attack
from benchmarks.audit.faults import FAULTLESS, FAULTS
from benchmarks.audit.means import ATTACKS
from benchmarks.audit.report import Setup, page
from benchmarks.audit.trials import Audit, Finding
from benchmarks.records import MEASURED, Row, Rows, options

RESULTS = Path(__file__).parents[1] / "results" / "audit.json"
_SAMPLES = "run of samples"
_REUSED = "sample reused across steps"


def seeing(name: str, chosen: Sequence[Attack]) -> list[Attack]:
    """Those attacks that may see a fault."""
    attacks = FAULTS[name].attacks
    if name == FAULTLESS:
        return list(chosen)
    return [one for one in chosen if (one.name in attacks if attacks else one.steps == 1)]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.audit", description=__doc__)
    parser.add_argument("--trials", type=int, default=1000, help="single releases on each side of the honest curator")
    parser.add_argument("--broken-trials", type=int, default=500, help="the same for each broken curator")
    parser.add_argument("--runs", type=int, default=1000, help="runs of samples, honest and with a reused sample")
    parser.add_argument("--delta", type=float, default=0.02)
    parser.add_argument("--confidence", type=float, default=0.95, help="of all rows of one curator together")
    parser.add_argument("--curators", nargs="+", choices=list(FAULTS), default=list(FAULTS), metavar="FAULT")
    parser.add_argument("--attacks", nargs="+", choices=[a.name for a in ATTACKS], default=None, metavar="ATTACK")
    parser.add_argument("--in-process", action="store_true", help="serve the honest curators in this process as well")
    parser.add_argument(
        "--mock", action="store_true", help="no service; bounds by the noise's law only where they take a moment"
    )
    parser.add_argument("--page", type=Path, default=MEASURED / "audit.md", help="the Markdown file to write")
    options(parser, RESULTS)
    arguments = parser.parse_args()
    arguments.page.parent.mkdir(parents=True, exist_ok=True)
    chosen = [attack for attack in ATTACKS if arguments.attacks is None or attack.name in arguments.attacks]
    audit = Audit(
        delta=arguments.delta,
        alpha=1.0 - arguments.confidence,
        served=not arguments.mock,
        process=not (arguments.in_process or arguments.mock),
        noise_bounds=not arguments.mock,
        say=lambda text: print(text, flush=True),
    )
    begun = time.monotonic()
    findings: dict[str, list[Finding]] = {}

    def measured(name: str, singles: int) -> Row:
        def trials(attack: Attack) -> int:
            if attack.name == _SAMPLES:
                return arguments.runs if name in (FAULTLESS, _REUSED) else max(40, arguments.runs // 10)
            if attack.steps > 1:
                return max(40, singles // 4)
            # Without a bound by the noise's law the same proof takes twice the trials.
            return singles if audit.noise_bounds or attack.is_constant else 2 * singles

        findings[name] = audit.audit(name, seeing(name, chosen), trials=trials)
        setup = Setup(
            command=shlex.join(["python", "-m", "benchmarks.audit", *sys.argv[1:]]),
            delta=audit.delta,
            alpha=audit.alpha,
            minutes=(time.monotonic() - begun) / 60.0,
            process=audit.process,
            served=audit.served,
        )
        # After each curator: a long audit that is interrupted has told what it found.
        arguments.page.write_text(page(findings, chosen, setup), encoding="utf-8")
        return {"attacks": {f"{one.attack}, {one.score}": one.figures for one in findings[name]}}

    jobs = []
    for name in arguments.curators:
        if seeing(name, chosen):
            singles = arguments.trials if name == FAULTLESS else arguments.broken_trials
            asked = {"trials": singles, "runs": arguments.runs, "delta": audit.delta, "alpha": audit.alpha}
            settings = {"curator": name, **asked, "served": audit.served, "process": audit.process}
            jobs.append((settings, functools.partial(measured, name, singles)))
    Rows(RESULTS, arguments.results).run(jobs, again=True)
    print(f"wrote {arguments.page}")
    refuted = [one.attack for one in findings.get(FAULTLESS, []) if one.caught]
    missed = [name for name, rows in findings.items() if name != FAULTLESS and not any(one.caught for one in rows)]
    if refuted or missed:
        sys.exit(f"the honest curator's claim is refuted by {refuted}; faults that were not caught: {missed}")


if __name__ == "__main__":
    main()
