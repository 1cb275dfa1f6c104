"""Weights: exact round trips, and strict refusal of everything that is not exactly the graph's tensors."""

from __future__ import annotations

import json
import math

import pytest
import safetensors.torch
import torch
from exploring import tried
from hypothesis import given, settings
from hypothesis import strategies as st

from dpswd.public_client.extractor.tracing import module_weights, trace, weights_to_bytes
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.sandbox.graph import ExtractorGraph, Node
from dpswd.shared.sandbox.weights import check_weights, weights_from_bytes

NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,5}(\.[a-z0-9]{1,4}){0,2}", fullmatch=True)
SHAPES = st.tuples(st.sampled_from([(), (1,)]), st.lists(st.integers(1, 4), min_size=1, max_size=3)).map(
    lambda parts: (*parts[0], *parts[1])
)
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


def graph_of(shapes):
    """A graph of tensors of these names and shapes, one behind the other."""
    nodes, flat = [], []
    for name, shape in shapes.items():
        nodes.append(Node("parameter", (), name, {"shape": shape}))
        nodes.append(Node("reshape", (len(nodes),), "", {"shape": (math.prod(shape),)}))
        flat.append(len(nodes))
    joined = (Node("concat", tuple(flat)),) if len(flat) > 1 else ()
    return ExtractorGraph((*nodes, *joined), (1,))


@st.composite
def tensors(draw):
    shapes = draw(st.dictionaries(NAMES, SHAPES, min_size=1, max_size=4))
    made = {}
    for name, shape in shapes.items():
        size = int(torch.Size(shape).numel())
        made[name] = torch.tensor(draw(st.lists(FLOATS, min_size=size, max_size=size)), dtype=torch.float32).reshape(
            shape
        )
    return made


@given(tensors())
@settings(max_examples=tried(60))
def test_round_trip_is_exact_and_the_bytes_are_canonical(weights):
    data = weights_to_bytes(weights)
    again = weights_from_bytes(data, graph_of({name: tuple(tensor.shape) for name, tensor in weights.items()}))
    assert list(again) == list(weights)
    for name, tensor in weights.items():
        assert torch.equal(again[name].view(torch.int32), tensor.view(torch.int32))
    reordered = dict(reversed(list(weights.items())))
    assert weights_to_bytes(reordered) == data
    assert data == weights_to_bytes(again)


def test_a_module_s_weights_travel(example):
    graph = trace(example.module, example.input_shape)
    weights = module_weights(example.module, graph)
    again = weights_from_bytes(weights_to_bytes(weights), graph)
    check_weights(graph, again)
    assert all(torch.equal(again[name], tensor) for name, tensor in weights.items())


WEIGHTS = {"a.weight": torch.arange(6.0).reshape(2, 3), "b": torch.tensor([1.0, -1.0])}
GRAPH = graph_of({"a.weight": (2, 3), "b": (2,)})
GOOD = weights_to_bytes(WEIGHTS)


@given(st.data())
@settings(max_examples=tried(100))
def test_changed_bytes_are_refused_or_other_finite_numbers(data):
    raw = bytearray(GOOD)
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        result = weights_from_bytes(bytes(raw), GRAPH)
    except InvalidValue:
        return
    assert {name: tuple(tensor.shape) for name, tensor in result.items()} == GRAPH.tensor_shapes
    assert all(bool(torch.isfinite(tensor).all()) for tensor in result.values())


def with_header(change):
    size = int.from_bytes(GOOD[:8], "little")
    header = json.loads(GOOD[8 : 8 + size])
    text = change(header)
    text = text if isinstance(text, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + GOOD[8 + size :]


def edit(name, key, value):
    return with_header(lambda header: header[name].__setitem__(key, value))


HOSTILE = {
    "empty": b"",
    "short": GOOD[:20],
    "truncated": GOOD[:-1],
    "with a tail": GOOD + b"\0\0\0\0",
    "header of 2^63 bytes": (2**63).to_bytes(8, "little") + GOOD[8:],
    "deep header": with_header(lambda _: b"[" * 50_000),
    "duplicate names": with_header(lambda h: json.dumps(h).replace('{"a.weight"', '{"b": {}, "a.weight"', 1).encode()),
    "metadata": with_header(lambda h: h.__setitem__("__metadata__", {"x": "y"})),
    "surplus tensor": weights_to_bytes({**WEIGHTS, "c": torch.zeros(1)}),
    "missing tensor": weights_to_bytes({"b": WEIGHTS["b"]}),
    "other name": weights_to_bytes({"a.weight": WEIGHTS["a.weight"], "c": WEIGHTS["b"]}),
    "other shape": edit("a.weight", "shape", [3, 2]),
    "shape of floats": edit("a.weight", "shape", [2.0, 3.0]),
    "half precision": edit("b", "dtype", "F16"),
    "integers": safetensors.torch.save({**WEIGHTS, "b": torch.tensor([1, 2], dtype=torch.int32)}),
    "overlap": edit("b", "data_offsets", [0, 8]),
    "hole": edit("b", "data_offsets", [28, 36]),
    "negative offset": edit("b", "data_offsets", [-8, 0]),
    "unknown key": edit("b", "file", "/etc/passwd"),
    "not a number": weights_to_bytes({**WEIGHTS, "b": torch.tensor([1.0, float("nan")])}),
    "infinite": weights_to_bytes({**WEIGHTS, "b": torch.tensor([float("-inf"), 0.0])}),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_bytes_are_refused(data):
    assert weights_from_bytes(GOOD, GRAPH)["b"].tolist() == [1.0, -1.0]
    with pytest.raises(InvalidValue):
        weights_from_bytes(data, GRAPH)


def test_only_float32_is_serialised():
    with pytest.raises(InvalidValue, match="float32"):
        weights_to_bytes({"a": torch.zeros(2, dtype=torch.float64)})


def test_statistics_must_make_sense(build):
    norm = build("resnet-frozen-batch-norm")
    graph = trace(norm.module, norm.input_shape)
    weights = {name: tensor.clone() for name, tensor in module_weights(norm.module, graph).items()}
    weights["bn1.running_var"][0] = -1.0
    with pytest.raises(InvalidValue, match="variance"):
        check_weights(graph, weights)
    with pytest.raises(InvalidValue, match="variance"):
        weights_from_bytes(weights_to_bytes(weights), graph)
