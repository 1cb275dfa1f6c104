"""One cell of the battery: a source, a shift, a number of records, an epsilon, a seed."""

from __future__ import annotations

import functools
import itertools
import random
import secrets
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.local import RATE, delivered, released
from benchmarks.shifts.composed import PLANNED, Composed
from benchmarks.shifts.made import SHIFTS
from benchmarks.shifts.sources import Origin, load
from dpswd.public_client.data.datasets import Labelled
from dpswd.public_client.data.progress import reporting
from dpswd.public_client.methods.replay import Replay
from dpswd.public_client.replay import fit, priors
from dpswd.public_client.replay.cross_fitting import OutOfFold
from dpswd.public_client.replay.posterior import VIEW_STEPS
from dpswd.public_client.replay.verdict import Fitted

NUMBERS = (150, 500, 1000, 4000, 10_000)
EPSILONS = (0.3, 1.0, 3.0)
SEEDS = (0, 1, 2)
COMPOSED = "composed "
"""Names of compositions begin with it, and end with their number."""
DELTAS = {"images": 1e-5, "vectors": 1e-3, "tables": 1e-5}
KINDS = {
    "mnist": "images",
    "usps": "images",
    "fashion": "images",
    "amazon": "vectors",
    "caltech10": "vectors",
    "cleveland": "tables",
    "adult": "tables",
}
"""Kind of record of each source."""
ELSEWHERE = {
    "mnist": ("usps",),
    "usps": ("mnist",),
    "amazon": ("caltech10", "dslr", "webcam"),
    "caltech10": ("amazon", "dslr", "webcam"),
    "cleveland": ("hungarian", "switzerland", "va"),
}
"""Real targets of each source."""
POOLS = {"mnist": 50_000, "usps": 4298, "fashion": 50_000, "amazon": 479, "caltech10": 562, "cleveland": 153}
POOLS |= {"adult": 38_842, "dslr": 157, "webcam": 295, "hungarian": 294, "switzerland": 123, "va": 200}
"""Records that targets are drawn from; real targets of vectors and tables are taken whole."""
TUNED_ON = frozenset({"mnist", "amazon", "adult", "caltech10"})
"""Sources whose cells the thresholds of `dpswd.public_client.replay.verdict` were looked at on; the others are held
out."""


@dataclass(frozen=True)
class Cell:
    """What is run.

    Attributes:
        source: name of the public source.
        shift: made, or the name of a real target.
        records: n of the target that is wanted; a rarer class leaves fewer of a small pool.
        epsilon: of the one release.
        seed: of the model, the shift, the draw of records and the client's choices; the noise is never repeated.
    """

    source: str
    shift: str
    records: int
    epsilon: float
    seed: int


def all_cells() -> list[Cell]:
    """The whole battery in one fixed random order, so that any part from its beginning is a fair sample."""
    cells = []
    for source, kind in KINDS.items():
        for shift in (*SHIFTS[kind], *ELSEWHERE.get(source, ())):
            whole = POOLS.get(shift) if kind != "images" and shift in ELSEWHERE.get(source, ()) else None
            pool = POOLS[source]
            numbers = (whole,) if whole else tuple(n for n in NUMBERS if n <= pool) + ((pool,) if pool < 1000 else ())
            for number, epsilon, seed in itertools.product(numbers, EPSILONS, SEEDS):
                cells.append(Cell(source, shift, number, epsilon, seed))
    random.Random(14).shuffle(cells)
    return cells


def composed_cells() -> list[Cell]:
    """Compositions of shifts of images, in the order of their numbers."""
    every = ((f"{COMPOSED}{number}", Composed(number)) for number in range(PLANNED))
    return [Cell(one.source, name, min(one.records, POOLS[one.source]), one.epsilon, one.seed) for name, one in every]


def composition(shift: str) -> Composed:
    """That of this name."""
    return Composed(int(shift.removeprefix(COMPOSED)))


def target_of(cell: Cell, origin: Origin) -> Labelled:
    """The private records, with labels for the evaluation."""
    generator = torch.Generator().manual_seed(1000 + cell.seed)
    if cell.shift in origin.elsewhere:
        data = origin.elsewhere[cell.shift]
    else:  # a shift of thousands of records more than are used would only cost time
        order = torch.randperm(len(origin.pool), generator=generator)[: 3 * cell.records]
        shift = composition(cell.shift) if cell.shift.startswith(COMPOSED) else SHIFTS[origin.kind][cell.shift]
        data = shift(origin.pool.part(order), generator)
    order = torch.randperm(len(data), generator=generator)[: cell.records]
    return data.part(order)


def run(cell: Cell, origin: Origin) -> dict[str, Any]:
    """See `judged`, of the battery's own target."""
    return judged(cell, origin, target_of(cell, origin))


def judged(cell: Cell, origin: Origin, target: Labelled) -> dict[str, Any]:
    """One release by the curator's mechanism and noise, made in this process, and what the default makes of it."""
    begun = time.monotonic()
    source = origin.source
    generator = torch.Generator().manual_seed(cell.seed)
    with torch.no_grad():
        features = origin.extractor(source.images[: Replay().source_records])
        seen = origin.extractor(target.images)
    noise = secrets.token_bytes(32)
    residuals = released(seen, features, epsilon=cell.epsilon, delta=DELTAS[origin.kind], seed=noise)
    with reporting("", VIEW_STEPS, shown=False) as bar:
        fitted = fit.find_view(origin.extractor, source, residuals, learning_rate=RATE, generator=generator, bar=bar)
    given = delivered(origin.extractor, origin.classifier, fitted, source, seed=cell.seed, generator=generator)
    before = _accuracy(origin.extractor, origin.classifier, target)
    after = _accuracy(given.extractor, given.classifier, target)
    row = asdict(cell) | {
        "n": len(target),
        "outcome": given.outcome,
        "reason": given.reason,
        "source_only": round(before, 2),
        "adapted": round(after, 2),
        "seconds": round(time.monotonic() - begun, 1),
    }
    if fitted.class_draws is not None:
        row["read_on_training_records"] = round(
            _read_on_training_records(origin, fitted, fitted.class_draws, target), 2
        )
    return row


@torch.no_grad()
def _read_on_training_records(origin: Origin, fitted: Fitted, draws: Tensor, target: Labelled) -> float:
    """Accuracy if gains and costs of other priors were read on the records that the model was trained on."""
    scores = origin.classifier(origin.extractor(origin.source.images))
    safe = priors.safe_weights(
        OutOfFold(scores, scores, "of its own"), origin.source.labels, fitted.class_weights, draws
    )
    classifier = origin.classifier if safe.weights is None else priors.with_priors(origin.classifier, safe.weights)
    return _accuracy(origin.extractor, classifier, target)


def run_alone(cell: Cell, data_dir: Path, cache: Path) -> dict[str, Any]:
    """The same in a process of its own, on one thread, with the source's data and model from these folders."""
    torch.set_num_threads(1)
    return run(cell, _origin(cell.source, cell.seed, data_dir, cache))


@functools.cache
def _origin(source: str, seed: int, data_dir: Path, cache: Path) -> Origin:
    return load(source, seed, data_dir=data_dir, cache=cache)


@torch.no_grad()
def _accuracy(extractor: torch.nn.Module, classifier: torch.nn.Module, data: Labelled) -> float:
    right = classifier(extractor(data.images)).argmax(dim=1) == data.labels
    return 100.0 * float(right.double().mean())
