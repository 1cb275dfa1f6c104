from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.noise.noise import release_finely
from dpswd.shared.published_mechanisms.clipped_sum import gradient_step, release_gradient
from dpswd.shared.seeded_noise import SeededNoise


def test_release_is_the_sum_of_clipped_gradients_plus_the_sources_noise(
    device: torch.device, generator: torch.Generator, noise: SeededNoise
) -> None:
    gradients = torch.randn(30, 50, generator=generator).to(device)
    released = release_gradient(gradients, clip_norm=2.0, sigma=3.0, noise=noise)
    assert released.values.dtype == "int32"
    step = gradient_step(batch=30, clip_norm=2.0, sigma=3.0)
    nothing = torch.zeros(50)
    alone = release_finely(nothing, sigma=3.0, exponent=20, noise=SeededNoise(bytes(range(32)))).values
    assert released.step == step == 3.0 / 2**20
    exact = gradients.double().cpu()
    expected = (exact * (2.0 / exact.norm(dim=1, keepdim=True)).clamp(max=1.0)).sum(dim=0).numpy()
    assert abs((released.values - alone) * step - expected).max() <= 30 * step / 2 + 1e-4


def test_chunks_do_not_change_the_sum(generator: torch.Generator, silence: object) -> None:
    gradients = torch.randn(9, 100_000, generator=generator)  # five chunks
    whole = release_gradient(gradients, clip_norm=1.0, sigma=1e-3, noise=silence).values
    parts = []
    for number, gradient in enumerate(gradients):
        alone = torch.zeros_like(gradients)  # as many records: the grid is the same
        alone[number] = gradient
        parts.append(release_gradient(alone, clip_norm=1.0, sigma=1e-3, noise=silence).values)
    assert np.array_equal(whole, np.sum(parts, axis=0))


def test_order_of_the_records_does_not_change_a_bit(generator: torch.Generator, silence: object) -> None:
    gradients = torch.randn(64, 33, generator=generator)
    shuffled = gradients[torch.randperm(64, generator=generator)]
    first, second = (release_gradient(g, clip_norm=1.0, sigma=0.1, noise=silence).values for g in (gradients, shuffled))
    assert np.array_equal(first, second)


anything = st.floats(width=32, allow_nan=True, allow_infinity=True)


@given(
    record=arrays(np.float32, 6, elements=anything),
    replacement=arrays(np.float32, 6, elements=anything),
    clip_norm=st.floats(0.01, 10.0),
)
def test_one_replaced_record_moves_the_sum_by_at_most_what_is_charged(
    record: np.ndarray, replacement: np.ndarray, clip_norm: float
) -> None:
    class Silence:
        def grid_gaussian(self, shape: tuple[int, ...], *, sigma: float, step: float) -> np.ndarray:
            return np.zeros(shape, dtype=np.int64)

    others = np.linspace(-3, 3, 24, dtype=np.float32).reshape(4, 6)
    sigma = clip_norm
    released = [
        release_gradient(
            torch.from_numpy(np.vstack([others, row])), clip_norm=clip_norm, sigma=sigma, noise=Silence()
        ).to_tensor(dtype=torch.float64)
        for row in (record, replacement)
    ]
    moved = float((released[0] - released[1]).norm())
    assert moved <= 2 * clip_norm + gradient_step(batch=5, clip_norm=clip_norm, sigma=sigma) * math.sqrt(6)


def test_sums_that_cannot_travel_are_refused_from_public_numbers(noise: SeededNoise) -> None:
    with pytest.raises(InvalidValue, match="32 bits"):
        release_gradient(torch.zeros(4, 2), clip_norm=1.0, sigma=1e-7, noise=noise)
    with pytest.raises(InvalidValue, match="clip norm"):
        release_gradient(torch.zeros(4, 2), clip_norm=0.0, sigma=1.0, noise=noise)
    with pytest.raises(InvalidValue, match="shape"):
        release_gradient(torch.zeros(4), clip_norm=1.0, sigma=1.0, noise=noise)
