"""The ladder at a hospital with labels, and for models of scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dpswd import Hospital, MockCurator, adapt, as_module, mock_description, plan_ladder
from dpswd.public_client.ladder.rungs import GLANCE, LABELS
from dpswd.public_client.methods.normalisation import LayersRun
from dpswd.public_client.testing.local_hospital import LocalHospital
from dpswd.shared.protocol.contract import DataContract

RECORDS = 3000


def made_table(count: int, seed: int, *, offset: float) -> tuple[np.ndarray, np.ndarray]:
    """Four columns; the log-odds of class 1 follow two of them, and an offset that differs from place to place."""
    generator = np.random.default_rng(seed)
    records = generator.normal(size=(count, 4)).astype(np.float32)
    odds = 1.2 * records[:, 0] - 0.8 * records[:, 1] + offset
    return records, (generator.random(count) < 1.0 / (1.0 + np.exp(-odds))).astype(np.int64)


def log_loss(model, records: np.ndarray, labels: np.ndarray) -> float:
    with torch.no_grad():
        scores = model(torch.from_numpy(records)).double()
    return float(torch.nn.functional.cross_entropy(scores, torch.from_numpy(labels)))


@pytest.fixture(scope="module")
def boosted() -> HistGradientBoostingClassifier:
    records, labels = made_table(4000, 1, offset=0.0)
    return HistGradientBoostingClassifier(max_iter=30, max_leaf_nodes=8, random_state=0).fit(records, labels)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["trees", "linear"])
def test_an_estimator_is_recalibrated_where_classes_are_rarer(boosted, kind) -> None:
    """Of a linear model's two scores the first is always 0, behind a glance that corrected frequencies too."""
    if kind == "linear":
        boosted = make_pipeline(StandardScaler(), LogisticRegression()).fit(*made_table(4000, 1, offset=0.0))
    records, labels = made_table(4 * RECORDS, 2, offset=0.0)
    rarer = np.sort(
        np.concatenate([np.flatnonzero(labels == c)[: int(p * RECORDS)] for c, p in ((0, 0.85), (1, 0.15))])
    )
    records, labels = records[rarer], labels[rarer]
    source = made_table(4000, 1, offset=0.0)
    with (
        LocalHospital(records, epsilon=1.0, delta=1e-5, labels=labels, classes=2) as here,
        here.connect() as hospital,
    ):
        ladder = plan_ladder(boosted, source, hospital, epsilon=1.0)
        assert list(ladder.plans) == [GLANCE, LABELS]
        assert "the model is no network with layers" in str(ladder)
        adapted = adapt(boosted, source, hospital, epsilon=1.0, progress=False)
        assert hospital.describe().spent <= 1.0
    assert adapted.changed
    assert [answer.rung for answer in adapted.answers] == [GLANCE, LABELS]
    before = log_loss(as_module(boosted).eval(), records, labels)
    assert log_loss(adapted.module, records, labels) < before - 0.1


def test_a_column_in_other_units_is_named_and_put_back_for_trees_without_labels(boosted):
    """The commonest model of tables, and no label: until its columns were looked at it could be asked nothing."""
    records, labels = made_table(RECORDS, 2, offset=0.0)
    there = records * np.array([1.0, 12.0, 1.0, 1.0], dtype=np.float32) + np.array([0.0, 30.0, 0.0, 0.0])
    there = torch.from_numpy(there.astype(np.float32))
    contract = DataContract(column_names=("age", "weight", "height", "rate"))
    described = mock_description(records=RECORDS, record_shape=(4,), epsilon=4.0, delta=1e-5, contract=contract)
    noise = np.random.default_rng(0).bytes
    curator = MockCurator(described, records=lambda count: there[:count], randomness=noise)
    adapted = adapt(boosted, made_table(4000, 1, offset=0.0), Hospital(curator), epsilon=1.0, progress=False)
    assert [answer.rung for answer in adapted.answers] == [GLANCE]
    assert "weight by " in str(adapted)

    def right(module) -> float:
        with torch.no_grad():
            return float((module(there).argmax(dim=1).numpy() == labels).mean())

    least, unmoved = right(as_module(boosted)), float(boosted.score(records, labels))
    assert least < unmoved - 0.1
    assert right(adapted.module) > unmoved - 0.05


def vitals(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Temperature, creatinine, haemoglobin in usual units; the first two tell the class."""
    generator = np.random.default_rng(seed)
    own = generator.normal(size=(count, 3))
    records = np.stack([36.9 + 0.65 * own[:, 0], np.exp(0.4 * own[:, 1]), 13.0 + 1.8 * own[:, 2]], axis=1)
    odds = 1.5 * own[:, 0] + 1.5 * own[:, 1] - 0.5 * own[:, 2]
    return records.astype(np.float32), (generator.random(count) < 1.0 / (1.0 + np.exp(-odds))).astype(np.int64)


@pytest.mark.parametrize("epsilon", [0.3, 1.0])
@pytest.mark.parametrize("kind", ["trees", "linear"])
def test_units_that_the_clip_hides_are_located_and_put_back(kind, epsilon):
    """Fahrenheit and micromoles, a hundred deviations away: that was seen, not how far, and 11 of 90 stayed right."""
    source = vitals(4000, 1)
    made = HistGradientBoostingClassifier(max_iter=20, max_leaf_nodes=8, random_state=0)
    made = make_pipeline(StandardScaler(), LogisticRegression()) if kind == "linear" else made
    made.fit(*source)
    records, labels = vitals(RECORDS, 2)
    there = torch.from_numpy((records * [1.8, 88.4, 1.0] + [32.0, 0.0, 0.0]).astype(np.float32))
    described = mock_description(records=RECORDS, record_shape=(3,), epsilon=4.0, delta=1e-5)
    curator = MockCurator(described, records=lambda count: there[:count], randomness=np.random.default_rng(0).bytes)
    adapted = adapt(made, source, Hospital(curator), epsilon=epsilon, progress=False)
    assert "column 1, counted from 0, by +" in str(adapted)
    with torch.no_grad():
        right = float((adapted.module(there).argmax(dim=1).numpy() == labels).mean())
    least, unmoved = made.score(there.numpy(), labels), made.score(records, labels)
    assert least < unmoved - 0.2
    assert right > (unmoved - 0.03 if epsilon == 1.0 else least + 0.1)


@pytest.mark.parametrize("seed", range(6))
def test_where_nothing_has_changed_no_alarm_is_raised(seed):
    """Three of ten such runs said that something had changed which nothing known explains."""
    source = vitals(4000, 1)
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(*source)
    there = torch.from_numpy(vitals(RECORDS, 2)[0])
    described = mock_description(records=RECORDS, record_shape=(3,), epsilon=4.0, delta=1e-5)
    curator = MockCurator(described, records=lambda count: there[:count], randomness=np.random.default_rng(seed).bytes)
    adapted = adapt(model, source, Hospital(curator), epsilon=0.3, progress=False)
    assert "it sees there what it saw of your source" in str(adapted)
    assert not adapted.changed


def test_codes_of_missing_values_are_not_moved_with_their_columns(boosted):
    described = mock_description(records=RECORDS, record_shape=(4,), epsilon=4.0, delta=1e-5, classes=2)
    model = as_module(boosted, missing=-999.0)
    ladder = plan_ladder(model, made_table(4000, 1, offset=0.0), Hospital(MockCurator(described)), epsilon=1.0)
    assert list(ladder.plans) == [LABELS]
    assert "codes of missing values would move with their columns" in str(ladder)


def test_what_a_glance_was_paid_for_is_not_lost_where_the_hospital_is_then_silent(boosted, monkeypatch):
    """The names of its columns were asked for once more behind the answer, where a failure lost it."""
    asked = LayersRun.converse

    def converse(run, bar):
        talk = asked(run, bar)
        monkeypatch.setattr(Hospital, "describe", lambda _: pytest.fail("asked after the answer"))
        return talk

    monkeypatch.setattr(LayersRun, "converse", converse)
    there = torch.from_numpy(made_table(RECORDS, 2, offset=0.0)[0])
    described = mock_description(records=RECORDS, record_shape=(4,), epsilon=4.0, delta=1e-5)
    curator = MockCurator(described, records=lambda count: there[:count], randomness=np.random.default_rng(0).bytes)
    adapted = adapt(boosted, made_table(4000, 1, offset=0.0), Hospital(curator), epsilon=1.0, progress=False)
    assert [answer.rung for answer in adapted.answers] == [GLANCE]
