"""Entropic couplings against POT (another algorithm's code) and geomloss (the paper's own library)."""

from __future__ import annotations

import math

import numpy as np
import ot
import pytest
import torch
from geomloss import SamplesLoss

from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.mechanisms.sliced import labelled
from dpswd.shared.published_mechanisms.sinkhorn.transport import (
    coupling,
    ground_cost,
    semi_debiased,
    sinkhorn,
)

ENOUGH = 2000
N, M, D = 12, 9, 5


def _points(generator):
    x = torch.rand(N, D, generator=generator, dtype=torch.float64, requires_grad=True)
    return x, torch.rand(M, D, generator=generator, dtype=torch.float64) + 0.3


def error(plan):
    """Sum over the columns of |column sum - 1/m|, from 0 to 2."""
    return float((plan.sum(dim=0) - 1.0 / plan.shape[1]).abs().sum())


def _plain_cost(l1):
    """The ground cost written out, for batches as geomloss has them."""

    def cost(x, y):
        apart = x[..., :, None, :] - y[..., None, :, :]
        return apart.square().sum(-1) + l1 * apart.abs().sum(-1)

    return cost


@pytest.mark.parametrize(("l1", "blur"), [(0.0, 0.05), (1.5, 0.3), (1.5, 2.0)])
def test_plan_value_and_gradient_are_pots(generator, l1, blur):
    x, y = _points(generator)
    cost = _plain_cost(l1)(x, y)
    assert torch.allclose(ground_cost(x, y, l1=l1), cost, rtol=1e-12, atol=1e-12)
    weights = np.full(N, 1 / N), np.full(M, 1 / M)
    plan = ot.sinkhorn(*weights, cost.detach().numpy(), blur, method="sinkhorn_log", numItermax=100_000, stopThr=1e-13)
    ours, _ = coupling(cost, blur=blur, iterations=ENOUGH)
    assert error(ours) <= 1e-12
    assert np.abs(ours.numpy() - plan).max() < 1e-11
    entropic = (plan * cost.detach().numpy()).sum() + blur * (plan * np.log(plan * N * M)).sum()
    value = sinkhorn(x, y, l1=l1, blur=blur, iterations=ENOUGH)
    assert value.item() == pytest.approx(entropic, rel=1e-10)
    (gradient,) = torch.autograd.grad(value, x)
    (expected,) = torch.autograd.grad((torch.from_numpy(plan) * cost).sum(), x)
    assert torch.allclose(gradient, expected, atol=1e-10)


def test_the_gradient_is_the_values_own(generator):
    """Central differences of W itself: the envelope theorem holds at the coupling."""
    x, y = _points(generator)

    def value(points):
        return sinkhorn(points, y, l1=0.7, blur=0.3, iterations=ENOUGH)

    (gradient,) = torch.autograd.grad(value(x), x)
    towards = torch.randn(N, D, generator=generator, dtype=torch.float64)
    step = 1e-4
    with torch.no_grad():
        slope = (value(x + step * towards) - value(x - step * towards)) / (2.0 * step)
    assert slope.item() == pytest.approx((gradient * towards).sum().item(), rel=1e-6)


@pytest.mark.parametrize("fresh", [0, 4])
def test_the_semi_debiased_loss_is_that_of_the_papers_code(generator, fresh):
    """2 W(X, Y) - W(X, X') by geomloss, which holds y fixed in one half of its gradient and x in the other."""
    generated = torch.rand(8 + fresh, 3, generator=generator, dtype=torch.float64)
    data = torch.rand(10, 3, generator=generator, dtype=torch.float64) + 0.2
    kinds = torch.arange(8 + fresh) % 2, torch.arange(10) % 2
    flat = generated.clone().requires_grad_()
    ours = semi_debiased(
        labelled(flat, kinds[0], classes=2, weight=0.8),
        labelled(data, kinds[1], classes=2, weight=0.8),
        fresh=fresh,
        l1=0.5,
        blur=0.5,
        iterations=ENOUGH,
    )
    (gradient,) = torch.autograd.grad(ours, flat)
    theirs = generated.clone().requires_grad_()
    loss = SamplesLoss(
        "sinkhorn", p=1, blur=0.5, scaling=0.99, debias=False, backend="tensorized", cost=_plain_cost(0.5)
    )
    one_hot = [0.8 * torch.nn.functional.one_hot(labels, 2).to(torch.float64) for labels in kinds]
    points = torch.cat([theirs, one_hot[0]], dim=1)
    records = torch.cat([data, one_hot[1]], dim=1)
    value = 2.0 * loss(points[:8], records) - loss(points[:8], points[fresh:])
    (expected,) = torch.autograd.grad(value, theirs)
    assert ours.item() == pytest.approx(value.item(), rel=1e-3)
    assert (gradient - expected).norm() < 2e-3 * expected.norm()


def test_a_fixed_number_of_iterations_reaches_a_tolerance_at_the_papers_blur(generator):
    """50 points with costs a thousand times the blur, as pixels have them: the cooling does what the blur cannot."""
    x, y = (torch.rand(50, 200, generator=generator, dtype=torch.float64) * 2.0 - 1.0 for _ in range(2))
    cost = ground_cost(x, y, l1=1.0)
    assert cost.max() / 0.05 > 1000
    errors = [error(coupling(cost, blur=0.05, iterations=count)[0]) for count in (20, 100, 400)]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 0.05


def test_costs_that_are_not_finite_are_refused():
    with pytest.raises(InvalidValue, match="not finite"):
        coupling(torch.full((2, 2), math.inf, dtype=torch.float64), blur=1.0, iterations=5)
