"""The method end to end on a mock curator with real labels: what is delivered, what is said of it, at what price."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from dpswd import DomainAdaptation, Federation, Hospital, MockCurator, Recalibrate, mock_description
from dpswd.public_client.methods.recalibrate import public_of
from dpswd.public_client.recalibration.graph import fitted
from dpswd.public_client.training.saved_model import load_adapted
from dpswd.shared.core.errors import CuratorUnavailable, InvalidValue

PAGE = Path(__file__).resolve().parents[4] / "docs" / "ml-team" / "recalibrate.md"
D, CLASSES = 6, 3
MEANS = 1.2 * np.random.default_rng(2).normal(size=(CLASSES, D))


def made(count, seed, *, shares=None):
    """Records (count, d) of classes around their means, and labels (count,)."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(CLASSES, size=count, p=shares)
    return (MEANS[labels] + rng.normal(size=(count, D))).astype(np.float32), labels


def hospital(records, labels, *, seed=0):
    description = mock_description(records=len(labels), record_shape=(D,), epsilon=50.0, delta=1e-5, classes=CLASSES)
    held = torch.from_numpy(records)
    randomness = np.random.default_rng(seed).bytes  # the same noise every time
    return Hospital(MockCurator(description, records=lambda count: held[:count], labels=labels, randomness=randomness))


def source():
    records, labels = made(1500, 9)
    data = torch.utils.data.TensorDataset(torch.from_numpy(records), torch.from_numpy(labels))
    return torch.utils.data.DataLoader(data, batch_size=100)


def bayes():
    """The true classifier where all classes are as frequent."""
    layer = nn.Linear(D, CLASSES)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(MEANS))
        layer.bias.copy_(torch.from_numpy(-0.5 * (MEANS**2).sum(axis=1)))
    return layer


def adapted(where, plan, *, classifier=None, **settings):
    model = DomainAdaptation(
        nn.Identity(), classifier or bayes(), hospital=where, plan=plan, device="cpu", source_epochs=0, **settings
    )
    return model.fit(source(), progress=False)


def loss_of(chance, labels):
    return float(-np.log(np.asarray(chance)[np.arange(len(labels)), labels]).mean())


def losses(model, shares, **site):
    """Of the team's classifier and of what was delivered, on fresh records."""
    records, labels = made(5000, 1, shares=shares)
    images = torch.from_numpy(records)
    with torch.no_grad():
        before = torch.softmax(bayes()(images).double(), dim=1)
    return loss_of(before, labels), loss_of(model.predict_proba(images, **site).double(), labels)


def test_other_frequencies_of_classes_move_the_biases_at_the_asked_price(tmp_path):
    shares = (0.8, 0.15, 0.05)
    with hospital(*made(3000, 0, shares=shares)) as where:
        plan = where.plan(Recalibrate(), epsilon=1.0, extractor=nn.Identity(), classifier=bayes())
        assert plan.admitted
        assert "counts of 3 classes" in str(plan)
        model = adapted(where, plan)
        (charge,) = where.curator.charges
        assert 0.95 < charge.epsilon <= 1.0
    before, after = losses(model, shares)
    records, labels = made(5000, 1, shares=shares)
    best = bayes()
    with torch.no_grad():
        best.bias += torch.from_numpy(np.log(shares)).float()
        least = loss_of(torch.softmax(best(torch.from_numpy(records)).double(), dim=1), labels)
    assert before - after > 0.7 * (before - least)
    (report,) = model.reports
    assert report["outcome"] == "adapted"
    assert report["finding"].startswith("the scores were corrected")
    (path,) = model.save(tmp_path / "model.safetensors")
    again = load_adapted(path, device="cpu")
    assert (again.predict(torch.from_numpy(records)) == model.predict(torch.from_numpy(records))).all()


@pytest.mark.parametrize("count", [3000, 20_000])
def test_a_column_in_other_units_turns_no_score_around(count):
    """Its records lie ten times further out than the source's, and clipped ones do not say so."""
    units = np.array([10.0] + [1.0] * (D - 1), dtype=np.float32)
    records, labels = made(count, 0)
    with hospital(records * units, labels) as where:
        model = adapted(where, where.plan(Recalibrate(), epsilon=1.0))
    fresh, truth = made(5000, 1)
    images = torch.from_numpy(fresh * units)
    with torch.no_grad():
        before = bayes()(images)
    after = model.predict_proba(images).double()
    assert loss_of(after, truth) < 0.7 * loss_of(torch.softmax(before.double(), dim=1).clamp_min(1e-300), truth)
    right = [(scores.argmax(dim=1).numpy() == truth).mean() for scores in (before, after)]
    assert right[1] > right[0] - 0.02


def test_scores_that_stand_for_other_frequencies_are_not_corrected_twice():
    shares = (0.8, 0.15, 0.05)
    classifier = bayes()
    with torch.no_grad():
        classifier.bias += torch.from_numpy(np.log(shares)).float()
    records, labels = made(2000, 9)
    features = torch.from_numpy(records)
    public = public_of(fitted(classifier, features, components=4), features, labels)
    np.testing.assert_allclose(public.shares, shares, atol=0.05)


def test_a_hospital_like_the_source_keeps_the_model():
    with hospital(*made(2000, 0)) as where:
        model = adapted(where, where.plan(Recalibrate(), epsilon=1.0))
    (report,) = model.reports
    before, after = losses(model, None)
    assert after - before < 0.005
    if report["outcome"] == "kept":
        assert before == pytest.approx(after, abs=1e-6)
    assert report["finding"].startswith("the hospital's labels") == (report["outcome"] == "kept")


def test_any_classifier_is_corrected_and_a_few_records_do_no_harm(tmp_path):
    """Softer scores of a network, 40 records, epsilon 0.1; then many of them, where the slope is found."""
    network = nn.Sequential(nn.Linear(D, CLASSES), nn.Tanh(), nn.Linear(CLASSES, CLASSES))
    with torch.no_grad():
        network[0].load_state_dict({name: 0.3 * value for name, value in bayes().state_dict().items()})
        network[2].weight.copy_(1.5 * torch.eye(CLASSES))
        network[2].bias.zero_()
    for count, epsilon in ((40, 0.1), (6000, 2.0)):
        with hospital(*made(count, 0)) as where:
            model = adapted(where, where.plan(Recalibrate(), epsilon=epsilon), classifier=copy.deepcopy(network))
        records, labels = made(5000, 1)
        with torch.no_grad():
            before = loss_of(torch.softmax(network(torch.from_numpy(records)).double(), dim=1), labels)
        after = loss_of(model.predict_proba(torch.from_numpy(records)).double(), labels)
        assert after < before + 0.005
    assert after < before - 0.05
    (path,) = model.save(tmp_path / "network.safetensors")
    again = load_adapted(path, device="cpu")
    assert (again.predict(torch.from_numpy(records)) == model.predict(torch.from_numpy(records))).all()


def test_hospitals_that_train_together_have_corrections_of_their_own():
    shares = {"north": (0.8, 0.15, 0.05), "south": (0.05, 0.15, 0.8)}
    held = {name: made(2000, i, shares=own) for i, (name, own) in enumerate(shares.items())}
    with Federation({name: hospital(*own) for name, own in held.items()}) as sites:
        model = adapted(sites, sites.plan(Recalibrate(), epsilon=1.0), shared=True)
    for name, own in shares.items():
        before, after = losses(model, own, site=name)
        assert before - after > 0.04


class CutOff(MockCurator):
    """Loses the third answer on its way, once."""

    calls = 0

    def send(self, pending):
        release = super().send(pending)
        self.calls += 1
        if self.calls == 3:
            raise CuratorUnavailable("the answer was lost on its way")
        return release


def test_a_run_that_is_cut_off_goes_on_to_the_same_model(tmp_path):
    """No step is asked or counted twice: the corrections and replies that are on disk are those of one whole run."""
    held = made(2000, 0, shares=(0.8, 0.15, 0.05))

    def trained(kind, directory):
        description = mock_description(records=2000, record_shape=(D,), epsilon=50.0, delta=1e-5, classes=CLASSES)
        records = torch.from_numpy(held[0])
        curator = kind(
            description,
            records=lambda count: records[:count],
            labels=held[1],
            randomness=np.random.default_rng(0).bytes,
        )
        where = Hospital(curator)
        plan = where.plan(Recalibrate(), epsilon=1.0)
        model = DomainAdaptation(nn.Identity(), bayes(), hospital=where, plan=plan, device="cpu", source_epochs=0)
        try:
            model.fit(source(), progress=False, checkpoint=directory)
        except CuratorUnavailable:
            model = DomainAdaptation(nn.Identity(), bayes(), hospital=where, plan=plan, device="cpu", source_epochs=0)
            model.fit(source(), progress=False, checkpoint=directory)
        assert len(curator.charges) == 1
        return model.model().classifier

    whole, resumed = trained(MockCurator, tmp_path / "whole"), trained(CutOff, tmp_path / "cut")
    assert torch.equal(whole.weight, resumed.weight)
    assert torch.equal(whole.bias, resumed.bias)


def test_the_page_s_block_runs(capsys):
    """docs/ml-team/recalibrate.md."""
    (code,) = re.findall(r"```python\n(.*?)\n```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    with hospital(*made(2000, 0, shares=(0.8, 0.15, 0.05))) as where:
        names = {"hospital": where, "extractor": nn.Identity(), "classifier": bayes(), "source_loader": source()}
        exec(compile(code, str(PAGE), "exec"), names)
        assert len(where.curator.charges) == 1
    assert "gradient and curvature of the log-loss" in capsys.readouterr().out
    assert names["model"].reports[0]["finding"].startswith("the scores were corrected")


def test_settings_that_make_no_sense_are_refused():
    with pytest.raises(InvalidValue, match="components"):
        Recalibrate(components=0)
