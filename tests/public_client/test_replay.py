from __future__ import annotations

import pytest
import torch
from torch import nn

from public_client import replay
from public_client.progress import reporting
from shared.errors import InvalidValue


@pytest.mark.parametrize("shape", [(3, 8, 8), (2, 16), (5,)])
def test_views_start_as_the_identity(shape):
    x = torch.rand(4, *shape) * 1.9 - 0.95
    torch.testing.assert_close(replay.view_for(shape)(x), x, rtol=1e-4, atol=1e-4)


def test_no_view_for_other_ranks():
    with pytest.raises(InvalidValue, match="adapters"):
        replay.view_for((1, 2, 3, 4))


def test_the_fit_finds_a_known_shift():
    generator = torch.Generator().manual_seed(0)
    source = torch.randn(600, 5, generator=generator)
    gain, bias = torch.tensor([1.3, 0.8, 1.0, 1.1, 0.9]), torch.tensor([0.3, -0.2, 0.0, 0.1, 0.4])
    wanted = (source * gain + bias).sort(dim=0).values

    def distance(features, number):
        assert number in (0, 1)
        levels = torch.linspace(0.02, 0.98, 30)
        return (torch.quantile(features, levels, dim=0) - torch.quantile(wanted, levels, dim=0)).square().mean()

    before = float(distance(source, 0))
    with reporting("", 1, shown=False) as bar:
        view, left = replay.find_view(
            nn.Identity(), source, distance, releases=2, learning_rate=0.02, generator=generator, bar=bar
        )
    assert left < 0.1 * before
    torch.testing.assert_close(view.gain.detach(), gain, rtol=0.0, atol=0.08)
    torch.testing.assert_close(view.bias.detach(), bias, rtol=0.0, atol=0.08)


def test_a_large_turn_is_found_from_many_starts():
    """From the identity alone the fit ends in a shear: the reason for the candidates."""
    generator = torch.Generator().manual_seed(0)
    images = torch.full((300, 1, 12, 12), -1.0)
    images[:, 0, 2:10, 4:7] = torch.rand(300, 8, 3, generator=generator)  # bars of random brightness
    hidden = replay.view_for((1, 12, 12))
    with torch.no_grad():
        hidden.warp.theta.copy_(torch.tensor([[0.87, 0.45, 0.05], [-0.45, 0.87, 0.0]]))
        wanted = hidden(images).flatten(1)

    def distance(features, number):
        return (features.sort(dim=0).values.mean(0) - wanted.sort(dim=0).values.mean(0)).square().mean()

    with reporting("", 1, shown=False) as bar:
        view, _ = replay.find_view(
            nn.Flatten(), images, distance, releases=1, learning_rate=0.02, generator=generator, bar=bar
        )
    torch.testing.assert_close(view.warp.theta, hidden.warp.theta, rtol=0.0, atol=0.1)


def test_warps_stay_within_their_bounds_and_include_both_signs():
    drawn = replay.Warps(turn=0.0, scale=0.0, aspect=0.0, shear=0.0, shift=0.2).draw(
        200, torch.Generator().manual_seed(0)
    )
    torch.testing.assert_close(drawn[:, :, :2], torch.eye(2).expand(200, 2, 2))
    assert float(drawn[:, :, 2].abs().max()) <= 0.2
    assert float(drawn[:, :, 2].min()) < -0.15
    assert float(drawn[:, :, 2].max()) > 0.15
