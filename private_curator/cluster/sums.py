"""Exact sums of shards as bytes, between a curator's own processes."""

from __future__ import annotations

import struct

import numpy as np

from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.mechanisms.linear import Integers, Shard, ShardSum

_HEAD = struct.Struct("<QQI")


def sum_to_bytes(part: ShardSum) -> bytes:
    """A sum, for another process of the same curator."""
    parts = [_HEAD.pack(part.shard.start, part.shard.stop, len(part.sums))]
    for each in part.sums:
        parts += [struct.pack("<Q", each.size), np.ascontiguousarray(each, dtype="<i8").tobytes()]
    return b"".join(parts)


def sum_from_bytes(data: bytes, *, shard: Shard, like: tuple[Integers, ...]) -> ShardSum:
    """The inverse.

    Args:
        data: as another process made them.
        shard: of which this must be the sum.
        like: arrays of the expected shapes.

    Raises:
        InvalidValue: another shard, or other sizes than the mechanism's; the text names no value.
    """
    expected = _HEAD.size + sum(8 + 8 * each.size for each in like)
    if len(data) != expected or _HEAD.unpack_from(data)[2] != len(like):
        raise InvalidValue(f"a shard's sum has {len(data)} bytes; this mechanism's have {expected}")
    if _HEAD.unpack_from(data)[:2] != (shard.start, shard.stop):
        raise InvalidValue("a shard's sum is that of another shard")
    at, sums = _HEAD.size, []
    for each in like:
        if struct.unpack_from("<Q", data, at)[0] != each.size:
            raise InvalidValue(f"a shard's sum holds arrays of other sizes than {each.size}")
        values = np.frombuffer(data, dtype="<i8", count=each.size, offset=at + 8)
        sums.append(values.astype(np.int64).reshape(each.shape))
        at += 8 + 8 * each.size
    return ShardSum(shard, tuple(sums))
