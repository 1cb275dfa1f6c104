"""From what releases are found to say (`verdict`) to the model that a site is given.

A view: the source-trained modules are tuned on source records seen through it, and the tuned ones are delivered if
they do better on such records than the source-trained ones do, by more than chance: a shorter trial on a part of the
source says so, on the records that it left out. Other class frequencies: log(target's / source's) is added to the
classifier's scores, or a part of it (`priors`), and where a trial promises more all that was learned is trained on, on
source records drawn by these frequencies (`weighted`). Never both: under a view, frequencies and pixels are too easily
mistaken for each other. Otherwise the source-trained model, to the bit.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from dpswd.public_client.data.datasets import Labelled
from dpswd.public_client.data.progress import Reporter
from dpswd.public_client.data.ranks import Ranks
from dpswd.public_client.replay.cross_fitting import CrossFit
from dpswd.public_client.replay.priors import safe_weights, with_priors
from dpswd.public_client.replay.tuning import Trial, expected_gain, trials_of, tune
from dpswd.public_client.replay.verdict import Fitted, Outcome
from dpswd.public_client.replay.views import MixedViews, View
from dpswd.public_client.replay.weighted import Onward, Trained


@dataclass(frozen=True)
class Delivered:
    """What one site is given.

    Attributes:
        extractor: records to features.
        classifier: features to scores.
        outcome: how they came about.
        plain: why, in one plain clause.
        reason: why, with the evidence.
    """

    extractor: nn.Module
    classifier: nn.Module
    outcome: Outcome
    plain: str
    reason: str


def deliver(
    extractor: nn.Module,
    classifier: nn.Module,
    fits: Mapping[str, Fitted],
    shares: Mapping[str, float],
    source: Labelled,
    *,
    steps: int,
    seed: int,
    generator: torch.Generator,
    bar: Reporter,
    ranks: Ranks | None = None,
) -> dict[str, Delivered]:
    """Models of sites that train together, by name; sites whose releases speak for views share one.

    Args:
        extractor: source-trained; stays as it is, like the classifier. Parameters that were not trained on the source
            do not require gradients.
        classifier: source-trained.
        fits: of each site.
        shares: of each site in a shared model.
        source: public.
        steps: of tuning.
        seed: of the draw of sites in a shared model.
        generator: of the batches.
        bar: told of each step of tuning, and of each update of the twins that a correction of priors is tried on.
        ranks: processes with the same source that share each batch, and end alike.
    """
    ranks = ranks or Ranks()
    views = {name: fitted.tuned_by or fitted.view for name, fitted in fits.items() if fitted.convinced}
    tuned: tuple[nn.Module, nn.Module] = (extractor, classifier)
    trials: list[Trial] = []
    if views:
        view: View = next(iter(views.values()))
        if len(views) > 1:
            view = MixedViews(list(views.values()), [shares[name] for name in views], seed)
        tuned = tune(extractor, classifier, view, source, steps=steps, generator=generator, bar=bar, ranks=ranks)
        trials = trials_of(extractor, classifier, view, source, steps, generator, ranks)
    cross_fit = CrossFit(extractor, classifier, source, seed=seed, ranks=ranks, bar=bar)
    optimism: float | None = 0.0  # images' extractors are tuned, and judged on records that are left out
    if any(
        not (fitted.view.tunes_extractor or fitted.view.keeps_scores) for fitted in fits.values() if fitted.convinced
    ):
        optimism = cross_fit.optimism()
    crossed = cross_fit.crossed() if any(fitted.class_draws is not None for fitted in fits.values()) else None
    onward = None if crossed is None else Onward(crossed, extractor, steps=steps, seed=seed, ranks=ranks, bar=bar)
    delivered = {}
    unchanged = (copy.deepcopy(extractor), copy.deepcopy(classifier))
    for name, fitted in fits.items():
        outcome, plain, reason, model = fitted.outcome, fitted.plain, fitted.reason, unchanged
        if fitted.class_draws is not None:
            delivered[name] = _corrected(fitted, fitted.class_draws, unchanged, cross_fit, onward, source.labels)
            continue
        if fitted.convinced:
            gain, error = ranks.share(partial(expected_gain, trials, fitted.view))
            if fitted.view.keeps_scores or gain > fitted.view.sure * error + (optimism or 0.0):
                model = tuned
                if optimism is None:
                    reason += "; what the extractor knows of the public records by heart is not known"
            else:
                outcome = "kept"
                plain = f"{plain}, and following that promises no clear gain"
                by_heart = f", whose features flatter by {optimism:.1f} points there" if optimism else ""
                reason = (
                    f"following the view that was found would gain {gain:.1f} ± {error:.1f} points on public records "
                    f"seen through it{by_heart}, which is no clear gain ({reason})"
                )
        delivered[name] = Delivered(*model, outcome, plain, reason)
    return delivered


def _corrected(
    fitted: Fitted,
    draws: Tensor,
    unchanged: tuple[nn.Module, nn.Module],
    cross_fit: CrossFit,
    onward: Onward | None,
    labels: Tensor,
) -> Delivered:
    """Other priors, as far as they are safe; and weights that are trained on by them, where that gains more."""
    safe = safe_weights(cross_fit.out_of_fold(), labels, fitted.class_weights, draws)
    if safe.weights is None:
        plain = f"{fitted.plain}, and a correction by that may do harm"
        return Delivered(*unchanged, "kept", plain, f"{safe.reason} ({fitted.reason})")
    lacking = "no weight changes, as models trained anew, on which training on is tried, are not to be had here"
    trained = onward.by(safe.weights, draws) if onward else Trained(None, lacking)
    extractor, classifier = trained.modules or unchanged
    reason = f"{safe.reason}; {trained.reason} ({fitted.reason})"
    return Delivered(extractor, with_priors(classifier, safe.weights), "priors corrected", fitted.plain, reason)
