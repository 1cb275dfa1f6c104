"""Graphs: one spelling each, strict parsing of hostile bytes, limits before anything runs, lasting digests."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path

import pytest
from exploring import tried
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpswd.public_client.extractor.tracing import trace
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.sandbox.graph import (
    MAX_GRAPH_BYTES,
    MAX_NODES,
    ExtractorGraph,
    Node,
    infer,
    operation_of,
    tensor_name,
)
from dpswd.shared.sandbox.vocabulary import VOCABULARY

GOLDEN = Path(__file__).parent / "golden_digests.json"

SIMPLE = ["relu", "selu", "gelu", "gelu_tanh", "silu", "mish", "tanh", "sigmoid", "hardswish", "hardsigmoid"]


def node(operation, *inputs, path="", **attributes):
    return Node(operation, tuple(inputs), path, attributes)


def linear(given_in, given_out, *inputs, path="fc"):
    return node("linear", *inputs, path=path, in_features=given_in, out_features=given_out, bias=True)


@st.composite
def graphs(draw):
    """Random valid graphs: a chain of operations with residual additions, ending in a vector."""
    rank = draw(st.integers(1, 3))
    shape = tuple(draw(st.integers(1, 6)) for _ in range(rank))
    nodes, shapes = [], [shape]

    def append(new):
        shapes.append(infer(new, shapes))
        nodes.append(new)

    for index in range(draw(st.integers(0, 6))):
        last, at = len(nodes), shapes[-1]
        path = f"layer{index}.{draw(st.sampled_from(['a', 'b_1', '0']))}"
        choices = [
            node(draw(st.sampled_from(SIMPLE)), last),
            node("leaky_relu", last, negative_slope=draw(st.floats(-1, 1))),
            node("scale_shift", last, gain=draw(st.floats(-9, 9)), shift=draw(st.floats(-9, 9))),
            linear(at[-1], draw(st.integers(1, 6)), last, path=path),
            node("channel_affine", last, path=path, channels=at[0]),
            node("batch_norm", last, path=path, num_features=at[0], eps=1e-5, affine=draw(st.booleans())),
            node("add", last, last),
            node("concat", last, last, last),
        ]
        if len(at) == 3:
            kernel = (draw(st.integers(1, at[1])), draw(st.integers(1, at[2])))
            choices += [
                node("affine_warp2d", last, path=path),
                node(
                    "conv2d",
                    last,
                    path=path,
                    in_channels=at[0],
                    out_channels=draw(st.integers(1, 4)),
                    kernel_size=kernel,
                    stride=(1, 2),
                    padding=(kernel[0] - 1, 0),
                    dilation=(1, 1),
                    groups=1,
                    bias=False,
                ),
                node(
                    "max_pool2d",
                    last,
                    kernel_size=kernel,
                    stride=(2, 1),
                    padding=(0, 0),
                    dilation=(1, 1),
                    ceil_mode=True,
                ),
                node("adaptive_avg_pool2d", last, output_size=(1, 2)),
            ]
        append(draw(st.sampled_from(choices)))
    if len(shapes[-1]) > 1:
        append(node("reshape", len(nodes), shape=(math.prod(shapes[-1]),)))
    return ExtractorGraph(tuple(nodes), shape)


@given(graphs())
@settings(max_examples=tried(60))
def test_bytes_round_trip_and_the_digest_follows_them(graph):
    data = graph.to_bytes()
    again = ExtractorGraph.from_bytes(data)
    assert again == graph
    assert again.to_bytes() == data
    assert again.digest == graph.digest
    assert again.cost == graph.cost


def parsed_or_refused(data):
    """A graph, or None for a refusal with our own error; anything else fails the test."""
    try:
        graph = ExtractorGraph.from_bytes(data)
    except InvalidValue:
        return None
    assert graph.to_bytes() == data
    return graph


@given(graphs(), st.data())
@settings(max_examples=tried(60))
def test_bytes_with_a_change_are_refused_or_another_valid_graph(graph, data):
    raw = bytearray(graph.to_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    result = parsed_or_refused(bytes(raw))
    assert result is None or bytes(raw) == graph.to_bytes() or result.digest != graph.digest


JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.sampled_from(sorted(VOCABULARY)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)


@given(st.data())
@settings(max_examples=tried(150), suppress_health_check=[HealthCheck.too_slow])
@pytest.mark.long
def test_a_document_with_any_part_replaced_never_escapes_the_validation(data):
    document = json.loads(chain().to_bytes())
    where = data.draw(st.sampled_from(["top", "node", "attribute"]))
    if where == "top":
        document[data.draw(st.sampled_from(sorted(document)))] = data.draw(JUNK)
    else:
        chosen = data.draw(st.sampled_from(document["nodes"]))
        if where == "attribute" and chosen["attributes"]:
            chosen["attributes"][data.draw(st.sampled_from(sorted(chosen["attributes"])))] = data.draw(JUNK)
        else:
            chosen[data.draw(st.sampled_from(sorted(chosen)))] = data.draw(JUNK)
    parsed_or_refused(canonical(document))


def canonical(document):
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def chain():
    """Convolution, pool, activation, reshape, linear: a small valid graph."""
    return ExtractorGraph(
        (
            node(
                "conv2d",
                0,
                path="conv",
                in_channels=1,
                out_channels=2,
                kernel_size=(3, 3),
                stride=(1, 1),
                padding=(1, 1),
                dilation=(1, 1),
                groups=1,
                bias=True,
            ),
            node("max_pool2d", 1, kernel_size=(2, 2), stride=(2, 2), padding=(0, 0), dilation=(1, 1), ceil_mode=False),
            node("leaky_relu", 2, negative_slope=0.1),
            node("reshape", 3, shape=(32,)),
            linear(32, 4, 4),
        ),
        (1, 8, 8),
    )


def edited(change):
    document = json.loads(chain().to_bytes())
    change(document)
    return canonical(document)


def set_in(*path_and_value):
    *path, value = path_and_value

    def change(document):
        place = document
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value

    return change


HOSTILE = {
    "empty": b"",
    "not json": b"\x80\x04\x95pickle",
    "not an object": b"[]",
    "deep nesting": b"[" * 100_000,
    "not a number": edited(set_in("nodes", 2, "attributes", "negative_slope", "@")).replace(b'"@"', b"NaN"),
    "infinite": edited(set_in("nodes", 2, "attributes", "negative_slope", "@")).replace(b'"@"', b"1e999"),
    "a number of a million digits": edited(set_in("nodes", 2, "attributes", "negative_slope", "@")).replace(
        b'"@"', b"9" * 400_000
    ),
    "white space": chain().to_bytes() + b"\n",
    "duplicate key": chain().to_bytes().replace(b'{"format":', b'{"format":"another","format":'),
    "another spelling of a number": chain().to_bytes().replace(b"0.1", b"0.10"),
    "not ascii": chain().to_bytes().replace(b'"conv"', '"cönv"'.encode()),
    "another version": edited(set_in("format", "dpswd-extractor-graph-2")),
    "version true": edited(set_in("format", True)),
    "unknown key": edited(set_in("code", "import os")),
    "unknown operation": edited(set_in("nodes", 2, "operation", "__import__")),
    "operation that is a list": edited(set_in("nodes", 2, "operation", ["relu"])),
    "forward reference": edited(set_in("nodes", 1, "inputs", [3])),
    "cycle": edited(set_in("nodes", 1, "inputs", [2])),
    "negative reference": edited(set_in("nodes", 1, "inputs", [-1])),
    "reference that is true": edited(set_in("nodes", 1, "inputs", [True])),
    "no input": edited(set_in("nodes", 1, "inputs", [])),
    "two inputs": edited(set_in("nodes", 1, "inputs", [1, 1])),
    "unused node": edited(set_in("nodes", 3, "inputs", [1])),
    "surplus attribute of a long name": edited(set_in("nodes", 2, "attributes", "a" * 100_000, True)),
    "operation of a long name": edited(set_in("nodes", 2, "operation", "a" * 100_000)),
    "missing attribute": edited(lambda d: d["nodes"][2]["attributes"].clear()),
    "surplus attribute": edited(set_in("nodes", 2, "attributes", "inplace", True)),
    "kernel as integer": edited(set_in("nodes", 0, "attributes", "kernel_size", 3)),
    "zero stride": edited(set_in("nodes", 0, "attributes", "stride", [0, 1])),
    "negative padding": edited(set_in("nodes", 0, "attributes", "padding", [-1, 0])),
    "padding beyond the kernel": edited(set_in("nodes", 0, "attributes", "padding", [3, 3])),
    "kernel beyond the image": edited(set_in("nodes", 0, "attributes", "kernel_size", [99, 99])),
    "groups that do not divide": edited(set_in("nodes", 0, "attributes", "groups", 3)),
    "one for true": edited(set_in("nodes", 0, "attributes", "bias", 1)),
    "other channels": edited(set_in("nodes", 0, "attributes", "in_channels", 3)),
    "huge channels": edited(set_in("nodes", 0, "attributes", "out_channels", 2**40)),
    "slope above one": edited(set_in("nodes", 2, "attributes", "negative_slope", 1e30)),
    "reshape to another size": edited(set_in("nodes", 3, "attributes", "shape", [31])),
    "reshape with -1": edited(set_in("nodes", 3, "attributes", "shape", [-1])),
    "a feature dimension": edited(set_in("feature_dimension", 4)),
    "zero-sided input": edited(set_in("input_shape", [1, 0, 8])),
    "four-dimensional input": edited(set_in("input_shape", [1, 1, 8, 8])),
    "path with a dunder attribute": edited(set_in("nodes", 0, "path", "conv/../..")),
    "path of a million": edited(set_in("nodes", 0, "path", "a" * 100_000)),
    "path on an activation": edited(set_in("nodes", 2, "path", "act")),
    "path that is no text": edited(set_in("nodes", 0, "path", 7)),
    "one path for two layers": edited(set_in("nodes", 4, "path", "conv")),
    "output that is no vector": edited(lambda d: (d["nodes"].pop(), d["nodes"].pop())),
    "nodes that are no list": edited(set_in("nodes", {"0": 1})),
    "too long": b" " * (MAX_GRAPH_BYTES + 1),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_bytes_are_refused_quickly_and_with_a_short_message(data):
    started = time.thread_time()
    with pytest.raises(InvalidValue) as refusal:
        ExtractorGraph.from_bytes(data)
    assert time.thread_time() - started < 2.0  # seconds; refusing takes milliseconds
    assert len(str(refusal.value)) < 2_000


def wide(out_channels, *, side=8, kernel=1):
    conv = node(
        "conv2d",
        0,
        path="conv",
        in_channels=1,
        out_channels=out_channels,
        kernel_size=(kernel, kernel),
        stride=(1, 1),
        padding=(kernel - 1, kernel - 1),
        dilation=(1, 1),
        groups=1,
        bias=True,
    )
    return (conv, node("adaptive_avg_pool2d", 1, output_size=(1, 1)), node("reshape", 2, shape=(out_channels,))), (
        1,
        side,
        side,
    )


def stack(layers, width):
    return tuple(linear(width, width, i, path=f"fc{i}") for i in range(layers)), (width,)


@pytest.mark.parametrize(
    ("arguments", "limit"),
    [
        (wide(65536, side=64), "at most"),  # one value of 2^28 numbers
        (wide(16384, side=64), "exceed"),  # 2^26 numbers, and the record beside them
        (wide(1, side=1024, kernel=200), "workspace"),
        (stack(70, 1024), "parameters"),
        (((*[node("relu", i) for i in range(MAX_NODES + 1)],), (3,)), "nodes"),
        (((), (2, 2048, 2048)), "input_shape"),
        (
            ((node("concat", *([0] * 64)), node("concat", *([1] * 64)), node("concat", *([2] * 64))), (1,)),
            "at most",
        ),
    ],
    ids=["one value", "activations", "workspace", "parameters", "nodes", "input", "features"],
)
def test_limits_hold_before_anything_is_allocated(arguments, limit):
    with pytest.raises(InvalidValue, match=limit):
        ExtractorGraph(*arguments)


def test_work_is_limited():
    # Two matrices, used by 600 pairs of nodes: little memory, much work.
    nodes, number = [], 0
    for _ in range(600):
        nodes += [linear(1024, 30_000, number, path="up"), linear(30_000, 1024, number + 1, path="down")]
        number += 2
    with pytest.raises(InvalidValue, match="floating point"):
        ExtractorGraph(tuple(nodes), (1024,))


def test_the_declared_shapes_are_those_that_torch_computes(example):
    extractor = example.extractor()
    values = [example.records(1)[0]]
    for node in extractor.graph.nodes:
        operation = operation_of(node)
        tensors = {name: extractor.weights[tensor_name(node.path, name)] for name in operation.tensors(node.attributes)}
        values.append(operation.apply([values[i] for i in node.inputs], node.attributes, tensors))
    assert [tuple(value.shape) for value in values] == list(extractor.graph.shapes)


def test_digests_never_change(build):
    """Operators approve digests: a difference here breaks every approval. A new meaning needs a new format."""
    golden = json.loads(GOLDEN.read_text())
    assert {name: trace(build(name).module, build(name).input_shape).digest for name in golden} == golden
    assert chain().digest == "6557b36b34534a190b2d4c725d0b524c32477ce0a0acdeb49e4f7790916ab38b"


def test_steps_that_come_one_after_the_other_are_counted():
    """Attack: 64 recurrent layers of 2,048 steps count 8e6 operations, and took a minute for 16 records."""

    def layers(count):
        at = {"input_size": 1, "hidden_size": 1, "layer": 0, "reverse": False, "bias": False}
        chain = [node("gru", number, path=f"g{number}", **at) for number in range(count)]
        return ExtractorGraph((*chain, node("reshape", count, shape=(2048,))), (2048, 1))

    assert layers(4).cost.steps == 4 * 2048 + 1
    with pytest.raises(InvalidValue, match="steps that come one after the other, at most 10240"):
        layers(64)
    pool = {"kernel_size": (255, 255), "stride": (1, 1), "padding": (127, 127), "dilation": (1, 1), "ceil_mode": False}
    pools = [node("max_pool2d", number, **pool) for number in range(24)]
    with pytest.raises(InvalidValue, match="steps that come one after the other"):
        ExtractorGraph((*pools, node("reshape", 24, shape=(16,))), (1, 4, 4))


def test_numbers_inside_of_an_operation_are_counted():
    """Attack: an embedding is a product with 2.56 GB of zeros and ones for 16 records, of which none were counted."""
    words = node("embedding", 0, path="e", num_embeddings=60_000, embedding_dim=1)
    graph = ExtractorGraph((words, node("reshape", 1, shape=(512,))), (512,))
    assert graph.cost.activations > 60_000 * 512
    again = node("embedding", 0, path="f", num_embeddings=60_000, embedding_dim=1)
    with pytest.raises(InvalidValue, match="the values of one record exceed"):
        ExtractorGraph((words, again, node("add", 1, 2), node("reshape", 3, shape=(512,))), (512,))
    places = node("parameter", path="places", shape=(60_000,))
    table = node("parameter", path="table", shape=(60_000, 1))
    with pytest.raises(InvalidValue, match="the values of one record exceed"):
        ExtractorGraph((table, places, node("look_up", 1, 2), node("reshape", 3, shape=(60_000,))), (2,))


def test_what_torch_would_refuse_by_shape_is_refused_in_words():
    """Attack: such graphs passed the graph's check and ended as incidents."""
    with pytest.raises(InvalidValue, match=r"node 0 \(hardtanh\): min_val 1 is more than max_val 0"):
        ExtractorGraph((node("hardtanh", 0, min_val=1.0, max_val=0.0),), (3,))
