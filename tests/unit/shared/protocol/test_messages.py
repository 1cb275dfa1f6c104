from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpswd.shared.core.errors import RequestInvalid
from dpswd.shared.core.wire import limits
from dpswd.shared.core.wire.messages import RunParameters, StepRelease
from dpswd.shared.core.wire.v1 import curator_pb2 as pb

DIGESTS = st.text("0123456789abcdef", min_size=64, max_size=64)
RUNS = st.builds(
    RunParameters,
    graph_digest=DIGESTS,
    weights_digest=DIGESTS,
    mechanism=st.text(min_size=1),
    declaration=st.binary(),
    batch_size=st.integers(1, limits.MAX_BATCH_SIZE),
    steps=st.integers(1, limits.MAX_STEPS),
)
RELEASES = st.builds(StepRelease, run_id=st.text(), step=st.integers(1, limits.MAX_STEPS), payload=st.binary())


@given(RUNS)
def test_a_declaration_survives_the_wire(run):
    assert RunParameters.from_bytes(run.to_bytes()) == run
    assert RunParameters.from_message(run.to_message()) == run


@given(RUNS, RUNS)
def test_declarations_have_the_same_bytes_where_they_are_the_same(one, other):
    assert (one == other) == (one.to_bytes() == other.to_bytes())


def test_every_broken_rule_is_named_at_once():
    message = pb.RunParameters(graph_digest="X", weights_digest="a" * 63, batch_size=0, steps=0)
    with pytest.raises(RequestInvalid) as caught:
        RunParameters.from_message(message)
    assert {field.removeprefix("parameters.") for field, _ in caught.value.violations} == {
        "batch_size",
        "steps",
        "graph_digest",
        "weights_digest",
        "mechanism",
    }


def test_a_run_without_a_mechanism_is_refused():
    with pytest.raises(RequestInvalid, match="name what the run releases"):
        RunParameters.from_message(pb.RunParameters(graph_digest="a" * 64, weights_digest="b" * 64))


def test_bytes_that_are_no_declaration_are_refused():
    with pytest.raises(RequestInvalid, match="is no RunParameters that can be parsed"):
        RunParameters.from_bytes(b"\xff\xff")


@given(RELEASES)
def test_a_step_release_survives_the_wire(release):
    assert StepRelease.from_bytes(release.to_bytes()) == release


def test_a_malformed_step_release_is_refused():
    with pytest.raises(RequestInvalid, match="step_release"):
        StepRelease.from_bytes(b"\xff\xff")
