from __future__ import annotations

import numpy as np
import pytest
import torch
from exploring import tried
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment, linprog
from scipy.stats import wasserstein_distance

from dpswd.public_client.published_methods.losses import wasserstein_1d
from dpswd.shared.published_mechanisms.gradient.cotangents import resample_quantiles


@settings(max_examples=tried(50))
@given(n=st.integers(1, 30), m=st.integers(1, 30), seed=st.integers(0, 10**6))
def test_first_order_agrees_with_scipy(n: int, m: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=n), rng.exponential(size=m)
    distance = wasserstein_1d(torch.tensor(x)[:, None], torch.tensor(y)[:, None], p=1.0)
    assert float(distance) == pytest.approx(wasserstein_distance(x, y), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("p", [1.0, 1.5, 2.0, 3.0])
def test_sorted_matching_is_the_best_assignment(p: float, generator: torch.Generator) -> None:
    x, y = (torch.randn(17, 1, generator=generator, dtype=torch.float64) for _ in range(2))
    cost = np.abs(x.numpy() - y.numpy().T) ** p
    rows, columns = linear_sum_assignment(cost)
    assert float(wasserstein_1d(x, y, p=p)) == pytest.approx(cost[rows, columns].mean())


def test_unequal_sizes_agree_with_a_linear_program(generator: torch.Generator) -> None:
    n, m = 5, 7
    x = torch.randn(n, 1, generator=generator, dtype=torch.float64)
    y = torch.randn(m, 1, generator=generator, dtype=torch.float64)
    cost = (x.numpy() - y.numpy().T) ** 2
    marginals = np.vstack([np.kron(np.eye(n), np.ones(m)), np.kron(np.ones(n), np.eye(m))])
    solved = linprog(cost.ravel(), A_eq=marginals, b_eq=np.r_[np.full(n, 1 / n), np.full(m, 1 / m)])
    assert float(wasserstein_1d(x, y, p=2.0)) == pytest.approx(solved.fun, rel=1e-8)


@pytest.mark.parametrize(("n", "m"), [(6, 6), (6, 9), (9, 4)])
def test_columns_are_separate_and_differentiable(
    n: int, m: int, generator: torch.Generator, device: torch.device
) -> None:
    x = torch.randn(n, 3, generator=generator, dtype=torch.float64).to(device).requires_grad_()
    y = torch.randn(m, 3, generator=generator, dtype=torch.float64).to(device).requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b: wasserstein_1d(a, b, p=2.0), (x, y))
    for column in range(3):
        alone = wasserstein_1d(x[:, [column]], y[:, [column]])
        assert torch.allclose(alone[0], wasserstein_1d(x, y)[column])


@settings(max_examples=tried(50))
@given(m=st.integers(1, 40), b=st.integers(1, 40))
def test_resampling_is_averaging_over_equal_parts(m: int, b: int) -> None:
    generator = torch.Generator().manual_seed(m * 41 + b)
    ordered = torch.randn(m, 2, generator=generator, dtype=torch.float64).sort(dim=0).values
    expected = ordered.repeat_interleave(b, dim=0).reshape(b, m, 2).mean(dim=1)
    assert torch.allclose(resample_quantiles(ordered, b), expected, atol=1e-12)
