"""What one key releases on a device, beside the same key on the CPU: for every mechanism."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from conformance_attack import CPU, Bench, Labelled
from conformance_cases import CASES, CLASSES, INPUTS, RECORDS, Case

from dpswd.private_curator.core.steps.randomness import SystemNoise
from dpswd.private_curator.steps.device_noise import DeviceNoise
from dpswd.shared.published_mechanisms import ALL_MECHANISMS

by_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
on_cuda = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
]
EXACT = frozenset(
    {
        "rows",
        "quantiles",
        "evaluation",
        "class_statistics",
        "feature_sums",
        "score_statistics",
    }
)
"""Mechanisms in which all arithmetic between the features and the grid is float64: its rounding moves an integer of the
grid with probability below 1e-9."""


def _keys() -> Callable[[int], bytes]:
    """Other keys for each release, the same ones for every source."""
    numbers = itertools.count(1)
    return lambda size: bytes([next(numbers)]) * size


def _sample() -> Labelled:
    rng = np.random.default_rng(5)
    return Labelled(rng.normal(size=(RECORDS, INPUTS)).astype(np.float32), np.arange(RECORDS) % CLASSES)


def _reply(case: Case, noise, **places: torch.device):
    bench = Bench(ALL_MECHANISMS[case.declared[0]], case, records=RECORDS, **places)
    return bench.reply(_sample(), noise, seed=bytes(32))


@by_case
def test_noise_by_integer_operations_makes_the_same_release(case: Case) -> None:
    alone = _reply(case, SystemNoise(entropy=_keys()))
    assert _reply(case, DeviceNoise(CPU, entropy=_keys())).to_bytes() == alone.to_bytes()


@pytest.mark.parametrize("case", [pytest.param(case, marks=on_cuda) for case in CASES], ids=lambda case: case.name)
def test_a_gpu_makes_the_same_release_of_the_same_features(case: Case) -> None:
    """Features come from the CPU; gradients go through float32 on the device, and differ by its rounding."""
    cuda = torch.device("cuda")
    alone = _reply(case, SystemNoise(entropy=_keys()))
    there = _reply(case, DeviceNoise(cuda, entropy=_keys()), device=cuda, extractor_device=CPU)
    if case.declared[0] in EXACT:
        assert there.to_bytes() == alone.to_bytes()
    _close(case, there, alone)


@pytest.mark.parametrize("case", [pytest.param(case, marks=on_cuda) for case in CASES], ids=lambda case: case.name)
def test_a_whole_step_on_a_gpu_releases_the_same_but_for_float32(case: Case) -> None:
    cuda = torch.device("cuda")
    alone = _reply(case, SystemNoise(entropy=_keys()))
    _close(case, _reply(case, DeviceNoise(cuda, entropy=_keys()), device=cuda), alone)


def _close(case: Case, one, other) -> None:
    """Within a hundredth of the noise: other noise would differ by more than that in nearly every value."""
    for first, second in zip(case.released(one), case.released(other), strict=True):
        assert first.step == second.step
        moved = np.abs(first.values.astype(np.int64) - second.values.astype(np.int64))
        print(f"{case.name}: {(moved > 0).mean():.4f} of the integers differ, by at most {moved.max()} steps")
        assert moved.max() * first.step < 1e-2 * _sigma(case, first.step)


def _sigma(case: Case, step: float) -> float:
    bench = Bench(ALL_MECHANISMS[case.declared[0]], case, records=RECORDS)
    return min(part.sigma for part in bench.parts(RECORDS) if part.grid_step == step)
