"""The PLD of committed runs: the reference column, closed forms, dp_accounting, sampling, and the edges."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting.pld import pld_pmf
from exploring import tried
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr

from benchmarks.audit.delta import run_delta
from dpswd.shared.accounting import c_gamma, pld
from dpswd.shared.accounting.discretisation import StepPair
from dpswd.shared.accounting.slice_law import shift_nodes
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.privacy.curves import ShiftLaw
from dpswd.shared.core.privacy.events import QuantileCoefficients, RowProjections, SanitizedGradient, StepEvent

# docs/privacy, section 8, column "PLD of C_gamma": d, k, N, b, T, delta, sigma for epsilon = 10, 3, 1
REFERENCE = {
    "U-M 784": (784, 200, 10000, 128, 7900, 1e-5, (0.492, 1.00, 2.35)),
    "M-U 784": (784, 200, 7438, 128, 5900, 1e-5, (0.536, 1.13, 2.69)),
    "VisDA": (100, 1000, 55387, 128, 21650, 1e-6, (1.89, 2.97, 5.83)),
    "Office": (50, 100, 497, 32, 800, 1e-3, (1.57, 3.20, 7.16)),
    "MNIST": (784, 1000, 60000, 100, 60100, 1e-5, (0.695, 1.11, 2.18)),
    "CelebA": (8192, 2000, 162000, 256, 63300, 1e-6, (0.311, 0.508, 1.03)),
    "U-M 320": (320, 200, 10000, 128, 7900, 1e-5, (0.770, 1.57, 3.67)),
    "M-U 320": (320, 200, 7438, 128, 5900, 1e-5, (0.839, 1.77, 4.21)),
}


def rows(d: int, k: int, n: int, b: int, sigma: float) -> StepEvent:
    return StepEvent(n, b, (RowProjections(d, k, sigma),))


def constant(shift: float, n: int, b: int) -> StepEvent:
    """A step whose shift is one number: a gradient of sensitivity 2C = 1 with noise 1/shift."""
    return StepEvent(n, b, (SanitizedGradient(10, 0.5, 1.0 / shift),))


def gaussian_delta(eps: float, s: float) -> float:
    return float(ndtr(s / 2 - eps / s) - math.exp(eps + log_ndtr(-s / 2 - eps / s)))


@pytest.mark.parametrize("row", REFERENCE)
def test_the_reference_column_is_reproduced_to_three_digits(row):
    d, k, n, b, steps, delta, sigmas = REFERENCE[row]
    for target, sigma in zip((10.0, 3.0, 1.0), sigmas, strict=True):
        # d log(epsilon) / d log(sigma) is about -1.5; two evaluations and a secant give sigma to 1e-4.
        near = [math.log(pld.epsilon(rows(d, k, n, b, sigma * f), steps, delta) / target) for f in (0.99, 1.01)]
        solved = sigma * (1.0 + 0.01 * (near[0] + near[1]) / (near[0] - near[1]))
        last_digit = 10.0 ** (math.floor(math.log10(sigma)) - 2)
        assert abs(solved - sigma) < 0.6 * last_digit, f"epsilon {target}: sigma {solved:.4f}"


def test_the_published_run_as_an_idealised_mechanism():
    # docs/privacy, 8: d = 320, T = 41,652, sigma 5.34: epsilon <= 2.23
    assert pld.epsilon(rows(320, 200, 7438, 128, 5.34), 41_652, 1e-5) == pytest.approx(2.23, abs=0.005)


@pytest.mark.parametrize(
    ("s", "steps", "delta"),
    [
        (0.01, 1000, 1e-5),
        (1e-3, 1_000_000, 1e-5),
        (0.1, 100, 1e-30),
        (0.1, 100, 1e-100),
        (0.1, 100, 1e-190),
        (1e-6, 10_000_000, 1e-5),
        (3.0, 5, 1e-5),
        (0.05, 100, 1e-2),
    ],
)
def test_composition_of_gaussians_is_the_analytic_gaussian_mechanism(s, steps, delta):
    # The FFT path, which pld.epsilon itself does not need at gamma = 1.
    plan = pld._plan(ShiftLaw(1, 1, 0.0, s * s), 1.0, steps, delta)
    power, log_lost = pld._compose(plan)
    epsilon = pld._solve(power, delta - math.exp(log_lost))
    total = s * math.sqrt(steps)
    exact = brentq(
        lambda x: math.log(max(gaussian_delta(x, total), 5e-324)) - math.log(delta), 0.0, 60 * total + total**2
    )
    assert exact * (1 - 1e-9) <= epsilon <= exact * (1 + 5e-4)


@pytest.mark.parametrize(
    ("step", "steps", "delta"),
    [
        (rows(784, 200, 10000, 128, 1.0), 2000, 1e-5),
        (rows(50, 100, 497, 32, 3.0), 300, 1e-3),
        (constant(0.7, 1000, 30), 500, 1e-6),
    ],
)
def test_dp_accounting_composes_our_step_to_the_same_epsilon(step, steps, delta):
    """Another library's composition of our one-step masses: same answer to one part in 1,000."""
    nodes = shift_nodes(step.shift(), log_tail=-60.0)
    pair = StepPair(nodes.shifts, nodes.weights, step.sampling_ratio)
    interval = 2e-4
    grid = interval * np.arange(1.0, 20_001.0)
    loss = pair.loss(grid)
    masses = np.concatenate([loss.mirrored[::-1], [loss.at_zero], loss.masses])
    masses /= masses.sum() + loss.at_infinity
    other = pld_pmf.DensePLDPmf(interval, -grid.size, masses, loss.at_infinity, pessimistic_estimate=True)
    theirs = other.self_compose(steps).get_epsilon_for_delta(delta)
    ours = pld.epsilon(step, steps, delta)
    assert ours == pytest.approx(theirs, rel=1e-3)


def sample_losses(rng, law: ShiftLaw, gamma: float, shape: tuple[int, int]) -> np.ndarray:
    """Losses of the symmetric pair, drawn under its first measure: P above 0, Q mirrored below."""
    h = rng.beta(0.5, (law.feature_dimension - 1) / 2, size=(*shape, law.directions)).sum(axis=-1)
    s = np.sqrt(law.scale * h + law.constant)
    y = rng.standard_normal(shape) + s * (rng.random(shape) < gamma)
    above = np.log1p(gamma * np.expm1(s * y - s * s / 2))
    z = rng.standard_normal(shape)
    below = np.log1p(gamma * np.expm1(s * z - s * s / 2))
    # P(L > 1) + Q(L > 1) <= 1: one uniform decides between the two events, each drawn from its own conditional law.
    u = rng.random(shape)
    threshold = s / 2
    p_above = (1 - gamma) * ndtr(-threshold) + gamma * ndtr(s - threshold)
    q_above = ndtr(-threshold)
    while np.any(redo := (u < p_above) & (above <= 0)):
        m = int(redo.sum())
        y = rng.standard_normal(m) + s[redo] * (rng.random(m) < gamma)
        above[redo] = np.log1p(gamma * np.expm1(s[redo] * y - s[redo] ** 2 / 2))
    mirrored = (u >= p_above) & (u < p_above + q_above)
    while np.any(redo := mirrored & (below <= 0)):
        z = rng.standard_normal(int(redo.sum()))
        below[redo] = np.log1p(gamma * np.expm1(s[redo] * z - s[redo] ** 2 / 2))
    return np.where(u < p_above, above, np.where(mirrored, -below, 0.0))


@pytest.mark.statistical
@pytest.mark.parametrize(("d", "k", "sigma", "n", "b", "steps"), [(40, 5, 0.5, 100, 10, 20), (8, 2, 0.8, 10, 4, 6)])
@pytest.mark.long
def test_a_composed_step_agrees_with_sampling(d, k, sigma, n, b, steps):
    """False alarm: |z| > 5.5 for three means of 60,000 draws in [0, 1], below 2e-7 in all."""
    rng = np.random.default_rng(2)
    step = rows(d, k, n, b, sigma)
    total = sample_losses(rng, step.shift(), step.sampling_ratio, (60_000, steps)).sum(axis=1)
    for eps in (0.2, 1.0, 2.0):
        sample = np.maximum(0.0, -np.expm1(eps - total))
        delta = run_delta(step, steps, eps)
        assert abs(delta - sample.mean()) < 5.5 * sample.std() / math.sqrt(total.size) + 1e-3 * delta


@pytest.mark.statistical
def test_no_real_pair_of_data_sets_leaks_more():
    """The mechanism itself on a bad pair of data sets, both directions, two steps of three ordered rows out of six.

    All records at -1/2 but one, which is +1/2 in the first data set. False alarm: z > 5 for six means, below 2e-6.
    """
    rng = np.random.default_rng(5)
    n, b, sigma, steps, draws = 6, 3, 1.0, 2, 300_000
    gamma = b / n
    step = rows(1, 1, n, b, sigma)

    def log_ratio(noise):  # noise (draws, b) around the records at -1/2
        return np.log(1 - gamma + gamma * np.exp(noise / sigma**2 - 0.5 / sigma**2).mean(axis=1))

    losses = {}
    for first in (True, False):
        total = np.zeros(draws)
        for _ in range(steps):
            noise = sigma * rng.standard_normal((draws, b))
            if first:  # the record that differs is drawn with probability gamma, at a uniform position
                hit = np.flatnonzero(rng.random(draws) < gamma)
                noise[hit, rng.integers(0, b, hit.size)] += 1.0
            total += log_ratio(noise) * (1 if first else -1)
        losses[first] = total
    for eps in (0.1, 0.5, 1.5):
        bound = run_delta(step, steps, eps)
        for total in losses.values():
            sample = np.maximum(0.0, -np.expm1(eps - total))
            assert sample.mean() < bound + 5 * sample.std() / math.sqrt(draws)


def test_one_step_is_the_amplified_profile():
    step = constant(1.3, 200, 10)
    gamma = 0.05
    for delta in (1e-3, 1e-6, 1e-12):
        eps = pld.epsilon(step, 1, delta)
        inner = math.log1p(math.expm1(eps) / gamma)
        assert gamma * gaussian_delta(inner, 1.3) == pytest.approx(delta, rel=1e-6)
        assert run_delta(step, 1, eps) == pytest.approx(delta, rel=1e-6)


def price(step: StepEvent, steps: int, delta: float) -> float:
    """Epsilon, or inf where it would be above MAX_EPSILON and is refused for that."""
    refused = []
    try:
        return pld.epsilon(step, steps, delta)
    except InvalidValue as refusal:
        refused.append(str(refusal))
    assert "epsilon would be about" in refused[0]
    return math.inf


@given(
    d=st.integers(1, 10_000),
    k=st.integers(1, 2000),
    ratio=st.floats(0.3, 30.0),
    n=st.integers(2, 100_000),
    share=st.floats(0.0, 0.9),
    steps=st.integers(1, 20_000),
    delta=st.floats(-15.0, -1.0).map(lambda x: 10.0**x),
)
@settings(max_examples=tried(4))
@pytest.mark.long
def test_prices_are_monotone_and_below_the_renyi_bound_of_the_same_pair(d, k, ratio, n, share, steps, delta):
    sigma = ratio * math.sqrt(k / d)
    b = max(1, int(share * n))
    step = rows(d, k, n, b, sigma)
    eps = price(step, steps, delta)
    if eps == math.inf:
        return
    orders = np.concatenate((np.linspace(1.1, 4.0, 20), np.geomspace(4.3, 3000.0, 40)))
    renyi = steps * c_gamma.log_moment(step.shift(), step.sampling_ratio, orders) / (orders - 1)
    bound = renyi + np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)
    assert eps <= max(0.0, bound.min()) * (1 + 1e-3) + 1e-9
    tolerance = 1 + 1e-3  # two prices lie on different lattices
    assert price(step, 2 * steps, delta) >= eps / tolerance
    assert pld.epsilon(rows(d, k, n, b, sigma * 1.2), steps, delta) <= eps * tolerance
    assert pld.epsilon(step, steps, delta / 10) >= eps / tolerance
    if eps > 0:
        assert run_delta(step, steps, eps) == pytest.approx(delta, rel=0.02)


def test_quantile_coefficients_are_priced_by_their_own_shift():
    n, b, k, d, count, sigma = 7438, 512, 200, 128, 2, 0.3
    step = StepEvent(n, b, (QuantileCoefficients(d, k, count, sigma),))
    same = rows(d, k, n, b, sigma * math.sqrt(b / 3.0))  # kappa = 1 + 2 (L - 1) = 3
    assert pld.epsilon(step, 200, 1e-5) == pytest.approx(pld.epsilon(same, 200, 1e-5), rel=1e-9)


EDGES = [
    (sigma, k, d, n, b, steps, delta)
    for sigma in (1e-3, 1.0, 1e6)
    for k, d in ((1, 1), (1, 1_000_000), (100_000, 1), (100_000, 1_000_000), (200, 784), (1, 2))
    for n, b, steps, delta in (
        (2, 1, 1, 1e-5),
        (2, 2, 10, 1e-200),
        (10_000, 1, 10_000_000, 1e-5),
        (10_000, 128, 7900, 0.5),
    )
]


SOME_EDGES = [
    pytest.param(*edge, marks=pytest.mark.exhaustive if number % 5 else ()) for number, edge in enumerate(EDGES)
]
"""Of every fifth, in which each number of each is."""


@pytest.mark.long
@pytest.mark.parametrize(("sigma", "k", "d", "n", "b", "steps", "delta"), SOME_EDGES)
def test_edges_give_a_finite_bound_or_a_refusal_that_names_the_parameter(sigma, k, d, n, b, steps, delta):
    step = rows(d, k, n, b, sigma)
    eps, refusal = 0.0, ""
    with np.errstate(all="raise", under="ignore"):
        try:
            eps = pld.epsilon(step, steps, delta)
        except InvalidValue as error:
            refusal = str(error)
    if refusal:
        assert "sigma" in refusal
        return
    assert math.isfinite(eps)
    assert eps >= 0.0
    # One step at the mean shift is a lower bound of what the run leaks: S is the same or larger half of the time.
    s = math.sqrt(0.9 * step.shift().mean) if d > 1 and k > 1 else 0.0
    gamma = step.sampling_ratio
    if s > 0.0 and eps < 600.0:
        inner = math.log1p(math.expm1(eps) / gamma)
        assert 0.4 * gamma * gaussian_delta(inner, s) <= delta * (1 + 1e-6)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda step: pld.epsilon(step, 0, 1e-5), "steps"),
        (lambda step: pld.epsilon(step, 10**7 + 1, 1e-5), "steps"),
        (lambda step: pld.epsilon(step, True, 1e-5), "steps"),
        (lambda step: pld.epsilon(step, 10, 0.0), "delta"),
        (lambda step: pld.epsilon(step, 10, 1e-300), "delta"),
        (lambda step: pld.epsilon(step, 10, 1.0), "delta"),
        (lambda step: pld.epsilon(step, 10, math.nan), "delta"),
        (lambda step: run_delta(step, 10, -0.1), "epsilon"),
        (lambda step: run_delta(step, 10, math.inf), "epsilon"),
        (lambda step: pld.epsilon(rows(784, 200, 100, 99, 1e-3), 10_000, 1e-5), "sigma"),
    ],
)
def test_values_outside_the_range_are_refused_by_name(call, name):
    with pytest.raises(InvalidValue, match=name):
        call(rows(784, 200, 10_000, 128, 1.0))
