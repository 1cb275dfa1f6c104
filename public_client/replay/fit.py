"""Adaptation by replaying stored releases: no gradient ever leaves the curator.

The curator releases the target's sliced quantile coefficients once (usually from a full batch, with the whole epsilon
spent on it). Everything after that is post-processing of public values, and free:

1. a *view*, a small model of how the target sees things (`views`), is fitted so that source records seen through it
   have the released coefficients; the target's class frequencies are fitted with it. The fit is the mode of a
   posterior: the noise's law gives the likelihood, what is usual between two devices the prior. It has local minima,
   so it begins at many random warps and drops the worse ones as it goes;
2. what is found is turned into a model (`delivery`): extractor and classifier are fine-tuned, with the source's labels,
   on source records seen through that view, or as they are where it leaves much, and varied a little; or the
   classifier's priors are corrected; or nothing.

docs/studies.md says how the numbers were chosen.
"""

from __future__ import annotations

import copy
import itertools
import math

import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from dpswd.public_client.data.datasets import Labelled
from dpswd.public_client.data.progress import Reporter
from dpswd.public_client.data.ranks import Ranks
from dpswd.public_client.replay.class_frequencies import FrequencyModel
from dpswd.public_client.replay.cross_fitting import laid_out
from dpswd.public_client.replay.low_rank import LowRankView
from dpswd.public_client.replay.missing_columns import TableView, find_gaps
from dpswd.public_client.replay.posterior import CANDIDATES, SCORED, Posterior
from dpswd.public_client.replay.residuals import Residuals
from dpswd.public_client.replay.verdict import (
    CONVINCED,
    FITS,
    LEAST_CHANGE,
    UNEXPLAINED,
    VIEW_FITS,
    VIEW_LEAVES,
    VIEW_MOST,
    Evidence,
    Fitted,
    Outcome,
)
from dpswd.public_client.replay.views import Ends, FeatureView, MixedViews, View, view_for

MOST_RECORDS = 20_000  # source records that are kept for fitting and tuning


def find_view(
    extractor: nn.Module,
    source: Labelled,
    residuals: Residuals,
    *,
    learning_rate: float,
    generator: torch.Generator,
    bar: Reporter,
    view: View | None = None,
    declared: Ends | None = None,
    ranks: Ranks | None = None,
) -> Fitted:
    """The simplest explanation of the target's released coefficients that fits them; see `verdict`.

    Args:
        extractor: frozen, records to features.
        source: labelled public records.
        residuals: from the releases.
        learning_rate: of the first rounds; half in the last; cosine to a twentieth in each.
        generator: of candidates and source batches.
        bar: told of each of at most `VIEW_STEPS` steps.
        view: the identity of the kind of view to fit; not changed. By default the ready one for the kind of record.
        declared: the least and the largest value of the hospital's records, where it declares them: the scale of images
            that are seen by the ready view. By default their own.
        ranks: processes with the same source that share the candidates' fits, and end alike.
    """
    extractor = laid_out(folded(extractor), source.images)
    given = None if view is None else copy.deepcopy(view).to(source.images.device)
    if isinstance(given, TableView):
        return find_gaps(given, extractor, source, residuals, generator=generator, bar=bar)
    posterior = Posterior(extractor, source, residuals, generator, ranks or Ranks())
    with torch.no_grad():
        features = extractor(source.images[: 4 * SCORED])
    identity = given if given is not None else view_for(source.images, features, declared)
    still = copy.deepcopy(identity)
    model = posterior.model(identity)
    alone = Evidence(posterior.ranks.share(model.free))
    # Of a view with few parameters evidence alone decides, where more than nothing points to one.
    doubted = alone.sees_misfit or (identity.few_parameters and not alone.leaves_nothing_seen)
    if not doubted or (alone.fits() and not alone.sees_misfit):
        return _without_view(still, model, alone, posterior)
    closest, fits = alone, alone.fits()
    for best in posterior.families(identity, given, alone_fits=fits, learning_rate=learning_rate, bar=bar):
        seen = best.evidence
        gained = seen.log_evidence - alone.log_evidence - math.log(CANDIDATES)
        if gained > CONVINCED and _fits(best.view, seen, alone):
            weights = seen.frequencies.weights.to(features)
            plain = f"its records look {best.view.words()}"
            evidence = f"{best.words} the release, {gained:.0f} nats more probable by it: {seen}; without it {alone}"
            mixed = None
            if best.likely:
                mixed, statement = _mixed(best.likely, still, seen.stays(alone), generator)
                evidence += f"; {statement}"
            left = posterior.left(best.view, weights)
            return Fitted(best.view, weights, left, "adapted by a view", plain, tuned_by=mixed, evidence=evidence)
        closest = min(closest, seen, key=lambda one: one.at_most)
    return _unchanged(still, alone, posterior, _STRANGE if closest.sees_misfit else _THIN, closest)


def folded(extractor: nn.Module) -> nn.Module:
    """A copy in evaluation mode whose batch normalisations are part of the convolutions before them: a fifth faster."""
    made = copy.deepcopy(extractor).eval()
    for sequence in [own for own in made.modules() if isinstance(own, nn.Sequential)]:
        for number, (one, after) in enumerate(itertools.pairwise(list(sequence))):
            if type(one) is nn.Conv2d and type(after) is nn.BatchNorm2d:
                sequence[number], sequence[number + 1] = fuse_conv_bn_eval(one, after), nn.Identity()
    return made


def _mixed(
    likely: tuple[tuple[View, float], ...], still: View, share: float, generator: torch.Generator
) -> tuple[MixedViews, str]:
    """What models are tuned by where a share of the records stays as it is, and words for it."""
    views, chances = zip(*likely, strict=True)
    seed = int(torch.randint(2**31, (), generator=generator))
    statement = f"{100 * share:.0f}% of the records that models are tuned on stay as they are"
    if len(views) > 1:
        statement += f", the others are seen by the {len(views)} most probable views"
    return MixedViews([*views, still], [*((1.0 - share) * chance for chance in chances), share], seed), statement


def _fits(view: View, seen: Evidence, alone: Evidence) -> bool:
    """Whether a view leaves little enough of what its class frequencies `alone` leave."""
    if isinstance(view, FeatureView | LowRankView) and seen.sees_misfit:
        return False  # of deep features: free enough to explain a part of anything
    most = min(VIEW_FITS * alone.unexplained, VIEW_MOST)
    if view.few_parameters and seen.leaves_nothing_seen:
        most = VIEW_MOST
    # No real shift is quite a view, and a strong release sees that. The part of the variance, v, is then counted in
    # directions in which features hardly vary, so energy is asked as well.
    mostly = view.few_parameters and seen.leaves_of(alone) <= VIEW_LEAVES
    return mostly or seen.fits(max(FITS, most))


_RARER = "its classes are not as frequent as in your source"
_STRANGE = (
    "something has changed that does not fit what is known of shifts, so the model is kept, and no loss of accuracy "
    "can be excluded: evaluate it on the hospital's labels, or bring a source that is nearer to its records"
)
_THIN = "the release says too little: more records or a larger epsilon may say more"
_ALIKE = "the release fits the source as it is"


def _without_view(identity: View, model: FrequencyModel, alone: Evidence, posterior: Posterior) -> Fitted:
    """Other class frequencies, or nothing."""
    unchanged = Evidence(posterior.ranks.share(model.fixed))
    gained = alone.log_evidence - unchanged.log_evidence
    if not alone.fits():
        return _unchanged(identity, alone, posterior, _THIN)
    if gained <= CONVINCED or alone.changed < LEAST_CHANGE:
        return _unchanged(identity, alone, posterior, _ALIKE)
    # Accuracy is linear in the frequencies, so the best scores for uncertain ones are those for their mean.
    draws = model.draws(alone.frequencies)
    weights = draws.mean(dim=0)
    left = posterior.left(identity, weights)
    evidence = (
        f"class frequencies alone explain the release, {gained:.0f} nats more probable than the source's: {alone}"
    )
    return Fitted(identity, weights, left, "priors corrected", _RARER, draws, evidence=evidence)


def _unchanged(
    identity: View, evidence: Evidence, posterior: Posterior, why: str, closest: Evidence | None = None
) -> Fitted:
    """The model as it is, with what the source's records leave and what the closest view leaves, if one was tried."""
    even = torch.ones_like(evidence.frequencies.weights).float()
    tried = "" if closest is None or closest is evidence else f"; by the best view that was tried {closest}"
    outcome: Outcome = UNEXPLAINED if why is _STRANGE else "kept"
    return Fitted(identity, even, posterior.left(identity, even), outcome, why, evidence=f"{evidence}{tried}")
