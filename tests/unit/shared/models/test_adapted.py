"""The delivered file: read back to the bit, and refused when it is anything else."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, safe_open, save_file
from torch import nn

from dpswd.public_client.extractor.tracing import module_weights, trace
from dpswd.shared.core.errors import DataInvalid
from dpswd.shared.models.adapted import read_adapted, write_adapted
from dpswd.shared.models.source_statistics import LEVELS, MAX_VALUES, SourceStatistics, quantiles_of, sliced_distance

SHAPE = (1, 4, 4)


def _modules():
    torch.manual_seed(5)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 6), nn.ReLU()).eval(), nn.Linear(6, 3)


@pytest.fixture
def delivered(tmp_path):
    extractor, classifier = _modules()
    graph, head = trace(extractor, SHAPE), trace(classifier, (6,))
    source = torch.rand(100, *SHAPE)
    features = extractor(source)
    write_adapted(
        tmp_path / "m.safetensors",
        extractor=(graph, module_weights(extractor, graph)),
        classifier=(head, module_weights(classifier, head)),
        plan={"epsilon": 1.0},
        statistics=SourceStatistics.of(source, features, classifier(features)),
    )
    return tmp_path / "m.safetensors"


def _rewritten(path, *, tensors=None, metadata=None):
    with safe_open(path, framework="pt") as file:
        previous = dict(file.metadata())
    stored = load_file(path)
    save_file(
        {**stored, **(tensors or {})}, path, metadata={k: v for k, v in {**previous, **(metadata or {})}.items() if v}
    )


def test_a_delivered_model_computes_what_the_modules_did(delivered):
    extractor, classifier = _modules()
    model = read_adapted(delivered)
    records = torch.randn(9, *SHAPE)
    torch.testing.assert_close(model.scores(records), classifier(extractor(records)))
    assert (model.record_shape, model.classes, model.plan) == (SHAPE, 3, {"epsilon": 1.0})
    assert model.statistics is not None
    assert model.statistics.quantiles.shape == (16, LEVELS)
    assert model.statistics.records == 100


def test_a_file_without_statistics_is_a_model_all_the_same(delivered):
    _rewritten(delivered, metadata={"statistics": ""})
    assert read_adapted(delivered).statistics is None


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"metadata": {"format": "other"}}, "not an adapted model of format"),
        ({"metadata": {"extractor": "{}"}}, "keys"),
        ({"metadata": {"extractor": ""}}, "extractor is missing"),
        ({"metadata": {"classifier": "é"}}, "classifier is missing or no graph"),
        ({"metadata": {"plan": "[1]"}}, "plan is no object"),
        ({"metadata": {"plan": "{"}}, "plan is not JSON"),
        ({"tensors": {"classifier.weight": torch.full((3, 6), float("nan"))}}, "not finite"),
        ({"tensors": {"classifier.weight": torch.zeros(3, 5)}}, "shape"),
        ({"tensors": {"classifier.more": torch.zeros(1)}}, "exactly the graph's"),
        ({"tensors": {"statistics.mean": torch.zeros(15)}}, "15 values for records of 16"),
        ({"tensors": {"statistics.mean": torch.full((16,), float("inf"))}}, "not finite"),
        ({"tensors": {"statistics.slices": torch.zeros(2, 2)}}, "slices must be float32 of shape"),
        ({"tensors": {"statistics.feature_deviation": torch.zeros(6)}}, "positive"),
        ({"metadata": {"statistics": "{}"}}, "incomplete"),
        ({"metadata": {"statistics": json.dumps({"records": 1.5, "by_channel": False, "self_distance": 0})}}, "facts"),
        ({"metadata": {"statistics": json.dumps({"records": 5, "by_channel": False, "self_distance": -1})}}, "facts"),
    ],
)
def test_a_file_that_is_something_else_is_refused_with_the_reason(delivered, change, match):
    _rewritten(delivered, **change)
    with pytest.raises(DataInvalid, match=match):
        read_adapted(delivered)


def test_parts_that_do_not_fit_together_are_refused(delivered):
    head = trace(nn.Linear(5, 3), (5,))
    _rewritten(
        delivered,
        tensors={"classifier.weight": torch.zeros(3, 5), "classifier.bias": torch.zeros(3)},
        metadata={"classifier": head.to_bytes().decode()},
    )
    with pytest.raises(DataInvalid, match=r"classifier takes \(5,\)"):
        read_adapted(delivered)


def test_a_pickle_and_an_absent_file_are_refused_unopened(tmp_path):
    torch.save({"a": torch.zeros(1)}, tmp_path / "m.pt")
    with pytest.raises(DataInvalid, match="not a safetensors file"):
        read_adapted(tmp_path / "m.pt")
    with pytest.raises(DataInvalid, match="cannot be read"):
        read_adapted(tmp_path / "none.safetensors")


def test_large_records_are_summed_up_by_channel():
    records = torch.rand(20, 3, 40, 40) * torch.tensor([1.0, 2.0, 3.0]).reshape(1, 3, 1, 1)
    assert records[0].numel() > MAX_VALUES
    statistics = SourceStatistics.of(records, torch.randn(20, 4), torch.randn(20, 2))
    assert statistics.by_channel
    torch.testing.assert_close(statistics.quantiles[:, -1], torch.tensor([1.0, 2.0, 3.0]), rtol=1e-3, atol=0.0)


def test_the_sliced_distance_of_a_shifted_source_is_the_shift():
    torch.manual_seed(1)
    values = torch.randn(5000, 3)
    moved = values + 0.5
    assert sliced_distance(quantiles_of(values), quantiles_of(moved)) == pytest.approx(0.5, rel=1e-4)
    assert sliced_distance(quantiles_of(values), quantiles_of(values)) == 0.0
