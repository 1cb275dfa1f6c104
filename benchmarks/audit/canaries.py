"""Every one-release mechanism of the core, attacked in one run by 2,000 canaries, unbroken and with planted faults.

    python -m benchmarks.audit.canaries run [--seeds 0,1] [--results FILE]
    python -m benchmarks.audit.canaries summary [--results FILE]

`public_client/testing/canaries.py` says what is released, and proves both bounds. A claim is epsilon 1 at delta 1e-5,
exact; bounds are stated at 95% confidence, and a claim is refuted at all but one in a million. Seeds are of coins,
directions and noise.
"""

from __future__ import annotations

import argparse
import functools
import statistics
from pathlib import Path

import torch

from benchmarks.audit.faults import FAULTLESS, fault
from benchmarks.records import Job, Row, Rows, options, read, table
from dpswd.public_client.testing.canaries import CERTAIN, CONFIDENCE, DESIGNS, one_run

RESULTS = Path(__file__).parents[1] / "results" / "audit-canaries.json"
EPSILON, DELTA = 1.0, 1e-5
PLANTED = ("noise halved", "noise left out", "clipped for additions")
UNCLIPPED = ("evaluation",)
"""Counts: no clip can be wrong."""


def measured(mechanism: str, planted: str, seed: int) -> Row:
    """The bounds of one run."""
    with fault(planted):
        reply = one_run(mechanism, epsilon=EPSILON, delta=DELTA, seed=seed)
    stated, surely = (
        (reply.least(reply.event, DELTA, confidence), reply.guessed(DELTA, confidence))
        for confidence in (CONFIDENCE, CERTAIN)
    )
    return {"by_law": stated[0], "whatever_it_is": stated[1], "surely": max(surely), "refuted": max(surely) > EPSILON}


def jobs(seeds: tuple[int, ...]) -> list[Job]:
    """All runs: a fault that a mechanism cannot have is left out."""
    every = [(name, planted, seed) for name in DESIGNS for planted in (FAULTLESS, *PLANTED) for seed in seeds]
    return [
        ({"mechanism": name, "fault": planted, "seed": seed}, functools.partial(measured, name, planted, seed))
        for name, planted, seed in every
        if not (planted == PLANTED[-1] and name in UNCLIPPED)
    ]


def summary(rows: list[Row]) -> list[Row]:
    """By mechanism: mean and least bound of the unbroken one, and which faults every seed caught."""
    lines = []
    for name in DESIGNS:
        own = [row for row in rows if row["mechanism"] == name]
        sound = [row for row in own if row["fault"] == FAULTLESS]
        law = [row["by_law"] for row in sound]
        line = {"mechanism": name, "mean": statistics.mean(law), "least": min(law), "runs": len(law)}
        line["whatever"] = statistics.mean(row["whatever_it_is"] for row in sound)
        line["alarms"] = sum(row["refuted"] for row in sound)
        for planted in PLANTED:
            broken = [row["refuted"] for row in own if row["fault"] == planted]
            line[planted] = f"{sum(broken)} of {len(broken)}" if broken else "-"
        lines.append(line)
    return lines


def page(results: Path = RESULTS) -> str:
    """The table of docs/privacy/audit-mechanisms.md."""
    heads = {"mechanism": "`{mechanism}`", "by its law": "{mean:.2f} ({least:.2f})", "whatever it is": "{whatever:.2f}"}
    return table(summary(read(results)), heads)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("run", "summary"))
    options(parser, RESULTS, seeds=range(10))
    asked = parser.parse_args()
    if asked.command == "run":
        torch.set_num_threads(1)
        Rows(RESULTS, asked.results).run(jobs(asked.seeds))
        return
    heads = {name: f"{{{name}}}" for name in ("mechanism", "alarms", "runs", *PLANTED)}
    print(f"{page(asked.results or RESULTS)}\n{table(summary(read(asked.results or RESULTS)), heads)}")


if __name__ == "__main__":
    main()
