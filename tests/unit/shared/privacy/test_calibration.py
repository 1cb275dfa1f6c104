"""Calibration and epsilon are inverse; prices of the valid bounds; refusals by name."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from exploring import tried
from hypothesis import given, settings
from hypothesis import strategies as st

from dpswd.shared.accounting.bounds import Bound
from dpswd.shared.accounting.calibration import calibrate_sigma, epsilon
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.privacy.events import (
    QuantileCoefficients,
    RowProjections,
    RunEvent,
    SanitizedGradient,
    StepEvent,
)

M_U = {"features": 784, "directions": 200, "records": 7438, "batch": 128, "steps": 5900}


def projections(*, features: int, directions: int, records: int, batch: int, steps: int) -> Callable[[float], RunEvent]:
    def run(sigma: float) -> RunEvent:
        part = RowProjections(feature_dimension=features, directions=directions, sigma=sigma)
        return RunEvent(step=StepEvent(records=records, batch=batch, parts=(part,)), steps=steps)

    return run


@pytest.mark.parametrize("bound", Bound)
def test_calibration_returns_the_smallest_affordable_sigma(bound: Bound) -> None:
    for target in (3.0, 1.0) if bound is not Bound.C_GAMMA else (3.0,):
        run = projections(**M_U)
        sigma = calibrate_sigma(run, epsilon=target, delta=1e-5, bound=bound)
        assert epsilon(run(sigma), 1e-5, bound) <= target
        assert epsilon(run(sigma * (1 - 5e-5)), 1e-5, bound) > target


@settings(max_examples=tried(12))
@given(
    st.integers(1, 10**4),
    st.integers(1, 1000),
    st.integers(2, 10**5),
    st.floats(0.001, 1.0),
    st.integers(1, 10**5),
    st.floats(0.05, 50.0),
    st.sampled_from([1e-12, 1e-6, 1e-3, 0.1]),
    st.sampled_from([Bound.WBK9, Bound.WBK27, Bound.HYB]),
)
@pytest.mark.long
def test_what_is_calibrated_is_affordable(
    d: int, k: int, n: int, ratio: float, steps: int, target: float, delta: float, bound: Bound
) -> None:
    run = projections(features=d, directions=k, records=n, batch=max(1, int(ratio * n)), steps=steps)
    sigma = calibrate_sigma(run, epsilon=target, delta=delta, bound=bound)
    assert 0.0 <= epsilon(run(sigma), delta, bound) <= target


def rows(sigma: float, *, steps: int = 500, batch: int = 64, records: int = 2000) -> RunEvent:
    return RunEvent(step=StepEvent(records, batch, (RowProjections(128, 50, sigma, sigma / 2048),)), steps=steps)


@pytest.mark.long
def test_auto_is_the_smallest_guarantee() -> None:
    for sigma in (0.7, 1.5, 6.0):
        prices = {bound: epsilon(rows(sigma), 1e-5, bound) for bound in Bound}
        auto = prices.pop(Bound.AUTO)
        assert auto == min(prices[Bound.HYB], prices[Bound.PLD])
        assert auto <= min(prices.values())


@pytest.mark.parametrize("bound", [Bound.HYB, Bound.PLD, Bound.C_GAMMA])
def test_epsilon_moves_the_right_way(bound: Bound) -> None:
    base = epsilon(rows(1.5), 1e-5, bound)
    assert epsilon(rows(1.6), 1e-5, bound) < base
    assert epsilon(rows(1.5, steps=600), 1e-5, bound) > base
    assert epsilon(rows(1.5, batch=80), 1e-5, bound) > base
    assert epsilon(rows(1.5, records=3000), 1e-5, bound) < base
    assert epsilon(rows(1.5), 1e-6, bound) > base


def test_a_full_batch_run_is_one_release_with_more_directions() -> None:
    """gamma = 1: T releases with k directions are one with k T; the Renyi price of both is the same number."""
    part, joined = RowProjections(30, 7, 20.0), RowProjections(30, 7 * 11, 20.0)
    many = RunEvent(step=StepEvent(100, 100, (part,)), steps=11)
    one = RunEvent(step=StepEvent(100, 100, (joined,)), steps=1)
    for bound in (Bound.HYB, Bound.PLD, Bound.AUTO):
        assert epsilon(many, 1e-6, bound) == pytest.approx(epsilon(one, 1e-6, bound), rel=1e-6)


def test_a_plain_gaussian_full_batch_matches_the_analytic_conversion() -> None:
    """d = 1, k = 1: N(0, sigma^2) with sensitivity 1. The best conversion of alpha/(2 sigma^2) by brute force."""
    sigma, delta = 2.0, 1e-5
    run = RunEvent(step=StepEvent(10, 10, (RowProjections(1, 1, sigma),)), steps=1)
    best = min(
        a / (2 * sigma**2) + math.log1p(-1 / a) - (math.log(delta) + math.log(a)) / (a - 1)
        for a in (1 + 10 ** (i / 500) for i in range(-500, 1500))
    )
    assert epsilon(run, delta, Bound.HYB) == pytest.approx(best, rel=1e-4)
    assert epsilon(run, delta, Bound.PLD) < best  # the exact profile


@pytest.mark.parametrize(
    "parts",
    [
        lambda s: (QuantileCoefficients(128, 50, 2, s, s / 2048), SanitizedGradient(112, 1.0, 40 * s, s / 64)),
        lambda s: (RowProjections(128, 50, s, s / 2048), SanitizedGradient(112, 1.0, 4 * s)),
        lambda s: (SanitizedGradient(112, 1.0, s),),
    ],
)
def test_joint_releases_are_calibrated_too(parts: object) -> None:
    def make(sigma: float) -> RunEvent:
        return RunEvent(step=StepEvent(2000, 256, parts(sigma)), steps=200)  # type: ignore[operator]

    sigma = calibrate_sigma(make, epsilon=1.0, delta=1e-5)
    assert epsilon(make(sigma), 1e-5) <= 1.0 < epsilon(make(sigma * 0.9998), 1e-5)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"epsilon": 0.0}, "epsilon"),
        ({"epsilon": math.nan}, "epsilon"),
        ({"epsilon": 1e9}, "epsilon"),
        ({"delta": 0.0}, "delta"),
        ({"delta": 0.6}, "delta"),
        ({"delta": math.nan}, "delta"),
        ({"features": 0}, "feature_dimension"),
        ({"directions": 10**8}, "directions"),
        ({"batch": 7439}, "batch"),
        ({"records": 0}, "records"),
        ({"steps": 0}, "steps"),
    ],
)
def test_arguments_out_of_range_are_refused_by_name(change: dict[str, float], match: str) -> None:
    with pytest.raises(InvalidValue, match=match):
        targets = {name: change.get(name, usual) for name, usual in (("epsilon", 1.0), ("delta", 1e-5))}
        shape = {name: change.get(name, usual) for name, usual in M_U.items()}
        calibrate_sigma(projections(**shape), **targets, bound=Bound.HYB)  # type: ignore[arg-type]


def test_an_unreachable_target_is_refused() -> None:
    """Theorem 9 at order 512 cannot certify less than about log(1/delta)/511."""
    with pytest.raises(InvalidValue, match=r"no sigma up to .* reaches epsilon 0\.0001: .* the run costs 0\.008"):
        calibrate_sigma(projections(**M_U), epsilon=1e-4, delta=1e-5, bound=Bound.WBK9)


EDGES = [
    (1, 1, 2, 1, 1, 0.5),
    (1, 10**5, 2, 2, 1, 1e-300),
    (10**6, 10**5, 10**6, 1, 10**7, 1e-12),
    (10**6, 1, 7438, 7438, 10**7, 1e-5),
    (2, 3, 100, 99, 1, 1e-5),
    (784, 200, 7438, 128, 10**7, 1e-100),
]


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.long
def test_numerical_edges_give_a_number_that_falls_with_noise(edge: tuple[int, int, int, int, int, float]) -> None:
    d, k, n, b, steps, delta = edge
    for bound in (Bound.WBK9, Bound.WBK27, Bound.HYB):
        previous = math.inf
        for sigma in (1e-3, 0.1, 1.0, 30.0, 1e3, 1e6):
            run = RunEvent(step=StepEvent(n, b, (RowProjections(d, k, sigma),)), steps=steps)
            value = epsilon(run, delta, bound)
            assert not math.isnan(value)
            assert 0.0 <= value <= previous * (1 + 1e-9)
            previous = value
    run = RunEvent(step=StepEvent(n, b, (RowProjections(d, k, 1e6),)), steps=steps)
    assert 0.0 <= epsilon(run, delta, Bound.AUTO) < math.inf
