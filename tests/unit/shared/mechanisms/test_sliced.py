"""Replies of sliced releases, and maps, on the wire."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dpswd.shared.core.errors import RequestInvalid
from dpswd.shared.core.mechanisms.sliced import SlicedReply, SlicedRequest
from dpswd.shared.core.noise.feature_map import FeatureMap
from dpswd.shared.core.noise.noise import GridArray
from dpswd.shared.core.wire.arrays import encode_floats, encode_grid
from dpswd.shared.core.wire.v1 import curator_pb2 as pb

FLAT = GridArray(np.zeros(3, dtype=np.int16), 0.5, "int16")
ROWS = GridArray(np.array([[2, -4]], dtype=np.int16), 0.5, "int16")


def test_a_reply_is_decoded_in_real_units():
    reply = SlicedReply.from_bytes(SlicedReply(b"s" * 32, ROWS).to_bytes())
    np.testing.assert_array_equal(reply.values.to_tensor().numpy(), [[1.0, -2.0]])
    assert (reply.seed, reply.values.integer) == (b"s" * 32, "int16")


@pytest.mark.parametrize(
    ("message", "match"),
    [
        (pb.SlicedReply(directions_seed=b"short", values=encode_grid(ROWS)), "has 5 bytes; needs 32"),
        (
            pb.SlicedReply(directions_seed=b"s" * 32, values=encode_grid(FLAT)),
            r"has shape \(3,\); needed is \(rows or coefficients, directions\)",
        ),
        (pb.SlicedReply(directions_seed=b"s" * 32), "values"),
    ],
)
def test_a_malformed_reply_is_refused(message, match):
    with pytest.raises(RequestInvalid, match=match):
        SlicedReply.from_bytes(message.SerializeToString())


def test_a_feature_map_survives_the_wire():
    sent = FeatureMap(center=torch.arange(3.0), scale=torch.tensor([1.0, 2.0, 3.0]))
    arrived = SlicedRequest.from_bytes(SlicedRequest(sent).to_bytes()).feature_map
    assert arrived is not None
    assert torch.equal(arrived.center, sent.center)
    assert torch.equal(arrived.scale, sent.scale)


@pytest.mark.parametrize(
    ("center", "scale", "match"),
    [
        (np.zeros(3), np.ones(4), "payload.feature_map"),
        (np.zeros((3, 1)), np.ones((3, 1)), "payload.feature_map"),
        (np.zeros(3), np.zeros(3), "not positive"),
        (np.zeros(3), -np.ones(3), "not positive"),
        (np.full(3, np.nan), np.ones(3), r"payload.feature_map.center"),
        (np.zeros(3), np.full(3, np.inf), r"payload.feature_map.scale"),
    ],
)
def test_a_map_that_is_none_is_refused_by_name(center, scale, match):
    message = pb.SlicedRequest(feature_map=pb.FeatureMap(center=encode_floats(center), scale=encode_floats(scale)))
    with pytest.raises(RequestInvalid, match=match):
        SlicedRequest.from_bytes(message.SerializeToString())
