"""Releases and estimates have no bias. Each test fails by chance with probability at most 1e-6."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import norm

from dpswd.private_curator.core.steps.randomness import SystemNoise
from dpswd.public_client.published_methods.losses import distance
from dpswd.shared.core.mechanisms.quantiles.coefficients import cosine_basis, release_coefficients
from dpswd.shared.core.noise.clipping import clip_records
from dpswd.shared.core.noise.directions import directions
from dpswd.shared.published_mechanisms.clipped_sum import release_gradient
from dpswd.shared.published_mechanisms.gradient.cotangents import source_coefficients

pytestmark = pytest.mark.statistical

ALPHA = 1e-6
ROUNDS = 2000


@pytest.mark.long
def test_estimated_distance_is_unbiased() -> None:
    generator = torch.Generator().manual_seed(5)
    batch, k, sigma = 64, 10, 0.3
    target = clip_records(torch.randn(batch, 6, generator=generator, dtype=torch.float64))
    source = clip_records(torch.randn(100, 6, generator=generator, dtype=torch.float64) + 0.4)
    U = directions(bytes(32), 6, k, dtype=torch.float64)
    own = source_coefficients(source @ U, batch=batch, coefficients=3)
    exact = cosine_basis(batch, 3).T @ (target @ U).sort(dim=0).values
    truth = float(distance(own, exact, sigma=0.0, batch=batch))
    estimates = np.array(
        [
            float(
                distance(
                    own,
                    release_coefficients(target, U, coefficients=3, sigma=sigma, noise=SystemNoise()).to_tensor(
                        dtype=torch.float64
                    ),
                    sigma=sigma,
                    batch=batch,
                )
            )
            for _ in range(ROUNDS)
        ]
    )
    error = estimates.std() / np.sqrt(ROUNDS)
    assert abs(estimates.mean() - truth) < norm.isf(ALPHA / 2) * error
    # Without the correction the same test would fail: the bias is far larger than the error of the mean.
    assert 3 * sigma**2 / batch > 20 * error


def test_noise_of_a_gradient_has_the_stated_size_and_no_bias() -> None:
    gradients = torch.eye(160).repeat(5, 1)  # many values of few releases: as many errors, in an eighth of the time
    sigma = 0.8
    released = np.stack(
        [
            release_gradient(gradients, clip_norm=1.0, sigma=sigma, noise=SystemNoise())
            .to_tensor(dtype=torch.float64)
            .numpy()
            for _ in range(ROUNDS // 8)
        ]
    )
    errors = (released - 5.0 * (1 - 2.0**-20)) / sigma  # the clip ends a hair below C
    count = errors.size
    assert abs(errors.mean()) < norm.isf(ALPHA / 4) / np.sqrt(count)
    assert abs(errors.var() - 1.0) < norm.isf(ALPHA / 4) * np.sqrt(2 / count)
