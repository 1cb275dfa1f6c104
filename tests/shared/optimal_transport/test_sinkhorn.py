from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment

from shared.errors import InvalidValue
from shared.optimal_transport.sinkhorn import sinkhorn_divergence


def entropic_cost(cost: np.ndarray, epsilon: float) -> float:
    """OT_epsilon by plain scaling of the kernel: another algorithm in another domain."""
    n, m = cost.shape
    a, b = np.full(n, 1 / n), np.full(m, 1 / m)
    kernel = np.exp(-cost / epsilon) * a[:, None] * b[None, :]
    u, v = np.ones(n), np.ones(m)
    for _ in range(20_000):
        u = a / (kernel @ v)
        v = b / (kernel.T @ u)
    plan = u[:, None] * kernel * v[None, :]
    relative_entropy = float((plan * np.log(plan / (a[:, None] * b[None, :]))).sum())
    return float((plan * cost).sum()) + epsilon * relative_entropy


def costs(x: torch.Tensor, y: torch.Tensor, p: float) -> np.ndarray:
    return (torch.cdist(x, y) ** p).numpy()


@pytest.mark.parametrize("p", [1.0, 2.0])
def test_agrees_with_plain_scaling(p: float, generator: torch.Generator) -> None:
    x = torch.randn(6, 2, generator=generator, dtype=torch.float64)
    y = torch.randn(9, 2, generator=generator, dtype=torch.float64) + 0.5
    expected = (
        entropic_cost(costs(x, y, p), 0.5)
        - entropic_cost(costs(x, x, p), 0.5) / 2
        - entropic_cost(costs(y, y, p), 0.5) / 2
    )
    found = sinkhorn_divergence(x, y, epsilon=0.5, p=p, tolerance=1e-10, max_iterations=20_000)
    assert float(found) == pytest.approx(expected, rel=1e-6)


def test_two_points_have_their_cost(device: torch.device) -> None:
    x, y = torch.tensor([[0.0, 0.0]], device=device), torch.tensor([[3.0, 4.0]], device=device)
    assert float(sinkhorn_divergence(x, y, epsilon=0.1)) == pytest.approx(25.0)
    assert float(sinkhorn_divergence(x, y, epsilon=0.1, p=1.0)) == pytest.approx(5.0)


@pytest.mark.parametrize("epsilon", [0.05, 1.0, 20.0])
def test_translation_has_a_closed_form_at_every_epsilon(
    epsilon: float, device: torch.device, generator: torch.Generator
) -> None:
    x = torch.randn(12, 3, generator=generator, dtype=torch.float64).to(device)
    shift = torch.tensor([0.3, -0.4, 1.2], dtype=torch.float64, device=device)
    found = sinkhorn_divergence(x, x + shift, epsilon=epsilon, tolerance=1e-9, max_iterations=5000)
    assert float(found) == pytest.approx(float(shift @ shift), rel=1e-4)


def test_equal_samples_are_at_distance_zero_and_the_order_does_not_matter(generator: torch.Generator) -> None:
    x = torch.randn(10, 4, generator=generator, dtype=torch.float64)
    y = torch.randn(7, 4, generator=generator, dtype=torch.float64)
    assert abs(float(sinkhorn_divergence(x, x[torch.randperm(10)], epsilon=0.3))) < 1e-6
    there, back = sinkhorn_divergence(x, y, epsilon=0.3), sinkhorn_divergence(y, x, epsilon=0.3)
    assert float(there) == pytest.approx(float(back), rel=1e-6)


def test_small_epsilon_approaches_the_best_assignment(generator: torch.Generator) -> None:
    x, y = (torch.randn(8, 2, generator=generator, dtype=torch.float64) for _ in range(2))
    cost = costs(x, y, 2.0)
    rows, columns = linear_sum_assignment(cost)
    found = sinkhorn_divergence(x, y, epsilon=1e-3, max_iterations=20_000)
    assert float(found) == pytest.approx(cost[rows, columns].mean(), rel=0.01)


def test_gradient_agrees_with_finite_differences(generator: torch.Generator) -> None:
    x = torch.randn(5, 2, generator=generator, dtype=torch.float64, requires_grad=True)
    y = torch.randn(6, 2, generator=generator, dtype=torch.float64, requires_grad=True)

    def loss(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return sinkhorn_divergence(a, b, epsilon=0.5, tolerance=1e-12, max_iterations=5000)

    assert torch.autograd.gradcheck(loss, (x, y), atol=1e-5)


def test_far_points_do_not_overflow() -> None:
    x, y = torch.zeros(3, 1), torch.full((3, 1), 1e4)
    assert float(sinkhorn_divergence(x, y, epsilon=1e-2)) == pytest.approx(1e8, rel=1e-4)


def test_unclear_requests_are_refused() -> None:
    with pytest.raises(InvalidValue, match="shapes"):
        sinkhorn_divergence(torch.zeros(3, 2), torch.zeros(3, 1), epsilon=0.1)
    with pytest.raises(InvalidValue, match="epsilon"):
        sinkhorn_divergence(torch.zeros(3, 2), torch.zeros(3, 2), epsilon=0.0)
