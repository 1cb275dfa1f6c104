"""The sum of class statistics: against a plain loop, in chunks, of several hospitals; its noise; its grid."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pytest
import torch
from hospital import NoNoise

from dpswd.private_curator.core.steps.randomness import SystemNoise
from dpswd.public_client.extractor.tracing import module_weights, trace
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.mechanisms.class_statistics.mechanism import (
    CLASS_STATISTICS,
    StatisticsDeclaration,
    StatisticsRequest,
    Sums,
)
from dpswd.shared.core.mechanisms.interface import DataSetFacts, Facts, Limits, ModelFacts, RunSize, Step
from dpswd.shared.core.noise.feature_map import FeatureMap
from dpswd.shared.core.steps.computing import SecretSample
from dpswd.shared.sandbox.building import Extractor
from dpswd.shared.sandbox.session import DirectSession

INPUTS, FEATURES, CLASSES = 4, 3, 3
DECLARED = StatisticsDeclaration(CLASSES, 0.7, 0.7, 0.0, 2.0, FeatureMap(torch.full((3,), 0.1), torch.full((3,), 0.3)))


class Held:
    def __init__(self, records, labels):
        self.records, self.labels = records, labels

    @property
    def count(self):
        return len(self.records)

    def take(self, indices):
        return self.records[indices]


def made(count, seed=0):
    rng = np.random.default_rng(seed)
    return Held(rng.normal(size=(count, INPUTS)).astype(np.float32), rng.integers(CLASSES, size=count))


@functools.cache
def linear():
    """A module and what a curator makes of it."""
    torch.manual_seed(1)
    module = torch.nn.Linear(INPUTS, FEATURES)
    graph = trace(module, (INPUTS,))
    return module, Extractor(graph, module_weights(module, graph), device=torch.device("cpu"))


def released(held, declared=DECLARED, noise=None, *, records=None):
    module, extractor = linear()
    facts = _facts(records or held.count)
    step = Step(
        run=RunSize(held.count),
        facts=facts,
        sample=SecretSample(held, held.labels, None),
        model=DirectSession(extractor),
        noise=noise or NoNoise(),
        device=torch.device("cpu"),
        fresh_seed=lambda: bytes(32),
        reached=lambda _: None,
    )
    reply = CLASS_STATISTICS.compute(declared, StatisticsRequest(), step)
    return reply, Sums.of(reply, declared, FEATURES), module


def _facts(records):
    return Facts(DataSetFacts(records, (INPUTS,), CLASSES), ModelFacts((INPUTS,), FEATURES, {}))


def test_the_sums_are_those_of_a_plain_loop():
    held = made(50)
    reply, sums, module = released(held)
    counts, features, moments = np.zeros(CLASSES), np.zeros((CLASSES, FEATURES)), np.zeros((FEATURES, FEATURES))
    with torch.no_grad():
        raw = module(torch.from_numpy(held.records))
    for row, label in zip(raw, held.labels, strict=True):
        u = ((row - 0.1) * 0.3).double().numpy() / 0.5
        u = np.round(2**13 * u / max(1.0, np.linalg.norm(u))) / (2**13 + 1)  # whole numbers over the radius
        counts[label] += 1
        features[label] += u
        moments += np.outer(u, u)
    step = reply.sum.step
    np.testing.assert_allclose(sums.counts, counts, atol=2 * step)
    np.testing.assert_allclose(sums.features, features, atol=3e-4)  # two records that round the other way
    np.testing.assert_allclose(sums.moments, moments, atol=6e-4)
    assert (sums.moments == sums.moments.T).all()


def test_without_second_moments_there_are_none_and_the_rest_is_the_same():
    held = made(50)
    alone = replace(DECLARED, moment_weight=0.0)
    reply, sums, _ = released(held, alone)
    assert sums.moments is None
    assert reply.sum.values.shape == (CLASSES * (1 + FEATURES),)
    np.testing.assert_allclose(sums.features, released(held)[1].features, atol=1e-5)
    with pytest.raises(InvalidValue, match="releases 18"):
        Sums.of(reply, DECLARED, FEATURES)


def test_centring_takes_off_what_the_classes_have_in_common():
    held = made(50)
    plain, centred = released(held)[1], released(held, replace(DECLARED, centring=1.0))[1]
    np.testing.assert_allclose(centred.features, plain.features - plain.features.mean(axis=0), atol=1e-4)
    np.testing.assert_allclose(centred.counts, plain.counts - plain.counts.mean(), atol=1e-4)
    np.testing.assert_allclose(centred.moments, plain.moments, atol=1e-4)


def test_hospitals_add_up():
    one, other = made(40, 1), made(60, 2)
    both = Held(np.concatenate([one.records, other.records]), np.concatenate([one.labels, other.labels]))
    apart = released(one)[1].features + released(other)[1].features
    np.testing.assert_allclose(apart, released(both)[1].features, atol=1e-5)


@pytest.mark.long
def test_every_coordinate_has_the_declared_noise():
    """1,000 releases of 18 values: a variance further than 6.6% from sigma squared has a chance below 1e-7."""
    held = made(5)
    exact = released(held)[0].sum.to_numpy()
    drawn = np.stack([released(held, noise=SystemNoise())[0].sum.to_numpy() - exact for _ in range(1000)])
    assert abs(drawn.var() / DECLARED.sigma**2 - 1.0) < 0.066
    assert abs(drawn.mean()) < 6 * DECLARED.sigma / np.sqrt(drawn.size)
    per_value = drawn.var(axis=0) / DECLARED.sigma**2
    assert np.abs(per_value - 1.0).max() < 0.28  # 6.2 deviations of one coordinate's variance, 18 coordinates
    correlation = np.corrcoef(drawn.T) - np.eye(drawn.shape[1])
    assert np.abs(correlation).max() < 0.2  # 6.3 deviations, 153 pairs


def test_rounding_costs_little_however_many_coordinates_change():
    """300 features and 60,000 records at the noise of epsilon 1: the grid adds less than a fiftieth to the price."""
    facts = Facts(DataSetFacts(60_000, (INPUTS,), 10), ModelFacts((INPUTS,), 300, {}))
    (part,) = CLASS_STATISTICS.parts(StatisticsDeclaration(10, 0.7, 0.7, 0.0, 7.5), RunSize(60_000), facts)
    assert part.changed == 2 * 301 + 300 * 301 // 2
    assert part.grid_step * np.sqrt(part.changed) < 0.02 * part.sensitivity


def test_what_a_declaration_asks_is_refused_where_it_does_not_fit():
    def fields(declared, facts, limits=Limits()):  # noqa: B008 - a frozen value
        return {field for field, _ in CLASS_STATISTICS.violations(declared, RunSize(50), facts, limits)}

    facts = _facts(50)
    assert fields(DECLARED, facts) == set()
    assert fields(replace(DECLARED, classes=4), facts) == {"declaration.classes"}
    assert fields(replace(DECLARED, sigma=1e-9), facts) == {"declaration.sigma"}
    wide = replace(facts, model=ModelFacts((INPUTS,), 60_000, {}))
    declared = replace(DECLARED, feature_map=None)
    assert fields(declared, wide) == {"parameters.graph_digest"}
    assert fields(replace(declared, moment_weight=0.0), wide) == set()
    assert fields(DECLARED, facts, Limits(max_message_bytes=4_096 + 4)) == {"parameters.graph_digest"}
