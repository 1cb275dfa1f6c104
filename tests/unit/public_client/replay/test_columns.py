"""Columns in other units: found behind an MLP, undone exactly, and not seen where there are none."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.local import released
from dpswd import DomainAdaptation, Hospital, Replay
from dpswd.public_client.data.accuracy import accuracy
from dpswd.public_client.data.datasets import Labelled
from dpswd.public_client.data.progress import reporting
from dpswd.public_client.data.source import source_loader, train_source
from dpswd.public_client.replay import fit
from dpswd.public_client.replay.columns import column_view, find_units
from dpswd.public_client.replay.verdict import Fitted
from dpswd.public_client.testing.mock import MockCurator, mock_description
from dpswd.shared.core.errors import InvalidValue

CLASSES, C = 3, 6
MIDDLE = torch.tensor([20.0, 5.0, 1.0, 0.0, 3.0, 40.0])
SPREAD = torch.tensor([4.0, 2.0, 0.5, 1.0, 1.0, 10.0])


def table(count: int, seed: int, frequencies: tuple[float, ...] = (1.0, 1.0, 1.0)) -> Labelled:
    """Columns of several sizes, around a centre for each class."""
    generator = torch.Generator().manual_seed(seed)
    centres = 1.3 * torch.randn(CLASSES, C, generator=torch.Generator().manual_seed(99))
    labels = torch.multinomial(torch.tensor(frequencies), count, replacement=True, generator=generator)
    return Labelled(MIDDLE + SPREAD * (centres[labels] + torch.randn(count, C, generator=generator)), labels)


class Standard(nn.Module):
    """The team's own scaling, as a fixed layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(C, C).requires_grad_(False)
        self.layer.weight.copy_(torch.diag(1.0 / SPREAD))
        self.layer.bias.copy_(-MIDDLE / SPREAD)

    def forward(self, records: torch.Tensor) -> torch.Tensor:
        return self.layer(records)


SOURCE = table(1500, 0)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    extractor = nn.Sequential(Standard(), nn.Linear(C, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU())
    classifier = nn.Linear(8, CLASSES)
    train_source(extractor, classifier, source_loader(SOURCE, batch_size=64), epochs=8, learning_rate=5e-3)
    return extractor.eval(), classifier.eval()


def fit_view(extractor: nn.Module, target: torch.Tensor, *, seed: int = 0) -> Fitted:
    with torch.no_grad():
        features, seen = extractor(SOURCE.images), extractor(target)
    residuals = released(seen, features, epsilon=1.0, delta=1e-5, seed=bytes([seed, *range(31)]))
    with reporting("", 1, shown=False) as bar:
        return fit.find_view(
            extractor, SOURCE, residuals, learning_rate=0.03, generator=torch.Generator().manual_seed(0), bar=bar
        )


def test_the_identity_is_the_identity_and_what_is_undone_is_what_was_done():
    view = column_view(SOURCE.images)
    assert torch.equal(view(nn.Identity(), SOURCE.images), SOURCE.images)
    assert float(view.penalty().detach()) == 0.0
    with torch.no_grad():
        view.log_gain[1], view.zero[1] = 1.2, -2.0
        view.log_gain[4] = -0.7
    seen = view(nn.Identity(), SOURCE.images).detach()
    assert not torch.allclose(seen[:, 1], SOURCE.images[:, 1])
    assert torch.equal(seen[:, 0], SOURCE.images[:, 0])
    torch.testing.assert_close(view.undone()(seen), SOURCE.images, rtol=1e-4, atol=1e-4)
    assert 10.0 < float(view.penalty().detach()) < 25.0
    with pytest.raises(InvalidValue, match="one gain for each of 6 columns"):
        view.check(torch.zeros(4, 5), torch.zeros(4, 8))


@pytest.mark.long
def test_a_hospital_in_other_units_is_understood_end_to_end(model):
    """Pounds for kilograms, and Fahrenheit for Celsius, behind an MLP."""
    records = table(1200, 1).images.clone()
    records[:, 0] = 2.2 * records[:, 0]
    records[:, 5] = 1.8 * records[:, 5] + 32.0
    target = Labelled(records, table(1200, 1).labels)
    extractor, classifier = model
    described = mock_description(records=len(records), record_shape=(C,), epsilon=8.0, delta=1e-5)
    hospital = Hospital(
        MockCurator(described, records=lambda count: records[:count], randomness=np.random.default_rng(0).bytes)
    )
    plan = hospital.plan(Replay(directions=100, tuning_steps=20), epsilon=8.0)
    adaptation = DomainAdaptation(extractor, classifier, hospital=hospital, plan=plan, source_epochs=0, device="cpu")
    adaptation.fit(source_loader(SOURCE, batch_size=64), progress=False)
    (report,) = adaptation.reports
    assert report["outcome"] == "adapted by a view", report
    assert "other units of columns (column 0" in report["finding"]
    before, after = (
        accuracy(extractor, classifier, target),
        accuracy(adaptation.model().extractor, adaptation.model().classifier, target),
    )
    assert after > before + 5.0
    assert after > accuracy(extractor, classifier, table(1200, 1)) - 2.0


@pytest.mark.parametrize("tries", [1, pytest.param(10, marks=pytest.mark.exhaustive)])
@pytest.mark.long
def test_other_patients_in_the_same_units_are_no_units(model, tries):
    """More than the noise must be left before any view is looked for: a false alarm has a chance below 1e-6."""
    for seed in range(tries):
        assert fit_view(model[0], table(900, 10 + seed).images, seed=seed).outcome == "kept"
        rarer = fit_view(model[0], table(900, 50 + seed, (1.0, 0.3, 0.0)).images, seed=seed)
        assert rarer.outcome == "priors corrected", rarer.reason


@pytest.mark.long
def test_a_column_of_one_value_is_in_no_unit(model):
    """A factor near 0 would explain it, and undoing that would blow up nothing but noise."""
    records = table(1200, 2).images.clone()
    records[:, 0] = MIDDLE[0]
    with torch.no_grad():
        features, seen = model[0](SOURCE.images), model[0](records)
    residuals = released(seen, features, epsilon=1.0, delta=1e-5, seed=bytes(32))
    view = find_units(column_view(SOURCE.images), model[0], SOURCE, residuals)
    assert not bool(view.log_gain.any())
