"""Scoring over several hospitals: its equations by a second derivation, and what it brings by mock curators."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from cut_mock import CutMock, Killed
from fitted_head import fitted_head
from scipy.special import logsumexp
from scipy.stats import multivariate_normal
from torch import nn

from dpswd import DomainAdaptation, Federation, Finetune, Hospital, MockCurator, mock_description
from dpswd.public_client.data.datasets import Labelled
from dpswd.public_client.data.source import source_loader
from dpswd.public_client.published_methods import joint_scoring
from dpswd.public_client.published_methods.joint_scoring import MOST_WEIGHTS_TOGETHER, means
from dpswd.shared.core.errors import CuratorUnavailable, InvalidValue

PAGE = Path(__file__).parents[3] / "docs" / "ml-team" / "labelled.md"
WIDTH, CLASSES, STEPS = 4, 3, 5
WEIGHTS = 1.5 * np.random.default_rng(2).normal(size=(CLASSES, WIDTH))
BIAS = np.array([1.5, -1.0, -0.5])
SITES = {"north": (400, 0.8), "south": (700, 1.0), "west": (500, 1.2)}  # records, and how far classes are moved


def made(count, seed, *, moved):
    rng = np.random.default_rng(seed)
    records = rng.normal(size=(count, WIDTH)) / np.sqrt(WIDTH)
    labels = (records @ WEIGHTS.T + moved * BIAS + rng.gumbel(size=(count, CLASSES))).argmax(axis=1)
    return records.astype(np.float32), labels


class Mock(CutMock):
    """A hospital whose connection is cut at a step, or which is down altogether."""

    def __init__(self, name, *, at=None, error=CuratorUnavailable):
        count, moved = SITES[name]
        seed = list(SITES).index(name)
        records, labels = made(count, seed, moved=moved)
        description = mock_description(records=count, record_shape=(WIDTH,), epsilon=1.0, delta=1e-5, classes=CLASSES)
        noise = np.random.default_rng(seed).bytes
        super().__init__(description, records=records, labels=labels, randomness=noise, at=at, error=error)
        self.down = self.down_after_plan = False

    def exchange(self, method, request, *, patience=None):
        if self.down:
            raise CuratorUnavailable("nobody answers")
        return super().exchange(method, request, patience=patience)


@pytest.fixture(scope="module")
def source():
    """Public records, and a classifier that is right on them."""
    records, labels = map(torch.from_numpy, made(800, 7, moved=0.0))
    head = fitted_head(records, labels, classes=CLASSES)
    return Labelled(records, labels), head


def fitted(curators, source, directory=None, *, shared=True, epsilon=0.1, **settings):
    records, head = source
    hospitals = Federation({name: Hospital(curator) for name, curator in curators.items()})
    classifier = nn.Linear(WIDTH, CLASSES)
    classifier.load_state_dict(head.state_dict())
    model = DomainAdaptation(
        nn.Identity(), classifier, hospital=hospitals, shared=shared, source_epochs=0, device="cpu",
        plan=hospitals.plan(Finetune(descent="scoring", **settings), epsilon=epsilon, steps=STEPS),
    )  # fmt: skip
    for curator in curators.values():
        curator.down = curator.down or curator.down_after_plan
    return model.fit(source_loader(records, batch_size=500, seed=0), checkpoint=directory, progress=False)


def scores(model):
    """At each hospital, on other records like its own."""
    accuracies = []
    for name, (_, moved) in SITES.items():
        records, labels = map(torch.from_numpy, made(4000, 90, moved=moved))
        classifier = model if isinstance(model, nn.Linear) else model.model(name).classifier
        accuracies.append(float((classifier(records).argmax(dim=1) == labels).double().mean()))
    return np.array(accuracies)


def test_the_means_are_those_of_one_large_normal_law(monkeypatch):
    """All b in one vector, its covariance written out, and every pair of deviations by itself."""
    p, deviations, rng = 3, np.array([0.1, 0.6]), np.random.default_rng(4)
    monkeypatch.setattr(joint_scoring, "_DEVIATIONS", torch.from_numpy(deviations))
    halves = [rng.normal(size=(p, p + 1)) * 2.0**h for h in range(3)]
    informations = [half @ half.T for half in halves]
    pulls = [information @ rng.normal(size=p) for information in informations]
    posterior = means([(torch.from_numpy(a), torch.from_numpy(b)) for a, b in zip(informations, pulls, strict=True)])
    a, b = np.zeros((3 * p, 3 * p)), np.concatenate(pulls)
    for h, information in enumerate(informations):
        a[h * p : (h + 1) * p, h * p : (h + 1) * p] = information
    evidence, ways = [], []
    for common in deviations:
        for own in deviations:
            prior = np.kron(np.full((3, 3), common**2) + own**2 * np.eye(3), np.eye(p))
            spread = a @ prior @ a + a
            evidence.append(multivariate_normal(cov=spread).logpdf(b))
            ways.append(prior @ a @ np.linalg.solve(spread, b))
    chance = np.exp(np.array(evidence) - logsumexp(evidence))
    assert chance.max() < 0.99  # several are averaged
    np.testing.assert_allclose(torch.cat(posterior).numpy(), chance @ np.array(ways), rtol=1e-8)


def test_three_hospitals_together_do_better_than_each_alone_and_no_epsilon_is_added(source):
    """The noise is that of one seed; epsilon is small enough for each to have said little by itself."""
    alone = fitted({name: Mock(name) for name in SITES}, source, shared=False)
    curators = {name: Mock(name) for name in SITES}
    together = fitted(curators, source)
    assert scores(together).mean() > scores(alone).mean() + 0.03
    before = [report["charged_epsilon"] for report in alone.reports]
    assert [report["charged_epsilon"] for report in together.reports] == pytest.approx(before)
    assert max(before) <= 0.1
    assert all(len(curator.charges) == 1 and len(curator.asked) == STEPS for curator in curators.values())
    weights = [together.model(name).classifier.weight for name in SITES]
    assert not torch.equal(weights[0], weights[1])
    one = fitted({name: Mock(name) for name in SITES}, source, own_models=False)
    assert one.model("north") is one.model("south")


def test_a_training_that_ends_in_the_middle_comes_to_the_same_models(source, tmp_path):
    """West goes down after two answers and is back when the client, which ends too, goes on."""
    straight = fitted({name: Mock(name) for name in SITES}, source)
    curators = {"north": Mock("north"), "south": Mock("south", at=4, error=Killed), "west": Mock("west", at=3)}
    with pytest.raises(Killed):
        fitted(curators, source, tmp_path / "run")
    model = fitted(curators, source, tmp_path / "run")
    assert [(report["state"], report["steps"]) for report in model.reports] == 3 * [("finished", STEPS)]
    assert all(len(set(curator.asked)) == STEPS and len(curator.charges) == 1 for curator in curators.values())
    assert np.abs(scores(model) - scores(straight)).max() < 0.02  # west's third answer was of old weights, and dropped
    again = fitted(curators, source, tmp_path / "run")  # nothing is left to draw
    for name in SITES:
        assert type(model.model(name).classifier) is nn.Linear
        torch.testing.assert_close(again.model(name).classifier.weight, model.model(name).classifier.weight)


@pytest.mark.parametrize("planned", [True, False])
def test_a_hospital_that_is_gone_when_the_client_comes_back_keeps_its_model_and_its_count(source, tmp_path, planned):
    """It ends between the new plan and the training, or before, and is no part of the plan then."""
    straight = fitted({name: Mock(name) for name in SITES}, source)
    curators = {"north": Mock("north"), "south": Mock("south", at=3, error=Killed), "west": Mock("west")}
    with pytest.raises(Killed):
        fitted(curators, source, tmp_path / "run")
    curators["west"].down = not planned
    curators["west"].down_after_plan = planned
    model = fitted(curators, source, tmp_path / "run")
    states = [(report["state"], report["steps"]) for report in model.reports]
    assert states == 2 * [("finished", STEPS)] + planned * [("perhaps charged", 2)]
    if planned:
        assert model.reports[2]["charged_epsilon"] == 0.1  # what the ledger may hold at most
        assert type(model.model("west").classifier) is nn.Linear
        assert scores(model)[2] > scores(source[1])[2] + 0.05  # of its own two answers, and of the others'
    curators["west"].down = curators["west"].down_after_plan = False
    model = fitted(curators, source, tmp_path / "run")
    assert [(report["state"], report["steps"]) for report in model.reports] == 3 * [("finished", STEPS)]
    assert len(set(curators["west"].asked)) == STEPS
    assert np.abs(scores(model) - scores(straight)).max() < 0.03


def test_a_hospital_that_is_down_before_its_run_is_open_has_no_part(source):
    curators = {name: Mock(name) for name in SITES}
    curators["west"].down_after_plan = True
    model = fitted(curators, source)
    assert [report["state"] for report in model.reports] == ["finished", "finished", "refused"]
    assert model.model("west").classifier is model.classifier
    assert scores(model)[0] > scores(source[1])[0]


def test_a_hospital_that_never_answers_leaves_the_others_their_training(source):
    curators = {name: Mock(name) for name in SITES}
    curators["west"].at = 1
    model = fitted(curators, source)
    assert [report["steps"] for report in model.reports] == [STEPS, STEPS, 0]
    assert scores(model)[2] > scores(source[1])[2] + 0.05  # at west too, by what the others said


def test_large_classifiers_are_refused_before_the_charge(source):
    width = MOST_WEIGHTS_TOGETHER // CLASSES
    curators = {}
    for name in ("north", "south"):
        description = mock_description(records=50, record_shape=(width,), epsilon=1.0, delta=1e-5, classes=CLASSES)
        curators[name] = MockCurator(description)
    hospitals = Federation({name: Hospital(curator) for name, curator in curators.items()})
    model = DomainAdaptation(
        nn.Identity(), nn.Linear(width, CLASSES), hospital=hospitals, shared=True, source_epochs=0, device="cpu",
        plan=hospitals.plan(Finetune(descent="scoring"), epsilon=1.0),
    )  # fmt: skip
    records = Labelled(torch.randn(40, width), torch.randint(CLASSES, (40,)))
    with pytest.raises(InvalidValue, match="own_models=False"):
        model.fit(source_loader(records, batch_size=20, seed=0), progress=False)
    assert not any(curator.charges for curator in curators.values())


def test_the_page_s_session(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    part = PAGE.read_text(encoding="utf-8").split("\n## Several hospitals, a model for each\n")[1]
    code = re.search(r"```python\n(.*?)```", part, re.DOTALL)[1]
    assert "epsilon=1.0)" in code
    curators = {name: Mock(name) for name in SITES}
    records, head = source
    classifier = nn.Linear(WIDTH, CLASSES)
    classifier.load_state_dict(head.state_dict())
    names = {
        "hospitals": Federation({name: Hospital(curator) for name, curator in curators.items()}),
        "extractor": nn.Identity(),
        "classifier": classifier,
        "source_loader": source_loader(records, batch_size=500, seed=0),
        "records": records.images[:4],
    }
    exec(compile(code.replace("epsilon=1.0)", "epsilon=1.0, steps=2)"), str(PAGE), "exec"), names)
    assert sorted(path.name for path in tmp_path.glob("*.safetensors")) == [
        f"labelled-{name}.safetensors" for name in SITES
    ]
    assert all(len(curator.charges) == 1 for curator in curators.values())
