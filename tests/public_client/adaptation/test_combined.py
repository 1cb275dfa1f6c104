"""Source, records and labels in one fit, on a mock curator with real records: what is asked, charged, said and kept."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from dpswd import Hospital, MockCurator, Replay, mock_description
from dpswd.public_client.adaptation.combined import CombinedAdaptation
from dpswd.shared.core.errors import InvalidValue, SettingsError
from dpswd.shared.core.wire.limits import UNLABELLED

D, CLASSES, N = 6, 3, 4000
MEANS = 1.2 * np.eye(CLASSES, D)
SHARES = (0.85, 0.1, 0.05)


def made(count, seed, shares=None):
    rng = np.random.default_rng(seed)
    labels = rng.choice(CLASSES, size=count, p=shares)
    return (MEANS[labels] + rng.normal(size=(count, D))).astype(np.float32), labels


def hospital(classes=CLASSES, labelled=N, budget=6.0):
    description = mock_description(
        records=N, record_shape=(D,), epsilon=budget, delta=1e-5, classes=classes, partly_labelled=labelled < N
    )
    records, labels = made(N, 0, SHARES)
    held = np.where(np.arange(N) < labelled, labels, UNLABELLED)
    return Hospital(MockCurator(description, records=records, labels=held, randomness=np.random.default_rng(0).bytes))


def fitted(where, **settings):
    torch.manual_seed(0)
    records, labels = made(900, 1)
    data = torch.utils.data.TensorDataset(torch.from_numpy(records), torch.from_numpy(labels))
    modules = nn.Linear(D, D), nn.Linear(D, CLASSES)
    quick = {"records": Replay(tuning_steps=20), "device": "cpu", "source_epochs": 20}
    model = CombinedAdaptation(*modules, hospital=where, epsilon=6.0, **(quick | settings))
    return model.fit(torch.utils.data.DataLoader(data, batch_size=100), progress=False)


@pytest.mark.long
def test_what_each_part_was_worth_is_said_and_the_best_stays():
    """A quarter of the hospital's records has a label; its classes are far from even, as the labels' counts say."""
    with hospital(labelled=N // 4) as where:
        model = fitted(where)
        charges, spent = [charge.run.mechanism.name for charge in where.curator.charges], where.describe().spent
    assert model.refused == ""
    assert charges == ["quantiles", "score_statistics", "evaluation"]
    assert spent <= 6.0 + 1e-6
    assert [one.name for one in model.candidates] == ["source", "records", "records and labels"]
    records, labels = made(4000, 2, SHARES)
    before = (nn.Sequential(model.candidates[0].model.extractor, model.candidates[0].model.classifier))(
        torch.from_numpy(records)
    ).argmax(dim=1)
    after = (model.predict(torch.from_numpy(records)).numpy() == labels).mean()
    assert after > (before.numpy() == labels).mean() + 0.03
    comparison = model.comparison
    assert list(comparison.accuracies) == [one.name for one in model.candidates]
    assert comparison.accuracies[model.chosen.name] == max(comparison.accuracies.values())
    assert comparison.error < 4.0
    assert abs(comparison.accuracies[model.chosen.name] - 100 * after) < 10.0
    assert f"{model.chosen.name:<20} {comparison.accuracies[model.chosen.name]:.1f}%  <- kept" in str(model)
    assert str(model).count("<- kept") == 1
    assert str(model).startswith(f"Your model was changed by the hospital's {model.chosen.name}.\naccuracy on")
    assert str(model).count("%") == 4


@pytest.mark.long
def test_a_hospital_without_labels_gives_its_records_alone():
    with hospital(classes=0) as where:
        model = fitted(where)
        (charge,) = where.curator.charges
        assert 5.8 < charge.epsilon <= 6.0
        assert model.chosen.name == "records"
        assert "not known" in str(model)


@pytest.mark.long
def test_without_room_for_the_comparison_the_last_model_stays_and_it_is_said_why():
    """A comparison for epsilon 3.6 in a budget of 3.7, of which two releases of 1.2 have taken more than 1."""
    with hospital(budget=3.7) as where:
        model = fitted(where, shares={"records": 0.2, "labels": 0.2, "evaluation": 0.6})
        assert model.comparison is None
        assert model.chosen.name == "records and labels"
        assert "is not known: " in str(model)


def test_what_cannot_be_meant_is_refused():
    with hospital() as where:
        with pytest.raises(SettingsError, match="add up to 1"):
            fitted(where, shares={"records": 0.5})
        with pytest.raises(SettingsError, match="records, labels, evaluation"):
            fitted(where, shares={"images": 1.0})
        with pytest.raises(InvalidValue, match="nothing to learn from"):
            fitted(where, shares={"evaluation": 1.0})
        with pytest.raises(InvalidValue, match="call fit first"):
            _ = CombinedAdaptation(nn.Identity(), nn.Linear(D, 3), hospital=where, epsilon=1.0).chosen
        assert where.curator.charges == []
