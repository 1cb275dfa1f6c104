"""`train --keep-best`: a private evaluation of source-only, control and adapted model; the best is delivered."""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Mapping

from torch import nn

from public_client.adaptation.domain_adaptation import DomainAdaptation
from public_client.data.ranks import Ranks
from public_client.methods import METHODS
from public_client.methods.comparison import Asked, Comparison, declarable, plan_comparison
from public_client.training.asking import ask_each
from public_client.training.sites import ADAPTED, Model, Site
from shared.errors import DpswdError, InvalidValue, ProtocolError, SettingsError

_log = logging.getLogger(__name__)
COMPARED = 3
"""Models: source-only, control and adapted."""
_KEPT = "comparison"
"""Name in a checkpoint."""


def refuse_own_target(name: str) -> None:
    """Refuses a method whose model is for the team's own records.

    Args:
        name: of a method.

    Raises:
        SettingsError: it is.
    """
    if METHODS[name].own_target:
        raise SettingsError(
            f"output.keep_best finds the best model for the hospital's records; that of {name} is for the team's own. "
            "Leave it out"
        )


def check_comparable(adaptation: DomainAdaptation, others: Mapping[str, Model], *, epsilon: float) -> None:
    """Whether every hospital evaluates such models, and has room for the run and the evaluation; spends nothing.

    A site that does not answer is left to the training, which sets it aside.

    Args:
        adaptation: not trained yet.
        others: what the adapted model will be compared with, by name.
        epsilon: of each site's evaluation.

    Raises:
        InvalidValue: one evaluates nothing, or has too little left for both.
        ExtractorUnsupported: a model cannot travel as data.
    """
    models = _whole(dict(others) | {ADAPTED: adaptation.model()})
    sites = adaptation.sites
    alone = Ranks.current().size == 1  # ranks ask together, in one order
    plans, lost = ask_each(
        list(sites), lambda name: plan_comparison(sites[name].curator, COMPARED, epsilon=epsilon), parallel=alone
    )
    for error in lost.values():
        if not isinstance(error, ProtocolError):
            raise error
    for name, plan in plans.items():
        site = sites[name]
        declarable(models, plan)
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
    whole = _whole(models)
    asked = Asked.of(site.curator, whole, plan_comparison(site.curator, len(whole), epsilon=epsilon))
    if site.store is not None:
        site.store.write(_KEPT, {"asked": json.dumps(asked.to_json())})
    return asked.answered(site.curator)


def _whole(models: Mapping[str, Model]) -> dict[str, nn.Module]:
    """From records to scores, on the CPU."""
    return {name: copy.deepcopy(own).whole().cpu() for name, own in models.items()}
