from __future__ import annotations

import pytest
import torch

from dpswd.public_client.published_methods.losses import wasserstein_1d
from dpswd.shared.core.noise.clipping import clip_records
from dpswd.shared.core.noise.directions import directions
from dpswd.shared.published_mechanisms.gradient.cotangents import noised_source_projections, row_cotangents

D, K = 10, 40


@pytest.fixture
def U(device: torch.device) -> torch.Tensor:
    return directions(b"u" * 32, D, K, device=device)


def test_source_noise_is_public_repeatable_and_of_the_stated_size(U: torch.Tensor) -> None:
    features = torch.zeros(2000, D, device=U.device)
    first = noised_source_projections(features, U, sigma=0.7, seed=bytes(32))
    assert torch.equal(first, noised_source_projections(features, U, sigma=0.7, seed=bytes(32)))
    assert not torch.equal(first, noised_source_projections(features, U, sigma=0.7, seed=b"1" * 32))
    assert float(first.std()) == pytest.approx(0.7, rel=0.02)  # 80,000 values: 8 standard errors


def test_distance_is_the_mean_squared_sorted_difference(U: torch.Tensor, generator: torch.Generator) -> None:
    x, y = (torch.randn(20, K, generator=generator).to(U.device) for _ in range(2))
    expected = (x.sort(dim=0).values - y.sort(dim=0).values).pow(2).mean()
    assert torch.allclose(wasserstein_1d(y, x).mean(), expected)


@pytest.mark.parametrize("source", [20, 50, 7])
def test_cotangents_are_the_gradient_in_units_of_displacement(
    source: int, U: torch.Tensor, generator: torch.Generator
) -> None:
    target = torch.randn(20, K, generator=generator, dtype=torch.float64).to(U.device).requires_grad_()
    others = torch.randn(source, K, generator=generator, dtype=torch.float64).to(U.device)
    wasserstein_1d(others, target).mean().backward()
    assert target.grad is not None
    values, scale = row_cotangents(target, others, U)
    expected = target.grad @ U.double().T * (20 * D / 2)
    assert torch.allclose(values * scale, expected, atol=1e-10)


def test_gradient_reaches_the_source_features(U: torch.Tensor, generator: torch.Generator) -> None:
    features = clip_records(torch.randn(8, D, generator=generator, dtype=torch.float64)).to(U.device).requires_grad_()
    released = torch.randn(6, K, generator=generator, dtype=torch.float64).to(U.device)

    def loss(x: torch.Tensor) -> torch.Tensor:
        return wasserstein_1d(noised_source_projections(x, U, sigma=0.1, seed=bytes(32)), released).mean()

    assert torch.autograd.gradcheck(loss, (features,))


def test_translation_is_recovered_in_feature_units(U: torch.Tensor, generator: torch.Generator) -> None:
    features = clip_records(0.1 * torch.randn(300, D, generator=generator)).to(U.device)
    translation = torch.zeros(D, device=U.device)
    translation[2] = 0.1
    values, scale = row_cotangents((features + translation) @ U, features @ U, U)
    displacement = values.mean(dim=0) * scale
    assert float(displacement[2]) == pytest.approx(0.1, rel=0.5)


def test_scale_comes_from_the_source_rows(U: torch.Tensor, generator: torch.Generator) -> None:
    # With equal sizes the matching is a bijection in each direction. In one dimension and one direction source
    # and target rows then move by the same amounts; the scale is their mean.
    one = torch.ones(1, 1, device=U.device)
    x, y = (torch.randn(30, 1, generator=generator).to(U.device) for _ in range(2))
    _, scale = row_cotangents(x, y, one)
    assert scale == pytest.approx(float((x.sort(dim=0).values - y.sort(dim=0).values).abs().mean()), rel=1e-5)
