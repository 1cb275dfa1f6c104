"""The measure of operations' times covers the vocabulary, and sees what it is made to see."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from benchmarks import operation_combinations, operation_times
from benchmarks.operation_times import CASES, Bounds, measured
from dpswd.private_curator.core.steps.denormals import flushed_denormals
from dpswd.private_curator.serving.pacing import QUANTUM_OVER_TRIAL
from dpswd.shared.sandbox.vocabulary import VOCABULARY

BEFORE = {
    "elu": lambda x, at, _w: functional.elu(*x, **at),
    "selu": lambda x, _at, _w: functional.selu(*x),
    "tanh": lambda x, _at, _w: torch.tanh(*x),
    "softplus": lambda x, at, _w: functional.softplus(*x, **at),
    "max_pool2d": lambda x, at, _w: functional.max_pool2d(*x, **at),
    "adaptive_max_pool1d": lambda x, at, _w: functional.adaptive_max_pool1d(*x, **at),
}
"""Forms of the vocabulary whose time told records: torch's own."""
TELLING = {"tanh": {"not a number", "saturating"}, "max_pool2d": {"rising", "falling"}}
"""One of the functions of a value, and one of the windows, on what their own forms told by their time;
`make test-exhaustive` measures the others, and all of `SOME`."""
SOME = {"random, negative", "saturating", "not a number", "rising", "falling", "zero"}


def of(name):
    return next(case for case in CASES if case.operation == name)


def test_every_operation_is_measured():
    """But for tensors of the module's own, which no number of a record meets."""
    own = {name for name, operation in VOCABULARY.items() if operation.inputs == (0, 0)}
    assert own == {"parameter", "buffer"}
    assert {case.operation for case in CASES} == set(VOCABULARY) - own


def test_the_case_s_shapes_are_those_of_the_vocabulary():
    for case in CASES:
        VOCABULARY[case.operation].check_attributes(case.attributes)
        VOCABULARY[case.operation].shape(case.shapes, case.attributes)


@pytest.mark.long
@pytest.mark.statistical
@pytest.mark.parametrize(
    ("name", "some"),
    [*TELLING.items(), *(pytest.param(name, SOME, marks=pytest.mark.exhaustive) for name in BEFORE)],
)
def test_torch_s_own_forms_are_caught_and_ours_are_not(name, some):
    """Attack: each of these told by its time what numbers it met, 1.4 to 4 times. False alarm: below 1e-6."""
    with flushed_denormals():
        before = measured(of(name), backward=False, operation=replace(VOCABULARY[name], apply=BEFORE[name]), only=some)
        now = measured(of(name), backward=False, only=some)
    print(f"\nbefore: {before}\nnow:    {now}")
    assert before.failed
    assert not now.failed


@pytest.mark.long
@pytest.mark.statistical
@pytest.mark.parametrize(
    ("name", "backward"),
    [
        ("elu", False),
        ("linear", True),
        *(pytest.param(case.operation, True, marks=pytest.mark.exhaustive) for case in CASES),
    ],
)
def test_a_planted_dependence_of_five_percent_is_always_caught(name, backward):
    """Attack: a search that stopped when it liked what it saw. It passes with probability below 1e-7, however busy the
    machine: the bounds hold whatever the law of the times."""
    with flushed_denormals():
        planted = measured(of(name), backward=backward, only={"not a number"}, planted=1.05)
    print(f"\n{planted}")
    assert not planted.passed


def test_bounds_hold_the_median_whatever_the_law():
    """Of ratios with a heavy tail; and the number of pairs never depends on what was seen."""
    rng = random.Random(4)
    for _ in range(50):
        bounds = Bounds.of([1.02 * rng.lognormvariate(0.0, 0.3) for _ in range(400)])
        assert bounds.low < 1.02 < bounds.high
        assert bounds.low < bounds.median < bounds.high
    assert Bounds(0.5, 0.8, 0.9).away() == Bounds(1 / 0.9, 1 / 0.8, 1 / 0.5)


@pytest.mark.statistical
@pytest.mark.long
def test_the_quantum_covers_operations_in_combination():
    """Six operations, each with its own detector. Chance plays no part: about 1.0, where there is room for 1.5."""
    cases = [of(name) for name in ("elu", "max_pool1d", "softplus", "leaky_relu", "linear", "tanh")]
    with flushed_denormals():
        ratio = operation_combinations.ratio(cases, generator=random.Random(0), backward=False)
    print(f"\n{ratio:.3f} of the trial's time")
    assert ratio <= QUANTUM_OVER_TRIAL


def test_the_check_s_exit_status_follows_what_is_certain(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    good = operation_times.Figure("add", False, {"zero": Bounds(0.98, 1.0, 1.02)}, 1e-4)
    unsure = replace(good, name="mul", kinds={"zero": Bounds(0.9, 1.0, 1.1)})
    bad = replace(good, name="elu", kinds={"zero": Bounds(2.0, 3.0, 4.0)})
    for figures, planted, status in (
        ([good], [], 0), ([good, unsure], [], 1), ([good, bad], [], 1), ([unsure, bad], ["--planted", "1.05"], 0),
        ([good, bad], ["--planted", "1.05"], 1),
    ):  # fmt: skip
        given = {figure.name: figure for figure in figures}
        monkeypatch.setattr(operation_times, "CASES", [operation_times.Case(name, ()) for name in given])
        monkeypatch.setattr(operation_times, "measured", lambda case, given=given, **_: given[case.name])
        monkeypatch.setattr("sys.argv", ["operation_times", "--check", *planted])
        assert operation_times.main() == status
        assert capsys.readouterr().out.splitlines()[-2].startswith(figures[-1].name)
