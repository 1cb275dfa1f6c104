"""A second list, of other data and shifts: a check of the default, with small models.

    python -m benchmarks.shifts.unseen run --minutes 30    # in a random order, behind what is on file
    python -m benchmarks.shifts.unseen summary

Data: scikit-learn's digits and breast cancer, made mixtures, word counts and time series. Models: trained as usual, or
*by heart*: on 400 records, a tenth of which bear a wrong label, until every one is told right. Needs no data folder.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import math
import random
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_digits
from torch import Tensor, nn

from benchmarks import records
from benchmarks.shifts.cells import Cell, judged
from benchmarks.shifts.made import Shift
from benchmarks.shifts.sources import Origin
from benchmarks.shifts.summary import unseen
from benchmarks.vectors import Domain, standardised
from dpswd.public_client.data.datasets import Labelled
from dpswd.public_client.data.source import source_loader, train_source

RESULTS = Path(__file__).parents[1] / "results" / "shifts_unseen.jsonl"
NUMBERS = (200, 500, 1000, 2000, 5000)
EPSILONS = (0.3, 1.0, 3.0)
SEEDS = (0, 1, 2)
_MANY = 12_000  # made records
_SOURCE = 2500  # at most, and at most half of them
_BY_HEART = 400  # source records that are learned by heart
_WRONG = 0.1  # of their labels
_MOST_EPOCHS = 600
_MOST = {"digits": 1000, "digits by heart": 1000, "cancer": 500}  # above that the number is the pool's again


def _mixture(generator: torch.Generator) -> Labelled:
    """8 classes in 16 dimensions, each of two groups."""
    centres = torch.randn(8, 2, 16, generator=generator)
    labels = torch.randint(8, (_MANY,), generator=generator)
    group = (torch.rand(_MANY, generator=generator) < 0.3).long()
    return Labelled(centres[labels, group] + torch.randn(_MANY, 16, generator=generator), labels)


def _counts(generator: torch.Generator) -> Labelled:
    """6 kinds of text over 100 words: each text has a mixture of topics around its kind's, and a length of its own."""
    words = torch.distributions.Dirichlet(torch.full((100,), 0.1))
    with torch.random.fork_rng():
        torch.manual_seed(int(torch.randint(2**31, (1,), generator=generator)))
        topics = words.sample((6,))
        labels = torch.randint(6, (_MANY,))
        mixed = torch.distributions.Dirichlet(0.4 + 1.2 * torch.eye(6)[labels]).sample()
        lengths = torch.exp(3.5 + 0.5 * torch.randn(_MANY, 1))
        counts = torch.poisson(lengths * (mixed @ topics))
    return Labelled(torch.log1p(counts), labels)


def _series(generator: torch.Generator) -> Labelled:
    """5 classes of waves of 48 moments: frequency and shape tell them, phase, size and drift do not."""
    labels = torch.randint(5, (_MANY,), generator=generator)
    t = torch.linspace(0.0, 1.0, 48)
    phase, size, drift = (torch.rand(_MANY, 1, generator=generator) for _ in range(3))
    cycles = torch.tensor([2.0, 2.0, 3.0, 3.0, 4.5])[labels][:, None]
    angle = 2 * math.pi * (cycles * (1.0 + 0.1 * (drift - 0.5)) * t + phase)
    wave = torch.where(labels[:, None] % 2 == 0, torch.sin(angle), torch.sign(torch.sin(angle)))
    noise = 0.6 * torch.randn(_MANY, 48, generator=generator)
    return Labelled(((0.5 + size) * wave + drift * t + noise)[:, None], labels)


def _bundled(records: Any, labels: Any, shape: tuple[int, ...]) -> Callable[[torch.Generator], Labelled]:
    values = torch.from_numpy(np.asarray(records, dtype=np.float32)).reshape(-1, *shape)
    return lambda _: Labelled(values, torch.from_numpy(np.asarray(labels, dtype=np.int64)))


def _data(name: str, generator: torch.Generator) -> Labelled:
    if name == "digits":
        bundle = load_digits()
        return _bundled(bundle.data / 8.0 - 1.0, bundle.target, (1, 8, 8))(generator)
    if name == "cancer":
        return _bundled(*load_breast_cancer(return_X_y=True), (30,))(generator)
    return {"mixture": _mixture, "counts": _counts, "series": _series}[name](generator)


def _network(name: str, source: Labelled) -> tuple[nn.Module, nn.Module]:
    classes, shape = int(source.labels.max()) + 1, source.images.shape[1:]
    if name == "digits":
        first = nn.Sequential(
            nn.Conv2d(1, 12, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(108, 32), nn.ReLU()
        )
        return first, nn.Linear(32, classes)
    if name == "series":
        first = nn.Sequential(
            nn.Conv1d(1, 16, 7, 2), nn.ReLU(), nn.Conv1d(16, 32, 5, 2), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten()
        )
        return first, nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, classes))
    standard = standardised(Domain(name, source.images.numpy(), source.labels.numpy()))
    if name == "mixture":  # the features are the records' own, and the classifier learns by heart what is learned so
        return standard, nn.Sequential(nn.Linear(shape[0], 256), nn.ReLU(), nn.Linear(256, classes))
    return nn.Sequential(
        standard, nn.Linear(standard.out_features, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU()
    ), nn.Linear(32, classes)


@functools.cache
def origin(name: str, seed: int) -> Origin:
    """Source, pool and model; "mixture by heart" is the mixture's model that knows its records by heart."""
    data_name, _, heart = name.partition(" ")
    data = _data(data_name, torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(50 + seed)
    order = torch.randperm(len(data), generator=generator)
    count = min(_SOURCE, len(data) // 2)
    pool = data.part(order[count:])
    source = data.part(order[: min(count, _BY_HEART)] if heart else order[:count])
    torch.manual_seed(seed)
    extractor, classifier = _network(data_name, source)
    if heart:
        classes = int(source.labels.max()) + 1
        wrong = torch.rand(len(source), generator=generator) < _WRONG
        other = torch.randint(classes, (len(source),), generator=generator)
        source = Labelled(source.images, torch.where(wrong, other, source.labels))
    loader = source_loader(source, batch_size=64, seed=seed)
    for _ in range(_MOST_EPOCHS // 20 if heart else 1):
        train_source(extractor, classifier, loader, epochs=20)
        with torch.no_grad():
            right = classifier(extractor(source.images)).argmax(dim=1) == source.labels
        if bool(right.all()):
            break
    return Origin("tables", source, pool, {}, extractor, classifier)


def _uniform(generator: torch.Generator, low: float, high: float) -> float:
    return low + (high - low) * float(torch.rand((), generator=generator))


def _thinned(data: Labelled, shares: Tensor, generator: torch.Generator) -> Labelled:
    """Each record stays with a probability of its own, (m,)."""
    return data.part(torch.rand(len(data), generator=generator) < shares)


def _none(data: Labelled, _: torch.Generator) -> Labelled:
    return data


def _tilted(data: Labelled, generator: torch.Generator) -> Labelled:
    """Frequencies of the classes that span a factor of 20, in random order."""
    classes = int(data.labels.max()) + 1
    shares = torch.exp(-3.0 * torch.randperm(classes, generator=generator) / max(1, classes - 1))
    return _thinned(data, shares[data.labels], generator)


def _first_only(data: Labelled, generator: torch.Generator) -> Labelled:
    """One class in three, chosen at random, and at least two."""
    classes = int(data.labels.max()) + 1
    shares = torch.zeros(classes).index_fill(
        0, torch.randperm(classes, generator=generator)[: max(2, classes // 3)], 1.0
    )
    if classes == 2:
        shares = torch.tensor([1.0, 0.05])
    return _thinned(data, shares[data.labels], generator)


def _covariate(data: Labelled, generator: torch.Generator) -> Labelled:
    """Records far along a random direction are three times rarer."""
    flat = data.images.flatten(1)
    along = (flat / flat.std(dim=0).clamp(min=1e-6)) @ torch.randn(flat.shape[1], generator=generator)
    return _thinned(data, torch.where(along > along.median(), 1.0 / 3.0, 1.0), generator)


def _tilted_and_covariate(data: Labelled, generator: torch.Generator) -> Labelled:
    return _covariate(_tilted(data, generator), generator)


def _changed(data: Labelled, values: Tensor) -> Labelled:
    return Labelled(values.reshape(data.images.shape), data.labels)


def _gaps(data: Labelled, generator: torch.Generator) -> Labelled:
    """Half of the classes lack a third of the values, in half of their records: the median stands for them."""
    flat, classes = data.images.flatten(1), int(data.labels.max()) + 1
    columns = torch.rand(flat.shape[1], generator=generator) < 1.0 / 3.0
    lacking = torch.randperm(classes, generator=generator)[data.labels] < (classes + 1) // 2
    lacking &= torch.rand(len(data), generator=generator) < 0.5
    return _changed(data, torch.where(lacking[:, None] & columns, flat.median(dim=0).values, flat))


def _saturated(data: Labelled, generator: torch.Generator) -> Labelled:
    """Values end where a fifth to a third of each column's lie beyond."""
    flat = data.images.flatten(1)
    return _changed(data, torch.minimum(flat, flat.quantile(_uniform(generator, 0.67, 0.8), dim=0)))


def _heavy_tails(data: Labelled, generator: torch.Generator) -> Labelled:
    """Noise of Student's t with two degrees of freedom, 0.3 deviations wide."""
    flat = data.images.flatten(1)
    normal, square = torch.randn(flat.shape, generator=generator), torch.rand(flat.shape, generator=generator)
    noise = normal / (-torch.log(square.clamp(min=1e-6))).sqrt()
    return _changed(data, flat + 0.3 * flat.std(dim=0) * noise.clamp(-20.0, 20.0))


def _rotated(data: Labelled, generator: torch.Generator) -> Labelled:
    """A third of the columns in pairs, each turned by 0.6 about its mean, in units of deviations."""
    flat = data.images.flatten(1).clone()
    mean, spread = flat.mean(dim=0), flat.std(dim=0).clamp(min=1e-6)
    standard = (flat - mean) / spread
    pairs = torch.randperm(flat.shape[1], generator=generator)[: 2 * max(1, flat.shape[1] // 6)].reshape(-1, 2)
    first, second = standard[:, pairs[:, 0]].clone(), standard[:, pairs[:, 1]].clone()
    standard[:, pairs[:, 0]] = math.cos(0.6) * first - math.sin(0.6) * second
    standard[:, pairs[:, 1]] = math.sin(0.6) * first + math.cos(0.6) * second
    return _changed(data, standard * spread + mean)


def _duplicates(data: Labelled, generator: torch.Generator) -> Labelled:
    """A tenth of the records, each many times."""
    few = torch.randperm(len(data), generator=generator)[: max(20, len(data) // 10)]
    return data.part(few[torch.randint(len(few), (len(data),), generator=generator)])


def _subgroup(data: Labelled, generator: torch.Generator) -> Labelled:
    """Of half of the classes one side alone comes, along the class's first principal axis."""
    flat, classes = data.images.flatten(1), int(data.labels.max()) + 1
    shares = torch.ones(len(data))
    for number in torch.randperm(classes, generator=generator)[: (classes + 1) // 2].tolist():
        own = (data.labels == number).nonzero()[:, 0]
        centred = flat[own] - flat[own].mean(dim=0)
        axis = torch.linalg.eigh(centred.T @ centred)[1][:, -1]
        shares[own[centred @ axis > 0.0]] = 0.0
    return _thinned(data, shares, generator)


def _stranger(data: Labelled, generator: torch.Generator) -> Labelled:
    """One class is another one than the source knows: its records are halfway between others'; no answer is right."""
    flat, labels = data.images.flatten(1).clone(), data.labels.clone()
    own = (labels == int(torch.randint(int(labels.max()) + 1, (1,), generator=generator))).nonzero()[:, 0]
    one, other = (torch.randint(len(flat), (len(own),), generator=generator) for _ in range(2))
    flat[own] = 0.5 * (data.images.flatten(1)[one] + data.images.flatten(1)[other])
    labels[own] = -1
    return Labelled(flat.reshape(data.images.shape), labels)


SHIFTS: dict[str, Shift] = {
    "none": _none,
    "tilted": _tilted,
    "third": _first_only,
    "covariate": _covariate,
    "tilted and covariate": _tilted_and_covariate,
    "gaps": _gaps,
    "saturated": _saturated,
    "heavy tails": _heavy_tails,
    "rotated": _rotated,
    "duplicates": _duplicates,
    "subgroup": _subgroup,
    "stranger": _stranger,
}
SOURCES = ("digits", "cancer", "mixture", "counts", "series", "digits by heart", "mixture by heart", "counts by heart")


def cells() -> list[Cell]:
    """All, in one fixed random order."""
    made = [Cell(*key) for key in itertools.product(SOURCES, SHIFTS, NUMBERS, EPSILONS, SEEDS)]
    random.Random(15).shuffle(made)
    return [cell for cell in made if cell.records <= _MOST.get(cell.source, cell.records)]


def target_of(cell: Cell, pool: Labelled) -> Labelled:
    """The private records; of a small pool fewer than the cell's number."""
    generator = torch.Generator().manual_seed(2000 + cell.seed)
    data = SHIFTS[cell.shift](pool.part(torch.randperm(len(pool), generator=generator)), generator)
    return data.part(torch.randperm(len(data), generator=generator)[: cell.records])


def run(cell: Cell) -> dict[str, Any]:
    """See `cells.judged`."""
    own = origin(cell.source, cell.seed)
    return judged(cell, own, target_of(cell, own.pool))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    more = commands.add_parser("run", help="cells that are not on file, in the same order")
    more.add_argument("--minutes", type=float, required=True, help="begin no cell after these")
    more.add_argument("--sources", default=None, help="with commas; these alone")
    more.add_argument("--shifts", default=None, help="these alone")
    summarise = commands.add_parser("summary", help="what is on file")
    records.options(more, RESULTS, seeds=sorted({cell.seed for cell in cells()}))
    records.options(summarise, RESULTS)
    arguments = parser.parse_args()
    if arguments.command == "summary":
        print(unseen(records.read(arguments.results or RESULTS)))
        return
    torch.set_num_threads(1)
    jobs = [
        (asdict(cell), functools.partial(run, cell))
        for cell in cells()
        if cell.seed in arguments.seeds
        and all(
            asked is None or own in asked.split(",")
            for own, asked in ((cell.source, arguments.sources), (cell.shift, arguments.shifts))
        )
    ]
    records.Rows(RESULTS, arguments.results).run(jobs, minutes=arguments.minutes)


if __name__ == "__main__":
    main()
