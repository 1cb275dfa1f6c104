"""Asks curators whether the runs of a training fit, before hours are spent on it. Free."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from public_client.plans.declarable import Declarable, quoted
from public_client.training.sites import Group, Site
from shared.errors import BudgetExhausted, InvalidValue


def ask_first(sites: Sequence[Site], declarable: Callable[[tuple[int, ...]], Declarable]) -> None:
    """Prices each site's plan at its curator; those that refuse are set aside.

    Args:
        sites: of one training; those whose run is declared already are not asked.
        declarable: what would be declared for records of a shape.

    Raises:
        DpswdError: no site is left; the first one's error, such as `BudgetExhausted`.
    """
    everybody = Group(sites, None)
    new = [site for site in sites if site.store is None or not site.store.begun]
    if not new:
        return
    described = everybody.each(lambda site: site.curator.describe(), new)
    shape = next(iter(described.values())).record_shape
    ready = declarable(shape)

    def ask(site: Site) -> None:
        description = described[site.name]
        if description.record_shape != shape:
            raise InvalidValue(
                f"{site.name} holds records of shape {description.record_shape}, the others of {shape}; train for it "
                "apart"
            )
        plan, answer = quoted(site.curator, ready, site.plan)
        if not answer.fits:
            raise BudgetExhausted(
                requested=plan.epsilon,
                spent=description.spent,
                remaining=description.remaining,
                steps_that_fit=answer.steps_that_fit,
            )

    everybody.each(ask, [site for site in new if site.lost is None])
