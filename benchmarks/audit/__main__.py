"""Writes docs/privacy/audit.md: canary attacks on live curators, honest and broken."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: the matrices here are tiny

from benchmarks.audit.attacks import ATTACKS, Attack
from benchmarks.audit.faults import FAULTS, HONEST
from benchmarks.audit.report import Setup, page
from benchmarks.audit.trials import Audit, Finding

_SAMPLES = "run of samples"
_REUSED = "sample reused across steps"


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
    parser.add_argument("--output", type=Path, default=Path("docs/privacy/audit.md"))
    arguments = parser.parse_args()
    chosen = [attack for attack in ATTACKS if arguments.attacks is None or attack.name in arguments.attacks]
    audit = Audit(
        delta=arguments.delta,
        alpha=1.0 - arguments.confidence,
        process=not arguments.in_process,
        say=lambda text: print(text, flush=True),
    )
    begun = time.monotonic()
    findings: dict[str, list[Finding]] = {}
    for name in arguments.curators:
        singles = arguments.trials if name == HONEST else arguments.broken_trials

        def trials(attack: Attack, name: str = name, singles: int = singles) -> int:
            if attack.name == _SAMPLES:
                return arguments.runs if name in (HONEST, _REUSED) else max(40, arguments.runs // 10)
            return singles if attack.steps == 1 else max(40, singles // 4)

        findings[name] = audit.audit(name, chosen, trials=trials)
        setup = Setup(
            command=" ".join(["python -m benchmarks.audit", *sys.argv[1:]]),
            delta=audit.delta,
            alpha=audit.alpha,
            minutes=(time.monotonic() - begun) / 60.0,
            process=audit.process,
        )
        # After each curator: a long audit that is interrupted has told what it found.
        arguments.output.write_text(page(findings, chosen, setup), encoding="utf-8")
    print(f"wrote {arguments.output}")
    refuted = [one.attack for one in findings.get(HONEST, []) if one.caught]
    missed = [name for name, found in findings.items() if name != HONEST and not any(one.caught for one in found)]
    if refuted or missed:
        sys.exit(f"the honest curator's claim is refuted by {refuted}; faults that were not caught: {missed}")


if __name__ == "__main__":
    main()
