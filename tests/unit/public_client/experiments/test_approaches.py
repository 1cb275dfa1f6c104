"""Methods and local baselines behind one interface; each baseline closes a gap that it is made for."""

from __future__ import annotations

import pytest
import torch
from small_methods import of_every_method, small, trained_by
from torch import nn

from benchmarks.baselines import Coral, Dann, Swd, trained_locally
from dpswd import AllWeights, DomainAdaptation, Hospital, Replay
from dpswd.public_client.data.accuracy import accuracy
from dpswd.public_client.data.datasets import Labelled
from dpswd.public_client.data.source import source_loader, train_source
from dpswd.public_client.experiments.approaches import Trained, approaches, asks_hospital, method_of, unasked
from dpswd.public_client.experiments.start import SourceModel
from dpswd.public_client.methods import method_kinds
from dpswd.public_client.replay.missing_columns import TableView
from dpswd.public_client.replay.views import FeatureView, ImageView
from dpswd.public_client.testing.mock import MockCurator, mock_description
from dpswd.public_client.training.sites import ALONE, Model
from dpswd.shared.core.errors import CuratorUnavailable, InvalidValue, SettingsError

D = 6
WHOLE = (
    "replay",
    "pseudo-labels",
    "statistics",
    "dpda",
    "normalisation",
    "recalibrate",
)  # planned without steps and batch


def table(seed, *, shifted=False):
    generator = torch.Generator().manual_seed(seed)
    centres = 1.5 * torch.randn(3, D, generator=torch.Generator().manual_seed(99))
    labels = torch.randint(3, (600,), generator=generator)
    records = centres[labels] + 0.5 * torch.randn(600, D, generator=generator)
    shift = 1.2 * torch.tensor([1.0, -1, 1, -1, 1, -1])
    return Labelled(records + shift if shifted else records, labels)


def hospital_of(*, records, classes=0, epsilon=2.0, delta=1e-5):
    description = mock_description(records=records, record_shape=(D,), epsilon=epsilon, delta=delta, classes=classes)
    return Hospital(MockCurator(description))


@pytest.fixture(scope="module")
def trained():
    torch.manual_seed(0)
    extractor, classifier = nn.Sequential(nn.Linear(D, 24), nn.ReLU()), nn.Linear(24, 3)
    loader = source_loader(table(0), batch_size=64)
    train_source(extractor, classifier, loader, epochs=25, learning_rate=5e-3)
    return extractor, classifier, loader


@pytest.mark.long
@pytest.mark.parametrize(("name", "steps"), [("swd", 150), ("coral", 200), ("dann", 400)])
def test_a_local_baseline_adapts_to_a_stand_in_and_leaves_the_source_model_alone(trained, name, steps):
    extractor, classifier, loader = trained
    target = table(1, shifted=True)
    before = accuracy(extractor, classifier, target)
    weights = [value.clone() for value in extractor.state_dict().values()]
    start = Model(extractor, classifier)
    model = trained_locally(name, start, loader, target.images, steps=steps, seed=0, device="cpu")
    assert accuracy(model.extractor, model.classifier, target) > before + 5
    assert all(torch.equal(a, b) for a, b in zip(weights, extractor.state_dict().values(), strict=True))


@pytest.mark.long
def test_source_only_is_the_source_model(trained):
    extractor, classifier, loader = trained
    source = SourceModel(extractor, classifier, loader, 0.0)
    model = unasked("source-only", source, steps=1, seed=0, device="cpu")
    records = table(1).images
    torch.testing.assert_close(model.classifier(model.extractor(records)), classifier(extractor(records)))


@pytest.mark.parametrize("name", of_every_method())
@pytest.mark.long
def test_every_method_runs_and_is_charged(trained, name):
    extractor, classifier, loader = trained
    mechanism, alone = small(name).mechanism, name in WHOLE
    hospital = hospital_of(records=1200 if name == "pseudo-labels" else 300, classes=3 if mechanism.needs_labels else 0)
    settings = small(name).to_json()
    del settings["name"]
    if "tuning_steps" in settings:
        settings["tuning_steps"] = 3
    wishes = {"epsilon": 1.0} | ({} if alone else {"steps": 3, "batch_size": 50})
    made = Trained.of(trained_by(name, (extractor, classifier), loader, hospital, settings=settings, wishes=wishes))
    assert [report["state"] for report in made.reports] == ["finished"]
    assert set(made.models) == set(made.plans) == {ALONE}
    (charge,) = hospital.curator.charges
    assert charge.epsilon == pytest.approx(1.0, rel=1e-2)
    assert charge.run.mechanism.name == mechanism.name
    # The others ask for gradients.
    assert (mechanism.name in ("quantiles", "class_statistics", "feature_sums", "score_statistics")) is alone


@pytest.mark.parametrize(
    ("view", "message"),
    [
        (TableView(torch.zeros(D)), "values and then flags of gaps"),
        (TableView(torch.zeros(D // 2)), "no flags of gaps"),
        (FeatureView(torch.ones(1)), "one gain for each of 1 features"),
        (ImageView(1), "images with 1 channels"),
    ],
)
def test_a_view_that_cannot_see_the_records_is_refused_before_anything_is_charged(trained, view, message):
    extractor, classifier, loader = trained
    hospital = hospital_of(records=300)
    plan = hospital.plan(small("replay"), epsilon=1.0)
    training = DomainAdaptation(extractor, classifier, hospital=hospital, plan=plan, view=view, source_epochs=0)
    with pytest.raises(InvalidValue, match=message):
        training.fit(loader, progress=False)
    assert hospital.curator.charges == []


def test_a_view_without_a_replay_is_refused(trained):
    extractor, classifier, _ = trained
    hospital = hospital_of(records=300)
    plan = hospital.plan(AllWeights(), epsilon=1.0, steps=3, batch_size=50)
    with pytest.raises(
        SettingsError, match="fitted to replayed releases, and the plan's method is all-weights; plan with Replay"
    ):
        DomainAdaptation(extractor, classifier, hospital=hospital, plan=plan, view=FeatureView(torch.ones(1)))


def test_a_run_whose_release_speaks_for_nothing_says_so(trained, caplog):
    extractor, classifier, loader = trained
    hospital = hospital_of(records=30, epsilon=0.05, delta=1e-3)
    plan = hospital.plan(Replay(source_records=64, directions=8), epsilon=0.05)
    training = DomainAdaptation(extractor, classifier, hospital=hospital, plan=plan, source_epochs=0)
    training.fit(loader, progress=False)
    (report,) = training.reports
    assert report["state"] == "finished"
    assert report["outcome"] == "kept"
    assert "says too little" in report["finding"]
    assert "says too little" in caplog.text
    records = table(1).images
    assert torch.equal(training.model().classifier(training.model().extractor(records)), classifier(extractor(records)))


class StopsAfterItsRelease(MockCurator):
    """Its release is out; whoever asks for anything more finds nobody."""

    released = False

    def exchange(self, method, request, *, patience=None):
        if self.released:
            raise CuratorUnavailable("gone")
        reply = super().exchange(method, request, patience=patience)
        self.released = method == "DrawStep"
        return reply


@pytest.mark.long
def test_a_replay_needs_no_curator_once_its_release_is_drawn(trained):
    extractor, classifier, loader = trained
    description = mock_description(records=300, record_shape=(D,), epsilon=2.0, delta=1e-5)
    stops = StopsAfterItsRelease(description)
    hospital = Hospital(stops)
    plan = hospital.plan(Replay(source_records=64, directions=8, tuning_steps=3), epsilon=1.0)
    training = DomainAdaptation(extractor, classifier, hospital=hospital, plan=plan, source_epochs=0, device="cpu")
    training.fit(loader, progress=False)
    assert [report["state"] for report in training.reports] == ["finished"]
    assert stops.released


def test_what_there_is_has_a_name_and_a_line():
    with pytest.raises(InvalidValue, match="there is no method 'magic'; allowed: ladder, source-only"):
        asks_hospital("magic")
    asked = {name: asks_hospital(name) for name in approaches()}
    assert {name for name, asks in asked.items() if not asks} == {"source-only", "control"}
    assert set(method_kinds()) < set(asked)
    with pytest.raises(InvalidValue, match="ladder is no method with settings"):
        method_of("ladder", {})


def test_coral_is_the_papers_formula():
    generator = torch.Generator().manual_seed(0)
    source, target = torch.randn(50, 4, generator=generator), 2 * torch.randn(40, 4, generator=generator)
    source = (source - source.mean(dim=0)) / source.std(dim=0)  # unit variances: no scale is divided out
    expected = (torch.cov(source.T) - torch.cov(target.T)).pow(2).sum() / (4 * 4**2)
    # The paper's loss is for features of dimension d: 1 / (4 d^2). Ours keeps it comparable over d, times d.
    torch.testing.assert_close(Coral()(source, target, 0.5), 10.0 * 4 * expected)  # 10 is its weight


def test_the_critic_learns_and_the_features_unlearn():
    torch.manual_seed(0)
    dann = Dann(3)
    source, target = torch.randn(20, 3).requires_grad_(True), (torch.randn(20, 3) + 1).requires_grad_(True)
    early = dann(source, target, 0.0)
    early.backward()
    assert float(source.grad.abs().sum()) == 0.0  # the weight starts at zero
    assert any(float(p.grad.abs().sum()) > 0 for p in dann.parameters())
    late = dann(source, target, 1.0)
    (gradient,) = torch.autograd.grad(late, source)
    with torch.no_grad():  # moved along the descent direction the domains become harder to tell apart
        moved = dann(source - 0.1 * gradient * 20, target, 1.0)
    assert float(moved) > float(late.detach())


def test_swd_is_zero_for_a_batch_and_itself():
    features = torch.randn(30, 5, generator=torch.Generator().manual_seed(0))
    assert float(Swd(torch.Generator().manual_seed(1))(features, features, 0.0)) == pytest.approx(0.0, abs=1e-9)
