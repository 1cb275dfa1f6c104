"""Can requests whose sample has a chosen record be told from those without, by the clock?

    python -m benchmarks.detectors run [--pairs 100000] [--planted 0.03] [--seconds 1500] [--seeds 0]
    python -m benchmarks.detectors summary [--results FILE]     # adds up all rows of a file, of whatever runs

The attack on the time of a reply: number i of a record is broadcast into many numbers of every trouble (negative,
saturating, huge, missing), and one operation is applied to them. With zero in its place the operation meets zeros. Of
each operation of the vocabulary there are such a graph and pairs of requests of the smallest batch, without and with
one record that is the operation's trouble, one directly after the other in random order, every other pair with
gradients.

A distinguisher is given more than a client has: of each request the processor time of the extraction worker, and after
how many quanta the reply left. From a quarter of an operation's pairs it learns which of the two is later; of the
others it says which request had the record. Where time does not depend on the record each answer is a fair coin,
whatever else the machine does. The same distinguisher gets pairs without the record of which one is made longer by
--planted. --seconds ends early, every operation with as many pairs as it had by then. Some pairs of one operation are a
row, written when they are asked: a run that was stopped goes on, and more seeds add to it. Hours.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import binomtest
from torch import Tensor

from benchmarks.operation_times import CASES, Case, weights_of
from benchmarks.records import Job, Row, Rows, options, read
from dpswd.private_curator.core.steps.evaluating import ExtractorSource
from dpswd.private_curator.sandbox.pool import WorkerPool
from dpswd.private_curator.sandbox.process import WorkerSettings
from dpswd.private_curator.serving.pacing import Pacer, quantum_ms
from dpswd.private_curator.steps.engine import HasWorker
from dpswd.private_curator.steps.trial_run import KINDS, MadeRecords
from dpswd.public_client.extractor.tracing import weights_to_bytes
from dpswd.shared.core.mechanisms.interface import FloatArray, ModelFacts
from dpswd.shared.core.wire.limits import MIN_BATCH_SIZE
from dpswd.shared.sandbox.graph import ExtractorGraph, Node
from dpswd.shared.sandbox.vocabulary import VOCABULARY

RESULTS = Path(__file__).parent / "results" / "detectors.jsonl"
INPUTS = 8
"""Numbers of a record."""
FEATURES = 4
_TROUBLES = torch.tensor([1.0, 1.0, 100.0, -1e30, 3e38])
_LEARNED = 4  # of so many twos of pairs the first is learned from
_ROUND = 50  # pairs of one operation before the next one has its turn; they are a row


@dataclass(frozen=True)
class Detector:
    """An extractor.

    Attributes:
        graph: of records of `INPUTS` numbers and `FEATURES` features.
        weights: the graph's.
    """

    graph: ExtractorGraph
    weights: dict[str, Tensor]


def detector_for(cases: Sequence[Case], *, times: int) -> Detector:
    """An extractor in which operation i meets its trouble where number i of a record is not zero.

    Args:
        cases: at most `INPUTS` operations.
        times: how often each is applied, to the same numbers.
    """
    generator = torch.Generator().manual_seed(1)
    nodes: list[Node] = []
    weights: dict[str, Tensor] = {}

    def add(operation: str, inputs: tuple[int, ...], path: str = "", **attributes: object) -> int:
        nodes.append(Node(operation, inputs, path, attributes))
        return len(nodes)

    def linear(source: int, path: str, weight: Tensor) -> int:
        weights[f"{path}.weight"] = weight
        return add("linear", (source,), path, in_features=weight.shape[1], out_features=weight.shape[0], bias=False)

    ends = []
    for number, case in enumerate(cases):
        size = int(np.prod(case.shapes[0]))
        pick = torch.zeros(1, INPUTS)
        pick[0, number] = 1.0
        picked = linear(0, f"pick{number}", pick)
        trouble = torch.randn(size, 1, generator=generator)
        trouble *= _TROUBLES[torch.randint(len(_TROUBLES), (size, 1), generator=generator)]
        trouble = trouble.clamp(-3e38, 3e38)
        spread = linear(picked, f"spread{number}", trouble)
        inputs = []
        for shape in case.shapes:
            flat = spread
            if np.prod(shape) != size:  # a gate of one number for each channel, a row that is added to each
                flat = linear(picked, f"gate{number}", trouble[: int(np.prod(shape))])
            inputs.append(add("reshape", (flat,), shape=shape))
        tensors = weights_of(case, generator)
        path = f"under{number}" if VOCABULARY[case.operation].tensors(case.attributes) else ""
        weights |= {f"{path}.{name}": tensor for name, tensor in tensors.items()}
        outputs = [add(case.operation, tuple(inputs), path, **case.attributes) for _ in range(times)]
        total = outputs[0]
        for output in outputs[1:]:
            total = add("add", (total, output))
        width = int(np.prod(VOCABULARY[case.operation].shape(list(case.shapes), case.attributes)))
        flat = add("reshape", (total,), shape=(width,))
        ends.append(linear(flat, f"last{number}", 0.01 * torch.randn(FEATURES, width, generator=generator)))
    total = ends[0]
    for end in ends[1:]:
        total = add("add", (total, end))
    graph = ExtractorGraph(tuple(nodes), (INPUTS,))
    return Detector(graph, {name: weights[name] for name in graph.tensor_shapes})


Seen = NDArray[np.float64]
"""(pairs, 2, 2): without and with the record; seconds of the worker's processor, and quanta until the reply left."""


@dataclass(frozen=True)
class Verdict:
    """How often a distinguisher was right.

    Attributes:
        right: answers.
        pairs: asked; half of them right is chance.
    """

    right: int = 0
    pairs: int = 0

    def __add__(self, other: Verdict) -> Verdict:
        return Verdict(self.right + other.right, self.pairs + other.pairs)

    @property
    def pvalue(self) -> float:
        """Of at least so many right answers by fair coins."""
        return float(binomtest(self.right, self.pairs, alternative="greater").pvalue)

    def __str__(self) -> str:
        share, error = self.right / self.pairs, 0.5 / self.pairs**0.5
        return f"{self.right} of {self.pairs} right, {share:.4f} (error {error:.4f}), p = {self.pvalue:.2g}"


@dataclass(frozen=True)
class Counts:
    """What a verdict needs of pairs; those of several runs add up, and the verdict is that of one run with all pairs.

    Attributes:
        learned_seconds: of the pairs to learn from: how many times the record took longer, less how many times not.
        learned_quanta: the same of quanta.
        later_quanta: of the other pairs: those in which the record's reply left later.
        earlier_quanta: and earlier.
        longer: of equal quanta, those in which the record took longer.
        shorter: and less long.
        coins_right: where nothing differed.
        coins: of all of these.
    """

    learned_seconds: int = 0
    learned_quanta: int = 0
    later_quanta: int = 0
    earlier_quanta: int = 0
    longer: int = 0
    shorter: int = 0
    coins_right: int = 0
    coins: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(*map(sum, zip(astuple(self), astuple(other), strict=True)))

    @property
    def verdict(self) -> Verdict:
        """Learned is whether the record makes a reply later or earlier."""
        by_quanta = self.earlier_quanta if self.learned_quanta < 0 else self.later_quanta
        by_seconds = self.shorter if self.learned_seconds < 0 else self.longer
        others = self.later_quanta + self.earlier_quanta + self.longer + self.shorter + self.coins
        return Verdict(by_quanta + by_seconds + self.coins_right, others)


def counted(seen: Seen, generator: np.random.Generator) -> Counts:
    """A quarter of the pairs are learned from.

    Of the others different quanta decide; of equal ones the worker's time; of equal times a coin.
    """
    later = np.sign(seen[:, 1] - seen[:, 0]).astype(int)  # (pairs, 2)
    learned = np.arange(len(seen)) // 2 % _LEARNED == 0  # with gradients and without
    (seconds, quanta), coins = later[~learned].T, generator.choice([-1, 1], int((~learned).sum()))
    equal = quanta == 0
    tossed = equal & (seconds == 0)
    return Counts(
        *map(int, later[learned].sum(axis=0)),
        *(int((quanta == sign).sum()) for sign in (1, -1)),
        *(int((equal & (seconds == sign)).sum()) for sign in (1, -1)),
        int((coins[tossed] > 0).sum()),
        int(tossed.sum()),
    )


def judge(seen: Seen, generator: np.random.Generator) -> Verdict:
    """Learns from a quarter of the pairs whether the record makes a reply later or earlier; answers for the others."""
    return counted(seen, generator).verdict


def planted(seen: Seen, share: float, generator: np.random.Generator) -> Seen:
    """Pairs of requests without the record, (pairs // 2, 2, 2), of which one takes so much longer."""
    even = seen[: len(seen) // 4 * 4, 0].reshape(-1, 2, 2, 2).swapaxes(1, 2).reshape(-1, 2, 2)  # passes of one kind
    pairs = np.where(generator.random((len(even), 1, 1)) < 0.5, even, even[:, ::-1])
    pairs[:, 1, 0] *= 1.0 + share
    return pairs


class Watched:
    """Requests of one operation's detector, in a worker, timed as closely as can be.

    Args:
        pool: of one worker.
        case: the operation.
        generator: orders the two requests of a pair.
        targets: records of the batch that are the trouble, where there is any.
        times: how often the operation is applied.
        trials: by which the quantum is found, of each kind of made records.
    """

    def __init__(
        self, pool: WorkerPool, case: Case, generator: np.random.Generator, *, targets: int = 1, times: int = 2,
        trials: int = 3,
    ) -> None:  # fmt: skip
        made = detector_for([case], times=times)
        graph, packed = made.graph, weights_to_bytes(made.weights)
        facts = ModelFacts(graph.input_shape, graph.feature_dimension, graph.parameter_shapes)
        self._source = ExtractorSource(f"{case.name} {times}", facts, lambda: (graph.to_bytes(), packed))
        self._names = ("pick0.weight",) if "pick0.weight" in graph.learnable else ()
        self._pool, self._generator = pool, generator
        self._without = generator.normal(size=(MIN_BATCH_SIZE, INPUTS)).astype(np.float32)
        self._without[:, 0] = 0.0
        self._with = self._without.copy()
        self._with[:targets, 0] = 10.0
        self._waits: list[float] = []
        self._pacer = Pacer("auto", sleep=self._waits.append)
        # As a run's trial does: the shortest processor time of each kind of made records, of those the longest.
        rows = np.arange(MIN_BATCH_SIZE)
        every = [MadeRecords(MIN_BATCH_SIZE, graph.input_shape, value).take(rows) for value in KINDS.values()]
        self._request(every[0], gradients=bool(self._names))
        trial = max(min(self._tried(records) for _ in range(trials)) for records in every)
        self._quantum_s = quantum_ms(trial) / 1000

    def pair(self, *, gradients: bool) -> NDArray[np.float64]:
        """One pair, (2, 2): without and with."""
        asked = [self._without, self._with]
        seen = np.empty((2, 2))
        for which in self._generator.permutation(2):
            seen[which] = self._timed(asked[which], gradients=gradients and bool(self._names))
        return seen

    def _timed(self, records: FloatArray, *, gradients: bool) -> tuple[float, float]:
        arrived = time.monotonic()
        with self._pacer.paced():
            self._pacer.expect(self._quantum_s)
            seconds = self._request(records, gradients=gradients)
        return seconds, round((time.monotonic() - arrived + self._waits.pop()) / self._quantum_s)

    def _tried(self, records: FloatArray) -> float:
        begun = time.thread_time()
        seconds = self._request(records, gradients=bool(self._names))
        return seconds + time.thread_time() - begun

    def _request(self, records: FloatArray, *, gradients: bool) -> float:
        """Seconds of the worker's processor."""
        with self._pool.session(self._source) as session:
            worker: HasWorker = session
            begun = worker.processor_seconds()
            features = session.features(records, names=self._names if gradients else ())
            if gradients:
                session.gradients(torch.ones_like(features))
            return worker.processor_seconds() - begun


def asked(
    pool: WorkerPool, case: Case, numbers: Sequence[int], generator: np.random.Generator, *, targets: int = 1,
    trials: int = 3,
) -> Seen:  # fmt: skip
    """So many pairs of one operation; every other one with gradients."""
    requests = Watched(pool, case, generator, targets=targets, trials=trials)
    return np.array([requests.pair(gradients=bool(number % 2)) for number in numbers])


def watched(
    pool: WorkerPool, cases: Sequence[Case], *, pairs: int, generator: np.random.Generator, targets: int = 1,
    trials: int = 3,
) -> dict[str, Seen]:  # fmt: skip
    """Pairs of every operation, some at a time."""
    seen: dict[str, list[Seen]] = {case.name: [] for case in cases}
    for numbers in (range(begun, min(pairs, begun + _ROUND)) for begun in range(0, pairs, _ROUND)):
        for case in cases:
            sys.stderr.write(f"\r{case.name:26} {numbers.stop} of {pairs} pairs of each case")
            seen[case.name].append(asked(pool, case, numbers, generator, targets=targets, trials=trials))
    return {name: np.concatenate(times) for name, times in seen.items()}


def measured(pool: WorkerPool, number: int, *, seed: int, turn: int, share: float) -> Row:
    """One operation's turn: what verdicts need of its pairs, and of those with a delay of this share."""
    generator = np.random.default_rng((seed, turn, number))
    seen = asked(pool, CASES[number], range(_ROUND), generator)
    return {
        "pairs": len(seen),
        "after_the_first_quantum": int((seen[:, :, 1] > 1).sum()),
        "record": asdict(counted(seen, generator)),
        "delay": asdict(counted(planted(seen, share, generator), generator)),
    }


def summary(rows: Sequence[Row]) -> str:
    """Verdicts for each operation and for all, of all rows; those with another planted delay by themselves."""
    lines = []
    for share in sorted({row["planted"] for row in rows}):
        those = [row for row in rows if row["planted"] == share]
        counts: dict[str, dict[str, Counts]] = defaultdict(lambda: {"record": Counts(), "delay": Counts()})
        for row, kind in itertools.product(those, ("record", "delay")):
            counts[row["case"]][kind] += Counts(**row[kind])
        for name, each in sorted(counts.items()):
            later = sum(row["after_the_first_quantum"] for row in those if row["case"] == name)
            verdicts = f"the record: {each['record'].verdict}; planted: {each['delay'].verdict}"
            lines.append(f"{name:26} {verdicts}; {later} replies after the first quantum")
        record, delay = (
            sum((each[kind].verdict for each in counts.values()), Verdict()) for kind in ("record", "delay")
        )
        lines.append(f"{sum(row['pairs'] for row in those)} pairs of {len(counts)} cases. The record: {record}")
        lines.append(f"{share:.0%} planted: {delay}")
    return "\n".join(lines)


def main() -> None:
    """Measures and reports."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("run", "summary"), nargs="?", default="run")
    parser.add_argument("--pairs", type=int, default=100_000, help="of all operations together and of each seed")
    parser.add_argument("--planted", type=float, default=0.03, help="share of its time that a request takes longer")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="after which the search ends")
    options(parser, RESULTS, seeds=(0,))
    arguments = parser.parse_args()
    if arguments.command == "summary":
        print(summary(read(arguments.results or RESULTS)) or f"no rows in {arguments.results or RESULTS}")
        return
    pool = WorkerPool(WorkerSettings(device="cpu", threads=1, memory_bytes=1 << 30, seconds=120.0), workers=1)

    def job(seed: int, turn: int, number: int) -> Job:
        settings = {"case": CASES[number].name, "seed": seed, "turn": turn, "planted": arguments.planted}
        return settings, functools.partial(measured, pool, number, seed=seed, turn=turn, share=arguments.planted)

    turns = range(-(-arguments.pairs // (len(CASES) * _ROUND)))
    rows = Rows(RESULTS, arguments.results)
    try:
        cells = itertools.product(arguments.seeds, turns, range(len(CASES)))
        rows.run(itertools.starmap(job, cells), minutes=arguments.seconds / 60.0)
    finally:
        pool.close()
    print(summary(read(rows.path)))


if __name__ == "__main__":
    main()
