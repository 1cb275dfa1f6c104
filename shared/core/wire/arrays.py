"""Arrays on the wire: float32 for public values, integers on the noise grid for releases."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.noise.feature_map import FeatureMap
from dpswd.shared.core.noise.noise import GridArray, Integer
from dpswd.shared.core.wire.checks import invalid
from dpswd.shared.core.wire.limits import MAX_MESSAGE_BYTES, MAX_RANK
from dpswd.shared.core.wire.v1 import curator_pb2 as pb

_WIDTHS: dict[Integer, pb.GridArray.Width.ValueType] = {
    "int16": pb.GridArray.WIDTH_INT16,
    "int24": pb.GridArray.WIDTH_INT24,
    "int32": pb.GridArray.WIDTH_INT32,
    "int64": pb.GridArray.WIDTH_INT64,
}
BYTES: dict[Integer, int] = {"int16": 2, "int24": 3, "int32": 4, "int64": 8}
"""Of one value on the wire."""
_SIZES = {_WIDTHS[integer]: size for integer, size in BYTES.items()}
_INTEGERS = {width: integer for integer, width in _WIDTHS.items()}


def encode_floats(values: npt.ArrayLike) -> pb.FloatArray:
    """Encodes any float array as float32, little-endian, row-major."""
    array = np.ascontiguousarray(values, dtype="<f4")
    return pb.FloatArray(shape=array.shape, data=array.tobytes())


def decode_floats(message: pb.FloatArray, *, field: str, max_values: int) -> npt.NDArray[np.float32]:
    """Decodes and checks a float array; the result owns its memory and is finite.

    Args:
        message: the array from the wire.
        field: its path in the request, for the error.
        max_values: the largest number of values that is allowed.

    Raises:
        RequestInvalid: rank, size or bytes do not agree, or a value is not finite.
    """
    count = _checked_count(message.shape, field=field, max_values=max_values)
    if len(message.data) != 4 * count:
        raise invalid(field, f"holds {len(message.data)} bytes for shape {tuple(message.shape)}; needs {4 * count}")
    array = np.frombuffer(message.data, dtype="<f4").reshape(tuple(message.shape)).astype(np.float32)
    if not np.isfinite(array).all():
        raise invalid(field, "holds NaN or infinite values; send finite values only")
    return array


def encode_map(feature_map: FeatureMap) -> pb.FeatureMap:
    """A map as it travels."""
    center, scale = (encode_floats(values.detach().cpu().numpy()) for values in (feature_map.center, feature_map.scale))
    return pb.FeatureMap(center=center, scale=scale)


def decode_map(message: pb.FeatureMap, *, field: str) -> FeatureMap:
    """The inverse of `encode_map`.

    Raises:
        RequestInvalid: center and scale do not make a map.
    """
    most = MAX_MESSAGE_BYTES // 8
    center = decode_floats(message.center, field=f"{field}.center", max_values=most)
    scale = decode_floats(message.scale, field=f"{field}.scale", max_values=most)
    try:
        return FeatureMap(center=torch.from_numpy(center), scale=torch.from_numpy(scale))
    except InvalidValue as error:
        raise invalid(field, str(error)) from error


def encode_grid(released: GridArray) -> pb.GridArray:
    """Encodes grid values at the width that their release declares: 2, 3, 4 or 8 bytes each, little-endian.

    Raises:
        ValueError: a value does not fit in that width.
    """
    width = _WIDTHS[released.integer]
    values, size = released.values, BYTES[released.integer]
    limit = 1 << (8 * size - 1)
    if values.size and not -limit <= int(values.min()) <= int(values.max()) < limit:
        raise ValueError(f"the grid values do not fit in {released.integer}")
    if size == 3:
        whole = np.ascontiguousarray(values, dtype="<i4")
        data = whole.view(np.uint8).reshape(-1, 4)[:, :3].tobytes()
    else:
        data = values.astype(f"<i{size}", copy=False).tobytes()
    return pb.GridArray(shape=values.shape, width=width, data=data, step=released.step)


def decode_grid(message: pb.GridArray, *, field: str, max_values: int) -> GridArray:
    """Decodes grid integers, as int16, int32 or int64, with their step.

    Raises:
        RequestInvalid: rank, size, width, step or bytes do not agree.
    """
    if message.width not in _SIZES:
        allowed = ", ".join(f"{integer} ({width})" for integer, width in _WIDTHS.items())
        raise invalid(field, f"width {message.width} is unknown; allowed are {allowed}")
    size = _SIZES[message.width]
    count = _checked_count(message.shape, field=field, max_values=max_values)
    if len(message.data) != size * count:
        raise invalid(field, f"holds {len(message.data)} bytes; shape and width need {size * count}")
    if not (math.isfinite(message.step) and message.step > 0):
        raise invalid(field, f"step is {message.step}; it must be positive and finite")
    shape = tuple(message.shape)
    if size == 3:
        # The three bytes become the upper ones, and an arithmetic shift brings the sign along.
        padded = np.zeros((count, 4), dtype=np.uint8)
        padded[:, 1:] = np.frombuffer(message.data, dtype=np.uint8).reshape(count, 3)
        values = (padded.view("<i4").reshape(shape) >> 8).astype(np.int32)
    else:
        values = np.frombuffer(message.data, dtype=f"<i{size}").reshape(shape).copy()
    return GridArray(values, message.step, _INTEGERS[message.width])


def _checked_count(shape: Sequence[int], *, field: str, max_values: int) -> int:
    if len(shape) > MAX_RANK:
        raise invalid(field, f"has {len(shape)} dimensions; at most {MAX_RANK} are allowed")
    count = math.prod(shape)
    # A dimension of 0 must not hide others that no array can have.
    if math.prod(size or 1 for size in shape) > max_values:
        raise invalid(field, f"has shape {tuple(shape)}; at most {max_values} values are allowed")
    return count
