"""Weights as safetensors, read from untrusted bytes.

The header is checked here before the safetensors library sees the bytes: its own limits allow a header of 100 MB, every
data type and every tensor. What is accepted is exactly what the graph asks for: float32, those names, those shapes, the
data packed without holes, every number finite.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.sandbox.graph import MAX_NODES, MAX_PATH, ExtractorGraph
from dpswd.shared.sandbox.operations import Shape

MAX_HEADER_BYTES = 4 * MAX_NODES * (MAX_PATH + 100)
"""At most four tensors a node, each with a name and about 100 bytes of shape and offsets (2.4 MB)."""
_PREFIX = 8  # bytes: the header's length, little endian
_ITEM = 4  # bytes of a float32


def weights_from_bytes(data: bytes, graph: ExtractorGraph) -> dict[str, Tensor]:
    """Parses untrusted bytes, safetensors, into exactly the graph's tensors.

    Raises:
        InvalidValue: another size, header, name, type, shape or layout, or a value that `check_weights` refuses.
    """
    shapes = graph.tensor_shapes
    numbers, size = graph.cost.parameters, int.from_bytes(data[:_PREFIX], "little")
    if size > MAX_HEADER_BYTES or _PREFIX + size + numbers * _ITEM != len(data):
        raise InvalidValue(
            f"weights must be safetensors of {numbers} float32 numbers after a header within {MAX_HEADER_BYTES} bytes, "
            f"got {len(data)} bytes"
        )
    _check_header(data[_PREFIX : _PREFIX + size], shapes)
    try:
        tensors = safetensors.torch.load(data)  # refuses other sizes than those of the shapes, holes and overlaps
    except (safetensors.SafetensorError, ValueError, KeyError) as error:
        raise InvalidValue(f"weights are not valid safetensors ({error})") from error
    check_weights(graph, tensors)
    return {name: tensors[name] for name in shapes}


def check_weights(graph: ExtractorGraph, weights: Mapping[str, Tensor]) -> None:
    """Raises InvalidValue unless `weights` are exactly the graph's, float32 and finite, with sensible statistics."""
    _check_names(set(weights), set(graph.tensor_shapes))
    for name, shape in graph.tensor_shapes.items():
        tensor = weights[name]
        if tuple(tensor.shape) != shape or tensor.dtype != torch.float32:
            raise InvalidValue(f"{name} must be float32 of shape {shape}, got {tensor.dtype} of {tuple(tensor.shape)}")
        if not bool(torch.isfinite(tensor).all()):
            raise InvalidValue(f"{name} holds a value that is not finite")
        if name in graph.buffer_shapes and name.rpartition(".")[2] == "running_var" and bool((tensor < 0).any()):
            raise InvalidValue(f"{name} must not be negative: it is a variance")


def _check_header(header: bytes, shapes: Mapping[str, Shape]) -> None:
    """What safetensors itself would let pass: repeated names, metadata, other keys, other types than float32."""
    try:
        document = json.loads(header.decode("ascii"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise InvalidValue("the header of the weights must be ASCII JSON without duplicate names") from error
    if not isinstance(document, dict):
        raise InvalidValue("the header of the weights must be an object")
    _check_names(set(document), set(shapes))
    for name, entry in document.items():
        if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
            raise InvalidValue(f"{name} must have dtype, shape and data_offsets")
        if entry["dtype"] != "F32":
            raise InvalidValue(f"{name} must be F32")


def _check_names(names: set[str], expected: set[str]) -> None:
    if names != expected:
        missing, surplus = sorted(expected - names)[:5], len(names - expected)
        raise InvalidValue(f"weights must be exactly the graph's tensors; missing {missing}, not asked for: {surplus}")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("duplicate name")
    return document
