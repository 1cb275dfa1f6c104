"""Common networks travel as data; everything else is refused by path, all at once, with what to use instead."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dpswd.public_client.extractor.tracing import module_weights, trace, validate
from dpswd.shared.core.errors import ExtractorUnsupported
from dpswd.shared.sandbox.building import Extractor
from dpswd.shared.sandbox.graph import ExtractorGraph


def test_the_rebuilt_extractor_computes_what_the_module_computes(example):
    assert validate(example.module, example.input_shape) == []
    graph = ExtractorGraph.from_bytes(trace(example.module, example.input_shape).to_bytes())
    rebuilt = Extractor(graph, module_weights(example.module, graph))
    records = example.records(5)
    with torch.no_grad():
        expected = example.module(records)
    assert expected.shape == (5, graph.feature_dimension)
    torch.testing.assert_close(rebuilt.features(records), expected, rtol=1e-4, atol=1e-5)


def test_tracing_leaves_the_module_as_it_was(digits):
    digits.module.train()
    digits.module.conv1.eval()
    before = {name: tensor.clone() for name, tensor in digits.module.state_dict().items()}
    trace(digits.module, digits.input_shape)
    assert digits.module.training
    assert digits.module.drop.training
    assert not digits.module.conv1.training
    assert all(torch.equal(before[name], tensor) for name, tensor in digits.module.state_dict().items())


def test_dropout_is_the_identity_in_either_mode(digits):
    evaluated = trace(digits.module, digits.input_shape)
    assert trace(digits.module.train(), digits.input_shape).digest == evaluated.digest


class Wrapped(nn.Module):
    """One layer named `layer`, and a function after it."""

    def __init__(self, layer, after=None):
        super().__init__()
        self.layer = layer
        self.after = after

    def forward(self, x):
        x = self.layer(x)
        return x if self.after is None else self.after(x)


class StandardisedConv(nn.Conv2d):
    def forward(self, x):
        return F.conv2d(x, self.weight - self.weight.mean(), self.bias)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2, 4))

    def forward(self, x):
        return x * self.scale


class Branching(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


def hooked():
    layer = nn.Linear(4, 4)
    layer.register_forward_hook(lambda _m, _i, out: out * 2)
    return layer


IMAGE, ROW = (3, 8, 8), (4,)
REFUSED_LAYERS = [
    (nn.BatchNorm2d(3), IMAGE, "eval()"),
    (nn.BatchNorm2d(3, track_running_stats=False).eval(), IMAGE, "GroupNorm"),
    (nn.SyncBatchNorm(3).eval(), IMAGE, "BatchNorm2d"),
    (nn.InstanceNorm2d(3, track_running_stats=True).eval(), IMAGE, "track_running_stats=False"),
    (nn.Conv2d(3, 4, 3, padding_mode="circular"), IMAGE, "zeros"),
    (nn.Conv2d(5, 4, 3), IMAGE, "input shape"),
    (nn.Linear(9, 4), ROW, "input shape"),
    (nn.ConvTranspose2d(3, 4, 3), IMAGE, "Conv2d"),
    (nn.Upsample(scale_factor=2), IMAGE, "upsampling"),
    (nn.RReLU(), IMAGE, "LeakyReLU"),
    (nn.LogSoftmax(dim=1), ROW, "classifier"),
    (nn.LSTM(4, 4), ROW, "batch_first=True"),
    (nn.RNN(4, 4), ROW, "batch_first=True"),
    (nn.GRUCell(4, 4), ROW, "nn.GRU"),
    (nn.MultiheadAttention(4, 2), ROW, "(x, x, x)"),
    (nn.MaxPool2d(2, return_indices=True), IMAGE, "return_indices=False"),
    (nn.AvgPool2d(2, divisor_override=3), IMAGE, "leave it out"),
    (nn.Bilinear(4, 4, 4), ROW, "docs/ml-team/extractors.md"),
    (StandardisedConv(3, 4, 3), IMAGE, "hold it as it is"),
    (nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), ROW, "remove_parametrizations"),
    (hooked(), ROW, "hooks"),
    (nn.Linear(4, 4).double(), ROW, "float()"),
    (Scaled(), ROW, "a leading 1"),
    (Branching(), ROW, "torch.fx"),
]


@pytest.mark.parametrize(
    ("layer", "shape", "advice"),
    REFUSED_LAYERS,
    ids=[f"{type(entry[0]).__name__}-{entry[2]}" for entry in REFUSED_LAYERS],
)
def test_a_layer_outside_the_vocabulary_is_refused_by_its_path(layer, shape, advice):
    problems = validate(Wrapped(layer), shape)
    assert "layer" in {problem.path for problem in problems}
    assert any(advice in str(problem) for problem in problems)
    with pytest.raises(ExtractorUnsupported, match="layer"):
        trace(Wrapped(layer), shape)


REFUSED_CALLS = [
    ("mixing view", lambda x: x.view(2, -1), "mixes|apart"),
    ("flat view", lambda x: x.view(-1), "apart"),
    ("too few features", lambda x: x.view(-1, 5), "mixes"),
    ("flatten all", lambda x: torch.flatten(x), "mixes"),
    ("batch mean", lambda x: x - x.mean(0), "mixes records"),
    ("total mean", lambda x: x * x.mean(), "mixes records"),
    ("concatenated records", lambda x: torch.cat([x, x], 0), "dim=1"),
    ("batch softmax", lambda x: torch.softmax(x, 0), "softmax"),
    ("matmul", lambda x: x @ x.t(), "matmul of a view .* moves the batch"),
    ("indexing", lambda x: x[0], "indexing"),
    ("flip", lambda x: x.flip(0), "flip"),
    ("sorting", lambda x: x.sort(0)[0], "sort"),
    ("cumulative sum", lambda x: x.cumsum(0), "cumsum"),
    ("roll", lambda x: torch.roll(x, 1, 0), "roll"),
    ("randomness", lambda x: x + torch.rand_like(x), "rand_like"),
    ("batch size as a value", lambda x: x / x.size(0), "truediv"),
    ("root of the batch size", lambda x: x * x.size(0) ** 0.5, "something else"),
    ("rows of records", lambda x: torch.einsum("bd,cd->bc", x, x), "moves the batch"),
    ("a summed batch", lambda x: torch.einsum("bd,be->de", x, x), "moves the batch"),
    ("records as heads", lambda x: x.view(-1, 2).softmax(0).view(-1, 4), "softmax of a view"),
    ("power", lambda x: x**x, "pow"),
    ("squeeze", lambda x: x.squeeze(), "squeeze"),
    ("batch as channel", lambda x: x.unsqueeze(0), "batch"),
    ("transpose", lambda x: x.transpose(0, 1), "moves the batch"),
    ("functional batch norm", lambda x: F.batch_norm(x, None, None, training=True), "train-mode batch norm"),
    ("two outputs", lambda x: (x, x), "one tensor"),
    ("an image as features", lambda x: x.unflatten(1, (2, 2)), "Flatten"),
    ("huge constant", lambda x: x * 1e9, "between"),
    ("constant not a number", lambda x: x + float("nan"), "between"),
]


@pytest.mark.parametrize(("after", "reason"), [entry[1:] for entry in REFUSED_CALLS], ids=[e[0] for e in REFUSED_CALLS])
def test_a_call_that_could_mix_records_or_is_unknown_is_refused(after, reason):
    with pytest.raises(ExtractorUnsupported, match=reason):
        trace(Wrapped(nn.Linear(4, 4), after), ROW)


def test_every_problem_is_reported_at_once_by_path():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.RReLU())
            self.pool = nn.LPPool2d(2, 2)
            self.head = nn.Linear(36, 5)

        def forward(self, x):
            return torch.log_softmax(self.head(torch.flatten(self.pool(self.block(x)), 1)), dim=1)

    problems = validate(Net(), IMAGE)
    assert [problem.path for problem in problems] == ["block.1", "block.2", "pool", ""]
    assert all(problem.reason and problem.instead for problem in problems)
    with pytest.raises(ExtractorUnsupported) as refusal:
        trace(Net(), IMAGE)
    assert all(str(problem) in str(refusal.value) for problem in problems)
    assert "records embed --model backbone.onnx" in str(refusal.value)  # where the frozen part may stay


def test_where_tracing_fails_the_other_layers_are_still_reported():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(4)
            self.inner = Branching()

        def forward(self, x):
            return self.inner(self.norm(x))

    paths = [problem.path for problem in validate(Net(), ROW)]
    assert paths[0] == "inner"
    assert "norm" in paths


def test_a_layer_that_forward_never_calls_is_no_problem():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.used = nn.Linear(4, 3)
            self.unused = nn.LSTM(3, 3)

        def forward(self, x):
            return self.used(x)

    graph = trace(Net(), ROW)
    assert list(graph.tensor_shapes) == ["used.weight", "used.bias"]


def test_in_place_work_on_a_shared_value_is_refused():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)
            self.relu = nn.ReLU(inplace=True)

        def forward(self, x):
            x = self.fc(x)
            return x + self.relu(x)

    assert [(p.path, p.instead) for p in validate(Net(), ROW)] == [("relu", "use inplace=False")]


def test_an_aliased_in_place_change_that_tracing_cannot_see_is_detected_by_comparison():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x):
            x = self.fc(x)
            alias = x.view(-1, 2, 2)
            return F.relu(alias, inplace=True).flatten(1) + x

    with pytest.raises(ExtractorUnsupported, match="something else"):
        trace(Net(), ROW)


def test_tied_tensors_are_refused():
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    assert "tied" in str(validate(nn.Sequential(first, second), ROW)[0])


def test_weights_of_a_diverged_training_are_refused_by_name():
    layer = nn.Linear(4, 4)
    with torch.no_grad():
        layer.weight[0, 0] = math.nan
    (problem,) = validate(nn.Sequential(layer, nn.ReLU()), ROW)
    assert "0.weight holds NaN or infinity" in str(problem)
    assert "diverged" in str(problem)


def test_a_layer_called_twice_keeps_one_set_of_tensors(build):
    graph = trace(build("branches").module, (1, 8, 8))
    assert [node.path for node in graph.nodes].count("shared") == 2
    assert [name for name in graph.parameter_shapes if name.startswith("shared")] == ["shared.weight", "shared.bias"]
