"""How probable a view is, all in all."""

from __future__ import annotations

import math

import pytest
import torch
from made_release import residuals_of
from torch import Tensor, nn
from torch.func import functional_call

from dpswd.public_client.data.datasets import Labelled
from dpswd.public_client.data.ranks import Ranks
from dpswd.public_client.replay.posterior import Posterior
from dpswd.public_client.replay.residuals import Residuals
from dpswd.public_client.replay.views import FeatureView, ImageView


def posterior() -> tuple[Posterior, Residuals, Tensor]:
    """Of images whose values are smooth, so that derivatives by differences are those by autograd."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(900, 1, 3, 3, generator=generator) * 1.6 - 0.8
    images = nn.functional.interpolate(coarse, size=(8, 8), mode="bicubic", align_corners=True)
    features = images.flatten(1)
    residuals = residuals_of(features, features, sigma=0.05, k=30)
    source = Labelled(images, torch.zeros(900, dtype=torch.int64))
    return Posterior(nn.Flatten(), source, residuals, generator, Ranks()), residuals, images


def test_what_a_view_costs_by_being_free_is_the_volume_that_the_release_leaves_it():
    """Against autograd's derivatives and the priors' widths as the view's documentation gives them."""
    fitted, residuals, images = posterior()
    view = ImageView(1)
    with torch.no_grad():
        view.warp.theta += torch.tensor([[0.02, 0.05, 0.03], [-0.04, -0.03, 0.02]])
        view.blur.fill_(0.2)
        view.stroke.fill_(0.1)  # at 0 differences and derivatives are those of two sides
        view.noise.fill_(0.1)  # at 0 there is none
        view.gamma.fill_(-0.1)
    names, shapes = zip(*((name, value.shape) for name, value in view.named_parameters()), strict=True)
    widths = {"blur": 0.5, "stroke": 0.5, "gamma": 0.5}
    each = torch.cat([torch.full((math.prod(s),), widths.get(n, 0.3)) for n, s in zip(names, shapes, strict=True)])
    chosen = fitted._shuffled[:1024]

    def residual(flat: Tensor) -> Tensor:
        parts = [
            part.reshape(shape)
            for part, shape in zip(flat.split([math.prod(shape) for shape in shapes]), shapes, strict=True)
        ]
        seen = functional_call(view, dict(zip(names, parts, strict=True)), (nn.Flatten(), images[chosen]))
        return residuals.of_all(seen, torch.ones(len(chosen))).flatten()

    start = torch.cat([value.detach().flatten() for value in view.parameters()])
    J = torch.autograd.functional.jacobian(residual, start).double() * each
    expected = 0.5 * float(torch.logdet(torch.eye(len(start)).double() + J.T @ J))
    with torch.no_grad():
        cost = fitted._freedom(view, torch.ones(1))
    assert expected > 5.0
    assert cost == pytest.approx(expected, rel=0.03)
    assert torch.equal(start, torch.cat([value.detach().flatten() for value in view.parameters()]))
    judged, quick = fitted.evidence(view), fitted.evidence(view, quick=True)
    assert judged.penalty - quick.penalty == pytest.approx(cost)
    features = FeatureView(images.flatten(1).std(dim=0))  # whose widths are learned by its own evidence
    assert fitted.evidence(features).penalty == pytest.approx(float(features.penalty().detach()))
