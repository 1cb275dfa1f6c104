"""Adapters start as the identity, do what they say, and can be declared by name."""

from __future__ import annotations

import math

import pytest
import torch
from exploring import tried
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.autograd import gradcheck
from torch.func import vmap

from dpswd.public_client.extractor.adapter_layers import (
    AffineWarp2d,
    ChannelAffine,
    FeatureAffine,
    LowRankAffine,
    MonotoneColumns,
    adapter_parameter_names,
)
from dpswd.public_client.extractor.tracing import trace, validate
from dpswd.public_client.published_methods.adapting import adapt_for_target, input_adapter, insert_adapter, source_knots
from dpswd.shared.core.errors import ExtractorUnsupported, InvalidValue
from dpswd.shared.sandbox.adapters import affine_warp2d_record, low_rank_affine, monotone_columns
from dpswd.shared.sandbox.building import Extractor
from dpswd.shared.sandbox.weights import module_weights

KNOTS = torch.tensor([[-1.0, 0.0, 2.0], [0.0, 0.5, 0.6]])


@pytest.mark.parametrize(
    ("adapter", "shape"),
    [
        (AffineWarp2d(), (2, 7, 5)),
        (ChannelAffine(2), (2, 7, 5)),
        (ChannelAffine(3), (3,)),
        (FeatureAffine(4), (4,)),
        (LowRankAffine(6, 2), (6,)),
        (MonotoneColumns(KNOTS), (2,)),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else None,
)
def test_each_adapter_starts_as_the_identity(adapter, shape):
    x = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(adapter(x), x, rtol=1e-5, atol=1e-5)


def test_a_warp_reads_where_theta_points():
    image = torch.arange(20.0).reshape(1, 1, 4, 5)
    warp = AffineWarp2d()
    with torch.no_grad():
        warp.theta[0, 2] = 2 / 5  # one pixel of five, in units of half a side
        shifted = warp(image)
        torch.testing.assert_close(shifted[..., :4], image[..., 1:], rtol=1e-5, atol=1e-4)
        torch.testing.assert_close(shifted[..., 4], image[..., 4], rtol=1e-5, atol=1e-4)  # the border repeats
        warp.theta.copy_(torch.tensor([[-1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]))
        torch.testing.assert_close(warp(image), image.flip(-1), rtol=1e-5, atol=1e-4)


THETAS = {
    "identity": [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]],
    "turned": [[0.0, 1.0, 0.0], [-1.0, 0.0, 0.0]],
    "skewed": [[1.0, 0.7, 0.1], [-0.4, 0.8, 0.2]],
    "huge": [[3e5, -1e4, 7.0], [2e5, 1e6, 0.1]],
    "tiny": [[1e-9, 0.0, 1e-12], [0.0, 1e-20, 0.3]],
}


@pytest.mark.parametrize("name", THETAS)
def test_the_curator_s_products_resample_as_the_client_s_grid(name):
    """Two derivations of one function: dense products, and torch's look-up of four pixels; gradients included."""
    images = torch.randn(5, 2, 7, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    theta = torch.tensor(THETAS[name], dtype=torch.float64, requires_grad=True)
    client = AffineWarp2d().double()
    with torch.no_grad():
        client.theta.copy_(theta)
    ours = vmap(lambda image: affine_warp2d_record(image, theta))(images)
    torch.testing.assert_close(ours, client(images))
    weights = torch.randn(ours.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    (slope,) = torch.autograd.grad((ours * weights).sum(), theta)
    (expected,) = torch.autograd.grad((client(images) * weights).sum(), client.theta)
    torch.testing.assert_close(slope, expected)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 3e38])
def test_a_warp_to_no_place_at_all_ends_no_process(value):
    """Attack: torch's resampling of a grid that holds NaN wrote outside of its memory, backwards."""
    theta = torch.full((2, 3), value, requires_grad=True)
    client = AffineWarp2d()
    with torch.no_grad():
        client.theta.fill_(value)
    image = torch.randn(2, 4, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
    for out in (affine_warp2d_record(image, theta), client(image[None])[0]):
        assert torch.isfinite(out).all()
        out.sum().backward()


def test_gradients_of_the_functions_are_right_under_vmap():
    """Finite differences in double precision, away from the kinks."""
    generator = torch.Generator().manual_seed(0)
    image = torch.randn(2, 6, 5, generator=generator, dtype=torch.float64)
    theta = torch.tensor([[0.83, 0.11, 0.07], [-0.13, 0.91, 0.05]], dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda t: affine_warp2d_record(image, t), (theta,))
    assert gradcheck(lambda t: vmap(lambda own: affine_warp2d_record(image, own))(torch.stack((t, t * 0.9))), (theta,))
    left, right, bias = (
        torch.randn(*shape, generator=generator, dtype=torch.float64, requires_grad=True)
        for shape in ((5, 2), (2, 5), (5,))
    )
    x = torch.randn(5, generator=generator, dtype=torch.float64)
    assert gradcheck(lambda *w: low_rank_affine(x, *w), (left, right, bias))
    slope = torch.randn(2, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    offset = torch.randn(2, generator=generator, dtype=torch.float64, requires_grad=True)
    points = torch.tensor([[-3.0, 0.2], [0.7, 0.55], [5.0, 9.0]], dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda p, s, o: monotone_columns(p, KNOTS.double(), s, o), (points, slope, offset))


@given(
    st.lists(st.floats(-2, 2, width=32), min_size=8, max_size=8),
    st.lists(st.floats(-5, 5, width=32), min_size=2, max_size=12),
)
@settings(max_examples=tried(50))
def test_column_maps_increase_whatever_their_parameters(log_slopes, points):
    layer = MonotoneColumns(KNOTS.double())
    with torch.no_grad():
        layer.log_slope.copy_(torch.tensor(log_slopes).reshape(2, 4))
        ordered = torch.tensor(sorted(set(points)))
        mapped = layer(torch.stack((ordered, ordered), dim=1))
    assert bool((mapped[1:] >= mapped[:-1] - 1e-4).all())


@pytest.mark.parametrize("knots", [torch.zeros(2), torch.zeros(2, 1), torch.tensor([[1.0, 1.0]])])
def test_knots_must_increase(knots):
    with pytest.raises(InvalidValue, match="increase"):
        MonotoneColumns(knots)


def test_a_rank_above_the_dimension_is_refused():
    with pytest.raises(InvalidValue, match="rank"):
        LowRankAffine(3, 4)


def test_the_digits_extractor_gets_112_numbers(digits):
    adapted = adapt_for_target(digits.module, digits.input_shape)
    names = adapter_parameter_names(adapted)
    assert names == [
        "target_adapter.input_warp.theta",
        "target_adapter.input_affine.gain",
        "target_adapter.input_affine.bias",
        "target_adapter.after_conv1.gain",
        "target_adapter.after_conv1.bias",
        "target_adapter.after_conv2.gain",
        "target_adapter.after_conv2.bias",
    ]
    assert sum(adapted.get_parameter(name).numel() for name in names) == 6 + 2 + 64 + 40
    assert [name for name, parameter in adapted.named_parameters() if parameter.requires_grad] == names
    assert adapter_parameter_names(digits.module) == []


def test_an_adapted_extractor_starts_as_the_original_and_keeps_its_names(example):
    adapted = adapt_for_target(example.module, example.input_shape)
    records = example.records(4)
    with torch.no_grad():
        torch.testing.assert_close(adapted(records), example.module(records), rtol=1e-3, atol=1e-3)
    assert validate(adapted, example.input_shape) == []
    graph = trace(adapted, example.input_shape)
    names = adapter_parameter_names(adapted)
    assert names
    assert set(names) <= set(graph.parameter_shapes)
    prefix = "0." if example.name == "one-layer" else ""
    state = adapted.state_dict()
    for name, tensor in example.module.state_dict().items():
        assert torch.equal(state[prefix + name], tensor)
    extractor = Extractor.from_graph(graph, module_weights(adapted, graph))
    forward = extractor.begin(records, names)
    numbers = sum(adapted.get_parameter(name).numel() for name in names)
    assert forward.gradients(forward.outputs).shape == (4, numbers)


def test_adapting_leaves_the_original_alone(digits):
    before = {name: tensor.clone() for name, tensor in digits.module.state_dict().items()}
    adapted = adapt_for_target(digits.module, digits.input_shape)
    with torch.no_grad():
        for parameter in adapted.parameters():
            parameter.add_(1.0)
    assert all(torch.equal(before[name], tensor) for name, tensor in digits.module.state_dict().items())
    assert all(parameter.requires_grad for parameter in digits.module.parameters())


def test_adapters_stand_after_a_batch_norm_that_follows_its_convolution(build):
    norm = build("resnet-frozen-batch-norm")
    graph = trace(adapt_for_target(norm.module, norm.input_shape), norm.input_shape)
    paths = [node.path for node in graph.nodes]
    position = paths.index("target_adapter.after_layer1_0_conv1")
    assert graph.nodes[position].inputs == (paths.index("layer1.0.bn1") + 1,)


def test_a_convolution_called_twice_gets_an_adapter_at_each_call(build):
    branches = build("branches")
    names = adapter_parameter_names(adapt_for_target(branches.module, branches.input_shape))
    assert {"target_adapter.after_shared.gain", "target_adapter.after_shared_2.gain"} <= set(names)


def test_what_cannot_travel_is_not_adapted(digits):
    with pytest.raises(ExtractorUnsupported, match="eval"):
        adapt_for_target(nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten()), (1, 8, 8))
    adapted = adapt_for_target(digits.module, digits.input_shape)
    with pytest.raises(InvalidValue, match="already"):
        adapt_for_target(adapted, digits.input_shape)


READY = [
    ("warp", (1, 8, 8)),
    ("channels", (2, 8, 8)),
    ("channels", (2, 9)),
    ("features", (6,)),
    ("low-rank", (6,)),
    ("monotone", (6,)),
]


class Own(nn.Module):
    """A user's own adapter: a few layers of the vocabulary, none of them an adapter type."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(6, 6)
        nn.init.eye_(self.mix.weight)
        nn.init.zeros_(self.mix.bias)

    def forward(self, x):
        return self.mix(x)


def extractor_for(shape):
    torch.manual_seed(0)
    size = torch.Size(shape).numel()
    return nn.Sequential(nn.Flatten(), nn.Linear(size, 5), nn.Tanh())


def made(kind, shape):
    if kind == "own":
        return Own()
    if kind == "monotone":
        return MonotoneColumns(source_knots(torch.randn(200, *shape, generator=torch.Generator().manual_seed(1)), 4))
    return input_adapter(kind, shape, rank=2)


@pytest.mark.parametrize(("kind", "shape"), [*READY, ("own", (6,))])
def test_every_ready_adapter_travels_starts_as_the_identity_and_has_gradients(kind, shape):
    extractor = extractor_for(shape)
    adapted = insert_adapter(extractor, shape, made(kind, shape))
    assert validate(adapted, shape) == []
    records = torch.randn(7, *shape, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        torch.testing.assert_close(adapted(records), extractor(records), rtol=1e-4, atol=1e-5)
    names = adapter_parameter_names(adapted)
    assert names
    assert all(name.startswith("target_adapter.input.") for name in names)
    assert [name for name, p in adapted.named_parameters() if p.requires_grad] == names
    adapted(records).square().sum().backward()
    parameters = dict(adapted.named_parameters())
    sizes = [float(parameters[name].grad.abs().sum()) for name in names]
    # A low-rank map starts with left = 0, so right has no gradient until left has moved; all others have one.
    assert sum(value > 0 for value in sizes) >= (len(sizes) - 1 if kind == "low-rank" else len(sizes))
    graph = trace(adapted, shape)
    rebuilt = Extractor.from_graph(graph, module_weights(adapted, graph))
    forward = rebuilt.begin(records, names)
    own = forward.gradients(2 * forward.outputs)
    assert own.shape == (7, sum(parameters[name].numel() for name in names))
    torch.testing.assert_close(
        own.sum(dim=0), torch.cat([parameters[name].grad.reshape(-1) for name in names]), rtol=1e-3, atol=1e-4
    )


@given(
    st.integers(2, 9),
    st.lists(st.lists(st.floats(-1e3, 1e3, width=32), min_size=3, max_size=3), min_size=1, max_size=30),
)
@settings(max_examples=tried(40))
def test_knots_increase_whatever_the_columns(count, rows):
    MonotoneColumns(source_knots(torch.tensor(rows), count))


def test_an_adapter_that_does_not_fit_is_refused():
    extractor = extractor_for((6,))
    with pytest.raises(InvalidValue, match=r"no 'warp' adapter for records of shape \(6,\); allowed: auto, features"):
        input_adapter("warp", (6,))
    with pytest.raises(InvalidValue, match=r"turns records of shape \(6,\) into \(4,\)"):
        insert_adapter(extractor, (6,), nn.Linear(6, 4))
    with pytest.raises(InvalidValue, match="cannot take records"):
        insert_adapter(extractor, (6,), nn.Linear(5, 6))
    with pytest.raises(InvalidValue, match="no trainable parameters"):
        insert_adapter(extractor, (6,), nn.Tanh())
    with pytest.raises(ExtractorUnsupported, match="LogSoftmax"):
        insert_adapter(extractor, (6,), nn.Sequential(nn.Linear(6, 6), nn.LogSoftmax(dim=1)))
    with pytest.raises(InvalidValue, match="finite records"):
        source_knots(torch.tensor([[float("nan")]]), 3)
