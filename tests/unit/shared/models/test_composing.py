from __future__ import annotations

import pytest
import torch
from torch import nn

from dpswd.public_client.extractor.tracing import module_weights, trace
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.models.adapted import compose, compose_weights
from dpswd.shared.sandbox.building import Extractor
from dpswd.shared.sandbox.graph import ExtractorGraph


def _parts():
    torch.manual_seed(0)
    first = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()).eval()
    second = nn.Linear(12, 4)
    return first, second


def test_the_composed_graph_computes_the_two_one_after_the_other():
    first, second = _parts()
    one, two = trace(first, (1, 6, 6)), trace(second, (12,))
    graph = compose(one, two)
    weights = compose_weights(module_weights(first, one), module_weights(second, two))
    assert set(weights) == set(graph.tensor_shapes) == {
        "extractor.0.weight", "extractor.0.bias", "classifier.weight", "classifier.bias",
    }  # fmt: skip
    records = torch.randn(5, 1, 6, 6)
    features = Extractor(ExtractorGraph.from_bytes(graph.to_bytes()), weights).features(records)
    torch.testing.assert_close(features, second(first(records)))


def test_residual_inputs_of_the_second_graph_are_renumbered():
    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(12, 12)

        def forward(self, x):
            return x + self.inner(x)

    first, _ = _parts()
    second = Residual()
    one, two = trace(first, (1, 6, 6)), trace(second, (12,))
    weights = compose_weights(module_weights(first, one), module_weights(second, two))
    records = torch.randn(3, 1, 6, 6)
    features = Extractor(compose(one, two), weights).features(records)
    torch.testing.assert_close(features, second(first(records)))


def test_parts_that_do_not_fit_are_refused_by_name():
    first, _ = _parts()
    with pytest.raises(InvalidValue, match=r"classifier takes \(11,\), the extractor computes \(12,\)"):
        compose(trace(first, (1, 6, 6)), trace(nn.Linear(11, 2), (11,)))
