"""What a plan says it can reach is what the files of results say was reached."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest

from benchmarks import (
    digits,
    labelled_digits,
    labelled_gradients,
    labelled_hearts,
    labelled_sources,
    office,
    small_hospitals,
)
from benchmarks.records import on_file, read
from benchmarks.shifts import __main__ as shifts
from benchmarks.shifts.summary import battery
from dpswd import AllWeights, Hospital, Plan, Replay
from dpswd.public_client.plans.measured import BATTERIES, MEASURED, measured_alike
from dpswd.public_client.testing.mock import MockCurator, mock_description
from dpswd.public_client.training.method import plan_json

ROOT = Path(__file__).resolve().parents[4]
TASKS = {"MNIST -> USPS": "mnist-usps", "USPS -> MNIST": "usps-mnist"}


def plan(shape, records, method=None, **wishes):
    hospital = Hospital(MockCurator(mock_description(records=records, record_shape=shape, epsilon=200.0, delta=1e-5)))
    return hospital.plan(method, **wishes)


def of_digits(task, method, epsilon=None):
    """Five seeds of the settings that were run for all of them."""
    runs = [r for r in read(digits.RESULTS) if (r["task"], r["method"], r.get("epsilon")) == (task, method, epsilon)]
    if method == "rows":
        runs = [run for run in runs if run["settings"].get("alignment_weight") == 10.0]
    assert sorted(run["seed"] for run in runs) == [0, 1, 2, 3, 4]
    return [run["accuracy"] for run in runs]


def rounded(values):
    return round(statistics.mean(values), 1), round(statistics.stdev(values), 1)


@pytest.mark.parametrize("measured", [m for m in MEASURED if m.task in TASKS], ids=str)
def test_the_figures_on_digits_are_those_on_file(measured):
    task = TASKS[measured.task]
    assert rounded(of_digits(task, measured.method, measured.epsilon)) == (measured.after, measured.deviation)
    assert rounded(of_digits(task, "source-only"))[0] == measured.before
    if measured.method == "replay":
        assert rounded(of_digits(task, "varied"))[0] == measured.without


@pytest.mark.parametrize("measured", [m for m in MEASURED if m.records == 898], ids=str)
def test_the_figures_of_a_small_hospital_are_those_on_file(measured):
    runs = read(small_hospitals.RESULTS)
    (control,) = [run for run in runs if run["epsilon"] is None]
    assert (control["records"], round(control["source_only"], 1), round(control["accuracy"], 1)) == (
        measured.records,
        measured.before,
        measured.without,
    )
    runs_on_file = [run["accuracy"] for run in runs if run["epsilon"] == measured.epsilon]
    assert rounded(runs_on_file) == (measured.after, measured.deviation)


@pytest.mark.parametrize("measured", [m for m in MEASURED if m.page.endswith("labelled.md")], ids=str)
def test_the_figures_of_labelled_hospitals_are_those_on_file(measured):
    if measured.modality == "vectors":
        assert measured.records == 199 + 172 + 30 + 85
        line = f"| replace-one | {measured.epsilon:g} | none | {measured.after} ± {measured.deviation} |"
        table = labelled_hearts.table(read(labelled_hearts.RESULTS))
        assert line in table
        assert f"commonest class |  | {measured.before} " in table
        return
    module = {"statistics": labelled_digits, "finetune": labelled_gradients}[measured.method]
    runs = [run for run in read(module.RESULTS) if run["epsilon"] == measured.epsilon]
    runs = [run for run in runs if run.get("moments", "auto") == "auto"]
    if module is labelled_gradients:
        runs = [run for run in runs if on_file(vars(labelled_gradients.BEST), [run])]
    assert len(runs) == 3
    assert rounded([run["accuracy"] for run in runs]) == (measured.after, measured.deviation)
    assert round(statistics.mean(run.get("usps_alone", run.get("before")) for run in runs), 1) == measured.before


@pytest.mark.parametrize("measured", [m for m in MEASURED if m.method == "dpda"], ids=str)
def test_the_figures_of_labelled_sources_are_those_on_file(measured):
    source, targets = measured.task.partition("labelled ")[2].split(" -> own ")
    names = [name for name in ("USPS", "MNIST", "caltech10", "dslr", "webcam") if name in targets]
    runs = [run for run in read(labelled_sources.RESULTS) if run["pair"] in [f"{source} -> {name}" for name in names]]
    before, after = (
        [run["accuracy"] for run in runs if (run["method"], run["epsilon"]) == approach]
        for approach in (("source only", None), ("DPDA", measured.epsilon))
    )
    assert len(before) == len(after) == 5 * len(names)
    assert {run["records"] for run in runs} == {measured.records}
    assert round(statistics.mean(before), 1) == measured.before
    assert rounded(after) == (measured.after, measured.deviation) or len(names) > 1
    assert round(statistics.mean(after), 1) == measured.after


def test_the_page_of_labelled_sources_says_what_is_on_file():
    page = (ROOT / "docs" / "ml-team" / "labelled-sources.md").read_text(encoding="utf-8")
    assert labelled_sources.page_table(read(labelled_sources.RESULTS)) in page


def test_the_figures_on_vectors_are_those_on_file():
    (measured,) = [m for m in MEASURED if (m.method, m.modality) == ("replay", "vectors")]
    runs = [run for run in read(office.RESULTS) if run["epsilon"] == measured.epsilon and run["records"] > 900]
    pairs = {(run["source"], run["target"]) for run in runs}
    assert len(pairs) == 6
    assert min(run["records"] for run in runs) == measured.records

    def mean(name):
        each = [statistics.mean(r[name] for r in runs if (r["source"], r["target"]) == pair) for pair in pairs]
        return round(statistics.mean(each), 1)

    assert (mean("source_only"), mean("accuracy"), mean("trained_on")) == (
        measured.before,
        measured.after,
        measured.without,
    )


def test_the_range_of_other_data_and_shifts_is_that_on_file():
    """Of the battery, of random compositions and of the second list: with all misses that are known."""
    runs = [run for path in (shifts.RESULTS, shifts.COMPOSED, shifts.UNSEEN) for run in shifts.read(path)]
    assert {modality: battery(runs, modality) for modality in BATTERIES} == BATTERIES
    assert "runs on other data and shifts" in str(plan((1, 8, 8), 898, epsilon=1.0))


def test_the_pages_named_are_there():
    assert all((ROOT / measured.page).is_file() for measured in MEASURED)


@pytest.mark.parametrize(
    ("shape", "records", "wishes", "task", "epsilon"),
    [
        ((1, 28, 28), 7291, {"epsilon": 0.5}, "MNIST -> USPS", 0.5),
        ((1, 28, 28), 7291, {"epsilon": 0.7}, "MNIST -> USPS", 0.5),
        ((1, 8, 8), 898, {"epsilon": 1.0}, "digits behind a turn", 1.0),
        ((1, 32, 32), 100_000, {"epsilon": 8.0}, "USPS -> MNIST", 1.0),
        ((800,), 1000, {"epsilon": 1.0}, "Office-Caltech10, mean of six pairs", 1.0),
    ],
)
def test_a_plan_is_put_beside_what_had_no_more_to_go_by(shape, records, wishes, task, epsilon):
    one = plan(shape, records, **wishes)
    alike = measured_alike(one)
    assert (alike.task, alike.epsilon) == (task, epsilon)
    assert f"reaches   {task}, {alike.records:,} records, epsilon {epsilon:g}: accuracy {alike.before:.1f} ->" in str(
        one
    )
    assert "if yours are of 10 classes too" in str(one)  # this hospital does not say
    assert json.loads(plan_json(one))["measured_alike"]["after"] == alike.after


@pytest.mark.parametrize(
    ("shape", "records", "wishes", "says"),
    [
        ((1, 8, 8), 500, {"epsilon": 1.0}, "500 images of 64 numbers with so few records times epsilon replay was not"),
        ((3, 32, 32), 7291, {"epsilon": 1.0}, "7,291 images of 3,072 numbers replay was not measured"),
        ((3, 16, 16), 7291, {"epsilon": 1.0}, "7,291 images of 768 numbers replay was not measured"),  # colours
        ((1, 8, 98), 7291, {"epsilon": 1.0}, "7,291 images of 784 numbers replay was not measured"),
        ((1, 28, 28), 10_000_000, {"epsilon": 8.0}, "10,000,000 images of 784 numbers replay was not measured"),
        ((50,), 100_000, {"epsilon": 1.0, "method": AllWeights()}, "of 50 numbers all-weights was not measured"),
        ((2, 50), 100_000, {"epsilon": 1.0}, "100,000 sequences of 100 numbers replay was not measured"),
        ((1, 8, 8), 100_000, {"epsilon": 1.0, "method": AllWeights(), "steps": 5}, "all-weights was not measured"),
    ],
)
def test_a_plan_promises_nothing_that_was_not_measured(shape, records, wishes, says):
    one = plan(shape, records, **wishes)
    assert "reaches   not known for your kind of data: on " in str(one)
    assert says in str(one)
    assert json.loads(plan_json(one))["measured_alike"] is None


def test_a_plan_read_back_is_the_same():
    one = plan((1, 8, 8), 898, epsilon=1.0)
    again = Plan.from_json(json.loads(json.dumps(one.to_json())), method=Replay)
    assert again == one
    assert again.record_shape == (1, 8, 8)
    assert str(again) == str(one)
