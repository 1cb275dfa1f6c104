"""Newton's descent where a training or a hospital stops: nothing is charged twice, the model is the same.

One story on the mock curator with known noise, to the last bit; one over the sockets of two real curators.
"""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np
import pytest
import torch
from cut_mock import CutMock, Killed
from made_home import made_home
from serving_here import serving
from torch import nn

from dpswd import DomainAdaptation, Federation, Finetune, Hospital, mock_description
from dpswd.private_curator.settings.groups import RecordsSettings
from dpswd.public_client.data.datasets import Labelled
from dpswd.public_client.data.source import source_loader
from dpswd.shared.books import chain_checks
from dpswd.shared.core.errors import CuratorUnavailable

WIDTH, CLASSES, STEPS = 5, 3, 6
MEANS = 1.5 * np.random.default_rng(21).normal(size=(CLASSES, WIDTH))


def made(count, seed, turned=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(CLASSES, size=count)
    records = (MEANS[(labels + turned) % CLASSES] + rng.normal(size=(count, WIDTH))).astype(np.float32)
    return records, labels


def fresh():
    return [torch.from_numpy(part) for part in made(2000, 9, turned=1)]


def fitted(where, directory, *, epsilon=4.0, loader_seed=0, after_plan=None, **arguments):
    """A model that another process would make anew: its loader deals the source in another order."""
    torch.manual_seed(loader_seed)
    plan = where.plan(Finetune(), epsilon=epsilon, steps=STEPS)
    if after_plan is not None:
        after_plan()
    several = {"shared": True} if isinstance(where, Federation) else {}
    model = DomainAdaptation(
        nn.Identity(), nn.Linear(WIDTH, CLASSES), hospital=where, plan=plan, source_epochs=5, device="cpu", **several
    )
    loader = source_loader(Labelled(*map(torch.from_numpy, made(900, 5))), batch_size=100, seed=loader_seed)
    return model.fit(loader, checkpoint=directory, progress=False, **arguments)


class Cut(CutMock):
    """A hospital whose connection is cut at a step, or which is down altogether."""

    def __init__(self, *, at=None, error=Killed, count=1500, seed=3):
        description = mock_description(records=count, record_shape=(WIDTH,), epsilon=10.0, delta=1e-5, classes=CLASSES)
        records, labels = made(count, 1, turned=1)
        noise = np.random.default_rng(seed).bytes
        super().__init__(description, records=records, labels=labels, randomness=noise, at=at, error=error)
        self.down = False

    def exchange(self, method, request, *, patience=None):
        if self.down:
            raise CuratorUnavailable("nobody answers")
        return super().exchange(method, request, patience=patience)


def killed_after(calls):
    left = iter(range(calls))

    def evaluate(extractor, classifier):
        if next(left, None) is None:
            raise Killed
        return 0.0

    return evaluate


@pytest.mark.long
def test_a_training_that_ends_twice_in_the_middle_comes_to_the_same_model(tmp_path):
    straight = fitted(Hospital(Cut()), tmp_path / "straight")
    curator = Cut(at=2)
    with pytest.raises(Killed):
        fitted(Hospital(curator), tmp_path / "run")
    with pytest.raises(Killed):  # what was under way is applied, and steps more
        fitted(Hospital(curator), tmp_path / "run", evaluate=killed_after(2), loader_seed=1)
    assert 2 < len(curator.asked) < STEPS
    model = fitted(Hospital(curator), tmp_path / "run", loader_seed=2)
    assert model.reports[0]["steps"] == STEPS
    assert len(curator.asked) == len(set(curator.asked)) + 1 == STEPS + 1  # one was asked twice, under one name
    assert len(curator.charges) == 1
    torch.testing.assert_close(model.model().classifier.weight, straight.model().classifier.weight)
    assert model.score(*fresh()) > 0.7  # the source is right on next to none


def test_steps_of_a_small_hospital_alone_count_as_little_as_they_say():
    """The large one is gone after two steps; what the small one says then is hardly more than noise."""
    sites = {"large": Cut(at=3, error=CuratorUnavailable), "small": Cut(count=40)}
    weights = {"large": 1500.0, "small": 40.0}
    where = Federation({name: Hospital(curator) for name, curator in sites.items()}, weights=weights)
    model = fitted(where, None)
    assert [report["steps"] for report in model.reports] == [2, STEPS]
    assert model.score(*fresh()) > 0.93  # 0.66 if all steps counted alike


def test_a_late_answer_that_was_dropped_is_not_asked_again(tmp_path):
    """It was asked with weights of long ago. A client that ends after it was dropped goes on with the next step."""
    late, other = Cut(at=2, error=CuratorUnavailable), Cut()
    where = Federation({"late": Hospital(late), "other": Hospital(other)})
    for calls in (4, 0):
        with pytest.raises(Killed):
            fitted(where, tmp_path / "run", evaluate={"other": killed_after(calls)})
    assert len(late.asked) == len(set(late.asked)) + 1 == 3  # answered, and dropped
    model = fitted(where, tmp_path / "run")
    assert [report["steps"] for report in model.reports] == [STEPS, STEPS]
    for curator in (late, other):
        assert len(set(curator.asked)) == STEPS
        assert len(curator.charges) == 1


def both(north, south):
    return Federation({"north": Hospital(north), "south": Hospital(south)})


@pytest.mark.parametrize("planned", [True, False])
def test_a_hospital_that_is_gone_when_the_client_comes_back_keeps_its_model_and_its_count(tmp_path, planned):
    """It ends between the new plan and the training, or before, and is no part of the plan then."""
    north, south = Cut(at=3), Cut(count=900, seed=4)
    with pytest.raises(Killed):
        fitted(both(north, south), tmp_path / "run")
    south.down = not planned
    where = both(north, south) if planned else Federation({"north": Hospital(north)})
    model = fitted(where, tmp_path / "run", after_plan=lambda: setattr(south, "down", True))
    states = [(report["state"], report["steps"]) for report in model.reports]
    assert states == [("finished", STEPS)] + planned * [("perhaps charged", 2)]
    if planned:
        assert model.reports[1]["charged_epsilon"] == 4.0  # what the ledger may hold at most
        assert type(model.model("south").classifier) is nn.Linear
        assert model.score(*fresh(), site="south") > 0.7  # of its own two answers, and of the other's
    south.down = False
    model = fitted(both(north, south), tmp_path / "run")
    assert [(report["state"], report["steps"]) for report in model.reports] == 2 * [("finished", STEPS)]
    assert len(set(south.asked)) == STEPS
    assert len(south.charges) == 1


def test_a_hospital_that_is_down_before_its_run_is_open_has_no_part():
    south = Cut()
    model = fitted(both(Cut(), south), None, after_plan=lambda: setattr(south, "down", True))
    assert [report["state"] for report in model.reports] == ["finished", "refused"]
    assert model.model("south").classifier is model.classifier
    assert model.score(*fresh(), site="north") > 0.7


def test_a_hospital_that_never_answers_leaves_the_other_its_training():
    model = fitted(both(Cut(), Cut(at=1, error=CuratorUnavailable)), None)
    assert [report["steps"] for report in model.reports] == [STEPS, 0]
    assert model.score(*fresh(), site="south") > 0.7  # there too, by what the other said


@pytest.mark.long
def test_a_hospital_that_goes_down_and_comes_back_is_charged_once(tmp_path):
    """Two real curators; south stops after two steps and comes back when north has finished."""
    homes = {}
    for seed, (name, count) in enumerate({"north": 1500, "south": 900}.items()):
        directory = tmp_path / name
        directory.mkdir()
        records, labels = made(count, seed, turned=1)
        np.savez(directory / "records.npz", records=records, labels=labels)
        held = RecordsSettings(
            file=directory / "records.npz", array="records", labels_array="labels", classes=CLASSES, name=name
        )
        homes[name] = made_home(directory, held, epsilon=5.0)

    def trained(stop_south=False, **arguments):
        with ExitStack() as up, ExitStack() as south:
            addresses = {
                name: stack.enter_context(serving(homes[name])) for name, stack in (("north", up), ("south", south))
            }
            credentials = {name: tmp_path / name / "credentials" for name in homes}
            where = Federation.connect(
                addresses, credentials=credentials, patience_s=0.0, run_directory=tmp_path / "run"
            )
            up.enter_context(where)
            if stop_south:
                calls = []

                def evaluate(extractor, classifier):
                    calls.append(len(calls))
                    if len(calls) == 3:  # before the first step, and after each of two
                        south.close()
                    return 0.0

                arguments["evaluate"] = {"south": evaluate}
            return fitted(where, tmp_path / "run", **arguments)

    def states(model):
        return {report["site"]: (report["state"], report["steps"]) for report in model.reports}

    def charged():
        charges = {}
        for name, home in homes.items():
            with home.open_ledger() as ledger:
                status, _ = ledger.budget_of("ml-team")
                charges[name] = status.runs, status.epsilon_spent
        return charges

    half = trained(stop_south=True)
    assert states(half) == {"north": ("finished", STEPS), "south": ("set aside", 2)}
    between = charged()
    assert all(runs == 1 and 3.9 < spent <= 4.0 for runs, spent in between.values())
    whole = trained(loader_seed=1)
    assert states(whole) == {"north": ("finished", STEPS), "south": ("finished", STEPS)}
    again = trained(loader_seed=2)  # nothing is left to draw
    torch.testing.assert_close(again.model().classifier.weight, whole.model().classifier.weight)
    assert charged() == between
    for name in homes:
        lines = (tmp_path / "run" / "sites" / name / "receipts.jsonl").read_text().splitlines()
        entries, findings = chain_checks.read_export(lines)
        assert findings == []
        assert len(entries) == 1 + STEPS
    assert whole.score(*fresh()) > 0.7
