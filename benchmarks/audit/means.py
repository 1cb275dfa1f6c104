"""Attacks on releases whose mean the attacker knows: Gaussian noise around one of two points, a distance apart.

Every record but the canary is known, and the batch is full, so nothing but the noise is random. The means are written
here once more, by hand where that is short, so that a release that moves further than its own price says is seen.
"""

from __future__ import annotations

import abc
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.audit.attacks import GAIN, SLICED_ATTACKS, Attack, Released
from dpswd.shared.core.mechanisms.class_statistics.geometry import Weights
from dpswd.shared.core.mechanisms.class_statistics.mechanism import (
    CLASS_STATISTICS,
    StatisticsDeclaration,
    StatisticsRequest,
)
from dpswd.shared.core.mechanisms.evaluation.counts import CONFIDENCE_WEIGHT
from dpswd.shared.core.mechanisms.evaluation.mechanism import (
    CALIBRATION_SENSITIVITY,
    CONFUSION_SENSITIVITY,
    EVALUATION,
    EvaluationDeclaration,
    EvaluationRequest,
)
from dpswd.shared.core.mechanisms.feature_sums.mechanism import FEATURE_SUMS, SumsDeclaration, SumsRequest
from dpswd.shared.core.mechanisms.score_statistics.mechanism import SCORE_STATISTICS, ScoresDeclaration, ScoresRequest
from dpswd.shared.core.mechanisms.sliced import labelled
from dpswd.shared.core.noise.clipping import RECORD_NORM, clip_records
from dpswd.shared.core.noise.feature_map import FeatureMap
from dpswd.shared.core.wire.messages import StepRelease
from dpswd.shared.models.free_weights import free_moment_weight, with_free_counts
from dpswd.shared.published_mechanisms import ALL_MECHANISMS
from dpswd.shared.published_mechanisms.clipped_sum import ClippedSum
from dpswd.shared.published_mechanisms.labelled_gradient.mechanism import (
    LABELLED_GRADIENT,
    LabelledGradientDeclaration,
    LossGradientRequest,
)
from dpswd.shared.published_mechanisms.sinkhorn.mechanism import SINKHORN, SinkhornDeclaration, SinkhornRequest
from dpswd.shared.published_mechanisms.sinkhorn.transport import semi_debiased


@dataclass(frozen=True)
class MeanAttack(Attack):
    """One release of a full batch, whose mean in D and in D' the attacker knows."""

    @abc.abstractmethod
    def mean(self, *, neighbour: bool) -> Tensor:
        """What the honest curator would release without noise, flat."""

    @abc.abstractmethod
    def parts(self, reply: Any) -> Sequence[Any]:
        """The released arrays of a reply, as many as the event has parts."""

    @functools.cached_property
    def means(self) -> tuple[Tensor, Tensor]:
        """Of D and of D'."""
        return self.mean(neighbour=False), self.mean(neighbour=True)

    def released(self, release: StepRelease, sigmas: tuple[float, ...]) -> Released:
        """What a step's reply says, all of it in units of its noise."""
        parts = self.parts(ALL_MECHANISMS[self.mechanism].reply.from_bytes(release.payload))
        flat = [part.to_tensor(dtype=torch.float64).reshape(-1) for part in parts]
        noise = tuple(sigma for sigma, part in zip(sigmas, flat, strict=True) for _ in part)
        return Released(b"", torch.cat(flat), None, noise)


def of_mean(attack: Attack, releases: Sequence[Released]) -> float:
    """Sum over steps of the exact log-likelihood ratio of everything that was released."""
    assert isinstance(attack, MeanAttack)
    total = 0.0
    for one in releases:
        first, other = ((one.values - mean) / torch.tensor(one.sigmas) for mean in attack.means)
        total += float((first.square() - other.square()).sum()) / 2.0
    return total


@dataclass(frozen=True)
class PointsAttack(MeanAttack):
    """On the gradient in generated points: all of them lie at 0, so that D draws them to v, and the canary to -v."""

    points: int = 16

    @property
    def request(self) -> bytes:
        """The same points in every step."""
        zeros = torch.zeros((self.points, self.features), dtype=torch.float32)
        return SinkhornRequest(zeros.numpy(), (0,) * self.points).to_bytes()

    @property
    def mechanism(self) -> str:
        """The name of what every step releases."""
        return SINKHORN.name

    def declaration(self, sigma: float) -> SinkhornDeclaration:
        """The mechanism's own declaration; a small blur, so that each point goes to one record."""
        return SinkhornDeclaration(self.classes, self.points, 0, 1.0, 0.0, 0.01, 5, self.clip_norm, sigma)

    def parts(self, reply: Any) -> Sequence[Any]:
        """See `KnownMean`."""
        return (reply.gradient,)

    def mean(self, *, neighbour: bool) -> Tensor:
        """See `KnownMean`."""
        records = torch.from_numpy(self.data(neighbour=neighbour)).to(torch.float64)
        declared = self.declaration(1.0)
        points = torch.zeros((self.points, self.features), dtype=torch.float64, requires_grad=True)
        label = functools.partial(labelled, classes=self.classes, weight=declared.label_weight)
        loss = semi_debiased(
            label(points, torch.zeros(self.points, dtype=torch.int64)),
            label(records * (GAIN * self.v)[None, :], torch.zeros(self.records, dtype=torch.int64)),
            fresh=0,
            l1=declared.l1_weight,
            blur=declared.blur,
            iterations=declared.iterations,
        )
        (gradient,) = torch.autograd.grad(loss, points)
        return clip_records(gradient.reshape(1, -1), self.clip_norm).reshape(-1)


@dataclass(frozen=True)
class StatisticsAttack(MeanAttack):
    """On class statistics at the weights that cost nothing: opposite features of one class, the furthest pair."""

    @property
    def request(self) -> bytes:
        """Nothing."""
        return StatisticsRequest().to_bytes()

    @property
    def mechanism(self) -> str:
        """The name of what every step releases."""
        return CLASS_STATISTICS.name

    @property
    def weights(self) -> Weights:
        """The largest that leave the sensitivity at 2."""
        return with_free_counts(self.classes, free_moment_weight(self.classes, 0.0))

    def declaration(self, sigma: float) -> StatisticsDeclaration:
        """The mechanism's own declaration."""
        weights = self.weights
        return StatisticsDeclaration(self.classes, weights.count, weights.moment, weights.centring, sigma)

    def parts(self, reply: Any) -> Sequence[Any]:
        """See `KnownMean`."""
        return (reply.sum,)

    def mean(self, *, neighbour: bool) -> Tensor:
        """See `KnownMean`: u is v for every record of class 0, and -v for the canary; no record is of another class."""
        opposite = 2.0 if neighbour else 0.0
        count = torch.tensor([self.weights.count * self.records], dtype=torch.float64)
        rows, columns = torch.triu_indices(self.features, self.features)
        moments = self.records * torch.outer(self.v, self.v)[rows, columns]
        moments *= self.weights.moment * torch.where(rows == columns, 1.0, math.sqrt(2.0))
        others = torch.zeros((self.classes - 1) * (1 + self.features), dtype=torch.float64)
        return torch.cat([count, (self.records - opposite) * self.v, others, moments])


@dataclass(frozen=True)
class ScoresAttack(MeanAttack):
    """On score statistics of the constant alone: the model is all but sure, and wrong, of every record.

    Records are of class 0 and the scores say 1; of the canary it is the other way round. Their gradients are opposite
    and as long as may be, and the counts apart; the square, which is small here, costs next to nothing.
    """

    @property
    def v(self) -> Tensor:
        """Scores of a record, but for `GAIN`."""
        return torch.tensor([-1.0, 1.0], dtype=torch.float64) / math.sqrt(2.0)

    @property
    def request(self) -> bytes:
        """No correction."""
        return ScoresRequest(np.zeros((self.classes, 1), dtype=np.float32)).to_bytes()

    @property
    def mechanism(self) -> str:
        """The name of what every step releases."""
        return SCORE_STATISTICS.name

    def declaration(self, sigma: float) -> ScoresDeclaration:
        """The mechanism's own declaration; the constant is clipped for every record."""
        return ScoresDeclaration(self.classes, 1.0, 0.1, sigma, np.full(1, 1e6, dtype=np.float32))

    def parts(self, reply: Any) -> Sequence[Any]:
        """See `KnownMean`."""
        return (reply.sum,)

    def mean(self, *, neighbour: bool) -> Tensor:
        """See `KnownMean`: gradients are (1, -1) / sqrt(2), and the opposite of the canary."""
        others = float(self.records - neighbour)
        wrong = 1.0 / (1.0 + math.exp(-GAIN * math.sqrt(2.0)))  # the probability of class 1
        gradient = (others - neighbour) * math.sqrt(0.5)
        square = 0.1 * others * (1.0 - wrong) / wrong  # (1 - |p|^2) / 2 is p (1 - p), and u is 1 / p
        return torch.tensor([others, float(neighbour), gradient, -gradient, square], dtype=torch.float64)


@dataclass(frozen=True)
class SumsAttack(MeanAttack):
    """On sums of features under a map and weights that the step brings: opposite features, the furthest pair."""

    @property
    def request(self) -> bytes:
        """The weights turned round, and a map that brings every record to the clip."""
        turned = (-GAIN * self.v).to(torch.float32).numpy()
        return SumsRequest(
            turned, FeatureMap(torch.zeros(self.features), torch.full((self.features,), GAIN))
        ).to_bytes()

    @property
    def mechanism(self) -> str:
        """The name of what every step releases."""
        return FEATURE_SUMS.name

    def declaration(self, sigma: float) -> SumsDeclaration:
        """The mechanism's own declaration."""
        return SumsDeclaration(sigma, ("weight",))

    def parts(self, reply: Any) -> Sequence[Any]:
        """See `KnownMean`."""
        return (reply.sum,)

    def mean(self, *, neighbour: bool) -> Tensor:
        """See `KnownMean`: -v/2 for every record, v/2 for the canary."""
        opposite = 2.0 if neighbour else 0.0
        return -(self.records - opposite) * RECORD_NORM * self.v


@dataclass(frozen=True)
class EvaluationAttack(MeanAttack):
    """On an evaluation: the canary's prediction is wrong at the least confidence, the others' right at the largest."""

    def module(self) -> nn.Module:
        """Scores (20 x, 0) of a record x above 0, and (0, nearly 0) of one below."""
        made = nn.Sequential(nn.Linear(1, 2, bias=False), nn.ReLU())
        made[0].weight.data = torch.tensor([[20.0], [-1e-8]])
        return made

    @property
    def request(self) -> bytes:
        """Nothing."""
        return EvaluationRequest().to_bytes()

    @property
    def mechanism(self) -> str:
        """The name of what every step releases."""
        return EVALUATION.name

    def declaration(self, sigma: float) -> EvaluationDeclaration:
        """The mechanism's own declaration: every part costs the same."""
        return EvaluationDeclaration(
            self.classes, sigma, CONFUSION_SENSITIVITY * sigma, 1, CALIBRATION_SENSITIVITY * sigma
        )

    def parts(self, reply: Any) -> Sequence[Any]:
        """See `KnownMean`."""
        return reply.correct, reply.confusion, reply.calibration

    def mean(self, *, neighbour: bool) -> Tensor:
        """See `KnownMean`: correct; label 0 predicted as 0 and as 1; right, wrong and the places in the one bin."""
        wrong = 1.0 if neighbour else 0.0
        right = self.records - wrong
        places = CONFIDENCE_WEIGHT * 0.5 * (right - wrong)  # from -1/2 to 1/2, from the bin's lower end to its upper
        return torch.tensor([right, right, wrong, 0.0, 0.0, right, wrong, places], dtype=torch.float64)


@dataclass(frozen=True)
class LossAttack(MeanAttack):
    """On the gradient of a loss at weights of zero: the canary's is opposite to all others'."""

    def module(self) -> nn.Module:
        """One score for each class, of weights that are zero."""
        made = nn.Linear(1, self.features, bias=False)
        made.weight.data.zero_()
        return made

    @property
    def request(self) -> bytes:
        """The uploaded weights."""
        return LossGradientRequest().to_bytes()

    @property
    def mechanism(self) -> str:
        """The name of what every step releases."""
        return LABELLED_GRADIENT.name

    def declaration(self, sigma: float) -> LabelledGradientDeclaration:
        """The mechanism's own declaration."""
        return LabelledGradientDeclaration(self.classes, ClippedSum(("weight",), self.clip_norm, sigma))

    def parts(self, reply: Any) -> Sequence[Any]:
        """See `KnownMean`."""
        return (reply.gradient,)

    def mean(self, *, neighbour: bool) -> Tensor:
        """See `KnownMean`: (-x/2, x/2) for the scores of a record x of class 0."""
        direction = torch.tensor([-1.0, 1.0], dtype=torch.float64)
        opposite = 2.0 if neighbour else 0.0
        return (self.records - opposite) * self.clip_norm * direction / torch.linalg.vector_norm(direction)


_SCORES = {"likelihood ratio": of_mean}
ATTACKS: tuple[Attack, ...] = (
    *SLICED_ATTACKS,
    PointsAttack(
        name="generated points",
        what="one gradient in 16 generated points, full batch of 2 labelled records",
        records=2, batch=2, features=8, scores=_SCORES, clip_norm=0.5, classes=2,
    ),
    StatisticsAttack(
        name="class statistics",
        what="counts, class sums and second moments at the weights that cost nothing",
        records=16, batch=16, features=8, scores=_SCORES, classes=2,
    ),
    ScoresAttack(
        name="score statistics",
        what="counts and gradient at scores that are sure of the wrong class",
        records=16, batch=16, features=2, scores=_SCORES, classes=2, canary_label=1,
    ),
    SumsAttack(
        name="feature sums",
        what="one sum of features under weights and a map that the step brings",
        records=16, batch=16, features=8, scores=_SCORES,
    ),
    EvaluationAttack(
        name="evaluation",
        what="correct predictions, confusion matrix and one bin of confidences",
        records=16, batch=16, features=2, scores=_SCORES, classes=2,
    ),
    LossAttack(
        name="labelled gradient",
        what="one sanitized gradient of the cross-entropy, full batch of 16",
        records=16, batch=16, features=2, scores=_SCORES, clip_norm=0.25, classes=2,
    ),
)  # fmt: skip
"""Every mechanism of `dpswd.shared.core.mechanisms` is attacked by at least one."""
