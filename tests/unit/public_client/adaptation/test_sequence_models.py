"""A vision transformer, a text transformer and a GRU go the whole way: one release, other class frequencies, a file."""

from __future__ import annotations

import pytest
import torch
from sequence_models import WORDS, Recurrent, T, Text, Vit, VitTiny
from small_methods import small
from torch import nn

from dpswd import DomainAdaptation, Hospital
from dpswd.public_client.data.accuracy import accuracy
from dpswd.public_client.data.datasets import Labelled
from dpswd.public_client.data.source import source_loader, train_source
from dpswd.public_client.testing.mock import MockCurator, mock_description
from dpswd.public_client.training.saved_model import load_adapted

CLASSES, MANY = 4, 2000


def images(labels, generator):
    patterns = torch.randn(CLASSES, 1, 8, 8, generator=torch.Generator().manual_seed(7))
    return 0.2 * patterns[labels] + 0.5 * torch.randn(len(labels), 1, 8, 8, generator=generator)


def words(labels, generator):
    own = torch.randint(WORDS // CLASSES, (len(labels), T), generator=generator) + (WORDS // CLASSES) * labels[:, None]
    other = torch.randint(WORDS, (len(labels), T), generator=generator)
    return torch.where(torch.rand(len(labels), T, generator=generator) < 0.25, own, other).float()


def signals(labels, generator):
    means = torch.randn(CLASSES, 1, 3, generator=torch.Generator().manual_seed(8))
    return 0.35 * means[labels] + torch.randn(len(labels), T, 3, generator=generator)


@pytest.mark.long
@pytest.mark.parametrize(
    ("extractor", "width", "draw"),
    [
        pytest.param(Vit, 8, images, marks=pytest.mark.exhaustive),
        (Text, 8, words),
        pytest.param(lambda: Recurrent(nn.GRU), 40, signals, marks=pytest.mark.exhaustive),
    ],
    ids=["vision transformer", "text transformer", "gru"],
)
def test_a_model_is_adapted_from_one_release_and_saved(extractor, width, draw, tmp_path):
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(CLASSES, (MANY,), generator=generator)
    source = Labelled(draw(labels, generator), labels)
    half = torch.randint(CLASSES // 2, (MANY,), generator=generator)
    target = Labelled(draw(half, generator), half)
    module, classifier = extractor(), nn.Linear(width, CLASSES)
    loader = source_loader(source, batch_size=128)
    train_source(module, classifier, loader, epochs=2 if extractor is Vit else 5, learning_rate=5e-3)
    before = accuracy(module, classifier, target)
    shape = tuple(target.images.shape[1:])
    description = mock_description(records=MANY, record_shape=shape, epsilon=9.0, delta=1e-5)
    hospital = Hospital(MockCurator(description, records=target.images.numpy(), randomness=bytes))
    plan = hospital.plan(small("replay", directions=40, source_records=1000), epsilon=8.0)
    model = DomainAdaptation(module, classifier, hospital=hospital, plan=plan, source_epochs=0)
    model.fit(loader, progress=False)
    (report,) = model.reports
    assert report["outcome"] == "priors corrected", report["finding"]
    adapted = model.model()
    assert accuracy(adapted.extractor, adapted.classifier, target) > before + 5.0
    (file,) = model.save(tmp_path / "adapted.safetensors")
    again = load_adapted(file, device="cpu").predict(target.images[:50])
    assert torch.equal(torch.as_tensor(again), model.predict(target.images[:50]))


@pytest.mark.long
def test_a_vision_transformer_of_usual_width_goes_through_one_replay():
    torch.manual_seed(0)
    x, labels = torch.randn(120, 1, 28, 28), torch.randint(CLASSES, (120,))
    description = mock_description(records=120, record_shape=(1, 28, 28), epsilon=9.0, delta=1e-5)
    hospital = Hospital(MockCurator(description, records=x.numpy(), randomness=bytes))
    plan = hospital.plan(small("replay", directions=20, source_records=100), epsilon=8.0)
    model = DomainAdaptation(VitTiny(), nn.Linear(192, CLASSES), hospital=hospital, plan=plan, source_epochs=0)
    model.fit(source_loader(Labelled(x, labels), batch_size=50), progress=False)
    (report,) = model.reports
    assert report["outcome"]
