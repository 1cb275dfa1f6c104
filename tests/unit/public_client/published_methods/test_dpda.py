"""DPDA on a mock curator with real labels: a labelled hospital teaches a classifier for the team's own records."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from dpswd import DomainAdaptation, Dpda, Federation, Hospital, MockCurator, Replay, mock_description
from dpswd.public_client.data.ranks import Ranks
from dpswd.public_client.methods.statistics_head import Classes
from dpswd.public_client.published_methods.dpda import (
    Points,
    drawn_points,
    moved,
    principal_components,
    target_network,
)
from dpswd.public_client.training.saved_model import load_adapted
from dpswd.shared.core.errors import DataInvalid, InvalidValue, SettingsError
from dpswd.shared.core.wire.limits import UNLABELLED

PAGE = Path(__file__).resolve().parents[4] / "docs" / "ml-team" / "labelled-sources.md"
D, CLASSES = 6, 3
MEANS = 3.0 * np.eye(CLASSES, D)
_AXES, _LENGTHS = np.linalg.qr(np.eye(D) + 0.25 * np.random.default_rng(1).normal(size=(D, D)))
TURN = _AXES * np.sign(np.diag(_LENGTHS)) * np.linspace(1.0, 1.6, D)


def made(count, seed, *, shares=None, turn=None, shift=0.0):
    """Records (count, d) of classes around their means, and labels (count,)."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(CLASSES, size=count, p=shares)
    records = MEANS[labels] + rng.normal(size=(count, D))
    return ((records if turn is None else records @ turn) + shift).astype(np.float32), labels


def hospital(records, labels, *, epsilon=50.0):
    description = mock_description(records=len(labels), record_shape=(D,), epsilon=epsilon, delta=1e-5, classes=CLASSES)
    held = torch.from_numpy(records)
    randomness = np.random.default_rng(0).bytes
    return Hospital(MockCurator(description, records=lambda count: held[:count], labels=labels, randomness=randomness))


def loader(records, labels=None):
    own = np.full(len(records), UNLABELLED) if labels is None else labels
    data = torch.utils.data.TensorDataset(torch.from_numpy(records), torch.from_numpy(own))
    return torch.utils.data.DataLoader(data, batch_size=100, shuffle=True)


def trained(where, plan, records, labels=None, **settings):
    extractor = principal_components(torch.from_numpy(records), count=D)
    torch.manual_seed(0)
    model = DomainAdaptation(
        extractor, target_network(D, CLASSES), hospital=where, plan=plan, device="cpu", seed=1, **settings
    )
    return model.fit(loader(records, labels), progress=False)


def accuracy(model, records, labels):
    return model.score(torch.from_numpy(records), torch.from_numpy(labels))


def test_a_labelled_hospital_teaches_records_without_labels(tmp_path):
    """The team's records are turned and moved, and none has a label: transport finds where the classes went."""
    own, truth = made(600, 1, turn=TURN, shift=2.0)
    two = {name: hospital(*made(1500, seed)) for seed, name in enumerate(("north", "south"))}
    with Federation(two) as sites:
        plan = sites.plan(Dpda(updates=200, points=20, part=300), epsilon=2.0)
        assert "for the team's own records" in str(plan["north"])
        model = trained(sites, plan, own, shared=True)
        for site in sites.hospitals.values():
            (charge,) = site.curator.charges
            assert 1.9 < charge.epsilon <= 2.0
    # The classifier of the hospitals' own records, without transport, on the same features.
    records, labels = made(3000, 0)
    nearest = ((own[:, None] - np.stack([records[labels == c].mean(axis=0) for c in range(CLASSES)])) ** 2).sum(axis=2)
    assert accuracy(model, own, truth) > 0.02 + (nearest.argmin(axis=1) == truth).mean()
    fresh = made(500, 2, turn=TURN, shift=2.0)
    assert accuracy(model, *fresh) > 0.9
    (path,) = model.save(tmp_path / "model.safetensors")
    again = load_adapted(path, device="cpu")
    assert (again.predict(torch.from_numpy(own)) == model.predict(torch.from_numpy(own))).all()


def test_the_page_s_block_runs():
    """docs/ml-team/labelled-sources.md."""
    (code,) = re.findall(r"```python\n(.*?)\n```", PAGE.read_text(), re.DOTALL)
    records, _ = made(60, 1)
    with hospital(*made(300, 0)) as where:
        names = {"records": torch.from_numpy(records), "hospital": where, "loader": loader(records)}
        exec(compile(code.replace("Dpda()", "Dpda(updates=2)"), str(PAGE), "exec"), names)
        assert len(where.curator.charges) == 1
    assert names["model"].predict(names["records"]).shape == (60,)


def test_a_few_labels_tell_what_the_places_cannot():
    """The team's classes have changed places: without labels the plan must be wrong, with four of each it is not."""
    own, truth = made(300, 1)
    own = own[:, [1, 2, 0, *range(CLASSES, D)]]
    labels = np.full(len(own), UNLABELLED)
    for c in range(CLASSES):
        labels[np.flatnonzero(truth == c)[:4]] = c
    with hospital(*made(2000, 0)) as where:
        plan = where.plan(Dpda(updates=200, points=20, part=300), epsilon=2.0)
        assert accuracy(trained(where, plan, own), own, truth) < 0.3
        assert accuracy(trained(where, plan, own, labels), own, truth) > 0.8


def test_what_is_missing_is_said_before_anything_is_charged(monkeypatch):
    own, truth = made(50, 1)
    with hospital(*made(300, 0)) as where:
        plan = where.plan(Dpda(), epsilon=1.0)
        with pytest.raises(DataInvalid, match=r"-2; .* and -1 where none is known"):
            trained(where, plan, own, np.full(len(own), -2))
        with pytest.raises(DataInvalid, match="labels are 0 to 2"):
            trained(where, where.plan(Replay(), epsilon=1.0), own)
        monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
        with pytest.raises(SettingsError, match=r"dpswd\[transport\]"):
            trained(where, plan, own, truth)
        assert where.curator.charges == []


@pytest.fixture
def ot():
    """POT: most of a second, of every process that collects this file."""
    import ot

    return ot


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"points": 0}, "points is 0"), ({"penalty": 0.0}, "penalty is 0"), ({"group_penalty": -1.0}, "group_penalty")],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(InvalidValue, match=message):
        Dpda(**settings)


# ---- the transport ---------------------------------------------------------------------------------------------------


def points(count, seed):
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(2), count)
    places = rng.normal(size=(2 * count, 2)) + 2.0 * labels[:, None]
    masses = np.where(labels == 0, 0.3, 0.7) / count
    return Points(places, labels, masses)


def test_without_a_group_penalty_it_is_the_entropic_plan(ot):
    source, targets = points(15, 0), points(12, 1).places
    costs = ot.dist(source.places, targets)
    plan = ot.sinkhorn(source.masses, np.full(24, 1 / 24), costs / np.median(costs), 0.5, stopThr=1e-9)
    reached, shares = moved(source, targets, np.full(24, UNLABELLED), Dpda(penalty=0.5, group_penalty=0.0, part=100), 0)
    np.testing.assert_allclose(reached.places, plan @ targets / source.masses[:, None], atol=1e-4)
    np.testing.assert_allclose(reached.masses, source.masses, rtol=1e-4)
    np.testing.assert_allclose(shares[:, 0], 24 * plan[:15].sum(axis=0), atol=1e-4)


def test_the_group_penalty_lets_fewer_classes_share_a_target_as_the_reference_does(ot):
    """POT's own group lasso takes the penalty without the factor for the number of points."""
    source, targets = points(15, 0), points(12, 1).places
    costs, even = ot.dist(source.places, targets), np.full(24, 1 / 24)
    reference = ot.da.sinkhorn_l1l2_gl(
        source.masses, source.labels, even, costs / np.median(costs), 0.5, 0.8 * 15**0.5,
        numItermax=5, numInnerItermax=100, stopInnerThr=1e-6,
    )  # fmt: skip
    nobody = np.full(24, UNLABELLED)
    _, shares = moved(source, targets, nobody, Dpda(penalty=0.5, group_penalty=0.8, part=100), 0)
    np.testing.assert_allclose(shares[:, 0], 24 * reference[:15].sum(axis=0), atol=1e-3)
    _, loose = moved(source, targets, nobody, Dpda(penalty=0.5, group_penalty=0.0, part=100), 0)
    assert shares.max(axis=1).mean() > loose.max(axis=1).mean()


def test_targets_are_matched_part_by_part_and_labels_stay():
    source, targets = points(10, 0), points(40, 1).places
    labels = np.full(80, UNLABELLED)
    labels[:5] = 1  # these places are class 0's
    reached, shares = moved(source, targets, labels, Dpda(penalty=0.1, group_penalty=0.5, part=20), 3)
    assert reached.places.shape == (4 * 20, 2)
    assert reached.masses.sum() == pytest.approx(1.0)
    assert reached.masses[reached.labels == 1].sum() == pytest.approx(0.7, abs=1e-3)
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)
    assert (shares[:5, 1] > 0.99).all()
    assert (shares[40:].argmax(axis=1) == 1).mean() > 0.9


def test_points_are_drawn_from_the_classes_laws():
    covariance = np.diag([0.04, 0.01, 0.0])
    laws = Classes(np.array([0.8, 0.2]), np.array([[0.1, 0.0, 0.0], [-0.1, 0.2, 0.0]]), covariance, 0.0)
    drawn = drawn_points(laws, 5000, 0)
    for c, share in enumerate(laws.shares):
        own = drawn.places[drawn.labels == c]
        np.testing.assert_allclose(own.mean(axis=0), laws.means[c], atol=1e-3)
        np.testing.assert_allclose(np.cov(own.T), covariance, atol=0.004)  # twelve standard errors of the largest
        assert drawn.masses[drawn.labels == c].sum() == pytest.approx(share)
    assert (np.linalg.norm(drawn.places, axis=1) <= 1.0 + 1e-9).all()


def test_principal_components_are_those_of_the_records():
    records = torch.from_numpy(made(300, 0)[0])
    features = principal_components(records, count=2)(records)
    assert float(features.square().mean()) == pytest.approx(1.0, rel=1e-3)
    centred = (records - records.mean(dim=0)).double()
    expected = torch.linalg.svd(centred, full_matrices=False)[0][:, :2]
    overlap = torch.linalg.qr(features.double())[0].T @ expected
    np.testing.assert_allclose(overlap.abs().numpy(), np.eye(2), atol=1e-3)
    assert isinstance(principal_components(records, count=99)[1], nn.Linear)


def test_several_processes_are_refused_before_anything_is_charged():
    with pytest.raises(InvalidValue, match="dpda trains in one process"):
        Dpda().begin(SimpleNamespace(), SimpleNamespace(ranks=Ranks(rank=0, size=2)))
