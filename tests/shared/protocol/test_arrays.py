from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from shared.errors import RequestInvalid
from shared.protocol.arrays import decode_floats, decode_grid, encode_floats, encode_grid
from shared.protocol.v1 import curator_pb2 as pb

FINITE32 = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(hnp.arrays(np.float32, hnp.array_shapes(max_dims=4, max_side=5, min_side=0), elements=FINITE32))
def test_floats_survive_the_wire(values):
    message = pb.FloatArray.FromString(encode_floats(values).SerializeToString())
    decoded = decode_floats(message, field="x", max_values=10_000)
    assert decoded.dtype == np.float32
    np.testing.assert_array_equal(decoded, values)


@pytest.mark.parametrize("dtype", [np.int16, np.int32])
def test_grid_values_survive_the_wire_at_their_extremes(dtype):
    info = np.iinfo(dtype)
    values = np.array([[info.min, -1, 0], [1, 7, info.max]], dtype=dtype)
    message = pb.GridArray.FromString(encode_grid(values, step=0.125).SerializeToString())
    decoded, step = decode_grid(message, field="x", max_values=6)
    assert step == 0.125
    assert decoded.dtype == dtype
    np.testing.assert_array_equal(decoded, values)


def test_grid_values_of_other_widths_are_refused():
    with pytest.raises(TypeError, match="int64"):
        encode_grid(np.zeros(3, dtype=np.int64), step=1.0)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (pb.FloatArray(shape=[2], data=b"\0" * 4), "needs 8"),
        (pb.FloatArray(shape=[1] * 9, data=b"\0" * 4), "at most 8"),
        (pb.FloatArray(shape=[2**31, 2**31], data=b""), "at most 100"),
        (pb.FloatArray(shape=[1], data=np.float32("nan").tobytes()), "finite"),
        (pb.FloatArray(shape=[1], data=np.float32("inf").tobytes()), "finite"),
    ],
)
def test_malformed_floats_are_refused_with_their_field(message, text):
    with pytest.raises(RequestInvalid, match=text) as caught:
        decode_floats(message, field="source.inline", max_values=100)
    assert caught.value.violations[0][0] == "source.inline"


@pytest.mark.parametrize(
    "message",
    [
        pb.GridArray(shape=[1], width=pb.GridArray.WIDTH_UNSPECIFIED, data=b"\0\0", step=1.0),
        pb.GridArray(shape=[1], width=7, data=b"\0\0", step=1.0),
        pb.GridArray(shape=[2], width=pb.GridArray.WIDTH_INT16, data=b"\0\0", step=1.0),
        pb.GridArray(shape=[1], width=pb.GridArray.WIDTH_INT16, data=b"\0\0", step=0.0),
        pb.GridArray(shape=[1], width=pb.GridArray.WIDTH_INT16, data=b"\0\0", step=float("nan")),
    ],
)
def test_malformed_grids_are_refused(message):
    with pytest.raises(RequestInvalid):
        decode_grid(message, field="release", max_values=100)
