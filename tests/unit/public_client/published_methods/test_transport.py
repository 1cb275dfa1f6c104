"""Transport by noised rows: the debiased costs, the solvers, the charge. No service."""

from __future__ import annotations

import numpy as np
import ot
import pytest
import torch
from torch import nn

from dpswd import Hospital, MockCurator, mock_description
from dpswd.public_client.data.feature_maps import map_from_source
from dpswd.public_client.published_methods.transport import Transport, estimated_costs, solve, transported
from dpswd.shared.core.errors import BudgetExhausted, InvalidValue, SettingsError
from dpswd.shared.core.noise.directions import directions

D, N, M = 12, 90, 70
RNG = np.random.default_rng(7)
OWN = (RNG.normal(size=(N, D)) + 0.8).astype(np.float32)
PUBLIC = torch.from_numpy(RNG.normal(size=(M, D)).astype(np.float32))


@pytest.fixture
def hospital():
    description = mock_description(records=N, record_shape=(D,), epsilon=1e4, delta=1e-5)

    class Held(MockCurator):
        def take(self, indices):
            return OWN[indices]

    return Hospital(Held(description, randomness=np.random.default_rng(1).bytes))


def identity():
    made = nn.Linear(D, D).eval()
    with torch.no_grad():
        made.weight.copy_(torch.eye(D))
        made.bias.zero_()
    return made


def exact_distance():
    """Of mapped and clipped features, by POT."""
    mapped = map_from_source(PUBLIC, target_norm=0.4)
    x, y = (mapped.clipped(values).double().numpy() for values in (PUBLIC, torch.from_numpy(OWN)))
    return ot.emd2(np.full(M, 1 / M), np.full(N, 1 / N), ((x[:, None] - y) ** 2).sum(axis=2))


@pytest.mark.parametrize("solver", ["exact", "entropic"])
def test_with_little_noise_and_many_directions_it_is_the_transport_of_the_records(hospital, solver):
    transport = transported(
        hospital.curator, identity(), PUBLIC, Transport(directions=4000, solver=solver), epsilon=6e3
    )
    assert transport.distance == pytest.approx(exact_distance(), rel=0.1)
    assert 5e3 < transport.epsilon <= 6e3
    np.testing.assert_allclose(np.asarray(transport.plan.sum(axis=0)).ravel(), 1 / N, rtol=1e-4)
    np.testing.assert_allclose(np.asarray(transport.plan.sum(axis=1)).ravel(), 1 / M, rtol=1e-4)
    with pytest.raises(BudgetExhausted):
        transported(hospital.curator, identity(), PUBLIC, epsilon=9e3)


def test_what_noise_adds_to_a_squared_distance_is_taken_off():
    """Means over 10,000 pairs and directions of their own, within five standard errors (a false alarm in 1e6)."""
    k, sigma, repeats = 6, 0.7, 10_000
    x, y = RNG.normal(size=(2, D))
    U = directions(bytes(32), D, k * repeats).double().numpy().reshape(D, repeats, k).transpose(1, 0, 2)
    noised = (y @ U) + sigma * RNG.normal(size=(repeats, k))
    seen = zip(U, noised, strict=True)
    costs = np.array([estimated_costs((x @ u)[None], row[None], dimension=D, sigma=sigma)[0, 0] for u, row in seen])
    truth = float(((x - y) ** 2).sum())
    error = costs.std() / np.sqrt(repeats)
    assert abs(costs.mean() - truth) < 5 * error
    assert abs(costs.mean() + D * sigma**2 - truth) > 10 * error  # what the test would see without the correction


def test_large_samples_are_matched_part_by_part():
    """A coupling of its own: uniform masses, a distance above the whole samples', and near it."""
    x = RNG.normal(size=(400, 3))
    y = RNG.normal(size=(300, 3)) + 1.0
    exact, whole = solve(x, y, dimension=3, sigma=0.0, method=Transport(part=1000))
    cut, plan = solve(x, y, dimension=3, sigma=0.0, method=Transport(part=100))
    assert exact == pytest.approx(ot.emd2(np.full(400, 1 / 400), np.full(300, 1 / 300), ot.dist(x, y)), rel=1e-9)
    assert exact < cut < 1.3 * exact
    for coupling in (whole, plan):
        assert coupling.sum() == pytest.approx(1.0)
        np.testing.assert_allclose(np.asarray(coupling.sum(axis=0)).ravel(), 1 / 300, rtol=1e-9)
        np.testing.assert_allclose(np.asarray(coupling.sum(axis=1)).ravel(), 1 / 400, rtol=1e-9)


@pytest.mark.parametrize(
    ("settings", "message"), [({"directions": 0}, "directions is 0"), ({"solver": "fast"}, "solver is 'fast'")]
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(InvalidValue, match=message):
        Transport(**settings)


def test_without_the_solvers_library_nothing_is_charged(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(SettingsError, match=r"dpswd\[transport\]"):
        transported(None, None, None, epsilon=1.0)
