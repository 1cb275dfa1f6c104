"""`train --keep-best`: source-only, control and adapted model compared privately; the best is delivered."""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Callable, Mapping
from typing import TypeVar

from torch import nn

from dpswd.public_client.adaptation.domain_adaptation import DomainAdaptation
from dpswd.public_client.data.ranks import Ranks
from dpswd.public_client.methods import method_kinds
from dpswd.public_client.methods.comparison import Asked, Comparison, declarable, plan_comparison
from dpswd.public_client.plans.declarable import Declarable, quoted
from dpswd.public_client.plans.together import both
from dpswd.public_client.training.asking import ask_each
from dpswd.public_client.training.sites import ADAPTED, Model, Site
from dpswd.shared.core.errors import DpswdError, ProtocolError, SettingsError

_Answer = TypeVar("_Answer")
_log = logging.getLogger(__name__)
COMPARED = 3
"""Models: source-only, control and adapted."""
_RECORD = "comparison"
"""Name in a checkpoint."""


def refuse_own_target(name: str) -> None:
    """Refuses a method whose model is for the team's own records.

    Args:
        name: of a method.

    Raises:
        SettingsError: it is.
    """
    if name in method_kinds() and method_kinds()[name].own_target:
        raise SettingsError(
            f"output.keep_best finds the best model for the hospital's records; that of {name} is for the team's own. "
            "Leave it out"
        )


def check_room(adaptation: DomainAdaptation, *, epsilon: float) -> None:
    """Whether every hospital has room for the run and the evaluation after it; trains and spends nothing.

    A site that does not answer is left to the training, which sets it aside.

    Args:
        adaptation: not trained yet.
        epsilon: of each site's evaluation.

    Raises:
        PrivacyError: one has too little left for both.
        InvalidValue: one evaluates nothing, or a price cannot be reached.
    """
    model, ready = adaptation.model(), {}
    for site in adaptation.sites.values():  # traced before any thread runs a module
        shape = site.plan.record_shape
        if shape not in ready:
            extractor, classifier = copy.deepcopy(model.extractor).eval(), copy.deepcopy(model.classifier)
            ready[shape] = adaptation.method.declarable(extractor, shape, adaptation.adapter, classifier)

    def ask(site: Site) -> None:
        evaluation = plan_comparison(site.curator.describe(), COMPARED, epsilon=epsilon)
        declared = ready[site.plan.record_shape]
        run = quoted(site.curator, declared, site.plan, required=True)[0]
        both(site.curator, declared, run, evaluation).require(site.name, run, evaluation)

    _asked(adaptation, ask)


def check_comparable(adaptation: DomainAdaptation, others: Mapping[str, Model], *, epsilon: float) -> None:
    """Whether every hospital evaluates such models; spends nothing.

    A site that does not answer is left to the training, which sets it aside.

    Args:
        adaptation: not trained yet.
        others: what the adapted model will be compared with, by name.
        epsilon: of each site's evaluation.

    Raises:
        InvalidValue: one evaluates nothing, or a model does not fit its records.
        ExtractorUnsupported: a model cannot travel as data.
    """
    models = _whole(dict(others) | {ADAPTED: adaptation.model()})
    plans = _asked(adaptation, lambda site: plan_comparison(site.curator.describe(), COMPARED, epsilon=epsilon))
    for plan in plans.values():
        declarable(models, plan)


def _asked(adaptation: DomainAdaptation, act: Callable[[Site], _Answer]) -> dict[str, _Answer]:
    """The answers of the sites that give one.

    Raises:
        DpswdError: a site refuses.
    """
    sites = adaptation.sites
    alone = Ranks.current().size == 1  # ranks ask together, in one order
    answers, lost = ask_each(list(sites), lambda name: act(sites[name]), parallel=alone)
    for error in lost.values():
        if not isinstance(error, ProtocolError):
            raise error
    return answers


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
    distinct, same = _distinct(models, site.plan.record_shape)
    also = "".join(f"; {one} is the same model as {other}" for one, other in same.items())
    if len(distinct) == 1:
        text, chosen = "there is one model and nothing to compare", ADAPTED
    else:
        try:
            comparison = _compared(site, distinct, epsilon)
        except DpswdError as error:
            site.not_compared = error
            site.finding = f"the models were not compared ({error}), so the adapted one is delivered; {site.finding}"
            _log.warning("%s: %s", site.name, site.finding)
            return
        chosen = comparison.winner
        text = f"{comparison}: {chosen} is delivered"
        if not comparison.clear:
            text += f", no clear difference: two standard errors are {comparison.difference:.1f} points"
    site.model = models[chosen]
    site.outcome = site.outcome if chosen == ADAPTED else f"{chosen} delivered"
    site.finding = text + also + (f"; {site.finding}" if site.finding else "")
    _log.info("%s: %s", site.name, site.finding)


def _distinct(models: Mapping[str, Model], shape: tuple[int, ...]) -> tuple[dict[str, Model], dict[str, str]]:
    """Models that compute differently, and which of the others is the same as which; the adapted one stays."""
    names: dict[tuple[bytes, bytes], str] = {}
    same: dict[str, str] = {}
    for name in sorted(models, key=lambda name: name != ADAPTED):
        ready = Declarable.of(_whole({name: models[name]})[name], shape)
        other = names.setdefault((ready.graph.to_bytes(), ready.weights), name)
        if other != name:
            same[name] = other
    return {name: model for name, model in models.items() if name not in same}, same


def _compared(site: Site, models: Mapping[str, Model], epsilon: float) -> Comparison:
    """Asks, or asks again by what a checkpoint holds: then by the very weights that were asked about first."""
    record = None if site.store is None else site.store.read(_RECORD)
    if record is not None:
        return Asked.from_json(json.loads(record["asked"])).answered(site.curator)
    whole = _whole(models)
    plan = plan_comparison(site.curator.describe(), len(whole), epsilon=epsilon)
    asked = Asked.of(site.curator, whole, plan)
    if site.store is not None:
        site.store.write(_RECORD, {"asked": json.dumps(asked.to_json())})
    return asked.answered(site.curator)


def _whole(models: Mapping[str, Model]) -> dict[str, nn.Module]:
    """From records to scores, on the CPU."""
    return {name: copy.deepcopy(own).whole().cpu() for name, own in models.items()}
