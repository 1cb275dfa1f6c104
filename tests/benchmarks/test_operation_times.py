"""The measure of operations' times covers the vocabulary, and sees what it is made to see."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from benchmarks import operation_combinations, operation_times
from benchmarks.operation_times import CASES, measured
from dpswd.private_curator.core.steps.denormals import flushed_denormals
from dpswd.private_curator.serving.pacing import QUANTUM_OVER_TRIAL
from dpswd.shared.sandbox.steady import LARGEST_RATIO
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
EACH_KIND = ("tanh", "max_pool2d")
"""One of the functions of a value, and one of the windows; `make test-exhaustive` measures the others too."""


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
    "name", [name if name in EACH_KIND else pytest.param(name, marks=pytest.mark.exhaustive) for name in BEFORE]
)
def test_torch_s_own_forms_are_found_and_ours_pass(name):
    """Attack: each of these told by its time what numbers it met. Chance plays no part: the ratios are 1.4 to 4."""
    with flushed_denormals():
        before = measured(of(name), backward=False, operation=replace(VOCABULARY[name], apply=BEFORE[name]))
        now = measured(of(name), backward=False)
    print(f"\nbefore: {before}\nnow:    {now}")
    assert before.ratio > 1.2
    assert now.ratio <= LARGEST_RATIO


@pytest.mark.statistical
@pytest.mark.long
def test_the_quantum_covers_operations_in_combination():
    """Six operations, each with its own detector. Chance plays no part: about 1.1, where there is room for 1.65."""
    cases = [of(name) for name in ("elu", "max_pool1d", "softplus", "leaky_relu", "linear", "tanh")]
    with flushed_denormals():
        ratio = operation_combinations.ratio(cases, generator=random.Random(0), backward=False)
    print(f"\n{ratio:.3f} of the trial's time")
    assert ratio <= QUANTUM_OVER_TRIAL


def test_the_check_s_exit_status_follows_the_worst_ratio(monkeypatch, capsys):
    good = operation_times.Figure("add", False, {"random": 1.0, "zero": 1.05}, 1e-4)
    bad = replace(good, name="elu", relative={"random": 1.0, "zero": 3.0})
    for figures, status in (([good], 0), ([good, bad], 1)):
        monkeypatch.setattr(operation_times, "measure", lambda *_, found=figures, **__: found)
        monkeypatch.setattr("sys.argv", ["operation_times", "--check"])
        assert operation_times.main() == status
        shown = capsys.readouterr().out.splitlines()
        assert shown[-2].startswith(figures[-1].name)
