"""A mixture of colours: the identity at first, one of its starts swaps channels, and what it gains end to end."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from dpswd import DomainAdaptation, Hospital, Replay
from dpswd.public_client.data.accuracy import accuracy
from dpswd.public_client.data.datasets import Labelled
from dpswd.public_client.data.source import source_loader, train_source
from dpswd.public_client.replay import posterior
from dpswd.public_client.replay.views import ImageView
from dpswd.public_client.testing.mock import MockCurator, mock_description

STAINS = torch.tensor([[1.0, 0.2, 0.1], [0.1, 0.3, 1.0]])  # (2, 3): of the digit, and of what lies over it
BLUER = torch.tensor([[0.1, 0.1, 0.8], [0.1, 0.8, 0.1], [0.8, 0.1, 0.1]])


def stained(images: torch.Tensor, seed: int) -> torch.Tensor:
    """Digits (m, 1, 8, 8) in [-1, 1] in one stain, beneath a patch of another: (m, 3, 8, 8) in [-1, 1]."""
    generator = torch.Generator().manual_seed(seed)
    field = torch.rand(len(images), 1, 3, 3, generator=generator)
    over = nn.functional.interpolate(field, size=(8, 8), mode="bilinear", align_corners=True).clamp(0.0, 1.0)
    amounts = torch.cat(((images + 1.0) / 2.0, over), dim=1)
    light = 0.75 * torch.einsum("mshw,sc->mchw", amounts, STAINS).clamp(0.0, 1.3)
    return 2.0 * light.clamp(0.0, 1.0) - 1.0


def test_the_identity_and_the_starts():
    images = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0)) * 1.8 - 0.9
    view, flat = ImageView(3), nn.Flatten()
    torch.testing.assert_close(view(flat, images), flat(images), rtol=1e-4, atol=1e-4)
    assert float(view.penalty().detach()) == 0.0
    starts = view.candidates(4, torch.Generator().manual_seed(0))
    swapped = [
        one
        for one in starts
        if isinstance(one, ImageView) and one.mix is not None and float(one.mix.detach().abs().sum()) > 0
    ]
    assert len(swapped) == 5
    shown = [one(flat, images).detach().reshape(images.shape) for one in swapped]
    assert any(torch.allclose(one, images.flip(1), atol=1e-3) for one in shown)
    assert all(float(one.penalty().detach()) > 10.0 for one in swapped)
    assert ImageView(1).mix is None
    assert ImageView(64).mix is None


@pytest.mark.long
def test_mixed_colours_are_followed_end_to_end(monkeypatch):
    rounds = posterior._Round(8, 8, 1.0), posterior._Round(4, 25, 1.0), posterior._Round(2, 50, 0.5)
    monkeypatch.setattr(posterior, "_ROUNDS", rounds)
    from sklearn.datasets import load_digits

    bundle = load_digits()
    images = torch.from_numpy(bundle.images.astype("float32") / 8.0 - 1.0).unsqueeze(1)
    labels = torch.from_numpy(bundle.target.astype("int64"))
    source = Labelled(stained(images[::2], 0), labels[::2])
    seen = torch.einsum("oc,mchw->mohw", BLUER, stained(images[1::2], 1)).contiguous()
    target = Labelled(seen, labels[1::2])
    torch.manual_seed(0)
    extractor = nn.Sequential(
        nn.Conv2d(3, 12, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(108, 24), nn.ReLU()
    )
    classifier = nn.Linear(24, 10)
    loader = source_loader(source, batch_size=64)
    train_source(extractor, classifier, loader, epochs=15, learning_rate=3e-3)
    described = mock_description(records=len(seen), record_shape=(3, 8, 8), epsilon=8.0, delta=1e-5)
    hospital = Hospital(
        MockCurator(described, records=lambda count: seen[:count], randomness=np.random.default_rng(0).bytes)
    )
    plan = hospital.plan(Replay(directions=30, tuning_steps=400), epsilon=4.0)
    model = DomainAdaptation(extractor, classifier, hospital=hospital, plan=plan, source_epochs=0, device="cpu")
    model.fit(loader, progress=False)
    (report,) = model.reports
    assert report["outcome"] == "adapted by a view", report
    adapted = model.model()
    assert accuracy(adapted.extractor, adapted.classifier, target) > accuracy(extractor, classifier, target) + 10.0
