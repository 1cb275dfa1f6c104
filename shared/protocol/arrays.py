"""Arrays on the wire: float32 for public values, integers on the noise grid for releases."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from shared.errors import RequestInvalid
from shared.protocol.limits import MAX_RANK
from shared.protocol.v1 import curator_pb2 as pb

_WIDTHS: dict[pb.GridArray.Width.ValueType, np.dtype[Any]] = {
    pb.GridArray.WIDTH_INT16: np.dtype("<i2"),
    pb.GridArray.WIDTH_INT32: np.dtype("<i4"),
}


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
        raise _invalid(field, f"holds {len(message.data)} bytes for shape {tuple(message.shape)}; needs {4 * count}")
    array = np.frombuffer(message.data, dtype="<f4").reshape(tuple(message.shape)).astype(np.float32)
    if not np.isfinite(array).all():
        raise _invalid(field, "holds NaN or infinite values; send finite values only")
    return array


def encode_grid(values: npt.NDArray[np.signedinteger], *, step: float) -> pb.GridArray:
    """Encodes int16 or int32 grid values.

    Raises:
        TypeError: the values are neither int16 nor int32.
    """
    for width, dtype in _WIDTHS.items():
        if values.dtype == dtype:
            data = np.ascontiguousarray(values, dtype=dtype).tobytes()
            return pb.GridArray(shape=values.shape, width=width, data=data, step=step)
    raise TypeError(f"grid values are int16 or int32, not {values.dtype}")


def decode_grid(message: pb.GridArray, *, field: str, max_values: int) -> tuple[npt.NDArray[np.signedinteger], float]:
    """Decodes grid integers and their step.

    Raises:
        RequestInvalid: rank, size, width, step or bytes do not agree.
    """
    if message.width not in _WIDTHS:
        raise _invalid(field, f"width {message.width} is unknown; allowed are int16 (1) and int32 (2)")
    dtype = _WIDTHS[message.width]
    count = _checked_count(message.shape, field=field, max_values=max_values)
    if len(message.data) != dtype.itemsize * count:
        raise _invalid(field, f"holds {len(message.data)} bytes; shape and width need {dtype.itemsize * count}")
    if not (math.isfinite(message.step) and message.step > 0):
        raise _invalid(field, f"step is {message.step}; it must be positive and finite")
    return np.frombuffer(message.data, dtype=dtype).reshape(tuple(message.shape)).copy(), message.step


def _checked_count(shape: Sequence[int], *, field: str, max_values: int) -> int:
    if len(shape) > MAX_RANK:
        raise _invalid(field, f"has {len(shape)} dimensions; at most {MAX_RANK} are allowed")
    count = math.prod(shape)
    if count > max_values:
        raise _invalid(field, f"has {count} values; at most {max_values} are allowed")
    return count


def _invalid(field: str, text: str) -> RequestInvalid:
    return RequestInvalid(((field, text),))
