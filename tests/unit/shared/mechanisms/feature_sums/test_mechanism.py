"""Feature sums by hand: the worst pair, what is left out, the noise's deviation, shards with a step's own values."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from dpswd.private_curator.steps.shards import shards
from dpswd.public_client.extractor.tracing import module_weights, trace
from dpswd.shared.core.mechanisms.feature_sums.mechanism import FEATURE_SUMS, SumsDeclaration, SumsRequest
from dpswd.shared.core.mechanisms.interface import DataSetFacts, Facts, ModelFacts, RunSize
from dpswd.shared.core.mechanisms.linear import LinearRun, added
from dpswd.shared.core.noise.feature_map import FeatureMap
from dpswd.shared.core.steps.computing import SecretSample
from dpswd.shared.sandbox.building import Extractor
from dpswd.shared.sandbox.session import DirectSession
from dpswd.shared.seeded_noise import SeededNoise

D, CPU = 5, torch.device("cpu")


class _Table:
    def __init__(self, values):
        self.values = values

    @property
    def count(self):
        return len(self.values)

    def take(self, indices):
        return self.values[indices]


class _Silence:
    def grid_gaussian(self, shape, *, sigma, step):
        return np.zeros(shape, dtype=np.int64)


def _model():
    made = nn.Linear(D, D, bias=False)
    with torch.no_grad():
        made.weight.copy_(torch.eye(D))
    graph = trace(made, (D,))
    return graph, DirectSession(Extractor(graph, module_weights(made, graph), device=CPU))


GRAPH, MODEL = _model()


def _facts(records):
    return Facts(DataSetFacts(records=records, record_shape=(D,)), ModelFacts.of(GRAPH))


def _released(values, declared, request=None, *, noise=None, parts=1):
    """The reply, by as many shards as are wanted."""
    facts = _facts(len(values))
    run = LinearRun(FEATURE_SUMS, FEATURE_SUMS.stepped(declared, request or SumsRequest()), facts)
    everything = SecretSample(_Table(values.astype(np.float32)), None, None)
    sums = [run.summed(shard, everything, MODEL, CPU) for shard in shards(facts, parts)]
    total = added(sums, records=len(values))
    return FEATURE_SUMS.released(run.declaration, facts, total, noise or _Silence()).sum.to_numpy()


def test_opposite_records_beyond_the_clip_move_the_sum_by_one_and_no_more():
    """The worst pair of docs/privacy/feature-sums.md; what rounding takes off is below 1e-5."""
    declared = SumsDeclaration(sigma=1.0)
    rng = np.random.default_rng(0)
    values = rng.normal(size=(30, D))
    along = rng.normal(size=D)
    one, other = values.copy(), values.copy()
    one[0], other[0] = 1e3 * along, -1e3 * along
    moved = float(np.linalg.norm(_released(one, declared) - _released(other, declared)))
    (part,) = FEATURE_SUMS.parts(declared, RunSize(30), _facts(30))
    assert 1.0 - 1e-4 < moved <= 1.0 + part.grid_step * math.sqrt(D)
    assert part.sensitivity == 1.0


def test_values_and_map_of_a_step_are_what_is_summed():
    rng = np.random.default_rng(1)
    values, weight = rng.normal(size=(40, D)), rng.normal(size=(D, D)).astype(np.float32)
    own = FeatureMap(torch.full((D,), 0.3), torch.tensor([1.0, 0.5, 2.0, 1e-12, 1.0]))
    request = SumsRequest(weight.reshape(-1), own)
    declared = SumsDeclaration(sigma=0.5, parameters=("weight",))
    rows = (values.astype(np.float32) @ weight.T - 0.3) * own.scale.numpy()
    rows *= np.minimum(1.0, 0.5 / np.linalg.norm(rows, axis=1, keepdims=True))
    released = _released(values, declared, request)
    np.testing.assert_allclose(released, rows.sum(axis=0), atol=1e-3)
    assert released[3] == 0.0  # a scale of 1e-12 leaves nothing after rounding
    brought = replace(declared, adapted=request.adapted, feature_map=own)  # the same, declared by the run
    np.testing.assert_array_equal(_released(values, brought), released)


@pytest.mark.parametrize("parts", [2, 3])
def test_any_shards_give_the_same_bits(parts):
    values = np.random.default_rng(2).normal(size=(40_000, D))
    request = SumsRequest(np.random.default_rng(3).normal(size=D * D).astype(np.float32))
    declared = SumsDeclaration(sigma=2.0, parameters=("weight",))
    assert len(shards(_facts(len(values)), parts)) == parts
    np.testing.assert_array_equal(
        _released(values, declared, request, parts=parts), _released(values, declared, request)
    )


def test_the_noise_has_the_declared_deviation():
    """Kolmogorov-Smirnov on 2,000 values; false alarm 1e-7."""
    values = np.random.default_rng(4).normal(size=(20, D))
    declared = SumsDeclaration(sigma=3.0)
    exact = _released(values, declared)
    noise = SeededNoise(bytes(32))
    drawn = np.concatenate([_released(values, declared, noise=noise) - exact for _ in range(400)])
    assert stats.kstest(drawn / 3.0, "norm").pvalue > 1e-7
