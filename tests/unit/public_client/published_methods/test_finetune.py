"""Finetuning on a hospital's labels: the head in public axes, what is declared, what is learned, what is refused."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from dpswd import DomainAdaptation, Finetune, Hospital, MockCurator, Statistics, mock_description
from dpswd.public_client.published_methods.newton import folded, viewed
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.published_mechanisms.labelled_gradient.mechanism import LabelledGradientDeclaration

WIDTH, CLASSES = 6, 3
MEANS = 1.5 * np.random.default_rng(21).normal(size=(CLASSES, WIDTH))


def made(count, seed, turned=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(CLASSES, size=count)
    records = (MEANS[(labels + turned) % CLASSES] + rng.normal(size=(count, WIDTH))).astype(np.float32)
    return torch.from_numpy(records), torch.from_numpy(labels)


@pytest.fixture
def hospital():
    """The hospital's classes are the public source's turned round: nothing but its labels says so."""
    records, labels = made(2500, 1, turned=1)
    description = mock_description(
        records=len(records), record_shape=(WIDTH,), epsilon=4.0, delta=1e-5, classes=CLASSES, name="in process"
    )

    class Held(MockCurator):
        def take(self, indices):
            return records.numpy()[indices]

    return Hospital(Held(description, randomness=np.random.default_rng(1).bytes, labels=labels.numpy()))


def modules():
    torch.manual_seed(3)
    extractor = nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh())
    return extractor.eval(), nn.Linear(8, CLASSES)


def trained(hospital, *, epsilon=1.0, steps=None, checkpoint=None, **settings):
    plan = hospital.plan(Finetune(**settings), epsilon=epsilon, steps=steps)
    model = DomainAdaptation(*modules(), hospital=hospital, plan=plan, source_epochs=5, seed=1, device="cpu")
    source = torch.utils.data.TensorDataset(*made(900, 5))
    model.fit(torch.utils.data.DataLoader(source, batch_size=100), checkpoint=checkpoint, progress=False)
    return model


def test_the_hospitals_labels_are_learned_and_the_source_model_stays(hospital, tmp_path):
    fresh, labels = made(3000, 9, turned=1)
    model = trained(hospital, steps=60, checkpoint=tmp_path / "run")
    assert float((model.classifier(model.extractor(fresh)).argmax(dim=1) == labels).double().mean()) < 0.5
    reached = model.score(fresh, labels)
    assert reached > 0.85
    head = model.model().classifier
    assert type(head) is nn.Linear  # one layer again, without the axes in which it was learned
    (report,) = model.reports
    assert (report["state"], report["steps"]) == ("finished", 60)
    assert 0.95 < report["charged_epsilon"] <= 1.0
    run = model.sites["curator"].run
    declared = LabelledGradientDeclaration.from_bytes(run.run.parameters.declaration)
    assert declared.sum.parameters == ("classifier.head.weight", "classifier.head.bias")
    assert declared.sum.sigma == pytest.approx(2.0 * declared.sum.clip_norm * model.plan.noise)
    again = trained(hospital, steps=60, checkpoint=tmp_path / "run")  # from its directory: no step is drawn again
    assert again.sites["curator"].run.steps_drawn == 0
    torch.testing.assert_close(again.model().classifier.weight, head.weight)


def test_the_plan_needs_the_classifier_and_says_what_is_released(hospital):
    extractor, classifier = modules()
    with pytest.raises(InvalidValue, match="plan with extractor and classifier"):
        hospital.plan(Finetune(), epsilon=1.0, extractor=extractor)
    plan = hospital.plan(Finetune(), epsilon=1.0, extractor=extractor, classifier=classifier)
    assert plan.gradient_parameters == CLASSES * 9
    assert plan.admitted
    text = str(plan)
    assert "finetune: 20 steps, on all 2500 records" in text
    assert "the cross-entropy's sanitized gradient of 27 numbers" in text
    assert "the classifier, by gradients of the hospital's own labels" in text
    deep = nn.Sequential(classifier, nn.ReLU(), nn.Linear(CLASSES, CLASSES))
    assert hospital.plan(Finetune(), epsilon=1.0, extractor=extractor, classifier=deep).gradient_parameters == 12
    deep = nn.Sequential(classifier, nn.ReLU())
    with pytest.raises(InvalidValue, match="no linear layer"):
        hospital.plan(Finetune(), epsilon=1.0, extractor=extractor, classifier=deep)


@pytest.mark.parametrize("bias", [True, False])
def test_a_viewed_head_computes_the_same_scores_in_axes_of_one_size(bias):
    torch.manual_seed(0)
    scales = torch.tensor([0.7, 1.0, 30.0, 5.0])
    features = torch.randn(300, 4) @ torch.randn(4, 4) * scales + 7.0
    classifier = nn.Linear(4, 3, bias=bias)
    made = viewed((), classifier, features, power=0.3)
    torch.testing.assert_close(made(features), classifier(features), rtol=1e-3, atol=1e-3)
    flat = folded(made)
    assert type(flat) is nn.Linear
    torch.testing.assert_close(flat(features), classifier(features), rtol=1e-3, atol=1e-3)
    values = torch.linalg.eigvalsh(torch.cov(features.T))
    spread = float((values[-1] / values[0]).sqrt())
    seen = made.view(features)
    assert float(seen.norm(dim=1).mean()) == pytest.approx(1.0, rel=1e-3)
    deviations = seen.std(dim=0)
    assert float(deviations.max() / deviations.min()) < 0.5 * spread
    before = nn.Tanh()
    deep = viewed((before,), classifier, before(features), power=0.3)
    flat = folded(deep)
    assert [type(layer) for layer in flat] == [nn.Tanh, nn.Linear]
    torch.testing.assert_close(deep(features), classifier(before(features)), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(flat(features), deep(features), rtol=1e-3, atol=1e-3)


def test_a_clip_of_ones_own_is_declared_and_what_is_charged_stays_within_the_plan(hospital):
    """A quarter of the budget for few small samples: alone the run is far below, so its noise is raised."""
    plan = hospital.plan(Finetune(clip_norm=0.125), epsilon=1.0, steps=5, batch_size=100)
    model = DomainAdaptation(*modules(), hospital=hospital, plan=plan, source_epochs=1, device="cpu")
    source = torch.utils.data.TensorDataset(*made(300, 5))
    model.fit(torch.utils.data.DataLoader(source, batch_size=100), progress=False)
    assert model.sites["curator"].run.declared.sum.clip_norm == 0.125
    (charge,) = hospital.curator.charges
    assert 0.95 < charge.epsilon <= 1.0
    assert model.plan.price() < 0.9


def test_sites_without_labels_do_not_offer_it():
    unlabelled = Hospital(MockCurator(mock_description(records=100, record_shape=(WIDTH,), epsilon=1.0, delta=1e-5)))
    for method in (Finetune(), Statistics()):
        with pytest.raises(InvalidValue, match="declares no classes"):
            unlabelled.plan(method, epsilon=0.5)


def test_what_an_older_curator_lacks_is_named(hospital):
    old = Hospital(MockCurator(dataclasses.replace(hospital.describe(), mechanisms=("rows", "gradient"))))
    with pytest.raises(InvalidValue, match="in process does not offer 'labelled_gradient'; it offers rows, gradient"):
        old.plan(Finetune(), epsilon=0.5)
