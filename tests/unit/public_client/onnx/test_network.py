"""ONNX files as networks, against the networks that they were exported from and against onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from onnx import helper
from torch import Tensor, nn

from dpswd.public_client.experiments.own_model import own_model
from dpswd.public_client.extractor.tracing import trace
from dpswd.public_client.ladder.whole_model import split
from dpswd.public_client.onnx.network import _LOWERED, read_onnx
from dpswd.shared.core.errors import DataInvalid, InvalidValue, SettingsError


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.path = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.Hardswish())

    def forward(self, x):
        return torch.clamp(x.abs() - self.path(x) / 2.0, -3.0, 3.0)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.mixed, self.norm, self.head = (
            nn.Linear(4, 16), nn.Linear(16, 48), nn.LayerNorm(16), nn.Linear(16, 3)
        )  # fmt: skip

    def forward(self, x):
        x = self.embed(x)
        b, t, d = x.shape
        q, k, v = (part.view(b, t, 2, 8).transpose(1, 2) for part in self.mixed(x).split(16, dim=2))
        among = torch.softmax(q @ k.transpose(-1, -2) / 8**0.5, -1)
        return self.head(self.norm(x + (among @ v).transpose(1, 2).reshape(b, t, d)).mean(1))


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(20, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.head(torch.tanh(self.table(x.long())).mean(1))


NETWORKS = {
    "images": (
        nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1, stride=2), nn.BatchNorm2d(8), nn.ReLU(), Residual(8), nn.MaxPool2d(2),
            nn.AvgPool2d(2, count_include_pad=False), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10),
        ),
        torch.randn(5, 1, 28, 28),
    ),
    "tables": (
        nn.Sequential(
            nn.Linear(12, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 16, bias=False), nn.LeakyReLU(0.2),
            nn.Dropout(), nn.Linear(16, 2),
        ),
        torch.randn(5, 12),
    ),
    "sequences": (
        nn.Sequential(
            nn.Conv1d(3, 8, 5), nn.ELU(), nn.MaxPool1d(2), nn.Conv1d(8, 8, 3, groups=2), nn.SiLU(),
            nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(8, 3),
        ),
        torch.randn(5, 3, 40),
    ),
    "attention": (Attention(), torch.randn(5, 6, 4)),
    "words": (Words(), torch.randint(0, 20, (5, 7)).float()),
}  # fmt: skip


def exported(network: nn.Module, records: Tensor, file) -> nn.Module:
    torch.manual_seed(0)
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.running_mean.normal_()
            layer.running_var.uniform_(0.5, 2.0)
    axes = {"records": {0: "batch"}, "scores": {0: "batch"}}
    torch.onnx.export(
        network.eval(), (records,), file, dynamo=False, input_names=["records"], output_names=["scores"],
        dynamic_axes=axes, keep_initializers_as_inputs=False,
    )  # fmt: skip
    return network


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("name", NETWORKS)
def test_a_file_is_the_network_that_it_was_exported_from(name, tmp_path):
    file = tmp_path / "network.onnx"
    network, records = NETWORKS[name]
    exported(network, records, file)
    parts = own_model(None, file, records)
    with torch.no_grad():
        again, expected = parts.classifier(parts.extractor(records)), network(records)
    assert torch.allclose(again, expected, atol=1e-5)
    assert isinstance(parts.classifier, nn.Linear)
    trace(parts.extractor, tuple(records.shape[1:]))  # it travels


def of_nodes(*nodes, weights=(), sides=("batch", 4), file):
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "graph", [value("records", onnx.TensorProto.FLOAT, sides)],
        [value("scores", onnx.TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(array, name) for name, array in weights],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), file)


def test_what_cannot_be_read_is_said(tmp_path):
    file, records = tmp_path / "network.onnx", torch.randn(5, 4)
    file.write_bytes(b"no model")
    with pytest.raises(DataInvalid, match=r"network.onnx cannot be run on records of shape \(4,\)"):
        read_onnx(file, records)
    of_nodes(helper.make_node("Mod", ["records", "records"], ["scores"], fmod=1, name="rest"), file=file)
    with pytest.raises(InvalidValue, match=r"operator Mod of 'rest' is not read; pass the network .*records embed"):
        read_onnx(file, records)
    uneven = helper.make_node("Conv", ["records", "w"], ["scores"], pads=[0, 1], name="uneven")
    of_nodes(uneven, weights=[("w", np.ones((1, 1, 2), np.float32))], sides=("batch", 1, 4), file=file)
    with pytest.raises(
        InvalidValue, match=r"operator Conv of 'uneven' is not read in this form \(padding that differs"
    ):
        read_onnx(file, torch.randn(5, 1, 4))
    with pytest.raises(SettingsError, match="a model by itself"):
        own_model("torch.nn:Identity", file, records)


def test_a_network_that_computes_something_else_is_refused(tmp_path, monkeypatch):
    """As a lowering with a mistake would."""
    file, records = tmp_path / "network.onnx", torch.randn(5, 4)
    weights = [("w", np.eye(4, dtype=np.float32))]
    of_nodes(helper.make_node("MatMul", ["records", "w"], ["scores"]), weights=weights, file=file)
    assert torch.equal(read_onnx(file, records)(records), records)
    assert split(file, records).classifier.out_features == 4
    monkeypatch.setitem(_LOWERED, "MatMul", lambda on, x, w: on.call(torch.add, x, 1.0))
    with pytest.raises(InvalidValue, match="computes something else than onnxruntime"):
        read_onnx(file, records)
