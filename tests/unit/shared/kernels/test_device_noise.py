"""The sampler, by one kernel where there is CUDA and by the CPU elsewhere, against OpenSSL and the table."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

from dpswd.shared.core.errors import InvalidValue, SettingsError
from dpswd.shared.core.noise.grid_gaussian import grid_gaussian_table
from dpswd.shared.core.noise.keystream import MOST_WORDS, Keystream
from dpswd.shared.device_noise.noise import DeviceSampler

KEY = b"a key of thirty-two bytes, a key"
CUDA_ALONE = pytest.param(
    "cuda",
    marks=[
        pytest.mark.cuda,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
    ],
)


def _on_cpu(first: int, count: int) -> torch.Tensor:
    stream = Keystream(KEY)
    stream.words(first)
    return torch.from_numpy(grid_gaussian_table().sample(stream, count))


def test_a_key_has_an_end(device: torch.device) -> None:
    for refused in (lambda: DeviceSampler(device).sample(KEY, 1, first=MOST_WORDS), _used_up):
        with pytest.raises(InvalidValue, match="use another key"):
            refused()
    with pytest.raises(InvalidValue, match="32"):
        DeviceSampler(device).sample(KEY[:31], 1)


def _used_up() -> None:
    stream = Keystream(KEY)
    stream.position = MOST_WORDS
    stream.words(1)


@pytest.mark.exhaustive
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("device", [CUDA_ALONE])
def test_a_hundred_million_values_are_the_cpus(device: str) -> None:
    key, size = os.urandom(32), 1 << 20
    sampler, stream = DeviceSampler(torch.device(device)), Keystream(key)
    for first in range(0, 10**8, size):
        drawn = sampler.sample(key, size, first=first).cpu().numpy()
        assert np.array_equal(drawn, grid_gaussian_table().sample(stream, size)), (key.hex(), first)


@pytest.mark.parametrize("first", [0, 3])
def test_values_are_the_cpus_from_the_same_key(first: int, device: torch.device) -> None:
    drawn = DeviceSampler(device).sample(KEY, 20_000, first=first)
    assert drawn.device.type == device.type
    assert torch.equal(drawn.cpu(), _on_cpu(first, 20_000))


@pytest.mark.parametrize("device", [CUDA_ALONE])
@pytest.mark.parametrize(("first", "count"), [(0, 0), (0, 1), (3, 1_000_003), (1 << 20, 4096)])
def test_the_kernel_draws_the_cpus_values(first: int, count: int, device: str) -> None:
    sampler = DeviceSampler(torch.device(device))
    assert sampler.fused, "Triton does not work on this machine"
    assert torch.equal(sampler.sample(KEY, count, first=first).cpu(), _on_cpu(first, count))


def test_a_device_that_draws_other_noise_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DeviceSampler, "sample", lambda self, key, count, first=0: torch.full((count,), first))
    with pytest.raises(SettingsError, match=r"compute\.device"):
        DeviceSampler(torch.device("cpu"))
