"""autodp derives the same Theorem 27 curve; a disagreement refuses the run."""

from __future__ import annotations

import pytest

from dpswd.shared.accounting import crosscheck
from dpswd.shared.core.errors import AccountantsDisagree
from dpswd.shared.core.privacy.events import (
    QuantileCoefficients,
    RowProjections,
    RunEvent,
    SanitizedGradient,
    StepEvent,
)


def run(records: int, batch: int, *parts: RowProjections | QuantileCoefficients | SanitizedGradient) -> RunEvent:
    return RunEvent(step=StepEvent(records, batch, parts), steps=10)


RUNS = [
    run(7438, 128, RowProjections(320, 200, 5.0)),
    run(7438, 128, RowProjections(320, 200, 0.5)),
    run(7438, 512, QuantileCoefficients(512, 200, 2, 0.5, 0.5 / 2048), SanitizedGradient(112, 1.0, 12.0)),
    run(7438, 7438, RowProjections(320, 200, 5.0)),
    run(2, 1, RowProjections(1, 1, 1e-3)),
    run(2, 1, RowProjections(1, 1, 1e6)),
    run(10**9, 1, RowProjections(10**6, 10**5, 1e6)),
    run(100, 99, RowProjections(2, 3, 1.0)),
    # Where the two Theorem 27 differ at higher orders: small charges, and high orders of middling ones.
    run(14480, 153, RowProjections(797, 2, 34.319)),
    run(898, 128, RowProjections(64, 100, 5.0), SanitizedGradient(3000, 1.0, 60.0)),
    run(898, 256, QuantileCoefficients(64, 200, 2, 1.0)),
    # A heavy tail: our forward differences fall back to Theorem 9.
    run(2334, 914, RowProjections(254, 2, 0.565, 0.565 / 2048)),
]


@pytest.mark.parametrize("event", RUNS)
def test_autodp_agrees_to_seven_digits_and_is_never_cheaper(event: RunEvent) -> None:
    result = crosscheck.check_with_autodp(event)
    assert len(result.orders) >= 10
    assert result.largest_difference < 1e-7
    assert all(c <= t * (1 + 1e-8) + 1e-13 for c, t in zip(result.charged, result.theorem_27, strict=True))


def test_the_published_gaussian_sigma_is_cheaper_by_a_factor_of_four() -> None:
    """At small charges HYB saves the 4 of Wang's ternary bound."""
    result = crosscheck.check_with_autodp(RUNS[0])
    assert result.charged[0] == pytest.approx(result.autodp[0] / 4, rel=0.02)


@pytest.mark.parametrize("factor", [1.001, 0.999])
def test_a_wrong_curve_is_caught(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    """Our own figure is falsified by one part in a thousand: the check must notice in either direction."""
    theirs = crosscheck._theorem_27
    monkeypatch.setattr(crosscheck, "_theorem_27", lambda step: tuple(factor * value for value in theirs(step)))
    with pytest.raises(AccountantsDisagree, match="tell the operator"):
        crosscheck.check_with_autodp(RUNS[0])


def test_a_charge_above_theorem_27_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    charged = crosscheck.step_costs
    monkeypatch.setattr(
        crosscheck,
        "step_costs",
        lambda step, orders, committed: tuple(5 * c for c in charged(step, orders, committed=committed)),
    )
    with pytest.raises(AccountantsDisagree, match="must not"):
        crosscheck.check_with_autodp(RUNS[0])


def test_no_figure_from_autodp_refuses_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crosscheck, "_autodp", lambda step, **_: [float("nan")] * len(crosscheck.ORDERS))
    with pytest.raises(AccountantsDisagree, match="no finite price"):
        crosscheck.check_with_autodp(RUNS[0])
