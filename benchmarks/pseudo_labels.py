"""The method `pseudo-labels` on the battery's data and shifts: deep features of small networks, SURF, tables.

    python -m benchmarks.pseudo_labels run --data-dir ../shared/data --minutes 60   # what is not on file
    python -m benchmarks.pseudo_labels summary

needs what `python -m benchmarks.shifts` needs. Of images the extractor is a source-trained network up to its last
hidden layer and the classifier its last layer; of vectors and tables both are the battery's. The release is the real
mechanism's with the accountant's noise, by a mock curator; the whole training is a user's. A hospital holds the first
`records` of a target of at most 4,000 more, on which accuracy is measured; of small ones it is measured on their own
records. `exact` is what ten rounds of self-training reach where all of the hospital's features may be looked at.

Thresholds and settings were chosen on USPS, with other networks (seeds from 20 on) and other draws of the shifts than
these. Two of the rules (no other class frequencies, no large misfit)
were added to an earlier fit after two cells of it (`fashion`, turned, and `adult`, permuted) had lost five points.
Tables have two classes, which the method refuses by default since that fit: they are told apart. A third (moves must
not lose where other frequencies explain the release about as well) came after cells of `half-and-turned` had lost up
to 14 points; changed cells of before are marked `before_last_check`, which can only keep the model there.
"""

from __future__ import annotations

import argparse
import copy
import functools
import itertools
import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks import records
from benchmarks.shifts.cells import DELTAS, ELSEWHERE, KINDS, Cell, target_of
from benchmarks.shifts.made import SHIFTS
from benchmarks.shifts.sources import Origin, load
from dpswd import DomainAdaptation, Hospital, MockCurator, Plan, PseudoLabels, mock_description
from dpswd.public_client.data.datasets import Labelled
from dpswd.public_client.data.source import source_loader

RESULTS = Path(__file__).parent / "results" / "pseudo-labels.json"
CACHE = Path.home() / ".cache" / "dpswd" / "shifts"
TUNED_ON = "usps"
NUMBERS = {"images": (1000, 280), "vectors": (1000,), "tables": (1000, 280)}
EPSILONS = (1.0, 3.0, 8.0)
SEEDS = (0, 1, 2, 3, 4)
_MEASURED_ON = 4000  # fresh records, where there are as many
_FEWEST = 500  # fresh records, below which a hospital's own are measured on
_ROUNDS = 10
_GOOD, _GOOD_RECORDS = (85.0, 95.0), 500
_PLANS: dict[Any, Plan] = {}


def all_cells() -> list[Cell]:
    """In a random order, so that a stopped run is a fair sample; hospitals of few records last."""
    cells: list[Cell] = []
    for few in (False, True):
        some = [
            Cell(source, shift, number, epsilon, seed)
            for source, kind in KINDS.items()
            for shift in (*SHIFTS[kind], *ELSEWHERE.get(source, ()))
            for number, epsilon, seed in itertools.product(NUMBERS[kind], EPSILONS, SEEDS)
            if (number < NUMBERS[kind][0]) is few
        ]
        random.Random(14).shuffle(some)
        cells += some
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run")
    run.add_argument("--data-dir", type=Path, required=True)
    run.add_argument("--cache", type=Path, default=CACHE, help="folder that keeps source-trained models")
    run.add_argument("--source", choices=KINDS, action="append", help="only these; by default all")
    run.add_argument("--shift", action="append", help="only these; by default all")
    run.add_argument("--minutes", type=float, default=60.0)
    records.options(run, RESULTS, seeds=SEEDS)
    records.options(commands.add_parser("summary"), RESULTS)
    arguments = parser.parse_args()
    if arguments.command == "summary":
        print(json.dumps(summary(records.read(arguments.results or RESULTS)), indent=1))
        return
    torch.set_num_threads(1)
    origin = functools.cache(functools.partial(load, data_dir=arguments.data_dir, cache=arguments.cache))
    jobs = [
        (asdict(cell), functools.partial(_measured, cell, origin))
        for cell in all_cells()
        if cell.source in (arguments.source or KINDS)
        and cell.shift in (arguments.shift or [cell.shift])
        and cell.seed in arguments.seeds
    ]
    records.Rows(RESULTS, arguments.results).run(jobs, minutes=arguments.minutes)


def _measured(cell: Cell, origin: Callable[[str, int], Origin]) -> records.Row:
    return run(cell, origin(cell.source, cell.seed))


def run(cell: Cell, origin: Origin) -> dict[str, Any]:
    """One training against a mock curator that holds the cell's records."""
    whole = target_of(replace(cell, records=cell.records + _MEASURED_ON), origin)
    held = whole.part(slice(cell.records))
    fresh = whole.part(slice(cell.records, None))
    fresh = fresh if len(fresh) >= _FEWEST else held
    return asdict(cell) | trained(origin, held, fresh, epsilon=cell.epsilon, delta=DELTAS[origin.kind], seed=cell.seed)


def trained(
    origin: Origin, held: Labelled, fresh: Labelled, *, epsilon: float, delta: float, seed: int
) -> dict[str, Any]:
    """One training against a mock curator.

    Args:
        origin: the team's source and model.
        held: the curator's records.
        fresh: what accuracies are measured on.
        epsilon, delta: of the run.
        seed: of the client's choices.

    Returns:
        Accuracies in percent of source only, of the trained model and of exact self-training, the outcome, and seconds.
    """
    extractor, classifier = parted(origin)
    method = PseudoLabels(least_classes=2) if origin.kind == "tables" else PseudoLabels()
    description = mock_description(
        records=len(held), record_shape=tuple(held.images.shape[1:]), epsilon=epsilon, delta=delta
    )
    with Hospital(MockCurator(description, records=lambda count: held.images[:count])) as hospital:
        key = (description, method, tuple(next(classifier.parameters()).shape))
        if key not in _PLANS:  # calibrating the noise takes longer than most of the rest
            _PLANS[key] = hospital.plan(method, epsilon=epsilon, extractor=extractor, classifier=classifier)
        plan = _PLANS[key]
        model = DomainAdaptation(
            extractor, classifier, hospital=hospital, plan=plan, device="cpu", seed=seed, source_epochs=0
        )
        begun = time.monotonic()
        if words := "; ".join(method.worthless(plan)):
            report: dict[str, Any] = {"outcome": "refused", "finding": words}
        else:
            model.fit(source_loader(origin.source, seed=seed), progress=False)
            (report,) = model.reports
        seconds = time.monotonic() - begun
    with torch.no_grad():
        features = [extractor(data.images) for data in (origin.source, held, fresh)]
        scores = classifier(features[2])
    return {
        "n": len(held),
        "measured_on": len(fresh),
        "source_only": percent(scores, fresh.labels),
        "adapted": round(100.0 * model.score(fresh.images, fresh.labels), 2),
        "exact": percent(
            self_trained(classifier, features[0], origin.source.labels, features[1])(features[2]), fresh.labels
        ),
        "outcome": report["outcome"],
        "finding": report["finding"],
        "seconds": round(seconds, 1),
    }


def parted(origin: Origin) -> tuple[nn.Module, nn.Module]:
    """Copies of the network up to its last hidden layer, and of its last layer."""
    extractor, classifier = copy.deepcopy(origin.extractor), copy.deepcopy(origin.classifier)
    if isinstance(classifier, nn.Sequential):
        return nn.Sequential(extractor, *classifier[:-1]).eval(), classifier[-1].eval()
    return extractor.eval(), classifier.eval()


def percent(scores: Tensor, labels: Tensor) -> float:
    """Of scores (m, C) that are right."""
    return round(100.0 * float((scores.argmax(dim=1) == labels).double().mean()), 2)


def self_trained(classifier: nn.Module, features: Tensor, labels: Tensor, target: Tensor) -> nn.Module:
    """Each round a classifier learns what the last one said of the target's features, beside some of the source."""
    chosen = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))[: len(target)]
    learned, strength = classifier, float(features.norm(dim=1).square().mean()) / 9.0 / len(target)
    for _ in range(_ROUNDS):
        with torch.no_grad():
            said = learned(target).argmax(dim=1)
        learned = copy.deepcopy(classifier).requires_grad_(True)
        optimizer = torch.optim.LBFGS(learned.parameters(), max_iter=40, line_search_fn="strong_wolfe")

        def closure(learned: nn.Module = learned, said: Tensor = said, optimizer: Any = optimizer) -> Tensor:
            optimizer.zero_grad()
            loss = functional.cross_entropy(learned(target), said)
            loss = loss + 0.2 * functional.cross_entropy(learned(features[chosen]), labels[chosen])
            loss = loss + 0.5 * strength * sum(p.square().sum() for p in learned.parameters() if p.dim() > 1)
            torch.autograd.backward(loss)
            return loss

        optimizer.step(closure)
    return learned.requires_grad_(False)


def summary(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Over all cells; over those of untouched sources, by kind, size and epsilon; and of each source."""
    rows = {"all": _row(runs), f"all but {TUNED_ON}": _row([run for run in runs if run["source"] != TUNED_ON])}
    three = [run for run in runs if run["source"] != TUNED_ON and KINDS[run["source"]] != "tables"]
    rows[f"all but {TUNED_ON}, three classes or more"] = _row(three)
    for epsilon in EPSILONS:
        rows[f"good features, epsilon {epsilon:g}"] = _row(good_features(runs, epsilon))
    for kind, numbers in NUMBERS.items():
        for number, epsilon in itertools.product(numbers, EPSILONS):
            rows[f"{kind} but {TUNED_ON}, n {number}, epsilon {epsilon:g}"] = _row(
                untouched(runs, kind, number, epsilon)
            )
    of_images = [run for run in runs if KINDS[run["source"]] == "images" and run["source"] != TUNED_ON]
    for shift in sorted({run["shift"] for run in of_images}):
        rows[f"{shift}, images but {TUNED_ON}"] = _row([run for run in of_images if run["shift"] == shift])
    for source in KINDS:
        rows[source] = _row([run for run in runs if run["source"] == source])
    return rows


def untouched(runs: Sequence[dict[str, Any]], kind: str, number: int, epsilon: float) -> list[dict[str, Any]]:
    """Those of one kind, size and epsilon, on sources that nothing was chosen on."""
    of_kind = [run for run in runs if KINDS[run["source"]] == kind and run["source"] != TUNED_ON]
    return [run for run in of_kind if (run["records"], run["epsilon"]) == (number, epsilon)]


def good_features(runs: Sequence[dict[str, Any]], epsilon: float) -> list[dict[str, Any]]:
    """Shifted images, of 1,000 or so, on which the source's model is still right in 85 to 95 of 100."""
    of_images = [run for run in runs if KINDS[run["source"]] == "images" and run["n"] >= _GOOD_RECORDS]
    low, high = _GOOD
    return [run for run in of_images if run["epsilon"] == epsilon and low <= run["source_only"] <= high]


def _row(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    gains = [run["adapted"] - run["source_only"] for run in runs]
    adapted = [run["adapted"] - run["source_only"] for run in runs if run["outcome"] == "adapted"]
    if not runs:
        return {"cells": 0}
    row = {
        "cells": len(runs),
        "source_only": round(statistics.mean(run["source_only"] for run in runs), 2),
        "adapted_mean": round(statistics.mean(run["adapted"] for run in runs), 2),
        "exact": round(statistics.mean(run["exact"] for run in runs), 2),
        "share_above_minus_1": round(sum(gain > -1.0 for gain in gains) / len(gains), 4),
        "worst": round(min(gains), 2),
        "adapted": len(adapted),
    }
    if adapted:
        row["gained_where_adapted"] = round(sum(gain > 0.0 for gain in adapted) / len(adapted), 4)
        row["gain_where_adapted"] = round(statistics.mean(adapted), 2)
    return row


if __name__ == "__main__":
    main()
