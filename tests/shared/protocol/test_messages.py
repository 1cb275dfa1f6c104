from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import RequestInvalid
from shared.kernels.noise import GridArray
from shared.protocol import limits
from shared.protocol.arrays import encode_grid
from shared.protocol.messages import Gradient, PublicMap, Quantiles, Rows, RunParameters, StepRelease
from shared.protocol.v1 import curator_pb2 as pb

POSITIVE = st.floats(min_value=1e-6, max_value=1e6)
RUNS = st.builds(
    RunParameters,
    graph_digest=st.text("0123456789abcdef", min_size=64, max_size=64),
    weights_digest=st.text("0123456789abcdef", min_size=64, max_size=64),
    directions=st.integers(1, limits.MAX_DIRECTIONS),
    batch_size=st.integers(1, limits.MAX_BATCH_SIZE),
    steps=st.integers(1, limits.MAX_STEPS),
    release=st.builds(Rows, sigma=POSITIVE)
    | st.builds(Quantiles, coefficients=st.integers(1, limits.MAX_COEFFICIENTS), sigma=POSITIVE),
    gradient=st.none()
    | st.builds(
        Gradient,
        parameters=st.lists(st.text(min_size=1), min_size=1, max_size=4, unique=True).map(tuple),
        clip_norm=POSITIVE,
        sigma=POSITIVE,
    ),
)


@given(RUNS)
def test_a_declaration_survives_the_wire(run):
    data = run.to_message().SerializeToString(deterministic=True)
    assert RunParameters.from_message(pb.RunParameters.FromString(data)) == run


def test_the_feature_map_survives_the_wire():
    public_map = PublicMap(center=np.arange(3, dtype=np.float32), scale=np.ones(3, dtype=np.float32))
    decoded = PublicMap.from_message(public_map.to_message(), field="feature_map")
    np.testing.assert_array_equal(decoded.center, public_map.center)
    np.testing.assert_array_equal(decoded.scale, public_map.scale)


def test_every_broken_rule_is_named_at_once():
    message = pb.RunParameters(graph_digest="X", weights_digest="a" * 64, directions=0, batch_size=0, steps=0)
    message.rows.sigma = float("nan")
    message.gradient.clip_norm = -1.0
    with pytest.raises(RequestInvalid) as caught:
        RunParameters.from_message(message)
    assert {field.removeprefix("parameters.") for field, _ in caught.value.violations} == {
        "directions",
        "batch_size",
        "steps",
        "graph_digest",
        "rows.sigma",
        "gradient.clip_norm",
        "gradient.sigma",
        "gradient.parameters",
    }


def test_a_run_without_a_release_is_refused():
    with pytest.raises(RequestInvalid, match="rows or quantiles"):
        RunParameters.from_message(pb.RunParameters())


def test_a_step_release_is_decoded_in_real_units():
    message = pb.StepRelease(run_id="r", step=3, directions_seed=b"s" * 32, cotangent_scale=2.0)
    message.release.CopyFrom(encode_grid(GridArray(np.array([[2, -4]], dtype=np.int16), 0.5, "int16")))
    message.gradient.CopyFrom(encode_grid(GridArray(np.array([8], dtype=np.int32), 0.25)))
    release = StepRelease.from_bytes(message.SerializeToString())
    np.testing.assert_array_equal(release.release, [[1.0, -2.0]])
    np.testing.assert_array_equal(release.gradient, [2.0])
    assert (release.run_id, release.step, release.directions_seed) == ("r", 3, b"s" * 32)


@pytest.mark.parametrize("data", [b"\xff\xff", pb.StepRelease(directions_seed=b"short").SerializeToString()])
def test_a_malformed_step_release_is_refused(data):
    with pytest.raises(RequestInvalid):
        StepRelease.from_bytes(data)
