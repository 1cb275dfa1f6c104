from __future__ import annotations

import os
import threading
from collections.abc import Callable

import numpy as np
import pytest
import torch

from dpswd.private_curator.core.steps.randomness import SystemNoise, fresh_seed
from dpswd.private_curator.steps.device_noise import DeviceNoise, noise_for
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.noise.noise import NoiseSource, grid_step
from dpswd.shared.seeded_noise import SeededNoise

STEP = grid_step(1.0)
CPU = torch.device("cpu")
SOURCES: list[Callable[[], NoiseSource]] = [
    SystemNoise,
    lambda: SeededNoise(os.urandom(32)),
    lambda: DeviceNoise(CPU),
    pytest.param(
        lambda: DeviceNoise(torch.device("cuda")),
        marks=[
            pytest.mark.cuda,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
        ],
    ),
]


def _numbers(drawn: np.ndarray | torch.Tensor) -> np.ndarray:
    return drawn.cpu().numpy() if isinstance(drawn, torch.Tensor) else drawn


@pytest.mark.parametrize("make", SOURCES, ids=["system", "seeded", "device", "cuda"])
class TestEveryNoiseSource:
    def test_shape_and_type(self, make: Callable[[], NoiseSource]) -> None:
        for shape in [(), (0,), (5,), (3, 4), (2, 0, 3)]:
            drawn = _numbers(make().grid_gaussian(shape, sigma=1.0, step=STEP))
            assert drawn.shape == shape
            assert drawn.dtype == np.int64

    def test_consecutive_releases_differ(self, make: Callable[[], NoiseSource]) -> None:
        source = make()
        first, second = (_numbers(source.grid_gaussian((100,), sigma=1.0, step=STEP)) for _ in range(2))
        assert not np.array_equal(first, second)

    def test_foreign_steps_are_refused(self, make: Callable[[], NoiseSource]) -> None:
        with pytest.raises(InvalidValue, match="does not belong"):
            make().grid_gaussian((3,), sigma=1.0, step=0.3)


@pytest.mark.parametrize("kind", [SystemNoise, lambda **options: DeviceNoise(CPU, **options)], ids=["system", "device"])
def test_every_release_asks_the_operating_system_for_a_new_key(kind: Callable[..., NoiseSource]) -> None:
    asked: list[int] = []

    def entropy(count: int) -> bytes:
        asked.append(count)
        return os.urandom(count)

    source = kind(entropy=entropy)
    for shape in [(4,), (100, 1000), (4,)]:
        source.grid_gaussian(shape, sigma=1.0, step=STEP)
    assert asked == [32, 32, 32]


def test_the_noise_follows_from_the_key_alone() -> None:
    drawn = [SystemNoise(entropy=bytes).grid_gaussian((50,), sigma=1.0, step=STEP) for _ in range(2)]
    assert np.array_equal(*drawn)
    on_device = DeviceNoise(CPU, entropy=bytes).grid_gaussian((50,), sigma=1.0, step=STEP)
    assert np.array_equal(drawn[0], on_device.numpy())
    assert isinstance(noise_for(CPU), SystemNoise), "on the CPU OpenSSL stays the path"


def test_threads_and_processes_share_no_state() -> None:
    source, drawn = SystemNoise(), []
    threads = [
        threading.Thread(target=lambda: drawn.append(source.grid_gaussian((64,), sigma=1.0, step=STEP).tobytes()))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:  # a forked worker that inherited a generator's state would repeat the parent's noise
        os.write(write, source.grid_gaussian((64,), sigma=1.0, step=STEP).tobytes())
        os._exit(0)
    os.waitpid(child, 0)
    drawn += [os.read(read, 4096), source.grid_gaussian((64,), sigma=1.0, step=STEP).tobytes()]
    os.close(read)
    os.close(write)
    assert len(set(drawn)) == 10


def test_seeds_are_long_and_fresh() -> None:
    seeds = {fresh_seed() for _ in range(100)}
    assert len(seeds) == 100
    assert {len(seed) for seed in seeds} == {32}
