from __future__ import annotations

import pytest
import torch

from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.noise.clipping import clip_records
from dpswd.shared.core.noise.directions import directions
from dpswd.shared.core.noise.noise import grid_step
from dpswd.shared.published_mechanisms.rows.mechanism import release_rows
from dpswd.shared.seeded_noise import SeededNoise


def test_release_is_projections_plus_the_sources_noise(
    device: torch.device, generator: torch.Generator, noise: SeededNoise
) -> None:
    features = clip_records(torch.randn(16, 8, generator=generator)).to(device)
    U = directions(bytes(32), 8, 5, device=device)
    released = release_rows(features, U, sigma=0.5, noise=noise)
    assert released.values.shape == (16, 5)
    assert released.values.dtype == "int16"
    step = grid_step(0.5)
    alone = SeededNoise(bytes(range(32))).grid_gaussian((16, 5), sigma=0.5, step=step)
    signal = (released.values - alone) * step
    assert abs(signal - (features @ U).cpu().numpy()).max() <= step / 2 + 1e-6


def test_one_replaced_record_moves_its_own_row_alone_by_at_most_what_is_charged(
    device: torch.device, generator: torch.Generator, silence: object
) -> None:
    k, sigma = 40, 0.5
    features = clip_records(10.0 * torch.randn(16, 8, generator=generator)).to(device)
    other = features.clone()
    other[3] = -features[3]  # the farthest neighbour: ||z|| = 1
    U = directions(b"7" * 32, 8, k, device=device)
    first = release_rows(features, U, sigma=sigma, noise=silence)
    second = release_rows(other, U, sigma=sigma, noise=silence)
    moved = (first.to_tensor(dtype=torch.float64) - second.to_tensor(dtype=torch.float64)).numpy()
    assert not moved[[i for i in range(16) if i != 3]].any()
    z = (features[3] - other[3]).double().cpu()
    assert z.norm() <= 1.0
    exact = float((z @ U.double().cpu()).norm())
    rounding = grid_step(sigma) * k**0.5
    assert exact - rounding <= float((moved[3] ** 2).sum() ** 0.5) <= exact + rounding


def test_shapes_that_do_not_fit_are_refused(noise: SeededNoise) -> None:
    with pytest.raises(InvalidValue, match="directions"):
        release_rows(torch.zeros(4, 3), torch.zeros(5, 2), sigma=1.0, noise=noise)
