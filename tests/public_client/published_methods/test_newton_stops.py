"""Newton's descent and scoring where a training or a hospital stops: nothing is charged twice, the model is the same.

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


def fitted(where, descent, directory, *, epsilon=4.0, loader_seed=0, **arguments):
    """A model that another process would make anew: its loader deals the source in another order."""
    torch.manual_seed(loader_seed)
    plan = where.plan(Finetune(descent=descent, own_models=False), epsilon=epsilon, steps=STEPS)
    several = {"shared": True} if isinstance(where, Federation) else {}
    model = DomainAdaptation(
        nn.Identity(), nn.Linear(WIDTH, CLASSES), hospital=where, plan=plan, source_epochs=5, device="cpu", **several
    )
    loader = source_loader(Labelled(*map(torch.from_numpy, made(900, 5))), batch_size=100, seed=loader_seed)
    return model.fit(loader, checkpoint=directory, progress=False, **arguments)


class Cut(CutMock):
    """A hospital whose connection is cut at a step."""

    def __init__(self, *, at=None, error=Killed, count=1500, seed=3):
        description = mock_description(records=count, record_shape=(WIDTH,), epsilon=10.0, delta=1e-5, classes=CLASSES)
        records, labels = made(count, 1, turned=1)
        noise = np.random.default_rng(seed).bytes
        super().__init__(description, records=records, labels=labels, randomness=noise, at=at, error=error)


def killed_after(calls):
    left = iter(range(calls))

    def evaluate(extractor, classifier):
        if next(left, None) is None:
            raise Killed
        return 0.0

    return evaluate


@pytest.mark.long
@pytest.mark.parametrize("descent", ["newton", "scoring"])
def test_a_training_that_ends_twice_in_the_middle_comes_to_the_same_model(descent, tmp_path):
    straight = fitted(Hospital(Cut()), descent, tmp_path / "straight")
    curator = Cut(at=2)
    with pytest.raises(Killed):
        fitted(Hospital(curator), descent, tmp_path / "run")
    with pytest.raises(Killed):  # what was under way is applied, and steps more
        fitted(Hospital(curator), descent, tmp_path / "run", evaluate=killed_after(2), loader_seed=1)
    assert 2 < len(curator.asked) < STEPS
    model = fitted(Hospital(curator), descent, tmp_path / "run", loader_seed=2)
    assert model.reports[0]["steps"] == STEPS
    assert len(curator.asked) == len(set(curator.asked)) + 1 == STEPS + 1  # one was asked twice, under one name
    assert len(curator.charges) == 1
    torch.testing.assert_close(model.model().classifier.weight, straight.model().classifier.weight)
    assert model.score(*fresh()) > 0.7  # the source is right on next to none


@pytest.mark.parametrize("descent", ["newton", "scoring"])
def test_steps_of_a_small_hospital_alone_count_as_little_as_they_say(descent):
    """The large one is gone after two steps; what the small one says then is hardly more than noise."""
    sites = {"large": Cut(at=3, error=CuratorUnavailable), "small": Cut(count=40)}
    weights = {"large": 1500.0, "small": 40.0}
    where = Federation({name: Hospital(curator) for name, curator in sites.items()}, weights=weights)
    model = fitted(where, descent, None)
    assert [report["steps"] for report in model.reports] == [2, STEPS]
    assert model.score(*fresh()) > 0.93  # 0.66 and 0.84 if all steps counted alike


def test_a_late_answer_that_was_dropped_is_not_asked_again(tmp_path):
    """It was asked with weights of long ago. A client that ends after it was dropped goes on with the next step."""
    late, other = Cut(at=2, error=CuratorUnavailable), Cut()
    where = Federation({"late": Hospital(late), "other": Hospital(other)})
    for calls in (4, 0):
        with pytest.raises(Killed):
            fitted(where, "newton", tmp_path / "run", evaluate={"other": killed_after(calls)})
    assert len(late.asked) == len(set(late.asked)) + 1 == 3  # answered, and dropped
    model = fitted(where, "newton", tmp_path / "run")
    assert [report["steps"] for report in model.reports] == [STEPS, STEPS]
    for curator in (late, other):
        assert len(set(curator.asked)) == STEPS
        assert len(curator.charges) == 1


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
            return fitted(where, "newton", tmp_path / "run", **arguments)

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
