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
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpswd.public_client.data.datasets import Labelled
from dpswd.public_client.data.progress import Reporter
from dpswd.public_client.data.ranks import Ranks

FOLDS = 3
_STEPS = 1000  # updates of one twin, at most
MOST_STEPS = 2 * FOLDS * _STEPS
"""Updates that are told to a bar, at most: of twins of both modules, and of the classifier alone."""
_EVERY = 50  # updates between two looks at how much it has learned
_BATCH = 128
_RATE = 2e-3
_AT_ONCE = 1024  # records
_LOOKED_AT = 2048  # records of a look
_AS_WELL = 1.2, 0.02  # times, and nats more, that a twin's class loss may be the model's


@dataclass(frozen=True)
class OutOfFold:
    """Scores of records by models that were not trained on them.

    Attributes:
        scores: (m, classes), of the source's records in their order.
        in_sample: (m, classes), the same by the model, which was.
        origin: whose they are, in words.
    """

    scores: Tensor
    in_sample: Tensor
    origin: str


@dataclass(frozen=True)
class Crossed:
    """A module, and its twins of parts of the source.

    Attributes:
        module: what was trained anew: inputs to scores.
        both: whether it is extractor and classifier in a row, not the classifier alone.
        data: its inputs, of the source's m records, with their labels.
        parts: (m,), from 0 to `FOLDS` - 1: the part that each record is in.
        models: by the part that a twin was trained without; each is held by the process that trained it.
        scores: (m, classes), of each part by its twin.
        learned: whether every twin learned as much as the module.
    """

    module: nn.Module
    both: bool
    data: Labelled
    parts: Tensor
    models: dict[int, nn.Module]
    scores: Tensor
    learned: bool


class CrossFit:
    """Twins of a model; they are trained when they are first asked.

    Args:
        extractor: source-trained; parameters that are fixed do not require gradients.
        classifier: source-trained.
        source: labelled records that they were trained on.
        seed: of the parts and of the twins' weights and batches.
        steps: updates of one twin, at most.
        ranks: processes with the same source that share the twins.
        bar: told of each update.
    """

    def __init__(
        self,
        extractor: nn.Module,
        classifier: nn.Module,
        source: Labelled,
        *,
        seed: int,
        steps: int = _STEPS,
        ranks: Ranks | None = None,
        bar: Reporter | None = None,
    ) -> None:
        self._extractor, self._classifier, self._source = extractor, classifier, source
        self._seed, self._steps, self._ranks, self._bar = seed, steps, ranks or Ranks(), bar or Reporter()

    @cached_property
    def _features(self) -> Tensor:
        return scores_of(self._extractor, self._source.images)

    @cached_property
    def _in_sample(self) -> Tensor:
        return scores_of(self._classifier, self._features)

    @cached_property
    def _whole(self) -> Crossed | None:
        """Twins of both modules; None if they cannot be brought to learn as much."""
        if not _learns(self._extractor):
            return None
        crossed = self._crossed(nn.Sequential(self._extractor, self._classifier), self._source.images)
        return crossed if crossed.learned else None

    @cached_property
    def _alone(self) -> Crossed:
        """Twins of the classifier; none of a fixed one, which is asked itself."""
        if not _learns(self._classifier):
            return self._itself(self._classifier, self._features, learned=True)
        return self._crossed(self._classifier, self._features)

    def crossed(self) -> Crossed | None:
        """Twins of all that is learned, which know nothing of the records that they are asked of.

        Of both modules, or of the classifier behind a fixed extractor; None if there are none, or they learn less.
        """
        if _learns(self._extractor):
            return self._whole
        return self._alone if _learns(self._classifier) and self._alone.learned else None

    def out_of_fold(self) -> OutOfFold:
        """What is said of the source's records by models that were not trained on them, as far as there are any."""
        right = _right(self._in_sample, self._source)
        if not _learns(self._extractor) and not _learns(self._classifier):
            origin = f"of the model, which was trained on none of them and is right on {right:.1f}%"
            return OutOfFold(self._in_sample, self._in_sample, origin)
        model = f"right on {right:.1f}% of the source's records, which it was trained on"
        if self._whole is not None:
            scores = self._whole.scores
            origin = f"by models trained without them, {_say_accuracy(scores, self._source)} (the model is {model})"
            return OutOfFold(scores, self._in_sample, origin)
        scores = self._alone.scores
        if _learns(self._extractor):
            model += "; what its extractor knows of them by heart is not known, as training it anew takes too long here"
        if not _learns(self._classifier):
            return OutOfFold(scores, self._in_sample, f"of the model, which is {model}")
        if not self._alone.learned:
            model += "; trained anew, the classifier learns less"
        origin = f"by classifiers trained without them, {_say_accuracy(scores, self._source)} (the model is {model})"
        return OutOfFold(scores, self._in_sample, origin)

    def optimism(self) -> float | None:
        """Percentage points of accuracy by which features that were learned on the source's records flatter there.

        The classifier's twins see such features of records that were left out, twins of both modules honest ones. A
        fixed extractor flatters by nothing; None if both modules take too long to train anew.
        """
        if not _learns(self._extractor):
            return 0.0
        if self._whole is None:
            return None
        seen = _right(self._alone.scores if self._alone.learned else self._in_sample, self._source)
        return max(0.0, seen - _right(self._whole.scores, self._source))

    def _itself(self, module: nn.Module, inputs: Tensor, *, learned: bool) -> Crossed:
        """In the place of twins."""
        labels = self._source.labels
        both, data = module is not self._classifier, Labelled(inputs, labels)
        return Crossed(module, both, data, torch.zeros_like(labels), {}, self._in_sample, learned)

    def _crossed(self, module: nn.Module, inputs: Tensor) -> Crossed:
        """Each part's scores by a twin that was trained without it."""
        labels = self._source.labels
        if len(labels) < 2 * FOLDS:
            return self._itself(module, inputs, learned=False)
        target = _AS_WELL[0] * float(functional.cross_entropy(self._in_sample, labels)) + _AS_WELL[1]
        generator = torch.Generator().manual_seed(self._seed)
        parts = torch.randperm(len(labels), generator=generator).to(labels.device) % FOLDS
        seeds = torch.randint(2**31, (FOLDS,), generator=generator).tolist()
        models: dict[int, nn.Module] = {}
        data = Labelled(inputs, labels)

        def one(number: int) -> tuple[Tensor, bool]:
            with seeded(seeds[number], inputs.device):
                models[number] = twin = laid_out(_fresh(module), inputs)
                learned = _train(twin, data.part(parts != number), target, seeds[number], self._steps, self._bar)
            return scores_of(twin, inputs[parts == number]).cpu(), learned

        answers = self._ranks.divided(FOLDS, one)
        scores = torch.zeros(len(labels), answers[0][0].shape[1], device=labels.device)
        for number, (own, _) in enumerate(answers):
            scores[parts == number] = own.to(scores)
        both, learned = module is not self._classifier, all(learned for _, learned in answers)
        return Crossed(module, both, data, parts, models, scores, learned)


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """What modules draw for themselves, weights and dropout, is the seed's, and the caller's own state stays."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            torch.cuda.manual_seed(seed)
        yield


def _say_accuracy(scores: Tensor, source: Labelled) -> str:
    return f"which are right on {_right(scores, source):.1f}%"


def _learns(module: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())


@torch.no_grad()
def _fresh(module: nn.Module) -> nn.Module:
    """A copy whose learned weights are drawn anew: as its modules draw them, or else normal with their deviation."""
    twin = copy.deepcopy(module)
    for part in twin.modules():
        own = list(part.parameters())
        draw = getattr(part, "reset_parameters", getattr(part, "_reset_parameters", None))
        if own and draw is not None and all(parameter.requires_grad for parameter in own):
            asked = inspect.signature(draw).parameters.values()
            if all(one.default is not one.empty or one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD) for one in asked):
                draw()
    for before, after in zip(module.parameters(), twin.parameters(), strict=True):
        if after.requires_grad and after.numel() > 1 and torch.equal(before, after):
            after.normal_(float(before.mean()), float(before.std()))
    return twin


def _train(twin: nn.Module, data: Labelled, target: float, seed: int, steps: int, bar: Reporter) -> bool:
    """In place until its class loss on its records is as low as wanted; whether it came to that."""
    if not _learns(twin):
        return False
    for step in updates(twin, data, seed=seed, steps=steps, rate=lambda _: _RATE, bar=bar):
        if step % _EVERY == 0:
            twin.eval()
            scores = scores_of(twin, data.images[:_LOOKED_AT])
            if float(functional.cross_entropy(scores, data.labels[:_LOOKED_AT])) <= target:
                return True
    twin.eval()
    return False


def updates(
    module: nn.Module,
    data: Labelled,
    *,
    seed: int,
    steps: int,
    rate: Callable[[float], float],
    bar: Reporter,
    weights: Tensor | None = None,
) -> Iterator[int]:
    """Trains a module in place by Adam on its class loss, and yields the number of updates after each.

    Args:
        module: inputs to scores; what is fixed of it stays. It is left in training mode.
        data: inputs and labels.
        seed: of the batches.
        steps: updates.
        rate: learning rate where so much, from 0 to 1, is over.
        bar: told of each update.
        weights: (classes,), positive: how often a record of each class is drawn, and what corrects its score.
    """
    learned = [parameter for parameter in module.parameters() if parameter.requires_grad]
    generator, count = torch.Generator().manual_seed(seed), min(_BATCH, len(data))
    bias = None if weights is None else torch.log(weights)
    drawn = None if weights is None else weights[data.labels].cpu()
    optimizer = torch.optim.Adam(learned, lr=rate(0.0))
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = rate(step / steps)
        trained_mode(module)
        if drawn is None:
            chosen = torch.randint(len(data), (count,), generator=generator)
        else:
            chosen = torch.multinomial(drawn, count, replacement=True, generator=generator)
        scores = module(data.images[chosen])
        loss = functional.cross_entropy(scores if bias is None else scores + bias, data.labels[chosen])
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        bar.advance(f"class loss {float(loss.detach()):.3f}")
        yield step + 1


def trained_mode(twin: nn.Module) -> None:
    """What is fixed stays in evaluation mode: a fixed batch norm learns nothing either."""
    twin.train()
    for part in twin.modules():
        if any(True for _ in part.parameters()) and not _learns(part):
            part.eval()


def _right(scores: Tensor, data: Labelled) -> float:
    """Percent."""
    return 100.0 * float((scores.argmax(dim=1) == data.labels).double().mean())


@torch.no_grad()
def scores_of(module: nn.Module, records: Tensor) -> Tensor:
    """(m, classes), of records (m, ...)."""
    return torch.cat([module(part) for part in torch.split(records, _AT_ONCE)])


def laid_out(extractor: nn.Module, records: Tensor) -> nn.Module:
    """A copy; for images its weights are stored channels last, with which a processor computes a third faster."""
    copied = copy.deepcopy(extractor)
    return copied.to(memory_format=torch.channels_last) if records.dim() == 4 else copied  # type: ignore[call-overload]
