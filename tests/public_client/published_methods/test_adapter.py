"""Training by each kind of adapter, end to end in one process: real mechanisms on a target that the adapter can mend.

The curator is the mock with records of its own in the place of synthetic ones, at an epsilon at which noise does not
decide; so what is tested is that each adapter learns its shift, and that the model is one file.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dpswd import Adapter, DomainAdaptation, Hospital
from dpswd.public_client.data.accuracy import accuracy
from dpswd.public_client.data.datasets import Labelled
from dpswd.public_client.data.source import source_loader, train_source
from dpswd.public_client.testing.mock import MockCurator, mock_description
from dpswd.public_client.training.saved_model import load_adapted

D, CLASSES, RECORDS = 6, 3, 600


def hospital_of(records):
    """Answers about given records; every sample is the first records."""
    description = mock_description(
        records=len(records), record_shape=tuple(records.shape[1:]), epsilon=1e4, delta=1e-5
    )  # fmt: skip
    return Hospital(MockCurator(description, records=lambda count: records[:count]))


def table(seed):
    """Three classes in six columns, positive and skewed, as measurements are."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(CLASSES, D, generator=torch.Generator().manual_seed(99)) * 1.5
    labels = torch.randint(CLASSES, (RECORDS,), generator=generator)
    return Labelled(centres[labels] + 0.5 * torch.randn(RECORDS, D, generator=generator), labels)


def own_module():
    layer = nn.Linear(D, D)
    nn.init.eye_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


SHIFTS = {
    "features": lambda x: x * torch.tensor([0.5, 1.5, 1.0, 0.7, 1.3, 1.0]) + torch.tensor([2.0, -2, 1.5, 0, 2, -1.5]),
    "low-rank": lambda x: x + 0.6 * x.mean(dim=1, keepdim=True) + 1.5,
    "monotone": lambda x: torch.where(x > 0, 2.0 * x, 0.7 * x) + 1.5,
    "own": lambda x: x @ (torch.eye(D) + 0.3 * torch.diag(torch.ones(D - 1), 1)) + 2.0,
}


@pytest.mark.long
@pytest.mark.parametrize("kind", list(SHIFTS))
def test_each_adapter_for_tables_mends_its_shift(kind, tmp_path):
    source, target = table(0), table(1)
    target = Labelled(SHIFTS[kind](target.images), target.labels)
    torch.manual_seed(0)
    extractor, classifier = nn.Sequential(nn.Linear(D, 24), nn.Tanh()), nn.Linear(24, CLASSES)
    loader = source_loader(source, batch_size=64)
    train_source(extractor, classifier, loader, epochs=25, learning_rate=5e-3)
    before = accuracy(extractor, classifier, target)
    hospital = hospital_of(target.images)
    plan = hospital.plan(
        Adapter(
            directions=24, learning_rate=0.08, adapter="auto" if kind == "own" else kind, rank=2, clip_norm=0.5
        ),
        epsilon=5e3, steps=50, batch_size=RECORDS,
    )  # fmt: skip
    adaptation = DomainAdaptation(
        extractor, classifier, hospital=hospital, plan=plan, source_epochs=0, device="cpu",
        adapter=own_module() if kind == "own" else None,
    )  # fmt: skip
    adaptation.fit(loader, progress=False)
    after = accuracy(adaptation.target_extractor, classifier, target)
    assert before < 90
    assert after > before + 8, (kind, before, after)
    adaptation.save(tmp_path / "adapted.safetensors")
    loaded = load_adapted(tmp_path / "adapted.safetensors", device="cpu")
    assert torch.equal(loaded.predict(target.images), adaptation.predict(target.images))
    assert {path.suffix for path in tmp_path.iterdir()} == {".safetensors", ".json", ".evidence"}
