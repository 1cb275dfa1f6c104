"""A released sum on the wire."""

from __future__ import annotations

import numpy as np
import pytest

from dpswd.shared.core.errors import RequestInvalid
from dpswd.shared.core.mechanisms.sliced import SlicedReply
from dpswd.shared.core.noise.noise import GridArray
from dpswd.shared.published_mechanisms.gradient.mechanism import GradientReply
from dpswd.shared.published_mechanisms.labelled_gradient.mechanism import LossGradientReply

ROWS = SlicedReply(b"s" * 32, GridArray(np.zeros((2, 3), dtype=np.int16), 0.5, "int16"))


@pytest.mark.parametrize("shape", [(2, 2), (4, 1), ()])
def test_a_gradient_that_is_no_vector_is_refused(shape):
    matrix = GridArray(np.zeros(shape, dtype=np.int32), 0.5)
    for reply in (LossGradientReply(matrix), GradientReply(ROWS, matrix, 1.0)):
        with pytest.raises(RequestInvalid, match=r"reply\.gradient"):
            type(reply).from_bytes(reply.to_bytes())
