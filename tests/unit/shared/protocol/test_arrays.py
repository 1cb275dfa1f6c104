from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dpswd.shared.core.errors import RequestInvalid
from dpswd.shared.core.noise.noise import GridArray
from dpswd.shared.core.wire.arrays import decode_floats, decode_grid, encode_floats, encode_grid
from dpswd.shared.core.wire.v1 import curator_pb2 as pb

FINITE32 = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(hnp.arrays(np.float32, hnp.array_shapes(max_dims=4, max_side=5, min_side=0), elements=FINITE32))
def test_floats_survive_the_wire(values):
    message = pb.FloatArray.FromString(encode_floats(values).SerializeToString())
    decoded = decode_floats(message, field="x", max_values=10_000)
    assert decoded.dtype == np.float32
    np.testing.assert_array_equal(decoded, values)


@pytest.mark.parametrize(("bits", "dtype"), [(16, np.int16), (24, np.int32), (32, np.int32)])
def test_grid_values_survive_the_wire_at_their_extremes(bits, dtype):
    most = 2 ** (bits - 1)
    values = np.array([[-most, -1, 0], [1, 7, most - 1]], dtype=dtype)
    message = pb.GridArray.FromString(encode_grid(GridArray(values, 0.125, f"int{bits}")).SerializeToString())
    assert len(message.data) == values.size * bits // 8
    decoded = decode_grid(message, field="x", max_values=6)
    assert (decoded.step, decoded.integer) == (0.125, f"int{bits}")
    assert decoded.values.dtype == dtype
    np.testing.assert_array_equal(decoded.values, values)


@given(
    hnp.arrays(
        np.int32, hnp.array_shapes(max_dims=3, max_side=4, min_side=0), elements=st.integers(-(2**23), 2**23 - 1)
    )
)
def test_three_bytes_hold_what_fits_in_them(values):
    message = encode_grid(GridArray(values.copy(), 1.0, "int24"))
    decoded = decode_grid(message, field="x", max_values=10_000)
    np.testing.assert_array_equal(decoded.values, values)


@pytest.mark.parametrize("value", [2**23, -(2**23) - 1])
def test_grid_values_that_do_not_fit_are_refused_and_never_cut(value):
    with pytest.raises(ValueError, match="do not fit in int24"):
        encode_grid(GridArray(np.array([value], dtype=np.int32), 1.0, "int24"))


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (pb.FloatArray(shape=[2], data=b"\0" * 4), "needs 8"),
        (pb.FloatArray(shape=[1] * 9, data=b"\0" * 4), "at most 8"),
        (pb.FloatArray(shape=[2**31, 2**31], data=b""), "at most 100"),
        (pb.FloatArray(shape=[16, 0, 2**32 - 1, 2**32 - 1], data=b""), "at most 100"),  # found by fuzzing
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
