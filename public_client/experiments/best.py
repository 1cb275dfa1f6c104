"""`train --keep-best`: a private evaluation of source-only, control and adapted model; the best is delivered."""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Mapping

from torch import nn

from public_client.adaptation.domain_adaptation import DomainAdaptation
from public_client.methods.comparison import Asked, Comparison, plan_comparison
from public_client.training.sites import Model, Site
from shared.errors import DpswdError, InvalidValue

_log = logging.getLogger(__name__)
ADAPTED = "adapted"
_KEPT = "comparison"
"""Name in a checkpoint."""


def check_affordable(adaptation: DomainAdaptation, *, epsilon: float) -> None:
    """Whether every hospital evaluates, and has room for the run and the evaluation after it; spends nothing.

    Raises:
        InvalidValue: one evaluates nothing, or has too little left for both.
    """
    for site in adaptation.sites.values():
        plan = plan_comparison(site.curator, 3, epsilon=epsilon)
        both = site.plan.epsilon + epsilon
        if both > plan.remaining * (1 + 1e-9):
            raise InvalidValue(
                f"{site.name} has epsilon {plan.remaining:.4g} left; the run and the evaluation that finds the best "
                f"model may cost {both:.4g} together. Lower either, or ask for more; nothing was spent"
            )


def deliver_best(adaptation: DomainAdaptation, others: Mapping[str, Model], *, epsilon: float) -> None:
    """Compares at every site that was trained for, and gives it the winner.

    A site that does not answer keeps the adapted model, and its report says so.

    Args:
        adaptation: trained.
        others: what the adapted model is compared with, by name; those named first win a draw.
        epsilon: of each site's evaluation.
    """
    for site in adaptation.sites.values():
        if site.lost is None and site.model is not None:
            _deliver(site, dict(others) | {ADAPTED: site.model}, epsilon)


def _deliver(site: Site, models: Mapping[str, Model], epsilon: float) -> None:
    try:
        told = _compared(site, models, epsilon)
    except DpswdError as error:
        site.finding = f"the models were not compared ({error}), so the adapted one is delivered; {site.finding}"
        _log.warning("%s: %s", site.name, site.finding)
        return
    site.model = models[told.winner]
    site.outcome = site.outcome if told.winner == ADAPTED else f"{told.winner} delivered"
    site.finding = f"{told}: {told.winner} is delivered" + (f"; {site.finding}" if site.finding else "")
    _log.info("%s: %s", site.name, site.finding)


def _compared(site: Site, models: Mapping[str, Model], epsilon: float) -> Comparison:
    """Asks, or asks again by what a checkpoint holds: then by the very weights that were asked about first."""
    kept = None if site.store is None else site.store.read(_KEPT)
    if kept is not None:
        return Asked.from_json(json.loads(kept["asked"])).answered(site.curator)
    whole = {
        name: nn.Sequential(copy.deepcopy(own.extractor), copy.deepcopy(own.classifier)).cpu().eval()
        for name, own in models.items()
    }
    asked = Asked.of(site.curator, whole, plan_comparison(site.curator, len(whole), epsilon=epsilon))
    if site.store is not None:
        site.store.write(_KEPT, {"asked": json.dumps(asked.to_json())})
    return asked.answered(site.curator)
