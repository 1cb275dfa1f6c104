"""Devices and noise for the tests of kernels, mechanisms and distances."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dpswd.shared.seeded_noise import SeededNoise


@pytest.fixture(
    params=[
        "cpu",
        pytest.param(
            "cuda",
            marks=[
                pytest.mark.cuda,
                pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
            ],
        ),
    ]
)
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


class Silence:
    """A noise source that adds nothing, which lets a test see the signal on the grid."""

    def grid_gaussian(self, shape: tuple[int, ...], *, sigma: float, step: float) -> np.ndarray:
        return np.zeros(shape, dtype=np.int64)


@pytest.fixture
def silence() -> Silence:
    return Silence()


@pytest.fixture
def noise() -> SeededNoise:
    return SeededNoise(bytes(range(32)))


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(20260101)
