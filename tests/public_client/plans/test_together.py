"""A run and the evaluation after it are priced together, and never admitted here where the ledger refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dpswd.public_client.methods import Method, Replay
from dpswd.public_client.methods.comparison import Compare
from dpswd.public_client.plans.declarable import within_quote
from dpswd.public_client.plans.plan import Plan, make_plan
from dpswd.public_client.plans.together import Together, covering, foreseen
from dpswd.public_client.published_methods import Adapter
from dpswd.public_client.testing.mock import mock_description
from dpswd.shared.accounting.pricing import filter_for
from dpswd.shared.core.errors import PrivacyError
from dpswd.shared.core.privacy.budget import PrivacyBudget
from dpswd.shared.core.privacy.filter import PrivacyFilter


def plans(budget: float, epsilon: float, evaluation: float, method: Method) -> tuple[Plan, Plan, Together]:
    hospital = mock_description(records=898, record_shape=(1, 8, 8), epsilon=budget, delta=1e-5, classes=10)
    run, compared = make_plan(hospital, method, epsilon=epsilon), make_plan(hospital, Compare(), epsilon=evaluation)
    compared = compared.for_model(feature_dimension=30, gradient_parameters=0)
    return run, compared, foreseen(hospital, run, compared)


@pytest.mark.parametrize("budget", [1.1, 2.0, 9.0])
def test_an_unused_budget_is_foreseen_as_the_ledger_counts(budget: float) -> None:
    run, compared, together = plans(budget, 1.0, 0.1, Replay())

    def accountant(plan: Plan) -> PrivacyFilter:
        return filter_for(PrivacyBudget(budget, 1e-5), plan=plan.event())

    sized = run.for_model(feature_dimension=16, gradient_parameters=0)  # sizes do not move the price
    sized = within_quote(sized, lambda asked: accountant(asked).alone(accountant(asked).price(asked.event())))
    own = accountant(sized)
    spent = own.admit(own.admit(own.zero(), own.price(sized.event())), own.price(compared.event()))
    assert together.epsilon == pytest.approx(own.epsilon(spent), rel=0.01)
    assert together.fits
    assert "together: epsilon 1.0" in together.summary(run, compared)


def test_a_run_that_fills_the_budget_leaves_no_room() -> None:
    run, compared, together = plans(9.0, 8.99, 0.5, Replay())
    assert run.fits
    assert together.fits is False
    assert "does NOT fit" in together.summary(run, compared)
    with pytest.raises(PrivacyError, match=r"no room for a run of epsilon 8\.99.* an evaluation of 0\.5"):
        together.require("here", run, compared)


@pytest.mark.parametrize("method", [Replay(), Adapter()])
def test_what_admits_the_covering_run_admits_both(method: Method) -> None:
    """In every Renyi lane of a filter that neither of them made; and little is asked beyond both."""
    run, compared, _ = plans(9.0, 1.0, 0.1, method)
    run = run.for_model(feature_dimension=64, gradient_parameters=0 if isinstance(method, Replay) else 128)
    heavy = covering(run, compared.event(), budget=9.0)
    larger = replace(run, epsilon=3.0, feature_dimension=None).for_model(
        feature_dimension=64, gradient_parameters=run.gradient_parameters or 0
    )
    own = filter_for(PrivacyBudget(9.0, 1e-5), plan=larger.event())
    first, second, one = (own.price(plan.event()).renyi for plan in (run, compared, heavy))
    assert all(a + b <= c for a, b, c in zip(first, second, one, strict=True))
    assert heavy.noise is not None
    assert run.noise is not None
    assert 0.9 < heavy.noise / run.noise < 1.0
