"""From what releases are found to say (`verdict`) to the model that a site is given.

A view: the source-trained modules are tuned on source records seen through it, and the tuned ones are delivered if
they do better on such records than the source-trained ones do, by more than chance: a shorter trial on a part of the
source says so, on the records that it left out. A view that can be undone (columns in other units) is undone in front
of the source-trained extractor, and nothing is tuned. Other class frequencies: log(target's / source's) is added to the
classifier's scores, or a part of it (`priors`), and where a trial promises more all that was learned is trained on, on
source records drawn by these frequencies (`weighted`). Never both: under a view, frequencies and pixels are too easily
mistaken for each other. Otherwise the source-trained model, to the bit.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpswd.public_client.data.datasets import Labelled
from dpswd.public_client.data.progress import Reporter, reporting
from dpswd.public_client.data.ranks import Ranks
from dpswd.public_client.extractor.adapter_layers import FeatureAffine
from dpswd.public_client.replay.cross_fitting import CrossFit, laid_out
from dpswd.public_client.replay.priors import safe_weights, with_priors
from dpswd.public_client.replay.verdict import Fitted, Outcome
from dpswd.public_client.replay.views import FeatureView, MixedViews, View
from dpswd.public_client.replay.weighted import Onward, Trained

_BATCH = 128
_RATE = 1e-3
_HELD_OUT = 0.1  # of the source, that the extractor of a trial is not tuned on
_MOST_HELD_OUT = 1000
_FOLDS = 3
_TRIAL_STEPS = 400
_AT_ONCE = 1024  # records


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


def record_passes(steps: int) -> int:
    """Records that tuning on a view and its trial send forward and backward through the modules.

    Args:
        steps: of tuning.
    """
    return (steps + min(steps, _TRIAL_STEPS)) * _BATCH


def before_target_alone(extractor: nn.Module) -> bool:
    """Whether an extractor begins with what undoes a view, which is for the target's records and for no others."""
    return isinstance(extractor, nn.Sequential) and len(extractor) > 1 and isinstance(extractor[0], FeatureAffine)


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
    undone = {name: fitted.view.undone() for name, fitted in fits.items() if fitted.convinced}
    views = {name: fits[name].tuned_by or fits[name].view for name, first in undone.items() if first is None}
    tuned: tuple[nn.Module, nn.Module] = (extractor, classifier)
    trials: list[Trial] = []
    if views:
        view: View = next(iter(views.values()))
        if len(views) > 1:
            view = MixedViews(list(views.values()), [shares[name] for name in views], seed)

        tuned = tune(extractor, classifier, view, source, steps=steps, generator=generator, bar=bar, ranks=ranks)
        if not view.keeps_scores:
            trial = _held_out if view.tunes_extractor else _folds
            trials = trial(extractor, classifier, view, source, min(steps, _TRIAL_STEPS), generator, ranks)
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
            own, of = tuned, trials
            if (first := undone[name]) is not None:
                own = (nn.Sequential(first, unchanged[0]), unchanged[1])
                of = [Trial(unchanged, own, source)]
            gain, error = ranks.share(partial(expected_gain, of, fitted.view))
            if fitted.view.keeps_scores or gain > fitted.view.sure * error + (optimism or 0.0):
                model = own
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


@dataclass(frozen=True)
class Trial:
    """Two models, extractor and classifier each, and labelled source records that the second was not tuned on."""

    before: tuple[nn.Module, nn.Module]
    after: tuple[nn.Module, nn.Module]
    held: Labelled


def _held_out(
    extractor: nn.Module,
    classifier: nn.Module,
    view: View,
    source: Labelled,
    steps: int,
    generator: torch.Generator,
    ranks: Ranks,
) -> list[Trial]:
    """Where all weights are tuned: some records are held out once, and the source-trained model has seen them.

    So the gain is rather too small than too large.
    """
    order = torch.randperm(len(source), generator=generator).to(source.labels.device)
    count = min(_MOST_HELD_OUT, int(_HELD_OUT * len(source)))
    rest, held = source.part(order[count:]), source.part(order[:count])
    with reporting("", steps, shown=False) as bar:
        tuned = tune(extractor, classifier, view, rest, steps=steps, generator=generator, bar=bar, ranks=ranks)
    return [Trial((extractor, classifier), tuned, held)]


def _folds(
    extractor: nn.Module,
    classifier: nn.Module,
    view: View,
    source: Labelled,
    steps: int,
    generator: torch.Generator,
    ranks: Ranks,
) -> list[Trial]:
    """Where the extractor stays as it is, every record is held out once, and features are computed once.

    Both models of a trial are tuned for as long on the same records, one of them without the view: a classifier that
    knows its training records by heart would otherwise look better than it is.
    """
    with torch.no_grad():
        features = torch.cat([extractor(records) for records in torch.split(source.images, _AT_ONCE)])
    data, still = Labelled(features, source.labels), FeatureView(torch.ones_like(features[0]))
    numbers = torch.randperm(len(data), generator=generator).to(source.labels.device) % _FOLDS
    trials = []
    for number in range(_FOLDS):
        rest, held = data.part(numbers != number), data.part(numbers == number)
        with reporting("", 2 * steps, shown=False) as bar:
            before, after = (
                tune(nn.Identity(), classifier, one, rest, steps=steps, generator=generator, bar=bar, ranks=ranks)
                for one in (still, view)
            )
        trials.append(Trial(before, after, held))
    return trials


@torch.no_grad()
def expected_gain(trials: Sequence[Trial], view: View) -> tuple[float, float]:
    """Gain in accuracy on source records seen through a view, and its standard error, in percentage points.

    Args:
        trials: what is compared.
        view: fitted.
    """

    def right(model: tuple[nn.Module, nn.Module], held: Labelled) -> Tensor:
        scores = [model[1](view(model[0], records)) for records in torch.split(held.images, _AT_ONCE)]
        return (torch.cat(scores).argmax(dim=1) == held.labels).double()

    gains = [100.0 * (right(one.after, one.held) - right(one.before, one.held)) for one in trials if len(one.held)]
    each = torch.cat(gains) if gains else torch.zeros(0)
    if len(each) < 2:
        return 0.0, math.inf
    return float(each.mean()), float(each.std()) / math.sqrt(len(each))


def tune(
    extractor: nn.Module,
    classifier: nn.Module,
    view: View,
    source: Labelled,
    *,
    steps: int,
    generator: torch.Generator,
    bar: Reporter,
    ranks: Ranks | None = None,
) -> tuple[nn.Module, nn.Module]:
    """Copies of both modules, fine-tuned on labelled source records seen through the view.

    Images vary a little at random, which makes up for what the view missed. An extractor whose features the view
    changes stays as it is. A view that keeps scores is not given labels: the classifier learns to say of what is seen
    what it said of the record itself, so that the labels' chance adds nothing, and the identity changes nothing.

    Args:
        extractor: source-trained.
        classifier: source-trained.
        view: fitted.
        source: public.
        steps: updates.
        generator: of the batches.
        bar: told of each step.
        ranks: that share each batch; each varies the images of its part by itself, and gradients are averaged.
    """
    ranks = ranks or Ranks()
    varied = generator
    if ranks.size > 1:
        first = int(torch.randint(2**31, (1,), generator=generator))
        varied = torch.Generator().manual_seed(first + ranks.rank)
    extractor, classifier = laid_out(extractor, source.images), copy.deepcopy(classifier)
    trained = [*(extractor.parameters() if view.tunes_extractor else ()), *classifier.parameters()]
    view.requires_grad_(False)
    extractor.requires_grad_(False)
    scores: Tensor | None = None
    if view.keeps_scores:
        with torch.no_grad():
            scores = torch.softmax(classifier(extractor(source.images)), dim=1)
    for parameter in trained:
        parameter.requires_grad_(True)
    optimizer = torch.optim.Adam(trained, lr=_RATE)
    for t in range(steps):
        optimizer.param_groups[0]["lr"] = _RATE * (1.0 - t / steps)
        chosen = torch.randint(len(source), (min(_BATCH, len(source)),), generator=generator)
        part = len(chosen[ranks.rank :: ranks.size]) * ranks.size / len(chosen)  # of the mean over ranks
        chosen = chosen[ranks.rank :: ranks.size]
        features = view(extractor, source.images[chosen], varied)
        targets = source.labels[chosen] if scores is None else scores[chosen]
        loss = functional.cross_entropy(classifier(features), targets)
        optimizer.zero_grad()
        torch.autograd.backward(part * loss)
        ranks.average_gradients(trained)
        optimizer.step()
        bar.advance(f"class loss {float(loss.detach()):.3f}")
    return extractor.eval(), classifier.eval()
