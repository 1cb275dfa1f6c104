"""Training on, on source records drawn by the target's class frequencies, where priors are corrected by them.

Log weights on the scores are all that other frequencies ask of a classifier that is right; of one that must choose what
to be right about, more can be had: errors on classes that the target has are what is to be spared (importance-weighted
training; Shimodaira 2000). The loss is taken of corrected scores, so that training begins at the plain correction.

Whether it gains is tried on the model's twins (`cross_fitting`), each trained on without its part of the source and
asked of that part: it must gain over the plain correction by more than chance, with no more risk than that may have
under the frequencies' posterior, by the twins and on the model's own records (`priors`). A part of such a gain is what
training for longer brings without any release; the same trial on the source as it is says how much, that is told, and
it must be less. Twins have often learned a little less than the model, so both gains are rather too large.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from dpswd.public_client.data.progress import Reporter
from dpswd.public_client.data.ranks import Ranks
from dpswd.public_client.replay.cross_fitting import FOLDS, Crossed, laid_out, scores_of, seeded, updates
from dpswd.public_client.replay.priors import MOST_LOST, UNSURE, changes, expected_change, frequency_gains

STEPS = 600
"""Updates at most."""
_RATE = 3e-3  # of Adam at first; falls to 0
_SURE = 2.0  # standard errors by which it must gain over the plain correction


def most_updates(sites: int) -> int:
    """That are told to a bar, at most, where the priors of so many sites are corrected."""
    return STEPS * ((FOLDS + 1) * sites + FOLDS * (sites > 0))


@dataclass(frozen=True)
class Trained:
    """What training on comes to.

    Attributes:
        modules: extractor and classifier, trained on; None if the plain correction is not clearly surpassed.
        reason: in words.
    """

    modules: tuple[nn.Module, nn.Module] | None
    reason: str


class Onward:
    """Training on of one source-trained model, for any number of sites.

    Args:
        crossed: its twins.
        extractor: which stays where twins are the classifier's alone.
        steps: updates; more than `STEPS` are not made.
        seed: of the batches.
        ranks: the processes that share the twins.
        bar: told of each update.
    """

    def __init__(
        self, crossed: Crossed, extractor: nn.Module, *, steps: int, seed: int, ranks: Ranks, bar: Reporter
    ) -> None:
        self._crossed, self._extractor, self._ranks, self._bar = crossed, extractor, ranks, bar
        self._steps = min(steps, STEPS)
        generator = torch.Generator().manual_seed(seed)
        self._seeds = torch.randint(2**31, (FOLDS + 1,), generator=generator).tolist()

    def by(self, weights: Tensor, draws: Tensor) -> Trained:
        """The model trained on by the target's class frequencies, if that is safe and gains.

        Args:
            weights: (classes,), positive: the target's frequency of each class over the source's, as priors are
                corrected by them.
            draws: (s, classes), plausible ones.
        """
        crossed, bias, mean = self._crossed, torch.log(weights), draws.mean(dim=0)
        labels, plain = crossed.data.labels, crossed.scores + bias
        answers = self._answers(weights)
        tried = answers + bias
        state, before, untouched = self._ranks.share(lambda: self._whole(weights))  # processors may round differently
        readings = (crossed.scores, tried), (before.to(bias), untouched.to(bias) + bias)
        low = min(
            float(frequency_gains(changes(first, second, labels), labels, draws).quantile(UNSURE))
            for first, second in readings
        )
        gain, error = expected_change(changes(plain, tried, labels), labels, mean)
        way = f"by source records drawn by these frequencies ({gain:+.1f} ± {error:.1f} points on records left out"
        if low <= -MOST_LOST:
            return Trained(None, f"no weight changes, as training on {way}) may do harm")
        if gain <= _SURE * error:
            return Trained(None, f"no weight changes, as training on {way}) is no clear gain")
        longer, chance = expected_change(changes(plain, self._as_it_is + bias, labels), labels, mean)
        way += f"; {longer:+.1f} ± {chance:.1f} by the source as it is, for which no release is needed)"
        if longer >= gain:
            return Trained(None, f"no weight changes, as training on {way} owes nothing to the frequencies")
        module = copy.deepcopy(crossed.module)
        module.load_state_dict(state)
        extractor, classifier = module.eval().children() if crossed.both else (self._extractor, module.eval())
        return Trained((copy.deepcopy(extractor), classifier), f"weights are trained on {way}")

    @cached_property
    def _as_it_is(self) -> Tensor:
        """(m, classes), of each part by its twin that is trained on without the target's frequencies."""
        return self._answers(torch.ones_like(self._crossed.scores[0]))

    def _answers(self, weights: Tensor) -> Tensor:
        """(m, classes), of each part by its twin that is trained on without it."""
        crossed = self._crossed

        def one(number: int) -> Tensor:
            twin = self._trained_on(crossed.models[number], crossed.parts != number, weights, self._seeds[number])
            return scores_of(twin, crossed.data.images[crossed.parts == number]).cpu()

        answers = torch.zeros_like(crossed.scores)
        for number, own in enumerate(self._ranks.divided(FOLDS, one)):  # each by the process that has the twin
            answers[crossed.parts == number] = own.to(answers)
        return answers

    def _whole(self, weights: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """The module's state after training on by all records; its scores of these (m, classes), before and after."""
        crossed = self._crossed
        module = self._trained_on(crossed.module, crossed.parts >= 0, weights, self._seeds[-1])
        state = {name: value.cpu() for name, value in module.state_dict().items()}
        before, after = (scores_of(one, crossed.data.images).cpu() for one in (crossed.module, module))
        return state, before, after

    def _trained_on(self, module: nn.Module, chosen: Tensor, weights: Tensor, seed: int) -> nn.Module:
        """A copy, trained on the records that are kept (m,); what the team has fixed stays."""
        data = self._crossed.data.part(chosen)
        module = laid_out(module, data.images)
        with seeded(seed, data.images.device):
            for _ in updates(module, data, seed=seed, steps=self._steps, rate=_falling, bar=self._bar, weights=weights):
                continue
        return module.eval()


def _falling(over: float) -> float:
    return _RATE * (1.0 - over)
