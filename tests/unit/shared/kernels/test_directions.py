from __future__ import annotations

import hashlib
from decimal import Decimal

import numpy as np
import pytest
import torch

from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.noise.directions import directions, drawn_here
from dpswd.shared.core.noise.grid_gaussian import grid_gaussian_table
from dpswd.shared.core.noise.keystream import Keystream, derived_key
from dpswd.shared.device_noise.noise import draw_on


def test_same_bits_from_the_same_seed() -> None:
    U = directions(bytes(range(32)), 20, 30)
    assert torch.equal(U, directions(bytes(range(32)), 20, 30))
    digest = hashlib.sha256(np.ascontiguousarray(U.numpy(), dtype="<f4").tobytes()).hexdigest()
    assert digest == "f6f9d73ee6d0394912c157941942c564a678e0dd0ba4cfd983cfa3df32ec6540"


def test_columns_are_unit_vectors(device: torch.device) -> None:
    U = directions(bytes(32), 320, 200, device=device, dtype=torch.float64)
    assert U.shape == (320, 200)
    assert U.device.type == device.type
    assert torch.allclose(U.norm(dim=0).cpu(), torch.ones(200, dtype=torch.float64), atol=1e-14)


def test_directions_are_the_tables_values_over_a_correctly_rounded_root(device: torch.device) -> None:
    """A second derivation, row by row in whole numbers; a root whose last bit is off would show in some column."""
    d, k = 300, 400
    drawn = grid_gaussian_table().sample(Keystream(derived_key(bytes(32), "directions")), 2 * d * k).reshape(d, 2, k)
    points = 512 * drawn[:, 0] + drawn[:, 1]
    norms = np.array([float(Decimal(sum(x * x for x in column)).sqrt()) for column in points.T.tolist()])
    U = directions(bytes(32), d, k, device=device, dtype=torch.float64, draw=draw_on(device))
    assert np.array_equal(U.cpu().numpy(), points / norms)


@pytest.mark.parametrize(("d", "k"), [(1, 7), (320, 200), (2_000, 333)])
def test_both_parties_get_the_same_bits_on_every_device(d: int, k: int, device: torch.device) -> None:
    for dtype in (torch.float32, torch.float64):
        here = directions(bytes(32), d, k, dtype=dtype)
        for draw in (drawn_here, draw_on(device)):
            there = directions(bytes(32), d, k, device=device, dtype=dtype, draw=draw)
            assert torch.equal(here, there.cpu())


def test_every_bit_of_the_seed_matters() -> None:
    seen = {directions(bytes(32), 4, 2).numpy().tobytes()}
    for bit in range(256):
        seed = bytearray(32)
        seed[bit // 8] = 1 << bit % 8
        seen.add(directions(bytes(seed), 4, 2).numpy().tobytes())
    assert len(seen) == 257


def test_float32_is_the_rounded_float64_draw() -> None:
    exact = directions(bytes(32), 9, 5, dtype=torch.float64)
    assert torch.equal(directions(bytes(32), 9, 5), exact.to(torch.float32))


@pytest.mark.parametrize(("seed", "d", "k"), [(b"short", 3, 3), (bytes(32), 0, 3), (bytes(32), 3, 0)])
def test_impossible_requests_are_refused(seed: bytes, d: int, k: int) -> None:
    with pytest.raises(InvalidValue):
        directions(seed, d, k)
