"""Fisher scoring by noised gradients: what it reaches without noise, what it leaves alone in noise, and as a method."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fitted_head import fitted_head
from torch import nn
from torch.nn import functional

from dpswd import DomainAdaptation, Finetune, Hospital, MockCurator, mock_description
from dpswd.public_client.published_methods.scoring import MOST_WEIGHTS, Scoring
from dpswd.shared.core.errors import InvalidValue

WIDTH, CLASSES = 4, 3
WEIGHTS = 1.5 * np.random.default_rng(2).normal(size=(CLASSES, WIDTH))
CLIP = 1e6  # none
BIAS = np.array([1.5, -1.0, -0.5])


def made(count, seed, *, moved=0.0, bias=0.0):
    """Records around `moved` whose labels follow a softmax model."""
    rng = np.random.default_rng(seed)
    records = rng.normal(size=(count, WIDTH)) / np.sqrt(WIDTH) + moved
    scores = records @ WEIGHTS.T + bias * BIAS + rng.gumbel(size=(count, CLASSES))
    return torch.from_numpy(records.astype(np.float32)), torch.from_numpy(scores.argmax(axis=1))


def fitted(records, labels):
    return fitted_head(records, labels, classes=CLASSES)


def scored(head, public, records, labels, *, noise, steps=10, clip_norm=CLIP, clip=None):
    """The head after so many noised gradients of all records, each record's clipped; `clip` is what it takes for C."""
    torch.manual_seed(0)
    optimizer = Scoring(head, public, records=len(records), noise=noise, clip_norm=clip or clip_norm)
    wide = torch.cat([records, torch.ones(len(records), 1)], dim=1)
    for _ in range(steps):
        with torch.no_grad():
            each = torch.softmax(head(records), dim=1) - functional.one_hot(labels, CLASSES)
            each *= (clip_norm / (each.norm(dim=1) * wide.norm(dim=1))).clamp(max=1.0)[:, None]
            gradient = each.T @ wide / len(records)
            gradient += noise * torch.randn_like(gradient)
            head.weight.grad, head.bias.grad = gradient[:, :-1], gradient[:, -1]
        optimizer.step()
    return head


def distance(one, other, records):
    """Between probabilities, in the mean."""
    difference = torch.softmax(one(records), dim=1) - torch.softmax(other(records), dim=1)
    return float(difference.detach().abs().mean())


def test_without_noise_it_ends_where_maximum_likelihood_does_and_in_noise_at_the_source():
    """The hospital's records lie elsewhere than the public ones, and its classes have other shares."""
    source, hospital = made(2000, 1), made(20_000, 2, moved=0.4, bias=1.0)
    start, aim = fitted(*source), fitted(*hospital)
    far = distance(start, aim, hospital[0])
    assert far > 0.1
    scoring = scored(fitted(*source), source[0], *hospital, noise=1e-6)
    assert distance(scoring, aim, hospital[0]) < 0.2 * far
    some = scored(fitted(*source), source[0], *hospital, noise=0.02)
    assert distance(some, aim, hospital[0]) < 0.5 * far
    drowned = scored(fitted(*source), source[0], *hospital, noise=2.0)
    assert distance(drowned, start, hospital[0]) < 0.1


def test_what_the_clip_takes_is_part_of_the_equation():
    """A clip that shortens most gradients of wrong labels: it ends where maximum likelihood does all the same."""
    source, hospital = made(2000, 1), made(20_000, 2, bias=1.0)
    aim = fitted(*hospital)
    far = distance(fitted(*source), aim, hospital[0])
    own, ignored = (
        scored(fitted(*source), source[0], *hospital, noise=1e-6, clip_norm=0.4, clip=clip) for clip in (None, CLIP)
    )
    assert distance(own, aim, hospital[0]) < 0.05 * far
    assert distance(ignored, aim, hospital[0]) > 0.1 * far


def test_public_records_unlike_the_hospitals_do_not_lead_away_from_it():
    """The hospital's records vary three times as much; with little noise their gradients contradict the public mean."""
    source, (records, labels) = made(2000, 1), made(20_000, 2, moved=0.4, bias=1.0)
    hospital = 3.0 * records, labels
    far = distance(fitted(*source), fitted(*hospital), hospital[0])
    for noise in (0.002, 0.02):
        scoring = scored(fitted(*source), source[0], *hospital, noise=noise)
        assert distance(scoring, fitted(*hospital), hospital[0]) < 0.7 * far


def test_its_state_can_be_stored_and_taken_up():
    source, hospital = made(500, 1), made(1000, 2, bias=1.0)
    whole, half = fitted(*source), fitted(*source)
    again, optimizer = fitted(*source), Scoring(half, source[0], records=1000, noise=0.01, clip_norm=CLIP)
    straight = Scoring(whole, source[0], records=1000, noise=0.01, clip_norm=CLIP)

    def step(head, descent):
        descent.zero_grad()
        functional.cross_entropy(head(hospital[0]), hospital[1]).backward()
        descent.step()

    for _ in range(2):
        step(whole, straight)
        step(half, optimizer)
    again.load_state_dict(half.state_dict())
    resumed = Scoring(again, source[0], records=1000, noise=0.01, clip_norm=CLIP)
    resumed.load_state_dict(optimizer.state_dict())
    step(whole, straight)
    step(again, resumed)
    torch.testing.assert_close(again.weight, whole.weight)


def test_a_nearly_right_classifier_is_corrected_by_the_hospitals_labels(tmp_path):
    records, labels = made(4000, 3, moved=0.2, bias=1.0)
    description = mock_description(
        records=len(records), record_shape=(WIDTH,), epsilon=2.0, delta=1e-5, classes=CLASSES
    )
    curator = MockCurator(
        description, records=records.numpy(), labels=labels.numpy(), randomness=np.random.default_rng(0).bytes
    )
    source = made(2000, 1)
    with Hospital(curator) as hospital:
        method = Finetune(descent="scoring")
        plan = hospital.plan(method, epsilon=1.0)
        assert (plan.batch_size, plan.steps) == (4000, 10)
        model = DomainAdaptation(
            nn.Identity(), fitted(*source), hospital=hospital, plan=plan, source_epochs=0, device="cpu"
        )
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*source), batch_size=200)
        model.fit(loader, checkpoint=tmp_path / "run", progress=False)
        fresh = made(4000, 4, moved=0.2, bias=1.0)
        before = float((model.classifier(fresh[0]).argmax(dim=1) == fresh[1]).double().mean())
        best = float((fitted(records, labels)(fresh[0]).argmax(dim=1) == fresh[1]).double().mean())
        assert best > before + 0.05
        assert model.score(*fresh) > before + 0.7 * (best - before)
        assert type(model.model().classifier) is nn.Linear
        wide = nn.Sequential(nn.Linear(WIDTH, MOST_WEIGHTS), nn.Linear(MOST_WEIGHTS, CLASSES))
        with pytest.raises(InvalidValue, match=r"takes at most 2048: use descent='adam'"):
            hospital.plan(method, epsilon=1.0, extractor=nn.Identity(), classifier=wide)


def test_scoring_is_of_the_classifier_alone():
    for wrong in ({"trains": "all"}, {"averaging": 0.5}):
        with pytest.raises(InvalidValue, match="of the classifier alone"):
            Finetune(descent="scoring", **wrong)
    with pytest.raises(InvalidValue, match="descent"):
        Finetune(descent="Scoring")


@pytest.mark.parametrize("descent", ["scoring", "newton"])
@pytest.mark.parametrize("labelled", [0, 400])
def test_partly_labelled_records_are_refused_before_the_charge(labelled, descent):
    description = mock_description(
        records=900, record_shape=(WIDTH,), epsilon=10.0, delta=1e-5, classes=CLASSES, partly_labelled=True,
        labelled=labelled,
    )  # fmt: skip
    records, labels = made(900, 1)
    hospital = Hospital(MockCurator(description, records=lambda count: records[:count], labels=labels))
    with pytest.raises(InvalidValue, match="descent='adam'"):
        plan = hospital.plan(Finetune(descent=descent), epsilon=1.0)
        plan.for_model(feature_dimension=CLASSES, gradient_parameters=CLASSES * (WIDTH + 1))
