"""What a classifier says of records that it was not trained on, where there are only those that it was trained on.

A model that knows its training records by heart is always right there, whatever is added to its scores; what a
correction gains or costs on fresh records cannot be read on them. So it is read on *twins* (cross-fitting): the same
modules from fresh weights, each trained without one part of the source until its class loss on its own records is the
model's, and then asked of the part that was left out. A twin is thus as sure of itself as the model is.

What the team marks as fixed (`requires_grad` is false) stays. Where fresh weights cannot be brought to learn as much in
`_STEPS` updates (a backbone that was trained on much more), the extractor stays whole and the classifier's twins are
asked; then what the extractor itself knows by heart remains unseen, which is said.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from public_client.data.datasets import Labelled
from public_client.data.progress import Reporter
from public_client.data.ranks import Ranks

_FOLDS = 3
_STEPS = 1000  # updates of one twin, at most
MOST_STEPS = 2 * _FOLDS * _STEPS
"""Updates that are told to a bar, at most: of twins of both modules, and of the classifier alone."""
_EVERY = 50  # updates between two looks at how much it has learned
_BATCH = 128
_RATE = 2e-3
_AT_ONCE = 1024  # records
_LOOKED_AT = 2048  # records of a look
_AS_WELL = 1.2, 0.02  # times, and nats more, that a twin's class loss may be the model's


@dataclass(frozen=True)
class Honest:
    """Scores of records by models that were not trained on them.

    Attributes:
        scores: (m, classes), of the source's records in their order.
        known: (m, classes), the same by the model, which was.
        told: whose they are, in words.
    """

    scores: Tensor
    known: Tensor
    told: str


def honest_scores(
    extractor: nn.Module,
    classifier: nn.Module,
    source: Labelled,
    *,
    seed: int,
    steps: int = _STEPS,
    ranks: Ranks | None = None,
    bar: Reporter | None = None,
) -> Honest:
    """Of the source's records, by twins of both modules, or of the classifier alone.

    Args:
        extractor: source-trained; parameters that are fixed do not require gradients.
        classifier: source-trained.
        source: labelled records that they were trained on.
        seed: of the parts and of the twins' weights and batches.
        steps: updates of one twin, at most.
        ranks: processes with the same source that share the twins.
        bar: told of each update.
    """
    ranks, bar = ranks or Ranks(), bar or Reporter()
    with torch.no_grad():
        features = torch.cat([extractor(records) for records in torch.split(source.images, _AT_ONCE)])
    own = Labelled(features, source.labels)
    before = _scores(classifier, features)
    wanted = _wanted(before, source)
    known = f"right on {_right(before, source):.1f}% of the source's records, which it was trained on"
    if _learns(extractor):
        scores, learned = _cross_fitted(nn.Sequential(extractor, classifier), source, wanted, seed, steps, ranks, bar)
        if learned:
            return Honest(
                scores, before, f"by models trained without them, {_told(scores, source)} (the model is {known})"
            )
    scores, learned = _cross_fitted(classifier, own, wanted, seed, steps, ranks, bar)
    if _learns(extractor):
        known += "; what its extractor knows of them by heart is not known, as training it anew takes too long here"
    if not learned:
        known += "; trained anew, the classifier learns less"
    return Honest(
        scores, before, f"by classifiers trained without them, {_told(scores, source)} (the model is {known})"
    )


def known_by_heart(
    extractor: nn.Module,
    classifier: nn.Module,
    source: Labelled,
    *,
    seed: int,
    ranks: Ranks | None = None,
    bar: Reporter | None = None,
) -> float | None:
    """Percentage points of accuracy by which features that were learned on the source's records flatter there.

    The classifier's twins see such features of records that were left out, twins of both modules honest ones. A fixed
    extractor flatters by nothing; None if both modules take too long to train anew.

    Args:
        extractor: see `honest_scores`.
        classifier: see there.
        source: see there.
        seed: see there.
        ranks: see there.
        bar: told of each update.
    """
    if not _learns(extractor):
        return 0.0
    ranks, bar = ranks or Ranks(), bar or Reporter()
    with torch.no_grad():
        features = torch.cat([extractor(records) for records in torch.split(source.images, _AT_ONCE)])
    wanted = _wanted(_scores(classifier, features), source)
    whole, learned = _cross_fitted(nn.Sequential(extractor, classifier), source, wanted, seed, _STEPS, ranks, bar)
    if not learned:
        return None
    alone, _ = _cross_fitted(classifier, Labelled(features, source.labels), wanted, seed, _STEPS, ranks, bar)
    return max(0.0, _right(alone, source) - _right(whole, source))


def _wanted(scores: Tensor, source: Labelled) -> float:
    """The class loss that a twin is to come to."""
    return _AS_WELL[0] * float(functional.cross_entropy(scores, source.labels)) + _AS_WELL[1]


def _told(scores: Tensor, source: Labelled) -> str:
    return f"which are right on {_right(scores, source):.1f}%"


def _learns(module: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())


def _cross_fitted(
    module: nn.Module, source: Labelled, wanted: float, seed: int, steps: int, ranks: Ranks, bar: Reporter
) -> tuple[Tensor, bool]:
    """Scores (m, classes) of each part by a twin that was trained without it, and whether all learned enough."""
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randperm(len(source), generator=generator).to(source.labels.device) % _FOLDS
    seeds = torch.randint(2**31, (_FOLDS,), generator=generator).tolist()

    def one(number: int) -> tuple[Tensor, bool]:
        kept, held = (numbers != number).nonzero()[:, 0], (numbers == number).nonzero()[:, 0]
        twin = _fresh(module, seeds[number])
        learned = _train(twin, Labelled(source.images[kept], source.labels[kept]), wanted, seeds[number], steps, bar)
        return _scores(twin, source.images[held]).cpu(), learned

    found = ranks.divided(_FOLDS, one)
    scores = torch.zeros(len(source), found[0][0].shape[1], device=source.labels.device)
    for number, (own, _) in enumerate(found):
        scores[numbers == number] = own.to(scores)
    return scores, all(learned for _, learned in found)


def _fresh(module: nn.Module, seed: int) -> nn.Module:
    """A copy whose learned weights are drawn anew, as its modules draw them."""
    twin = copy.deepcopy(module)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for part in twin.modules():
            draw: Callable[[], None] | None = getattr(
                part, "reset_parameters", getattr(part, "_reset_parameters", None)
            )
            if draw is not None and all(parameter.requires_grad for parameter in part.parameters()):
                draw()
    return twin


def _train(twin: nn.Module, kept: Labelled, wanted: float, seed: int, steps: int, bar: Reporter) -> bool:
    """In place, with Adam, until its class loss on its records is as low as wanted; whether it came to that."""
    learned = [parameter for parameter in twin.parameters() if parameter.requires_grad]
    if not learned:
        return False
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(learned, lr=_RATE)
    for step in range(1, steps + 1):
        twin.train()
        chosen = torch.randint(len(kept), (min(_BATCH, len(kept)),), generator=generator)
        loss = functional.cross_entropy(twin(kept.images[chosen]), kept.labels[chosen])
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        bar.advance(f"class loss {float(loss.detach()):.3f}")
        if step % _EVERY == 0:
            twin.eval()
            scores = _scores(twin, kept.images[:_LOOKED_AT])
            if float(functional.cross_entropy(scores, kept.labels[:_LOOKED_AT])) <= wanted:
                return True
    twin.eval()
    return False


def _right(scores: Tensor, data: Labelled) -> float:
    """Percent."""
    return 100.0 * float((scores.argmax(dim=1) == data.labels).double().mean())


@torch.no_grad()
def _scores(module: nn.Module, records: Tensor) -> Tensor:
    return torch.cat([module(part) for part in torch.split(records, _AT_ONCE)])
