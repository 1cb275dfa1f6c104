"""What a sorted release's sample costs against a sum over every record: ``python -m benchmarks.sampling_cost``.

A made population: ten classes around means of their own in 64 features, all moved by one shift that the client wants to
know. It estimates the population's mean from

* quantile coefficients (their first one is the mean along its direction; 200 directions, least squares) of a secret
  sample of at most 65,536 records, amplified for the sample;
* class statistics of every record (the class sums added up);

each calibrated to the same epsilon and delta, and computed by the mechanisms' own code. The error is the distance of
the estimated mean from the population's, in units of a feature's standard deviation, mean over repeats. Accuracy is
that of the source's nearest-mean classifier on moved records after the estimated shift is taken off; without an error,
and without any correction, it is given beside.
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
from dpswd.public_client.extractor.tracing import module_weights, trace
from dpswd.shared.accounting.calibration import calibrate_sigma
from dpswd.shared.core.mechanisms.class_statistics.mechanism import StatisticsDeclaration, StatisticsReply, Sums
from dpswd.shared.core.mechanisms.declared import Asked, Declared
from dpswd.shared.core.mechanisms.interface import DataSetFacts, Facts, ModelFacts, RunSize
from dpswd.shared.core.mechanisms.sliced import SlicedDeclaration, SlicedReply
from dpswd.shared.core.noise.clipping import RECORD_NORM
from dpswd.shared.core.noise.directions import directions
from dpswd.shared.core.noise.feature_map import FeatureMap
from dpswd.shared.core.steps.computing import Laboratory, computed
from dpswd.shared.core.wire.limits import MAX_BATCH_SIZE
from dpswd.shared.published_mechanisms import ALL_MECHANISMS
from dpswd.shared.sandbox.building import Extractor
from dpswd.shared.sandbox.session import DirectSession

RESULTS = Path(__file__).parent / "results" / "sampling-cost.json"
D, CLASSES, DIRECTIONS, DELTA = 64, 10, 200, 1e-9
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
    session = DirectSession(Extractor(graph, module_weights(module, graph), device=CPU))
    return noised, own.reply.from_bytes(computed(Asked(run, own.request()), session, lab))


def estimates(made: np.ndarray, labels: np.ndarray, public: FeatureMap, epsilon: float) -> dict[str, np.ndarray]:
    """The population's mean in the map's coordinates, by each way."""
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
        "every record": Sums.of(reply, declared, D).features.sum(axis=0) * RECORD_NORM / len(made),
    }


def measured(records: int, epsilon: float, seeds: Sequence[int]) -> dict[str, Any]:
    errors: dict[str, list[float]] = {}
    accuracies: dict[str, list[float]] = {}
    for seed in seeds:
        made, labels, means, shift = population(records, seed)
        center, scale = means.mean(axis=0), 0.5 / np.sqrt(3.0 * D)  # public: few records are clipped
        public = FeatureMap(torch.from_numpy(center.astype(np.float32)), torch.full((D,), scale, dtype=torch.float32))
        mapped = torch.cat([public.clipped(part) for part in torch.from_numpy(made).split(65_536)]).numpy()
        mean = mapped.mean(axis=0, dtype=np.float64)
        tested, kinds = made[:20_000].astype(np.float64), labels[:20_000]
        for name, one in estimates(made, labels, public, epsilon).items():
            error = (one - mean) / scale
            errors.setdefault(name, []).append(float(np.linalg.norm(error)))
            accuracies.setdefault(name, []).append(_accuracy(tested - shift - error, kinds, means))
        accuracies.setdefault("no error", []).append(_accuracy(tested - shift, kinds, means))
        accuracies.setdefault("no correction", []).append(_accuracy(tested, kinds, means))
    return {
        "delta": DELTA,
        "error": {name: float(np.mean(values)) for name, values in errors.items()},
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
