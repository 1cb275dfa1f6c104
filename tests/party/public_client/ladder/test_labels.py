"""The ladder at a hospital with labels, and for models of scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier

from dpswd import adapt, plan_ladder
from dpswd.public_client.ladder.rungs import LABELS
from dpswd.public_client.testing.local_hospital import LocalHospital

RECORDS = 3000


def made_table(count: int, seed: int, *, offset: float) -> tuple[np.ndarray, np.ndarray]:
    """Four columns; the log-odds of class 1 follow two of them, and an offset that differs from place to place."""
    generator = np.random.default_rng(seed)
    records = generator.normal(size=(count, 4)).astype(np.float32)
    odds = 1.2 * records[:, 0] - 0.8 * records[:, 1] + offset
    return records, (generator.random(count) < 1.0 / (1.0 + np.exp(-odds))).astype(np.int64)


def log_loss(model, records: np.ndarray, labels: np.ndarray) -> float:
    import torch

    with torch.no_grad():
        scores = model(torch.from_numpy(records)).double()
    return float(torch.nn.functional.cross_entropy(scores, torch.from_numpy(labels)))


@pytest.fixture(scope="module")
def boosted() -> HistGradientBoostingClassifier:
    records, labels = made_table(4000, 1, offset=0.0)
    return HistGradientBoostingClassifier(max_iter=30, max_leaf_nodes=8, random_state=0).fit(records, labels)


@pytest.mark.long
def test_boosted_trees_are_recalibrated_where_classes_are_rarer(boosted) -> None:
    records, labels = made_table(RECORDS, 2, offset=-2.0)
    source = made_table(4000, 1, offset=0.0)
    with (
        LocalHospital(records, epsilon=1.0, delta=1e-5, labels=labels, classes=2) as here,
        here.connect() as hospital,
    ):
        ladder = plan_ladder(boosted, source, hospital, epsilon=1.0)
        assert list(ladder.plans) == [LABELS]
        assert "the model is no network with layers" in str(ladder)
        adapted = adapt(boosted, source, hospital, epsilon=1.0, progress=False)
        assert hospital.describe().spent <= 1.0
    assert adapted.changed
    from dpswd.public_client.models.trees import as_module

    before = log_loss(as_module(boosted).eval(), records, labels)
    assert log_loss(adapted.module, records, labels) < before - 0.1
