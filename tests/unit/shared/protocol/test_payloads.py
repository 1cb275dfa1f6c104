"""What a payload is read from: bytes that are understood as a whole."""

from __future__ import annotations

import numpy as np
import pytest

from dpswd.shared.core.errors import RequestInvalid
from dpswd.shared.core.mechanisms.sliced import SlicedRequest
from dpswd.shared.core.wire.payloads import parsed
from dpswd.shared.core.wire.v1 import curator_pb2 as pb
from dpswd.shared.published_mechanisms.gradient.mechanism import GradientRequest


def test_another_mechanisms_request_is_not_read_as_an_empty_one():
    payload = GradientRequest(np.ones((2, 3), np.float32)).to_bytes()
    assert GradientRequest.from_bytes(payload).to_bytes() == payload
    with pytest.raises(RequestInvalid, match="payload: has fields that no SlicedRequest has"):
        SlicedRequest.from_bytes(payload)


def test_an_unknown_field_inside_another_message_is_refused():
    strange = pb.FloatArray(data=b"", shape=[0]).SerializeToString() + bytes([0xF8, 0x07, 1])  # field 127
    inner = bytes([0x0A, len(strange)]) + strange
    data = bytes([0x0A, len(inner)]) + inner
    with pytest.raises(RequestInvalid, match="has fields that no SlicedRequest has"):
        parsed(pb.SlicedRequest, data, field="payload")
