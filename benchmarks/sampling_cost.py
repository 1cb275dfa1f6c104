"""What a sorted release's sample costs against a sum over every record: ``python -m benchmarks.sampling_cost``.

A made population: ten classes around means of their own in 64 features, all moved by one shift that the client wants to
know. It estimates the population's mean from

* quantile coefficients (their first one is the mean along its direction; 200 directions, least squares) of a secret
  sample of at most 65,536 records, amplified for the sample;
* distribution functions of every record (the same; 256 orthogonal directions);
* class statistics of every record (the class sums added up);

each calibrated to the same epsilon and delta, and computed by the mechanisms' own code. The error is the distance of
the estimated mean from the population's, in units of a feature's standard deviation, mean over repeats. Accuracy is
that of the source's nearest-mean classifier on moved records after the estimated shift is taken off; without an error,
and without any correction, it is given beside.

Shapes: the law of the projections on each direction, as 3 and 16 quantile coefficients of the sample tell it, and as 16
and 64 coefficients of the distribution functions do; the error is the first Wasserstein distance from the population's
law along the same direction, mean over directions, in units of a feature's standard deviation.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.records import Rows, options
from dpswd.private_curator.core.steps.randomness import SystemNoise, fresh_seed
from dpswd.private_curator.records.target import Target
from dpswd.public_client.extractor.tracing import trace
from dpswd.shared.accounting.calibration import calibrate_sigma
from dpswd.shared.core.mechanisms.class_statistics.mechanism import StatisticsDeclaration, StatisticsReply, Sums
from dpswd.shared.core.mechanisms.declared import Asked, Declared
from dpswd.shared.core.mechanisms.interface import DataSetFacts, Facts, ModelFacts, RunSize
from dpswd.shared.core.mechanisms.quantiles.coefficients import cosine_basis
from dpswd.shared.core.mechanisms.sliced import SlicedDeclaration, SlicedReply
from dpswd.shared.core.noise.clipping import RECORD_NORM
from dpswd.shared.core.noise.directions import directions
from dpswd.shared.core.noise.feature_map import FeatureMap
from dpswd.shared.core.steps.computing import Laboratory, computed
from dpswd.shared.core.wire.limits import MAX_BATCH_SIZE
from dpswd.shared.published_mechanisms import ALL_MECHANISMS
from dpswd.shared.published_mechanisms.distributions.encoding import THRESHOLDS
from dpswd.shared.published_mechanisms.distributions.histograms import public_directions
from dpswd.shared.published_mechanisms.distributions.mechanism import (
    DistributionsDeclaration,
    DistributionsReply,
    Released,
)
from dpswd.shared.sandbox.building import Extractor
from dpswd.shared.sandbox.session import DirectSession
from dpswd.shared.sandbox.weights import module_weights

RESULTS = Path(__file__).parent / "results" / "sampling-cost.json"
D, CLASSES, DIRECTIONS, DELTA = 64, 10, 200, 1e-9
GROUPS, WINDOW = 4, 4.0  # of orthogonal directions, and the window's width times the root of d
LEVELS = 2048  # quantile levels at which laws are compared
CPU = torch.device("cpu")


def population(records: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Records (n, d), labels, the classes' means without the shift, and the shift."""
    rng = np.random.default_rng(seed)
    means, shift = rng.normal(size=(CLASSES, D)) * 0.35, rng.normal(size=D) * 0.5
    labels = rng.integers(CLASSES, size=records)
    made = rng.standard_normal((records, D), dtype=np.float32)
    made += (means + shift)[labels].astype(np.float32)
    return made, labels, means, shift


def released(
    mechanism: str, declared: object, made: np.ndarray, labels: np.ndarray, epsilon: float
) -> tuple[object, object]:
    """The declaration with its noise, and the reply of one step."""
    module = nn.Identity()
    graph = trace(module, (D,))
    facts = Facts(DataSetFacts(len(made), (D,), CLASSES), ModelFacts.of(graph))
    own = ALL_MECHANISMS[mechanism]
    size = RunSize(len(made) if own.whole else min(len(made), MAX_BATCH_SIZE))

    def event(sigma: float) -> object:
        return Declared(own, replace(declared, sigma=sigma), size, facts).event

    noised = replace(declared, sigma=calibrate_sigma(event, epsilon=epsilon, delta=DELTA))
    run = Declared(own, noised, size, facts)
    lab = Laboratory(Target(made, (D,)), labels, SystemNoise(), CPU, fresh_seed, lambda _: None)
    session = DirectSession(Extractor.from_graph(graph, module_weights(module, graph), device=CPU))
    return noised, own.reply.from_bytes(computed(Asked(run, own.request()), session, lab))


def quantiles(
    made: np.ndarray, labels: np.ndarray, public: FeatureMap, epsilon: float, coefficients: int
) -> tuple[np.ndarray, np.ndarray]:
    """Directions (d, k), and quantiles along each at `LEVELS` levels, (levels, k), of a secret sample."""
    _, reply = released("quantiles", SlicedDeclaration(DIRECTIONS, 1.0, coefficients, public), made, labels, epsilon)
    assert isinstance(reply, SlicedReply)
    values = reply.values.to_numpy() / np.sqrt(min(len(made), MAX_BATCH_SIZE))  # (L, k)
    basis = cosine_basis(LEVELS, coefficients).numpy() * np.sqrt(LEVELS)
    return directions(reply.seed, D, DIRECTIONS).numpy().astype(np.float64), np.sort(basis @ values, axis=0)


def distributions(
    made: np.ndarray, labels: np.ndarray, public: FeatureMap, epsilon: float, coefficients: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Directions (d, k), quantiles as above, and the mean along each (k,), of every record."""
    window = WINDOW / np.sqrt(D)
    declared, reply = released(
        "distributions", DistributionsDeclaration(0, GROUPS * D, coefficients, window, 0.0, 1.0, 0, public),
        made, labels, epsilon,
    )  # fmt: skip
    assert isinstance(declared, DistributionsDeclaration)
    assert isinstance(reply, DistributionsReply)
    shares = Released.of(reply, declared).coefficients[0] / len(made)  # (L, k)
    edges = (np.arange(THRESHOLDS) - THRESHOLDS / 2 + 0.5) * window / THRESHOLDS
    basis = cosine_basis(THRESHOLDS, coefficients).numpy()
    # What each record adds is relative to a record at 0, whose coefficients are public: the sum of both is smooth.
    above = basis @ (shares + (basis.T @ (edges < 0))[:, None])  # (M, k): share of the records above, noised
    levels = (np.arange(LEVELS) + 0.5) / LEVELS
    # The noised function need not fall: its levels are brought into order, and so stand for the nearest one that does.
    ordered = np.sort(np.clip(1.0 - above, 0.0, 1.0), axis=0)
    quantiles = np.stack([np.interp(levels, ordered[:, j], edges) for j in range(ordered.shape[1])], axis=1)
    return public_directions(0, D, GROUPS * D).numpy(), quantiles, shares[0] * window / np.sqrt(THRESHOLDS)


def shape_error(mapped: np.ndarray, U: np.ndarray, quantiles: np.ndarray) -> float:
    """Mean over directions of the first Wasserstein distance from mapped records' law."""
    levels = (np.arange(LEVELS) + 0.5) / LEVELS
    chosen = range(0, U.shape[1], U.shape[1] // 32)  # directions: sorting a million records along each takes a while
    return float(np.mean([np.abs(quantiles[:, j] - np.quantile(mapped @ U[:, j], levels)).mean() for j in chosen]))


def estimates(
    made: np.ndarray, labels: np.ndarray, public: FeatureMap, epsilon: float
) -> tuple[dict[str, np.ndarray], dict[str, tuple[np.ndarray, np.ndarray]]]:
    """The population's mean in the map's coordinates, by each way; and its laws along directions (U, quantiles)."""
    laws = {}
    for coefficients in (3, 16):
        laws[f"sample, {coefficients}"] = quantiles(made, labels, public, epsilon, coefficients)
    for coefficients in (16, 64):
        U, values, along_every = distributions(made, labels, public, epsilon, coefficients)
        laws[f"every record, {coefficients}"] = (U, values)
    _, reply = released("quantiles", SlicedDeclaration(DIRECTIONS, 1.0, 1, public), made, labels, epsilon)
    assert isinstance(reply, SlicedReply)
    V = directions(reply.seed, D, DIRECTIONS).numpy().astype(np.float64)
    along = reply.values.to_numpy().reshape(-1) / np.sqrt(min(len(made), MAX_BATCH_SIZE))
    declared, reply = released(
        "class_statistics", StatisticsDeclaration(CLASSES, 0.0, 0.0, 0.0, 1.0, public), made, labels, epsilon
    )
    assert isinstance(reply, StatisticsReply)
    assert isinstance(declared, StatisticsDeclaration)
    return {
        "sample": np.linalg.lstsq(V.T, along, rcond=None)[0],
        "every record, distributions": np.linalg.lstsq(U.T, along_every, rcond=None)[0],
        "every record": Sums.of(reply, declared, D).features.sum(axis=0) * RECORD_NORM / len(made),
    }, laws


def measured(records: int, epsilon: float, seeds: Sequence[int]) -> dict[str, Any]:
    errors: dict[str, list[float]] = {}
    shapes: dict[str, list[float]] = {}
    accuracies: dict[str, list[float]] = {}
    for seed in seeds:
        made, labels, means, shift = population(records, seed)
        center, scale = means.mean(axis=0), 0.5 / np.sqrt(3.0 * D)  # public: few records are clipped
        public = FeatureMap(torch.from_numpy(center.astype(np.float32)), torch.full((D,), scale, dtype=torch.float32))
        mapped = torch.cat([public.clipped(part) for part in torch.from_numpy(made).split(65_536)]).numpy()
        mean = mapped.mean(axis=0, dtype=np.float64)
        estimated, laws = estimates(made, labels, public, epsilon)
        for name, (U, law) in laws.items():
            shapes.setdefault(name, []).append(shape_error(mapped, U, law) / scale)
        tested, kinds = made[:20_000].astype(np.float64), labels[:20_000]
        for name, one in estimated.items():
            error = (one - mean) / scale
            errors.setdefault(name, []).append(float(np.linalg.norm(error)))
            accuracies.setdefault(name, []).append(_accuracy(tested - shift - error, kinds, means))
        accuracies.setdefault("no error", []).append(_accuracy(tested - shift, kinds, means))
        accuracies.setdefault("no correction", []).append(_accuracy(tested, kinds, means))
    return {
        "delta": DELTA,
        "error": {name: float(np.mean(values)) for name, values in errors.items()},
        "shape_error": {name: float(np.mean(values)) for name, values in shapes.items()},
        "accuracy": {name: float(np.mean(values)) for name, values in accuracies.items()},
    }


def _accuracy(records: np.ndarray, labels: np.ndarray, means: np.ndarray) -> float:
    scores = records @ means.T - 0.5 * (means * means).sum(axis=1)
    return 100.0 * float((scores.argmax(axis=1) == labels).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 0.1])
    options(parser, RESULTS, seeds=(0, 1, 2))
    chosen = parser.parse_args()
    settings = itertools.product(chosen.records, chosen.epsilon)
    Rows(RESULTS, chosen.results).run(
        ({"records": n, "epsilon": epsilon, "seeds": [*chosen.seeds]}, partial(measured, n, epsilon, chosen.seeds))
        for n, epsilon in settings
    )


if __name__ == "__main__":
    main()
