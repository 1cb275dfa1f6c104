"""The best of source-only, control and adapted model, found by one private evaluation of all three."""

from __future__ import annotations

import copy
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import ndtr
from small_methods import small
from torch import nn

from dpswd import Adapter, DomainAdaptation, Federation, Hospital, Replay
from dpswd.public_client.data.accuracy import accuracy
from dpswd.public_client.data.datasets import Labelled
from dpswd.public_client.data.source import collect, source_loader, train_source
from dpswd.public_client.experiments import approaches, best
from dpswd.public_client.experiments import run as running
from dpswd.public_client.experiments.approaches import LOCAL, Problem, approach
from dpswd.public_client.experiments.file import read_experiment
from dpswd.public_client.experiments.run import check
from dpswd.public_client.methods.comparison import Compare, Comparison, plan_comparison
from dpswd.public_client.testing.mock import MockCurator, mock_description
from dpswd.public_client.training.saved_model import load_adapted
from dpswd.public_client.training.sites import ALONE, Model
from dpswd.shared.core.errors import BudgetExhausted, CuratorUnavailable, InvalidValue, PrivacyError, SettingsError

D, CLASSES, N = 4, 3, 3000
CENTRES = 2.0 * torch.eye(CLASSES, D)


def gaussian_delta(mu, *, epsilon):
    """Balle & Wang 2018, Theorem 5: delta of a Gaussian mechanism of shift mu."""
    return float(ndtr(mu / 2 - epsilon / mu) - np.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu))


def records(seed, count=N):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    return Labelled(CENTRES[labels] + 0.5 * torch.randn(count, D, generator=generator), labels)


def hospital_of(data, *, classes=CLASSES, epsilon=2.0, partly_labelled=False):
    facts = mock_description(
        records=len(data), record_shape=(D,), epsilon=epsilon, delta=1e-5, classes=classes,
        partly_labelled=partly_labelled,
    )  # fmt: skip
    return Hospital(MockCurator(facts, records=data.images.numpy(), labels=data.labels.numpy()))


@pytest.fixture(scope="module")
def trained():
    torch.manual_seed(0)
    extractor, classifier = nn.Sequential(nn.Linear(D, 12), nn.ReLU()), nn.Linear(12, CLASSES)
    loader = source_loader(records(0, 600), batch_size=64)
    train_source(extractor, classifier, loader, epochs=8, learning_rate=5e-3)
    return extractor, classifier, loader


def test_the_winner_of_one_release_is_delivered_and_a_repeat_is_free(trained, tmp_path):
    extractor, classifier, loader = trained
    target, settings = records(1), small("replay").to_json()
    del settings["name"]
    hospital = hospital_of(target)
    common = {"hospital": hospital, "settings": settings, "wishes": {"epsilon": 1.0}, "control_steps": 5}
    common |= {"device": "cpu", "progress": False, "evaluate_epsilon": 0.5, "checkpoint": tmp_path / "run"}
    made = approach("replay").train(Problem(extractor, classifier, loader, **common))
    (report,) = made.reports
    training, evaluation = hospital.curator.charges
    assert training.run.mechanism.name == "quantiles"
    # The replay keeps the model: two are distinct, and the noise decides between them.
    figures = {name: float(text) for name, text in re.findall(r"(control|adapted) ([\d.]+)[, ]", report["finding"])}
    winner = re.search(r"\): (adapted|control) is delivered", report["finding"])[1]
    assert figures[winner] == max(figures.values())
    assert report["outcome"] == ("kept" if winner == "adapted" else "control delivered")
    assert (evaluation.run.mechanism.name, evaluation.run.declaration.models) == ("evaluation", 2)
    sigma = evaluation.run.declaration.correct_sigma  # the planned noise: epsilon 0.5 alone
    assert gaussian_delta(2.0**0.5 / sigma, epsilon=0.5) == pytest.approx(1e-5, rel=0.3)
    assert training.epsilon < hospital.describe().spent <= 1.5
    assert re.match(r"a private evaluation says control (9\d|100)\.\d, adapted ", report["finding"])
    error = float(re.search(r"each ± ([\d.]+)", report["finding"])[1])
    margin = abs(figures["control"] - figures["adapted"]) - 2.0 * 2.0**0.5 / 1.96 * error
    if abs(margin) > 0.3:  # of rounded figures
        assert ("no clear difference" in report["finding"]) is (margin < 0.0)
    assert "source-only is the same model as adapted" in report["finding"]
    assert report["not_compared"] is None
    model = made.models[ALONE]
    assert accuracy(model.extractor, model.classifier, target) > 90.0
    again = approach("replay").train(Problem(extractor, classifier, loader, **common))
    assert len(hospital.curator.charges) == 2
    assert again.reports[0]["finding"].split(":")[0] == report["finding"].split(":")[0]


def test_accuracies_are_right_up_to_the_noise_that_was_paid_for(trained):
    """Fails by chance once in ten million: six standard deviations of three figures."""
    extractor, classifier, _ = trained
    target = records(2)
    good = nn.Sequential(extractor, classifier)
    broken = nn.Sequential(nn.Linear(D, CLASSES))
    hospital = hospital_of(target, epsilon=1.0)  # all of the budget: the ledger's price is the mechanism's own
    comparison = hospital.compare({"broken": broken, "good": good, "again": good}, epsilon=1.0)
    for name, model in (("broken", broken), ("good", good), ("again", good)):
        right = accuracy(nn.Identity(), model, target)
        assert abs(comparison.accuracies[name] - right) < 6.0 * comparison.error / 1.96
    assert comparison.winner in ("good", "again")
    (charge,) = hospital.curator.charges
    # Where one model is right and another wrong, three counts move: the price of the analytic Gaussian mechanism.
    sigma = charge.run.declaration.correct_sigma
    assert gaussian_delta(3.0**0.5 / sigma, epsilon=1.0) == pytest.approx(1e-5, rel=0.3)


@pytest.mark.long
def test_what_cannot_be_compared_is_refused_before_anything_is_charged(trained, monkeypatch):
    extractor, classifier, loader = trained
    good, data = nn.Sequential(extractor, classifier), records(3, 300)
    hospital = hospital_of(data)
    with pytest.raises(InvalidValue, match=r"models is 1; allowed are 2 to 8"):
        hospital.compare({"one": good}, epsilon=0.1)
    with pytest.raises(InvalidValue, match=r"wide gives scores of shape \(4,\)"):
        hospital.compare({"good": good, "wide": nn.Linear(D, 4)}, epsilon=0.1)
    nan = nn.Linear(D, CLASSES)
    nn.init.constant_(nan.weight, float("nan"))
    with pytest.raises(InvalidValue, match="nan gives scores that are not finite"):
        hospital.compare({"good": good, "nan": nan}, epsilon=0.1)
    with pytest.raises(InvalidValue, match="does not offer 'evaluation'"):
        plan_comparison(hospital_of(data, classes=0).curator.describe(), 3, epsilon=0.1)
    problem = Problem(
        extractor, classifier, loader, hospital=hospital, wishes={"epsilon": 1.9}, evaluate_epsilon=0.2,
        device="cpu", progress=False,
    )  # fmt: skip
    monkeypatch.setattr(approaches, "control", None)  # refused before the control is trained
    with pytest.raises(PrivacyError, match=r"no room for a run of epsilon 1\.99.* an evaluation of 0\.2"):
        approach("replay").train(replace(problem, wishes={"epsilon": 1.99}))
    monkeypatch.undo()
    assert hospital.curator.charges == []
    partly = hospital_of(data, partly_labelled=True)
    assert "sinkhorn" in hospital.describe().mechanisms
    assert "sinkhorn" not in partly.describe().mechanisms  # as a curator offers
    common = {"hospital": partly, "wishes": {"epsilon": 1.0}, "evaluate_epsilon": 0.2, "device": "cpu"}
    problem = Problem(extractor, classifier, loader, control_steps=1, progress=False, **common)
    with pytest.raises(SettingsError, match="that of dpda is for the team's own"):
        approach("dpda").train(problem)
    assert partly.curator.charges == []
    assert Compare(models=2).to_json() == {"name": "comparison", "models": 2}


def test_the_control_needs_no_hospital(trained):
    extractor, classifier, loader = trained
    before = classifier.weight.clone()
    problem = Problem(extractor, classifier, loader, control_steps=20, device="cpu", progress=False)
    made = approach("control").train(problem)
    model, target = made.models[LOCAL], records(4, 300)
    assert made.reports == []
    assert accuracy(model.extractor, model.classifier, target) > 90.0
    assert not torch.equal(model.classifier.weight, before)
    assert torch.equal(classifier.weight, before)


def test_keep_best_and_its_price_belong_together():
    with pytest.raises(SettingsError, match="belong together"):
        read_experiment(None, {"output.keep_best": True})
    with pytest.raises(SettingsError, match="belong together"):
        read_experiment(None, {"privacy.evaluate_epsilon": 0.1})
    both = {"output.keep_best": True, "privacy.evaluate_epsilon": 0.1}
    assert read_experiment(None, both).output.keep_best
    for name in ("source-only", "control", "swd", "dann", "coral"):
        with pytest.raises(SettingsError, match=f"{name} asks no hospital"):
            check(read_experiment(None, both | {"method.name": name}))
    with pytest.raises(SettingsError, match="that of dpda is for the team's own"):
        check(read_experiment(None, both | {"method.name": "dpda"}))
    with pytest.raises(SettingsError, match="control_steps is 0"):
        check(read_experiment(None, both | {"method.name": "replay", "method.control_steps": 0}))
    check(read_experiment(None, both))


def test_what_fails_before_the_charge_costs_nothing(trained, monkeypatch):
    """The control, and the three models as one graph, are made before a run is charged."""
    extractor, classifier, loader = trained
    hospital = hospital_of(records(5, 300))

    def broken(*_, **__):
        raise InvalidValue("there is no view of such records")

    common = {"hospital": hospital, "wishes": {"epsilon": 1.0}, "evaluate_epsilon": 0.2, "control_steps": 1}
    problem = Problem(extractor, classifier, loader, device="cpu", progress=False, **common)
    with monkeypatch.context() as patched, pytest.raises(InvalidValue, match="no view of such records"):
        patched.setattr(approaches, "control", broken)
        approach("replay").train(problem)
    with monkeypatch.context() as patched, pytest.raises(InvalidValue, match="cannot be side by side"):
        patched.setattr(best, "declarable", lambda *_: broken_graph())
        approach("replay").train(problem)
    assert hospital.curator.charges == []


def broken_graph():
    raise InvalidValue("the models cannot be side by side")


class GoneOnce(MockCurator):
    """Does not answer while the comparison is priced."""

    silent = False

    def exchange(self, method, request, *, patience=None):
        if self.silent and method == "Describe":
            raise CuratorUnavailable("gone")
        return super().exchange(method, request, patience=patience)


def test_a_site_that_is_down_does_not_end_the_others_comparison(trained):
    extractor, classifier, _ = trained
    data = records(6, 300)
    facts = mock_description(records=300, record_shape=(D,), epsilon=2.0, delta=1e-5, classes=CLASSES)
    down = GoneOnce(facts)
    both = Federation({"here": hospital_of(data), "down": Hospital(down)})
    settings = small("replay").to_json()
    del settings["name"]
    method = Replay.from_json({"name": "replay", **settings})
    training = DomainAdaptation(
        extractor, classifier, hospital=both, plan=both.plan(method, epsilon=1.0), source_epochs=0, device="cpu"
    )
    down.silent = True
    start = Model(extractor, classifier)
    best.check_room(training, epsilon=0.1)  # the fit sets it aside
    best.check_comparable(training, {"source-only": start, "control": start}, epsilon=0.1)
    with pytest.raises(PrivacyError, match=r"here: the budget has no room .*an evaluation of 1\.95"):
        best.check_room(training, epsilon=1.95)


@pytest.mark.long
def test_the_saved_statistics_are_of_the_model_that_was_delivered(trained, tmp_path):
    """A wrecked adapter loses; the control's classifier comes with what it sees of the source, not the start's."""
    extractor, classifier, loader = trained
    target = records(7)
    hospital = hospital_of(target, epsilon=20.0)
    plan = hospital.plan(Adapter(learning_rate=1e3), epsilon=0.1, steps=2, batch_size=50)
    training = DomainAdaptation(
        extractor, classifier, hospital=hospital, plan=plan, source_epochs=0, device="cpu"
    ).fit(loader, progress=False)  # fmt: skip
    control = Model(nn.Sequential(nn.Linear(D, 12), nn.ReLU()), nn.Linear(12, CLASSES))  # all weights moved
    train_source(control.extractor, control.classifier, loader, epochs=8, learning_rate=5e-3)
    best.deliver_best(training, {"control": control}, epsilon=10.0)
    assert training.reports[0]["outcome"] == "control delivered"
    (file,) = training.save(tmp_path / "control.safetensors")
    saved, source = load_adapted(file, device="cpu").statistics, collect(loader, most=2048)
    with torch.no_grad():
        seen, start = control.extractor(source.images), extractor(source.images)
        torch.testing.assert_close(saved.feature_mean, seen.mean(dim=0), rtol=1e-3, atol=1e-4)
        assert not torch.allclose(saved.feature_mean, start.mean(dim=0), rtol=1e-3, atol=1e-4)


def test_a_small_evaluation_after_a_run_keeps_its_noise_and_is_compared(trained):
    """The ledger's price of so small a release alone has a floor above what it adds to a used budget."""
    extractor, classifier, loader = trained
    settings = small("replay").to_json()
    del settings["name"]
    common = {"settings": settings, "wishes": {"epsilon": 1.0}, "control_steps": 2, "evaluate_epsilon": 0.1}
    hospital = hospital_of(records(8), epsilon=9.0)
    approach("replay").train(Problem(extractor, classifier, loader, hospital, device="cpu", progress=False, **common))
    assert [charge.run.mechanism.name for charge in hospital.curator.charges] == ["quantiles", "evaluation"]
    assert hospital.describe().spent <= 1.1
    used = Problem(extractor, classifier, loader, hospital, device="cpu", progress=False, **common)
    (report,) = approach("replay").train(used).reports  # the curator is asked, for its filter is not public
    assert len(hospital.curator.charges) == 4
    assert report["not_compared"] is None
    with pytest.raises(PrivacyError, match=r"no room for a run of epsilon 8\.9"):
        approach("replay").train(replace(used, wishes={"epsilon": 8.95}, evaluate_epsilon=3.0))
    assert len(hospital.curator.charges) == 4


def test_a_winner_is_clear_by_two_standard_errors():
    """Two standard errors of the difference of two figures: 2 sqrt(2) / 1.96 of their half-width."""
    comparison = Comparison({"source-only": 50.0, "control": 60.0, "adapted": 53.0}, 4.9, "control", 0.1)
    assert comparison.difference == pytest.approx(7.07, abs=0.01)
    assert not comparison.clear
    assert replace(comparison, error=4.0).clear


def test_models_that_compute_the_same_share_one_figure(trained):
    extractor, classifier, _ = trained
    start, moved = Model(extractor, classifier), copy.deepcopy(Model(extractor, classifier))
    with torch.no_grad():
        moved.classifier.bias.add_(1e-3)
    distinct, same = best._distinct({"source-only": start, "control": moved, "adapted": copy.deepcopy(start)}, (D,))
    assert list(distinct) == ["control", "adapted"]
    assert same == {"source-only": "adapted"}


def test_a_comparison_that_is_refused_is_reported(trained, monkeypatch):
    extractor, classifier, loader = trained
    settings = small("replay").to_json()
    del settings["name"]

    def refused(*_, **__):
        raise BudgetExhausted(0.1, 1.9, 0.1)

    monkeypatch.setattr(best, "_compared", refused)
    common = {"settings": settings, "wishes": {"epsilon": 1.0}, "control_steps": 1, "evaluate_epsilon": 0.1}
    hospital = hospital_of(records(9, 300))
    made = approach("replay").train(
        Problem(extractor, classifier, loader, hospital, device="cpu", progress=False, **common)
    )
    assert "would cost epsilon 0.1" in made.reports[0]["not_compared"]
    assert isinstance(made.adaptation.sites[ALONE].not_compared, BudgetExhausted)


def test_a_rehearsal_without_room_for_both_is_refused_before_any_training(monkeypatch):
    keys = {"output.keep_best": True, "privacy.evaluate_epsilon": 0.1, "privacy.epsilon": 1.01, "privacy.budget": 1.02}
    experiment = read_experiment(None, keys | {"data.task": "digits", "method.name": "replay"})
    monkeypatch.setattr(running, "train_source_model", None)
    with pytest.raises(PrivacyError, match=r"no room for a run of epsilon 1\.01"):
        running.run(experiment, progress=False)
