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
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from dpswd.public_client.data.datasets import Labelled
from dpswd.public_client.data.progress import Reporter
from dpswd.public_client.data.ranks import Ranks
from dpswd.public_client.replay.class_frequencies import FrequencyModel
from dpswd.public_client.replay.columns import ColumnView
from dpswd.public_client.replay.cross_fitting import laid_out
from dpswd.public_client.replay.low_rank import LowRankView
from dpswd.public_client.replay.missing_columns import TableView, find_gaps
from dpswd.public_client.replay.posterior import FIT_BATCH, SCORED, Posterior
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
from dpswd.public_client.replay.views import FeatureView, MixedViews, View, view_for

MOST_RECORDS = 20_000  # source records that are kept for fitting and tuning
CANDIDATES = 80  # random warps that are scored, beside the identity


@dataclass(frozen=True)
class _Round:
    """A part of the fit: the best `kept` candidates get `steps` more."""

    survivors: int
    steps: int
    rate: float


# Few records leave modes that only whole fits can tell apart (docs/ml-team/results.md): the halving is late.
_ROUNDS = (_Round(8, 8, 1.0), _Round(8, 25, 1.0), _Round(3, 50, 0.5), _Round(2, 60, 0.5))
VIEW_STEPS = sum(part.survivors * part.steps for part in _ROUNDS)
"""Steps that `find_view` reports, at most."""
VIEW_PASSES = VIEW_STEPS * FIT_BATCH
"""Records that `find_view` sends forward and backward through the extractor, at most."""
_HOPELESS = 40.0
"""Nats behind the best start that a fit of a whole round does not make up for, with what no view explains as noise."""
_TRIED_LONG = 3  # rounds that the identity is fitted in, unless it is hopeless
_LIKELY = 0.01  # of the most probable view's probability, from which on models are tuned by a view too
_MOST_LIKELY = 4  # views that models are tuned by
_AVERAGED = 0.3  # the last part of the fit, over which its parameters are averaged


@dataclass(eq=False)
class _Start:
    """One candidate of the fit.

    Attributes:
        view: in the making.
        weights: (classes,), the target's frequency of each over the source's.
        frequencies: (classes,), the same as frequencies; None before they were fitted.
        score: its log evidence when it was last ranked.
    """

    view: View
    weights: Tensor
    frequencies: Tensor | None = None
    score: float = 0.0


@dataclass(frozen=True)
class _Explained:
    """The best view of a family.

    Attributes:
        view: fitted.
        seen: its evidence.
        words: for it.
        likely: the most probable of all that were fitted, with their probabilities; none where one view is enough.
    """

    view: View
    seen: Evidence
    words: str
    likely: tuple[tuple[View, float], ...] = ()


def find_view(
    extractor: nn.Module,
    source: Labelled,
    residuals: Residuals,
    *,
    learning_rate: float,
    generator: torch.Generator,
    bar: Reporter,
    view: View | None = None,
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
        ranks: processes with the same source that share the candidates' fits, and end alike.
    """
    extractor = laid_out(folded(extractor), source.images)
    given = None if view is None else copy.deepcopy(view).to(source.images.device)
    if isinstance(given, TableView):
        return find_gaps(given, extractor, source, residuals, generator=generator, bar=bar)
    posterior = Posterior(extractor, source, residuals, generator, ranks or Ranks())
    with torch.no_grad():
        features = extractor(source.images[: 4 * SCORED])
    identity = given if given is not None else view_for(source.images, features)
    still = copy.deepcopy(identity)
    model = posterior.model(identity)
    alone = Evidence(posterior.ranks.share(model.free))
    # Of a view with few parameters evidence alone decides, where more than nothing points to one.
    doubted = alone.sees_misfit or (identity.few_parameters and not alone.leaves_nothing_seen)
    if not doubted or (alone.fits() and not alone.sees_misfit):
        return _without_view(still, model, alone, posterior)
    if alone.fits():
        views = _low_rank(identity, given, posterior)  # moves a few directions, a small part of the variance
    else:
        views = _families(identity, given, posterior, generator, learning_rate, bar)
    closest = alone
    for best in views:
        seen = best.seen
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


def _families(
    identity: View,
    given: View | None,
    posterior: Posterior,
    generator: torch.Generator,
    learning_rate: float,
    bar: Reporter,
) -> Iterator[_Explained]:
    """The best view of each family, the simplest first."""
    columns = given if isinstance(given, ColumnView) else posterior.columns() if given is None else None
    if columns is not None:
        units = posterior.units(columns)
        if bool(units.log_gain.any()):
            yield _Explained(units, posterior.judged(units), f"other units of columns ({units}) explain")
    if not isinstance(identity, ColumnView | LowRankView) and (
        not isinstance(identity, FeatureView) or posterior.learn_widths(identity)
    ):
        yield _best_view(identity, posterior, generator, learning_rate, bar)
    yield from _low_rank(identity, given, posterior)


def _low_rank(identity: View, given: View | None, posterior: Posterior) -> Iterator[_Explained]:
    """The best map of low rank, for features that are seen by a view of themselves."""
    if isinstance(given, LowRankView) or (given is None and isinstance(identity, FeatureView)):
        view = posterior.low_rank(given)
        statement = f"features that moved along few directions ({view}) explain"
        yield _Explained(view, posterior.judged(view), statement)


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


def _best_view(
    identity: View, posterior: Posterior, generator: torch.Generator, learning_rate: float, bar: Reporter
) -> _Explained:
    """The most probable view: its fit and that of the class frequencies alternate."""
    even = torch.ones(posterior.classes).to(next(identity.parameters()))
    starts = [_Start(view, even) for view in (identity, *identity.candidates(CANDIDATES, generator))]
    ranks = posterior.ranks
    squares = ranks.divided(len(starts), lambda i: posterior.square(starts[i].view, even, SCORED))
    variance = max(1.0, min(squares))
    with torch.no_grad():
        costs = [
            square * posterior.values / (2 * variance) + float(start.view.penalty())
            for start, square in zip(starts, squares, strict=True)
        ]
    order = sorted(range(len(starts)), key=costs.__getitem__)
    least, dropped = starts[0], list[_Start]()
    starts = [starts[i] for i in order]
    for number, part in enumerate(_ROUNDS):
        starts, others = starts[: part.survivors], starts[part.survivors :]
        if number < _TRIED_LONG and least in others:
            # What leads to less change is worth more, but its worth shows late: thin releases of a shift that is none
            # of the family's were explained by far warps, 16 nats worse than what the identity comes to.
            others[others.index(least)], starts[-1] = starts[-1], least
        if number > 0:  # they have been fitted, and ranked
            dropped += others
        _fit_all(starts, posterior, variance, part, learning_rate=learning_rate, generator=generator, bar=bar)
        variance = _rank(starts, posterior)
        if number > 0:  # with many records one start stands out soon; with few, none does
            starts = [start for start in starts if start.score > starts[0].score - _HOPELESS * variance]
    best = starts[0]
    seen = posterior.judged(best.view, start=best.frequencies)
    likely = _likely([*starts, *dropped]) if best.view.few_parameters else ()
    return _Explained(best.view, seen, "a view explains", likely)


def _likely(starts: list[_Start]) -> tuple[tuple[View, float], ...]:
    """The views that are hardly less probable than the best, with their probabilities."""
    most = max(start.score for start in starts)
    likely = sorted((start for start in starts if start.score > most + math.log(_LIKELY)), key=lambda one: -one.score)
    chances = [math.exp(start.score - most) for start in likely[:_MOST_LIKELY]]
    return tuple((start.view, chance / sum(chances)) for start, chance in zip(likely, chances, strict=False))


def _rank(starts: list[_Start], posterior: Posterior) -> float:
    """Sorts the starts, best first, with their class frequencies fitted anew; returns the variance of a residual.

    A view is never quite right. What it cannot explain counts as noise: the variance is at least the release's own, 1,
    and otherwise what is left, so that a wrong model does not make the prior worthless.
    """
    evidences = posterior.ranks.divided(
        len(starts), lambda i: posterior.evidence(starts[i].view, start=starts[i].frequencies, quick=True)
    )
    order = sorted(range(len(starts)), key=lambda i: evidences[i].log_evidence, reverse=True)
    for start, evidence in zip(starts, evidences, strict=True):
        start.frequencies = evidence.frequencies.frequencies
        start.weights = evidence.frequencies.weights.to(start.weights)
        start.score = evidence.log_evidence
    starts[:] = [starts[i] for i in order]
    return max(1.0, evidences[order[0]].frequencies.chi_square)


def _fit_all(
    starts: list[_Start],
    posterior: Posterior,
    variance: float,
    part: _Round,
    *,
    learning_rate: float,
    generator: torch.Generator,
    bar: Reporter,
) -> None:
    """A part of the fit, of all starts in place; each draws for itself, so that it is the same whoever fits it."""
    seeds, ranks, rate = torch.randint(2**31, (len(starts),), generator=generator), posterior.ranks, part.rate

    def one(number: int) -> list[Tensor]:
        own = torch.Generator().manual_seed(int(seeds[number]))
        return _fit(starts[number], posterior, variance, own, part.steps, rate * learning_rate, bar)

    fitted = ranks.divided(len(starts), one)
    for start, values in zip(starts, fitted, strict=True):
        with torch.no_grad():
            for parameter, value in zip(start.view.parameters(), values, strict=True):
                parameter.copy_(value)
    elsewhere = len(starts) - len(range(ranks.rank, len(starts), ranks.size))
    for _ in range(elsewhere * part.steps):
        bar.advance("fitted by another process")


def _fit(
    start: _Start,
    posterior: Posterior,
    variance: float,
    generator: torch.Generator,
    steps: int,
    learning_rate: float,
    bar: Reporter,
) -> list[Tensor]:
    """Descends from one start; returns the average of the view's parameters over the last part."""
    parameters = list(start.view.parameters())
    optimizer = torch.optim.Adam(parameters, lr=learning_rate, betas=(0.9, 0.99))
    first_averaged = math.ceil((1 - _AVERAGED) * steps)
    averages = [torch.zeros_like(parameter) for parameter in parameters]
    for t in range(steps):
        optimizer.param_groups[0]["lr"] = learning_rate * cosine(t / steps)
        loss = posterior.loss(start.view, start.weights, t, variance, generator)
        optimizer.zero_grad()
        torch.autograd.backward(loss, inputs=parameters)
        optimizer.step()
        if t >= first_averaged:
            for average, parameter in zip(averages, parameters, strict=True):
                average += parameter.detach() / (steps - first_averaged)
        bar.advance(f"loss {float(loss.detach()):.4g}")
    return averages


def cosine(progress: float) -> float:
    """A rate's schedule, from 1 down to 0.05: large moves first, then the noise is averaged out."""
    return 0.05 + 0.95 * 0.5 * (1.0 + math.cos(math.pi * progress))
