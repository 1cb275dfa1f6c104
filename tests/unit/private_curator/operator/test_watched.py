"""A model's evaluations over the years, read off the replies as they were stored."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from dpswd.private_curator.watching import watched
from dpswd.shared.core.mechanisms.evaluation.mechanism import EvaluationDeclaration, EvaluationReply
from dpswd.shared.core.noise.noise import GridArray
from dpswd.shared.core.wire.messages import RunParameters, StepRelease


def run(number, *, correct, day, records=1000, client="ml-team", weights="a" * 64, name="evaluation", **declared):
    declaration = EvaluationDeclaration(3, 2.0, **declared)
    parameters = RunParameters(
        graph_digest="b" * 64, weights_digest=weights, mechanism=name, declaration=declaration.to_bytes(),
        batch_size=records, steps=1,
    )  # fmt: skip
    reply = EvaluationReply(GridArray(np.array([correct * 8], dtype=np.int32), 0.125, "int32"), None, None)
    made = SimpleNamespace(
        run_id=f"{number:032}", client=client, parameters=parameters.to_bytes(), epsilon=0.1,
        event=SimpleNamespace(step=SimpleNamespace(records=records)),
        receipt=SimpleNamespace(entry=SimpleNamespace(time=f"{day}T00:00:00Z")),
    )  # fmt: skip
    return made, StepRelease(made.run_id, 1, reply.to_bytes()).to_bytes()


def of(*made):
    return watched([one for one, _ in made], {one.run_id: reply for one, reply in made}.get)


def test_the_last_evaluation_is_put_beside_the_first():
    first, last = run(1, correct=900, day="2026-01-02"), run(3, correct=800, day="2026-07-02")
    (change,) = of(first, run(2, correct=890, day="2026-03-02"), last)["ml-team"].values()
    assert change.worse
    assert change.loss == pytest.approx(0.1)
    assert change.since == "2026-01-02"
    assert str(change).startswith("The model is worse by 10.0 points")
    (same,) = of(first, run(2, correct=899, day="2026-03-02"))["ml-team"].values()
    assert not same.worse


@pytest.mark.parametrize(
    "other",
    [
        {"weights": "c" * 64}, {"client": "another"}, {"name": "quantiles"}, {"models": 2}, {"partly_labelled": True},
    ],
)  # fmt: skip
def test_another_model_client_or_kind_of_release_is_not_compared(other):
    assert not of(run(1, correct=900, day="2026-01-02"), run(2, correct=500, day="2026-03-02", **other))


def test_a_run_whose_reply_is_gone_is_left_out():
    (first, reply), (last, _) = run(1, correct=900, day="2026-01-02"), run(2, correct=500, day="2026-03-02")
    assert not watched([first, last], {first.run_id: reply}.get)
