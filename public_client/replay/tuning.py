"""Fine-tuning on source records seen through a view, and trials of what that gains on records that were left out."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpswd.public_client.data.datasets import Labelled
from dpswd.public_client.data.progress import Reporter
from dpswd.public_client.data.ranks import Ranks
from dpswd.public_client.replay.cross_fitting import laid_out, scores_of
from dpswd.public_client.replay.views import FeatureView, View

_BATCH = 128
_RATE = 1e-3
_HELD_OUT = 0.1  # of the source, that the extractor of a trial is not tuned on
_MOST_HELD_OUT = 1000
_FOLDS = 3
_TRIAL_STEPS = 400
_AT_ONCE = 1024  # records


def record_passes(steps: int) -> int:
    """Records that tuning on a view and its trial send forward and backward through the modules.

    Args:
        steps: of tuning.
    """
    return (steps + min(steps, _TRIAL_STEPS)) * _BATCH


def trials_of(
    extractor: nn.Module,
    classifier: nn.Module,
    view: View,
    source: Labelled,
    steps: int,
    generator: torch.Generator,
    ranks: Ranks,
) -> list[Trial]:
    """What tuning on a view, for a while, does on records that were left out; nothing where it keeps scores."""
    if view.keeps_scores:
        return []
    most = min(steps, _TRIAL_STEPS)

    def tuned(module: nn.Module, one: View, rest: Labelled) -> tuple[nn.Module, nn.Module]:
        return tune(module, classifier, one, rest, steps=most, generator=generator, bar=Reporter(), ranks=ranks)

    if view.tunes_extractor:
        rest, held = _parted(source, generator)
        return [Trial((extractor, classifier), tuned(extractor, view, rest), held)]
    return _folds(extractor, view, source, generator, tuned)


@dataclass(frozen=True)
class Trial:
    """Two models, extractor and classifier each, and labelled source records that the second was not tuned on."""

    before: tuple[nn.Module, nn.Module]
    after: tuple[nn.Module, nn.Module]
    held: Labelled


def _parted(source: Labelled, generator: torch.Generator) -> tuple[Labelled, Labelled]:
    """Where all weights are tuned: some records are held out once, and the source-trained model has seen them.

    So the gain is rather too small than too large.
    """
    order = torch.randperm(len(source), generator=generator).to(source.labels.device)
    count = min(_MOST_HELD_OUT, int(_HELD_OUT * len(source)))
    return source.part(order[count:]), source.part(order[:count])


def _folds(
    extractor: nn.Module,
    view: View,
    source: Labelled,
    generator: torch.Generator,
    tuned: Callable[[nn.Module, View, Labelled], tuple[nn.Module, nn.Module]],
) -> list[Trial]:
    """Where the extractor stays as it is, every record is held out once, and features are computed once.

    Both models of a trial are tuned for as long on the same records, one of them without the view: a classifier that
    knows its training records by heart would otherwise look better than it is.
    """
    features = scores_of(extractor, source.images)
    data, still = Labelled(features, source.labels), FeatureView(torch.ones_like(features[0]))
    numbers = torch.randperm(len(data), generator=generator).to(source.labels.device) % _FOLDS
    trials = []
    for number in range(_FOLDS):
        rest, held = data.part(numbers != number), data.part(numbers == number)
        before, after = (tuned(nn.Identity(), one, rest) for one in (still, view))
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

    Images vary a little at random, which makes up for what the view missed. Batch normalisation takes the statistics of
    what is seen, its own for each view. An extractor whose features the view changes stays as it is. A view that keeps
    scores is not given labels: the classifier learns to say of what is seen what it said of the record itself, so that
    the labels' chance adds nothing, and the identity changes nothing.

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
    first = int(torch.randint(2**31, (1,), generator=generator))
    varied = torch.Generator().manual_seed(first + ranks.rank)
    extractor, classifier = laid_out(extractor, source.images), copy.deepcopy(classifier)
    labels = source.labels
    if view.keeps_scores:
        with torch.no_grad():
            labels = torch.softmax(classifier(extractor(source.images)), dim=1)
    for module, learns in ((view, False), (extractor, view.tunes_extractor), (classifier, True)):
        module.requires_grad_(learns)
    trained = [*(extractor.parameters() if view.tunes_extractor else ()), *classifier.parameters()]
    for module in extractor.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.track_running_stats:
            module.train(view.tunes_extractor)
    optimizer = torch.optim.Adam(trained, lr=_RATE)
    for t in range(steps):
        optimizer.param_groups[0]["lr"] = _RATE * (1.0 - t / steps)
        chosen = torch.randint(len(source), (min(_BATCH, len(source)),), generator=generator)
        part = len(chosen[ranks.rank :: ranks.size]) * ranks.size / len(chosen)  # of the mean over ranks
        chosen = chosen[ranks.rank :: ranks.size]
        loss = functional.cross_entropy(classifier(view(extractor, source.images[chosen], varied)), labels[chosen])
        optimizer.zero_grad()
        torch.autograd.backward(part * loss)
        ranks.average_gradients(trained)
        optimizer.step()
        bar.advance(f"class loss {float(loss.detach()):.3f}")
    extractor.load_state_dict(ranks.share(extractor.state_dict))  # each process has normalised its own part
    return extractor.eval(), classifier.eval()
