from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from exploring import tried
from hypothesis import given, settings
from hypothesis import strategies as st

from dpswd.public_client.published_methods.losses import distance, wasserstein_1d
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.mechanisms.quantiles.coefficients import cosine_basis, in_order, release_coefficients
from dpswd.shared.core.noise.clipping import clip_records
from dpswd.shared.core.noise.directions import directions
from dpswd.shared.core.noise.noise import grid_step
from dpswd.shared.published_mechanisms.gradient.cotangents import source_coefficients
from dpswd.shared.seeded_noise import SeededNoise


@pytest.mark.parametrize(("batch", "count"), [(1, 1), (7, 7), (512, 2), (100, 9)])
def test_basis_is_orthonormal_and_bounded_as_priced(batch: int, count: int) -> None:
    B = cosine_basis(batch, count)
    assert torch.allclose(B.T @ B, torch.eye(count, dtype=torch.float64), atol=1e-12)
    kappa = batch * float((B.abs().max(dim=0).values ** 2).sum())
    assert kappa <= 1 + 2 * (count - 1) + 1e-9


def test_basis_is_the_formula() -> None:
    B = cosine_basis(6, 3)
    assert float(B[4, 0]) == pytest.approx(1 / math.sqrt(6))
    assert float(B[4, 2]) == pytest.approx(math.sqrt(2 / 6) * math.cos(math.pi * 2 * 4.5 / 6))


@pytest.mark.parametrize(("batch", "columns"), [(1, 3), (2, 1), (17, 5), (128, 40), (300, 300), (1025, 90)])
def test_the_network_puts_columns_in_order(batch: int, columns: int, generator: torch.Generator) -> None:
    """Columns are cut where they would leave a core's cache."""
    values = torch.randn(batch, columns, generator=generator, dtype=torch.float64).round(decimals=1)  # with ties
    assert torch.equal(in_order(values), values.sort(dim=0).values)


def test_release_is_coefficients_plus_the_sources_noise(
    device: torch.device, generator: torch.Generator, noise: SeededNoise
) -> None:
    features = clip_records(torch.randn(32, 8, generator=generator)).to(device)
    U = directions(bytes(32), 8, 5, device=device)
    released = release_coefficients(features, U, coefficients=3, sigma=0.2, noise=noise)
    assert released.values.shape == (3, 5)
    assert released.values.dtype == "int32"
    step = grid_step(0.2)
    alone = SeededNoise(bytes(range(32))).grid_gaussian((3, 5), sigma=0.2, step=step)
    projections = np.sort((features.double() @ U.double()).cpu().numpy(), axis=0)
    expected = cosine_basis(32, 3).numpy().T @ projections
    assert abs((released.values - alone) * step - expected).max() <= step / 2 + 1e-9


@settings(max_examples=tried(60))
@given(seed=st.integers(0, 10**6), batch=st.integers(1, 40), data=st.data())
def test_one_replaced_record_moves_the_release_by_at_most_what_is_charged(
    seed: int, batch: int, data: st.DataObject
) -> None:
    class Silence:
        def grid_gaussian(self, shape: tuple[int, ...], *, sigma: float, step: float) -> np.ndarray:
            return np.zeros(shape, dtype=np.int64)

    count = data.draw(st.integers(1, batch))
    spread = data.draw(st.sampled_from([0.01, 1.0, 100.0]))
    generator = torch.Generator().manual_seed(seed)
    d, k, sigma = 5, 11, 0.1
    features = clip_records(spread * torch.randn(batch, d, generator=generator, dtype=torch.float64))
    other = features.clone()
    other[seed % batch] = clip_records(torch.randn(1, d, generator=generator, dtype=torch.float64) * 9.0)[0]
    U = directions(seed.to_bytes(32, "little"), d, k, dtype=torch.float64)
    first, second = (
        release_coefficients(x, U, coefficients=count, sigma=sigma, noise=Silence()).to_tensor(dtype=torch.float64)
        for x in (features, other)
    )
    H = float(((features - other)[seed % batch] @ U).pow(2).sum())
    weight = min(1.0, (1 + 2 * (count - 1)) / batch)  # docs/privacy, 6; an orthonormal basis gives the 1
    assert float((first - second).norm()) <= math.sqrt(weight * H) + grid_step(sigma) * math.sqrt(count * k)


def test_the_bound_is_reached_by_one_coefficient(silence: object) -> None:
    # With L = 1 the coefficient is sum / sqrt(b): one record moves it by exactly |z u| / sqrt(b).
    features = torch.zeros(16, 2, dtype=torch.float64)
    other = features.clone()
    features[5, 0], other[5, 0] = 0.5, -0.5
    U = torch.tensor([[1.0], [0.0]], dtype=torch.float64)
    first, second = (
        release_coefficients(x, U, coefficients=1, sigma=0.01, noise=silence).to_tensor(dtype=torch.float64)
        for x in (features, other)
    )
    assert float(first - second) == pytest.approx(1 / 4, abs=grid_step(0.01))


def test_source_of_the_batchs_size_needs_no_averaging(generator: torch.Generator) -> None:
    projections = torch.randn(30, 4, generator=generator, dtype=torch.float64)
    expected = cosine_basis(30, 5).T @ projections.sort(dim=0).values
    assert torch.allclose(source_coefficients(projections, batch=30, coefficients=5), expected, atol=1e-12)


@pytest.mark.parametrize(("source", "batch"), [(60, 20), (20, 60), (7, 10), (10, 7), (1, 9), (9, 1)])
def test_source_of_another_size_is_averaged_over_the_batchs_parts(
    source: int, batch: int, generator: torch.Generator, device: torch.device
) -> None:
    projections = torch.randn(source, 3, generator=generator, dtype=torch.float64).to(device)
    count = min(batch, 4)
    # Repeating every point b times and averaging blocks of m points is the same average, done by hand.
    repeated = projections.cpu().sort(dim=0).values.repeat_interleave(batch, dim=0)
    averaged = repeated.reshape(batch, source, 3).mean(dim=1)
    expected = cosine_basis(batch, count).T @ averaged
    coefficients = source_coefficients(projections, batch=batch, coefficients=count)
    assert torch.allclose(coefficients.cpu(), expected, atol=1e-12)


def test_all_coefficients_give_the_whole_distance(generator: torch.Generator) -> None:
    x = torch.randn(25, 6, generator=generator, dtype=torch.float64)
    y = torch.randn(25, 6, generator=generator, dtype=torch.float64) + 0.3
    c_x, c_y = (source_coefficients(points, batch=25, coefficients=25) for points in (x, y))
    assert float(distance(c_x, c_y, sigma=0.0, batch=25)) == pytest.approx(float(wasserstein_1d(x, y).mean()))


def test_distance_is_differentiable_in_the_source(generator: torch.Generator) -> None:
    points = torch.randn(12, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    target = torch.randn(2, 3, generator=generator, dtype=torch.float64)

    def loss(x: torch.Tensor) -> torch.Tensor:
        return distance(source_coefficients(x, batch=8, coefficients=2), target, sigma=0.1, batch=8)

    assert torch.autograd.gradcheck(loss, (points,))


@pytest.mark.parametrize("count", [0, 5])
def test_more_coefficients_than_records_are_refused(count: int, noise: SeededNoise) -> None:
    with pytest.raises(InvalidValue, match="1 to 4"):
        release_coefficients(torch.zeros(4, 2), torch.ones(2, 1), coefficients=count, sigma=1.0, noise=noise)
