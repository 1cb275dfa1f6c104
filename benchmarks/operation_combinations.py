"""Does the quantum of reply times cover graphs of many operations, whichever of them meet numbers that they find hard?

    python -m benchmarks.operation_combinations [--graphs 40] [--first 0] [--seeds 0] [--check]

The quantum is 1.5 x 1.03 times the time of the trial, which runs the whole graph on random, huge and missing numbers.
`benchmarks.operation_times` bounds what each operation may take longer for some numbers than for others by 1.03. This
command measures what that bound is used for: random graphs of several operations, of which each gets numbers of its own
(a detector for each), so that a record can bring any combination of operations into trouble, and none of it need be one
that the trial has tried. Of each graph it tells the time on the slowest of such records over that of the trial.

Both are processor times of passes over one batch in this process, denormals flushed, as in the extraction worker; in a
round of passes every kind of records comes once, in random order, and of each the shortest of a fixed number of rounds
counts, as in the trial. With --check the exit status is 1 if a ratio is above what the quantum has room for. The worst
stands last. Seeds draw graphs and records.
"""

from __future__ import annotations

import argparse
import functools
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from benchmarks.detectors import FEATURES, detector_for
from benchmarks.operation_times import CASES, Case
from benchmarks.records import Job, Row, Rows, options
from dpswd.private_curator.core.steps.denormals import flushed_denormals
from dpswd.private_curator.serving.pacing import QUANTUM_OVER_TRIAL as ROOM
from dpswd.private_curator.steps.trial_run import KINDS
from dpswd.shared.core.wire.limits import MIN_BATCH_SIZE
from dpswd.shared.sandbox.building import Extractor
from dpswd.shared.sandbox.steady import LARGEST_RATIO

RESULTS = Path(__file__).parent / "results" / "operation-combinations.json"
OPERATIONS = 6  # of one graph
PATTERNS = 6  # of operations that meet their own trouble, beside none and all
_ROUNDS = 24
_TIMES = 2  # that each operation is applied


def ratio(cases: Sequence[Case], *, generator: random.Random, backward: bool) -> float:
    """Time of the slowest records over that of the trial, for a graph of these operations."""
    detector = detector_for(cases, times=_TIMES)
    extractor = Extractor(detector.graph, detector.weights)
    rng = np.random.default_rng(generator.randrange(1 << 32))
    size = (MIN_BATCH_SIZE, *detector.graph.input_shape)
    made = {f"trial: {kind}": np.full(size, value, np.float32) for kind, value in KINDS.items() if value is not None}
    made["trial: random"] = rng.random(size, dtype=np.float32)
    for number in range(PATTERNS + 2):
        share = {0: 0.0, 1: 1.0}.get(number, generator.random())
        troubled = rng.random(size[1]) < share
        made[f"records {number}"] = np.tile(np.where(troubled, 10.0, 0.0).astype(np.float32), (MIN_BATCH_SIZE, 1))
    ready = {kind: torch.from_numpy(records) for kind, records in made.items()}
    shortest = dict.fromkeys(ready, float("inf"))
    incoming = torch.ones(MIN_BATCH_SIZE, FEATURES)
    for number in range(_ROUNDS):
        for kind in generator.sample(list(ready), len(ready)):
            begun = time.thread_time()
            if backward:
                extractor.begin(ready[kind], ("pick0.weight",)).gradients(incoming)
            else:
                extractor.features(ready[kind])
            if number:  # the first round finds room for intermediate numbers
                shortest[kind] = min(shortest[kind], time.thread_time() - begun)
    trial = max(seconds for kind, seconds in shortest.items() if kind.startswith("trial"))
    return max(seconds for kind, seconds in shortest.items() if kind.startswith("records")) / trial


def job(seed: int, number: int) -> Job:
    """One graph: every operation in turn, so that none is left out; the others of its graph at random."""
    generator = random.Random(f"{seed} {number}")
    cases = [CASES[number % len(CASES)], *generator.sample(CASES, OPERATIONS - 1)]

    def measured(*, backward: bool) -> Row:
        return {"ratio": ratio(cases, generator=generator, backward=backward)}

    settings = {"graph": number, "backward": bool(number % 2), "operations": [case.name for case in cases]}
    return {"seed": seed, **settings}, functools.partial(measured, backward=settings["backward"])


def main() -> int:
    """Measures and reports."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", type=int, default=40, help="of each seed")
    parser.add_argument("--first", type=int, default=0, help="number of the first graph")
    parser.add_argument("--check", action="store_true", help=f"exit with 1 if a ratio is above {ROOM:.2f}")
    options(parser, RESULTS, seeds=(0,))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    numbers = range(arguments.first, arguments.first + arguments.graphs)
    jobs = [job(seed, number) for seed in arguments.seeds for number in numbers]
    with flushed_denormals():
        rows = Rows(RESULTS, arguments.results).run(jobs, again=True)
    for row in sorted(rows, key=lambda row: row["ratio"]):
        passes = "forward and backward" if row["backward"] else "forward"
        sys.stdout.write(f"{row['ratio']:.3f}  {passes}: {', '.join(row['operations'])}\n")
    worst, above = max(row["ratio"] for row in rows), sum(row["ratio"] > LARGEST_RATIO for row in rows)
    sys.stdout.write(
        f"{len(rows)} graphs of {OPERATIONS} operations: at most {worst:.3f} of the trial's time, {above} above "
        f"{LARGEST_RATIO}; the quantum has room for {ROOM:.2f}\n"
    )
    return 1 if arguments.check and worst > ROOM else 0


if __name__ == "__main__":
    sys.exit(main())
