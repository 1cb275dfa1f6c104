"""The best of source-only, control and adapted model, found by one private evaluation of all three."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from scipy.special import ndtr
from small_methods import small
from torch import nn

from public_client import Hospital
from public_client.data.accuracy import accuracy
from public_client.data.datasets import Labelled
from public_client.data.source import source_loader, train_source
from public_client.experiments.approaches import LOCAL, Problem, approach
from public_client.experiments.file import read_experiment
from public_client.methods.comparison import Compare, plan_comparison
from public_client.testing.mock import MockCurator, mock_description
from public_client.training.sites import ALONE
from shared.errors import InvalidValue, SettingsError

D, CLASSES, N = 4, 3, 3000
CENTRES = 2.0 * torch.eye(CLASSES, D)


def gaussian_delta(mu, *, epsilon):
    """Balle & Wang 2018, Theorem 5: delta of a Gaussian mechanism of shift mu."""
    return float(ndtr(mu / 2 - epsilon / mu) - np.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu))


def records(seed, count=N):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    return Labelled(CENTRES[labels] + 0.5 * torch.randn(count, D, generator=generator), labels)


def hospital_of(data, *, classes=CLASSES, epsilon=2.0):
    told = mock_description(records=len(data), record_shape=(D,), epsilon=epsilon, delta=1e-5, classes=classes)
    return Hospital(MockCurator(told, records=data.images.numpy(), labels=data.labels.numpy()))


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
    assert (evaluation.run.mechanism.name, evaluation.run.declared.models) == ("evaluation", 3)
    assert evaluation.epsilon == pytest.approx(0.5, rel=0.05)
    assert re.match(r"a private evaluation says source-only (9\d|100)\.\d, control .*, adapted ", report["finding"])
    assert "is delivered" in report["finding"]
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
    told = hospital.compare({"broken": broken, "good": good, "again": good}, epsilon=1.0)
    for name, model in (("broken", broken), ("good", good), ("again", good)):
        right = accuracy(nn.Identity(), model, target)
        assert abs(told.accuracies[name] - right) < 6.0 * told.error / 1.96
    assert told.winner in ("good", "again")
    (charge,) = hospital.curator.charges
    # Where one model is right and another wrong, three counts move: the price of the analytic Gaussian mechanism.
    sigma = charge.run.declared.correct_sigma
    assert gaussian_delta(3.0**0.5 / sigma, epsilon=1.0) == pytest.approx(1e-5, rel=0.3)


def test_what_cannot_be_compared_is_refused_before_anything_is_charged(trained):
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
        plan_comparison(hospital_of(data, classes=0).curator, 3, epsilon=0.1)
    problem = Problem(
        extractor, classifier, loader, hospital=hospital, wishes={"epsilon": 1.9}, evaluate_epsilon=0.2,
        device="cpu", progress=False,
    )  # fmt: skip
    with pytest.raises(InvalidValue, match=r"may cost 2\.1 together"):
        approach("replay").train(problem)
    assert hospital.curator.charges == []
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
    wanted = read_experiment(None, {"output.keep_best": True, "privacy.evaluate_epsilon": 0.1})
    assert wanted.output.keep_best
