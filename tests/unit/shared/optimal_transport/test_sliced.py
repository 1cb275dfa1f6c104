from __future__ import annotations

import pytest
import torch

from benchmarks.baselines import sliced_wasserstein
from dpswd.shared.core.noise.directions import directions


@pytest.mark.parametrize("p", [1.0, 2.0])
def test_translation_has_a_closed_form(p: float, device: torch.device, generator: torch.Generator) -> None:
    U = directions(bytes(32), 6, 50, device=device, dtype=torch.float64)
    x = torch.randn(40, 6, generator=generator, dtype=torch.float64).to(device)
    shift = torch.randn(6, generator=generator, dtype=torch.float64).to(device)
    expected = (shift @ U).abs().pow(p).mean()
    assert torch.allclose(sliced_wasserstein(x, x + shift, U, p=p), expected)


def test_mean_over_directions_approaches_the_gaussians_closed_form(generator: torch.Generator) -> None:
    # Two large isotropic Gaussian clouds: SW_2^2 = ||m||^2 / d + (s_x - s_y)^2.
    x = torch.randn(4_000, 3, generator=generator)
    y = 2.0 * torch.randn(4_000, 3, generator=generator) + torch.tensor([3.0, 0.0, 0.0])
    U = directions(b"g" * 32, 3, 500)
    assert float(sliced_wasserstein(x, y, U)) == pytest.approx(9 / 3 + 1, rel=0.1)


def test_unequal_sizes_and_gradients(device: torch.device, generator: torch.Generator) -> None:
    U = directions(bytes(32), 3, 4, device=device, dtype=torch.float64)
    x = torch.randn(5, 3, generator=generator, dtype=torch.float64).to(device).requires_grad_()
    y = torch.randn(8, 3, generator=generator, dtype=torch.float64).to(device).requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b: sliced_wasserstein(a, b, U), (x, y))
    doubled = sliced_wasserstein(x.repeat(2, 1), y.repeat(3, 1), U)
    assert torch.allclose(doubled, sliced_wasserstein(x, y, U))
