"""Views of a record with more sides than a value has, and attention within windows (Swin).

A program may put windows beside the records of a batch, (b * windows, t, d): each record's windows still are its own,
so such a view is kept, and becomes a value once the windows are put back together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from dpswd.public_client.extractor.lowering import Builder, Traced
from dpswd.public_client.extractor.sequence_layers import linear_layer


def rearranged(builder: Builder, value: Traced, sides: Sequence[int], order: Sequence[int]) -> Traced:
    """A value's numbers in another order of its sides, of which there may be more than three.

    Args:
        builder: of the graph.
        value: its numbers in the order of `sides`.
        sides: their lengths.
        order: which side stands where.

    Returns:
        The numbers in the new order; its own shape means nothing.
    """
    long = [side for side in order if sides[side] > 1]
    if long == sorted(long):
        return value
    return builder.emit("rearrange", value, sides=sides, order=order)


def attention(builder: Builder, layer: Any, path: str, x: Traced, windows: int, mask: Traced | None) -> Traced:
    """Attention within windows with a bias by relative positions: WindowAttention of Swin, as its authors write it.

    Args:
        builder: of the graph.
        layer: with qkv, proj, num_heads, scale, relative_position_bias_table and relative_position_index.
        path: of the layer.
        x: (windows, t, d) in any shape.
        windows: of one record.
        mask: (windows, 1, t * t) that is added to scores.

    Returns:
        (windows * t, d).
    """
    heads, inside = int(layer.num_heads), int(layer.qkv.out_features) // 3
    t = math.prod(x.shape) // (windows * int(layer.qkv.in_features))
    flat = builder.reshape(x, (windows * t, int(layer.qkv.in_features)))
    whole = linear_layer(builder, layer.qkv, f"{path}.qkv", flat)
    sides = (windows, t, heads, inside // heads)
    parts = []
    for number in range(3):
        part = builder.emit("slice", whole, axis=1, begin=number * inside, end=(number + 1) * inside)
        by_head = rearranged(builder, part, sides, (0, 2, 1, 3))
        parts.append(builder.reshape(by_head, (windows * heads, t, inside // heads)))
    q, k, v = parts
    scores = builder.emit("matmul", q, builder.emit("permute", k, order=(0, 2, 1)))
    scores = builder.emit("scale_shift", scores, gain=float(layer.scale), shift=0.0)
    scores = builder.reshape(scores, (windows, heads, t * t))
    scores = builder.emit("add", scores, _relative(builder, layer, path))
    if mask is not None:
        scores = builder.emit("add", scores, mask)
    shares = builder.emit("softmax", builder.reshape(scores, (windows * heads, t, t)))
    seen = rearranged(builder, builder.emit("matmul", shares, v), (windows, heads, t, inside // heads), (0, 2, 1, 3))
    return linear_layer(builder, layer.proj, f"{path}.proj", builder.reshape(seen, (windows * t, inside)))


def _relative(builder: Builder, layer: Any, path: str) -> Traced:
    """(1, heads, t * t) of the table of relative positions."""
    index = layer.relative_position_index
    table = builder.emit(
        "parameter", path=f"{path}.relative_position_bias_table", shape=tuple(layer.relative_position_bias_table.shape)
    )
    stored = builder.emit("buffer", path=f"{path}.relative_position_index", shape=tuple(index.shape))
    rows = builder.emit("look_up", table, builder.reshape(stored, (index.numel(),)))
    turned = builder.emit("permute", rows, order=(1, 0))
    return builder.reshape(turned, (1, *turned.shape))


def is_window_attention(layer: Any) -> bool:
    """Whether a layer is a WindowAttention as Swin's authors, and timm, write it."""
    names = ("qkv", "proj", "num_heads", "scale", "relative_position_bias_table", "relative_position_index")
    return type(layer).__name__ == "WindowAttention" and all(hasattr(layer, name) for name in names)
