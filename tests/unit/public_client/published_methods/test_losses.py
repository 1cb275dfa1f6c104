from __future__ import annotations

import numpy as np
import pytest
import torch

from dpswd.public_client.published_methods.losses import gradient_term, sliced_loss
from dpswd.shared.core.mechanisms.quantiles.coefficients import release_coefficients
from dpswd.shared.core.mechanisms.sliced import SlicedDeclaration, SlicedReply
from dpswd.shared.core.noise.directions import directions
from dpswd.shared.core.noise.feature_map import FeatureMap
from dpswd.shared.published_mechanisms.rows.mechanism import release_rows
from dpswd.shared.seeded_noise import SeededNoise

D, K, B = 12, 400, 300  # rows stay far below the clip norm 1/2
SIGMA = {False: 1e-5, True: 0.03}  # by rows or not; rows saturate at 16 sigma
IDENTITY = FeatureMap(torch.zeros(D), torch.ones(D))
SEED = bytes(range(32))


def sample(count, seed, shift=None):
    generator = torch.Generator().manual_seed(seed)
    x = 0.05 * torch.randn(count, D, generator=generator)
    return x if shift is None else x + shift


def released(target, *, rows, sigma, coefficients=6):
    U = directions(SEED, D, K).to(target)
    features = IDENTITY.clipped(target)
    noise = SeededNoise(bytes(32), purpose="test")
    if rows:
        values = release_rows(features, U, sigma=sigma, noise=noise)
    else:
        values = release_coefficients(features, U, coefficients=coefficients, sigma=sigma, noise=noise)
    return SlicedReply(SEED, values)


def loss_of(source, release, *, rows, sigma):
    declared = SlicedDeclaration(K, sigma, 0 if rows else 1)
    return sliced_loss(source, release, declared, feature_map=IDENTITY, batch=B)


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("size", [B, 2 * B, 137])
def test_a_shift_by_m_is_half_its_squared_norm_whatever_the_source_size(rows, size):
    shift = torch.full((D,), 0.03)
    target = sample(B, 0)
    source = (target if size == B else sample(size, 1)) - shift
    release = released(target, rows=rows, sigma=SIGMA[rows])
    loss = loss_of(source, release, rows=rows, sigma=SIGMA[rows])
    along = release.directions(source).T @ shift  # (k,), of mean square |m|^2 / d
    expected = 0.5 * D * float(along.square().mean())
    assert expected == pytest.approx(0.5 * float(shift.square().sum()), rel=0.25)
    # Two different samples of one law differ by themselves, by about d times 1/b of their variance.
    assert float(loss) == pytest.approx(expected, rel=(0.15 if rows else 1e-3) if size == B else 0.5)


def test_noise_does_not_bias_the_coefficients_distance():
    """Mean of 40 unbiased estimates; fails by chance in one of 1e6 runs (five standard errors)."""
    target, values = sample(B, 0), []
    for index in range(40):
        seed = bytes([index]) * 32
        U = directions(seed, D, K).to(target)
        noise = SeededNoise(bytes([index]) * 32, purpose="test")
        grid = release_coefficients(IDENTITY.clipped(target), U, coefficients=3, sigma=0.5, noise=noise)
        values.append(float(loss_of(target, SlicedReply(seed, grid), rows=False, sigma=0.5)))
    error = np.std(values, ddof=1) / np.sqrt(len(values))
    assert abs(np.mean(values)) < 5 * error
    assert 20 * error < 0.5 * D * 3 * 0.5**2 / B  # the bias that is subtracted would have shown


@pytest.mark.parametrize("rows", [False, True])
def test_the_source_gradient_points_back_to_the_target(rows):
    shift = torch.full((D,), 0.03)
    target = sample(B, 0)
    source = (target - shift).requires_grad_(True)
    release = released(target, rows=rows, sigma=SIGMA[rows])
    loss_of(source, release, rows=rows, sigma=SIGMA[rows]).backward()
    U = release.directions(target)
    step = -source.grad.sum(dim=0)  # of the common part of all rows
    torch.testing.assert_close(step, D / K * U @ (U.T @ shift), rtol=0.1 if rows else 1e-2, atol=2e-3 if rows else 1e-5)


def test_a_gradients_term_is_zero_with_that_gradient():
    parameters = [torch.ones(2, 3, requires_grad=True), torch.ones(4, requires_grad=True)]
    term = gradient_term(parameters, torch.arange(10.0))
    assert float(term.detach()) == 0.0
    term.backward()
    flat = torch.cat([parameter.grad.reshape(-1) for parameter in parameters])
    torch.testing.assert_close(flat, torch.arange(10.0))
