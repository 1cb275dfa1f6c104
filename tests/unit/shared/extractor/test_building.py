"""Features and gradients of each record by itself: against autograd, on each device, independent of the other rows."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from dpswd.public_client.extractor.tracing import module_weights, trace
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.sandbox import building
from dpswd.shared.sandbox.building import (
    CHUNK_VALUES,
    SCRATCH_VALUES,
    Extractor,
    RowsDepend,
    check_row_independence,
    split_vector,
)
from dpswd.shared.sandbox.graph import ExtractorGraph, Node


def gradients_of(extractor, records, cotangents, names, **options):
    return extractor.begin(records, names, **options).gradients(cotangents)


def autograd_loop(module, records, names, cotangents):
    """Each record through the original module alone: the reference."""
    parameters = dict(module.named_parameters())
    rows = []
    for record, cotangent in zip(records, cotangents, strict=True):
        out = module(record.unsqueeze(0)).squeeze(0)
        gradients = torch.autograd.grad(out, [parameters[name] for name in names], cotangent)
        rows.append(torch.cat([gradient.reshape(-1) for gradient in gradients]))
    return torch.stack(rows)


def test_per_record_gradients_equal_an_autograd_loop(example, device):
    extractor = example.extractor(device)
    names = list(extractor.graph.parameter_shapes)
    if not names:
        with pytest.raises(InvalidValue, match="at least one"):
            gradients_of(extractor, example.records(2), torch.zeros(2, 5), names)
        return
    records = example.records(6)
    cotangents = torch.randn(6, extractor.graph.feature_dimension, generator=torch.Generator().manual_seed(3))
    expected = autograd_loop(example.module, records, names, cotangents)
    actual = gradients_of(extractor, records, cotangents, names, chunk_size=4).cpu()
    scale = expected.abs().max()
    torch.testing.assert_close(actual / scale, expected / scale, rtol=1e-3, atol=2e-5)


def test_features_equal_the_module_on_each_device(example, device):
    records = example.records(6)
    with torch.no_grad():
        expected = example.module(records)
    actual = example.extractor(device).features(records)
    assert actual.device.type == device
    assert not actual.requires_grad
    torch.testing.assert_close(actual.cpu(), expected, rtol=1e-3, atol=1e-4)


def test_a_forward_pass_serves_release_and_gradients(digits, monkeypatch):
    extractor = digits.extractor()
    records, names = digits.records(7), ["conv1.bias"]
    forward = extractor.begin(records, names, chunk_size=3)
    torch.testing.assert_close(forward.outputs, extractor.features(records, chunk_size=3))
    first = forward.gradients(forward.outputs)
    torch.testing.assert_close(forward.gradients(forward.outputs), first)  # evaluated again: what was kept is gone
    monkeypatch.setattr(building, "CACHED_VALUES", 1)
    recomputed = extractor.begin(records, names, chunk_size=3)
    assert recomputed._graphs == []
    torch.testing.assert_close(recomputed.gradients(forward.outputs), first)


def test_replaced_parameters_take_effect_and_only_there(digits):
    extractor = digits.extractor()
    records = digits.records(3)
    before = extractor.features(records)
    new = torch.full((20,), 2.0)
    changed = extractor.features(records, names=["conv2.bias"], adapted=new)
    with torch.no_grad():
        digits.module.conv2.bias.fill_(2.0)
        torch.testing.assert_close(changed, digits.module(records), rtol=1e-4, atol=1e-5)
    assert torch.equal(extractor.features(records), before)
    expected = autograd_loop(digits.module, records, ["conv2.bias"], before)
    actual = gradients_of(extractor, records, before, ["conv2.bias"], adapted=new)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_gradients_follow_the_declared_order_and_can_be_cut(digits):
    extractor = digits.extractor()
    records = digits.records(2)
    cotangents = torch.ones(2, 320)
    forwards = gradients_of(extractor, records, cotangents, ["conv1.bias", "conv2.weight"])
    backwards = gradients_of(extractor, records, cotangents, ["conv2.weight", "conv1.bias"])
    shapes = extractor.gradient_shapes(["conv1.bias", "conv2.weight"])
    parts = split_vector(forwards, shapes)
    assert parts["conv2.weight"].shape == (2, 20, 32, 5, 5)
    torch.testing.assert_close(
        split_vector(backwards[0], dict(reversed(shapes.items())))["conv1.bias"], parts["conv1.bias"][0]
    )
    with pytest.raises(InvalidValue, match="numbers"):
        split_vector(forwards[:, 1:], shapes)


def test_an_empty_batch_has_empty_results(digits):
    extractor = digits.extractor()
    assert extractor.features(digits.records(0)).shape == (0, 320)
    with pytest.raises(InvalidValue, match="at least one record"):
        extractor.begin(digits.records(0), ["conv1.bias"])


@pytest.mark.parametrize("names", [[], ["conv9.weight"], ["conv1.bias", "conv1.bias"]])
def test_undeclarable_names_are_refused(digits, names):
    with pytest.raises(InvalidValue, match="trainable"):
        gradients_of(digits.extractor(), digits.records(2), torch.zeros(2, 320), names)


def test_buffers_are_not_trainable(build):
    norm = build("resnet-frozen-batch-norm")
    extractor = norm.extractor()
    with pytest.raises(InvalidValue, match="trainable"):
        extractor.gradient_shapes(["bn1.running_mean"])
    with pytest.raises(InvalidValue, match="trainable"):
        extractor.features(norm.records(1), names=["bn1.running_var"], adapted=torch.ones(8))


@pytest.mark.parametrize(
    "records", [torch.zeros(2, 28, 28), torch.zeros(2, 1, 28, 27), torch.zeros(2, 1, 28, 28, dtype=torch.float64)]
)
def test_records_of_another_shape_or_type_are_refused(digits, records):
    with pytest.raises(InvalidValue, match="records must be float32"):
        digits.extractor().features(records)


def test_cotangents_must_fit(digits):
    with pytest.raises(InvalidValue, match="cotangents"):
        gradients_of(digits.extractor(), digits.records(3), torch.zeros(2, 320), ["conv1.bias"])
    with pytest.raises(InvalidValue, match="cotangents"):
        gradients_of(digits.extractor(), digits.records(3), torch.zeros(3, 319), ["conv1.bias"])


@pytest.mark.parametrize(
    "change",
    [lambda w: w.pop("conv1.bias"), lambda w: w.update(x=torch.zeros(1)), lambda w: w["conv1.bias"].fill_(torch.nan)],
)
def test_weights_that_are_not_the_graph_s_are_refused(digits, change):
    graph = trace(digits.module, digits.input_shape)
    weights = {name: tensor.clone() for name, tensor in module_weights(digits.module, graph).items()}
    change(weights)
    with pytest.raises(InvalidValue):
        Extractor(graph, weights)


def test_rows_are_independent(example, device):
    check_row_independence(example.extractor(device))


class CentresTheBatch(Extractor):
    """A broken extractor: like train-mode batch norm, it subtracts the batch's mean."""

    def features(self, *arguments, **options):
        features = super().features(*arguments, **options)
        return features - features.nan_to_num(0.0, 0.0, 0.0).mean(0)


class LeakyPass:
    """A broken forward pass: each record's gradient holds a trace of the first's."""

    def __init__(self, forward):
        self._forward = forward
        self.outputs = forward.outputs

    def gradients(self, cotangents):
        gradients = self._forward.gradients(cotangents)
        return gradients + 1e-3 * gradients.nan_to_num(0.0, 0.0, 0.0).mean(0)


class SharesAGradient(Extractor):
    def begin(self, *arguments, **options):
        return LeakyPass(super().begin(*arguments, **options))


@pytest.mark.parametrize("broken", [CentresTheBatch, SharesAGradient])
def test_dependent_rows_are_detected(digits, broken):
    graph = trace(digits.module, digits.input_shape)
    with pytest.raises(RowsDepend):
        check_row_independence(broken(graph, module_weights(digits.module, graph)))


def test_no_operation_falls_back_to_a_slow_loop_under_vmap(example):
    """The one-by-one fallback of vmap warns; it would make the time of a step grow with the batch's size."""
    torch._C._debug_only_display_vmap_fallback_warnings(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            extractor = example.extractor()
            extractor.features(example.records(2))
            names = list(extractor.graph.parameter_shapes)
            if names:
                forward = extractor.begin(example.records(2), names)
                forward.gradients(forward.outputs)
    finally:
        torch._C._debug_only_display_vmap_fallback_warnings(False)


def test_chunks_fit_the_caches():
    small = trace(nn.Linear(4, 2), (4,))
    large = trace(nn.Sequential(nn.Conv2d(3, 64, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()), (3, 224, 224))
    sizes = []
    for graph in (small, large):
        weights = {name: torch.zeros(shape) for name, shape in graph.tensor_shapes.items()}
        sizes.append(Extractor(graph, weights).default_chunk_size())
    assert sizes[0] > 10_000
    assert sizes[1] == 1
    heavy = trace(nn.Sequential(nn.Conv2d(512, 1024, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()), (512, 16, 16))
    weights = {name: torch.zeros(shape) for name, shape in heavy.tensor_shapes.items()}
    chunk = Extractor(heavy, weights).default_chunk_size()
    assert 0.5 < chunk * heavy.cost.activations / heavy.cost.parameters <= 1.0, "a chunk's values weigh its weights up"


def test_a_forward_alone_takes_as_many_records_as_each_value_fits_the_caches_with():
    deep = trace(nn.Sequential(*(nn.Conv2d(4, 4, 3, padding=1) for _ in range(12)), nn.Flatten()), (4, 32, 32))
    built = Extractor(deep, {name: torch.zeros(shape) for name, shape in deep.tensor_shapes.items()})
    declared = built.default_chunk_size({"0.bias": (4,)})
    assert declared * deep.cost.activations <= CHUNK_VALUES["cpu"], "all values of a way back are held"
    assert built.default_chunk_size() == CHUNK_VALUES["cpu"] // (4 * 32 * 32) > 10 * declared


def test_chunks_have_room_for_what_is_inside_of_an_operation():
    """Attack: 16 records of an embedding of 65,536 words at 512 places took 2.56 GB, since none of it was counted."""
    words = Node("embedding", (0,), "e", {"num_embeddings": 60_000, "embedding_dim": 1})
    graph = ExtractorGraph((words, Node("reshape", (1,), "", {"shape": (512,)})), (512,))
    extractor = Extractor(graph, {"e.weight": torch.ones(60_000, 1)})
    assert extractor.default_chunk_size() == 1
    unfolded = {
        "in_channels": 64,
        "out_channels": 1,
        "kernel_size": (255, 255),
        "stride": (1, 1),
        "padding": (127, 127),
    }
    wide = Node("conv2d", (0,), "c", unfolded | {"dilation": (1, 1), "groups": 1, "bias": False})
    graph = ExtractorGraph((wide, Node("reshape", (1,), "", {"shape": (16,)})), (64, 4, 4))
    extractor = Extractor(graph, {"c.weight": torch.ones(1, 64, 255, 255)})
    assert extractor.default_chunk_size() * graph.cost.workspace <= SCRATCH_VALUES


def test_a_norm_of_groups_takes_numbers_that_do_not_lie_side_by_side():
    """Attack: torch's own group norm refuses the batch of a slice, and the upload ended as an incident."""
    generator = torch.Generator().manual_seed(0)
    at = {"num_channels": 4, "num_groups": 2, "eps": 1e-5, "affine": True}
    cut = Node("slice", (0,), "", {"axis": 0, "begin": 1, "end": 5})
    nodes = cut, Node("group_norm", (1,), "n", at), Node("reshape", (2,), "", {"shape": (32,)})
    graph = ExtractorGraph(nodes, (6, 8))
    weights = {name: torch.randn(4, generator=generator) for name in ("n.weight", "n.bias")}
    extractor = Extractor(graph, weights)
    check_row_independence(extractor)
    records = torch.randn(5, 6, 8, generator=generator)
    theirs = nn.functional.group_norm(records[:, 1:5].contiguous(), 2, weights["n.weight"], weights["n.bias"], 1e-5)
    torch.testing.assert_close(extractor.features(records), theirs.flatten(1))


def test_a_bias_may_be_adapted_where_what_it_is_added_to_is_no_record_s():
    """Attack: the sum was in place, and a run that adapts the bias of a layer of a buffer ended as an incident."""
    at = {"in_features": 4, "out_features": 3, "bias": True}
    nodes = Node("buffer", (), "b", {"shape": (4,)}), Node("linear", (1,), "l", at), Node("multiply", (0, 2))
    graph = ExtractorGraph(nodes, (3,))
    weights = {name: torch.ones(shape) for name, shape in graph.tensor_shapes.items()}
    records = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    forward = Extractor(graph, weights).begin(records, ["l.bias"])
    torch.testing.assert_close(forward.gradients(torch.ones(5, 3)), records)
