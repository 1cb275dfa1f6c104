"""2,000 canaries in one run of a mechanism, and the lower bounds on epsilon that its one reply proves.

A fair coin s = -1 or 1 puts each canary to one of two places, as far apart as records can be and where no other is; as
many other records lie all at one place and tell the release's scale. The release is made here, by the product's own
admission, price, computation and noise. Its mean given the coins is written once more, by hand, so that a release that
moves further than it is priced for is seen.

**Whatever the mechanism is**: an attacker guesses the coins that the reply tells best; r guesses of m coins, v of them
right, refute (epsilon, delta) with the p-value of Steinke, Nasr and Jagielski (NeurIPS 2023, Theorem 5.2).

**By its law** (the tight one): the reply, in units of the declared noise, is Y = theta f + sum_j eta_j g_j + rho Z in
R^D, with f and g_1 ... g_B the blocks of the mean by hand, f the one in which the furthest records differ, Z standard
normal, and unknown are theta > 0 (records clipped too long), rho > 0 (noise of another size) and eta. Blocks have no
coordinate in common. Write t = <Y, f> / |f|^2, and q for the square of what is left of Y beside all blocks. Then
q / rho^2 is chi-squared with D - 1 - B degrees, so rho <= R = sqrt(q / c), c its quantile at a/2, but for probability
a/2; and t - theta is normal with deviation rho / |f|, so theta >= t - z rho / |f|, z the normal quantile at 1 - a/2,
but for a/2. With probability 1 - a therefore theta / rho >= t / R - z / |f|, and neighbours at the priced distance are
told apart as those of the declared mechanism with its noise divided by that. What does not fit enlarges q, which lowers
the bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy.optimize import brentq
from scipy.stats import binom, chi2, norm
from torch import Tensor, nn
from torch.nn import functional

from dpswd.public_client.curator.values import PendingStep, new_request_id
from dpswd.public_client.plans.declarable import Declarable
from dpswd.public_client.testing.mock import MockCurator, mock_description
from dpswd.shared.accounting.calibration import calibrate_sigma
from dpswd.shared.accounting.calibration import epsilon as epsilon_of
from dpswd.shared.core.mechanisms import MECHANISMS
from dpswd.shared.core.mechanisms.class_statistics.mechanism import StatisticsDeclaration, StatisticsRequest
from dpswd.shared.core.mechanisms.declared import Declared
from dpswd.shared.core.mechanisms.evaluation.mechanism import EvaluationDeclaration, EvaluationRequest
from dpswd.shared.core.mechanisms.feature_sums.mechanism import SumsDeclaration, SumsRequest
from dpswd.shared.core.mechanisms.interface import DataSetFacts, Facts, ModelFacts, RunSize
from dpswd.shared.core.mechanisms.score_statistics.mechanism import ScoresDeclaration, ScoresRequest
from dpswd.shared.core.mechanisms.sliced import SlicedDeclaration, SlicedRequest
from dpswd.shared.core.noise.clipping import RECORD_NORM
from dpswd.shared.core.noise.directions import directions
from dpswd.shared.core.privacy.budget import MAX_EPSILON
from dpswd.shared.core.privacy.events import RunEvent
from dpswd.shared.core.wire.messages import RunParameters, StepRelease
from dpswd.shared.models.free_weights import free_moment_weight, with_free_counts

CANARIES = 2000
CONFIDENCE, CERTAIN = 0.95, 1.0 - 5e-7
"""Of a bound that is stated, and of one that refutes a claim."""
_RECORDS = 2 * CANARIES
_LENGTH = 64.0  # of a record's features before the clip
_CLASSES = 20
_GUESSES = 6  # of so many canaries one is guessed
_LARGEST_FACTOR = 64.0


def units(coins: Tensor, groups: int = 1) -> Tensor:
    """(2 m, 1 + m / groups) unit vectors: m canaries, of which so many, of different classes, share a coordinate."""
    own = coins[:, None] * functional.one_hot(1 + torch.arange(len(coins)) // groups)
    other = functional.one_hot(torch.zeros_like(coins, dtype=torch.int64), own.shape[1])
    return torch.cat([own, other.to(own)])


def _labels(kinds: int) -> Tensor:
    """(2 m,): the canaries' in turn, all others' the first."""
    return functional.pad(torch.arange(CANARIES) % kinds, (0, _RECORDS - CANARIES))


def _one_hot(kinds: Tensor, classes: int) -> Tensor:
    return functional.one_hot(kinds, classes).double()


def _upper(square: Tensor) -> Tensor:
    """(d (d + 1) / 2,): the upper triangle, row by row, entries off the diagonal times the root of 2."""
    rows, columns = torch.triu_indices(*square.shape)
    return square[rows, columns] * torch.where(rows == columns, 1.0, math.sqrt(2.0))


@dataclass(frozen=True, eq=False)
class Design:
    """Canaries of one mechanism.

    Attributes:
        classes: C of the labels; 0 where there are none.
        kinds: of these classes the records have the first so many (`_labels`).
        groups: so many canaries share a coordinate (`units`).
        declaration: of a noise sigma.
        request: of the step.
        means: of coins, declaration and reply: (1 + B, D), the blocks of the released values without noise, f first.
        arrays: of the reply, those that are noised.
        records: (m, w) of coins (m,), where they are not `units`.
    """

    classes: int
    kinds: int
    groups: int
    declaration: Callable[[float], Any]
    request: Any
    means: Callable[[Tensor, Any, Any], Tensor]
    arrays: Callable[[Any], list[Any]] = lambda reply: [reply.sum]
    records: Callable[[Tensor], Tensor] | None = None


def _sums() -> Design:
    def means(coins: Tensor, _: Any, __: Any) -> Tensor:
        return RECORD_NORM * units(coins).sum(dim=0, keepdim=True)

    return Design(0, 1, 1, SumsDeclaration, SumsRequest(), means)


def _quantiles(classes: int) -> Design:
    """One coefficient: the mean of the projections, times the root of n."""

    def declaration(sigma: float) -> SlicedDeclaration:
        return SlicedDeclaration(_RECORDS, sigma, 1, label_weight=RECORD_NORM if classes else 0.0)

    def means(coins: Tensor, declared: SlicedDeclaration, reply: Any) -> Tensor:
        rows, length = _LENGTH * units(coins), _LENGTH
        if classes:
            labels = declared.label_weight * _one_hot(_labels(classes), classes)
            rows, length = torch.cat([rows, labels], dim=1), math.hypot(_LENGTH, declared.label_weight)
        clipped = RECORD_NORM / length * rows
        U = directions(reply.seed, rows.shape[1], declared.directions).double()
        return (clipped.sum(dim=0, keepdim=True) @ U) / math.sqrt(_RECORDS)

    return Design(classes, max(1, classes), 1, declaration, SlicedRequest(), means, lambda reply: [reply.values])


def _class_statistics() -> Design:
    weights = with_free_counts(_CLASSES, free_moment_weight(_CLASSES, 0.0))

    def declaration(sigma: float) -> StatisticsDeclaration:
        return StatisticsDeclaration(_CLASSES, weights.count, weights.moment, 0.0, sigma)

    def means(coins: Tensor, _: Any, __: Any) -> Tensor:
        kinds, u = _one_hot(_labels(_CLASSES), _CLASSES), units(coins, _CLASSES)
        counts = functional.pad(weights.count * kinds.sum(dim=0)[:, None], (0, u.shape[1])).reshape(-1)
        sums, moments = functional.pad(kinds.T @ u, (1, 0)).reshape(-1), weights.moment * _upper(u.T @ u)
        by_class = functional.pad(torch.stack([sums, counts]), (0, len(moments)))
        return torch.cat([by_class, functional.pad(moments, (len(sums), 0))[None]])

    return Design(_CLASSES, _CLASSES, _CLASSES, declaration, StatisticsRequest(), means)


def _score_statistics() -> Design:
    """All scores are 0, so every class is as likely; half of the classes are there. The basis turns with the coin."""
    kinds, tiny, beta = _CLASSES // 2, 1e-6, 0.05
    columns = 2 + CANARIES // kinds

    def declaration(sigma: float) -> ScoresDeclaration:
        scale = np.ones(columns, dtype=np.float32)
        scale[0] = tiny  # of the constant
        return ScoresDeclaration(_CLASSES, 0.0, beta, sigma, scale)

    def means(coins: Tensor, _: Any, __: Any) -> Tensor:
        longest = math.sqrt(0.5 * (1.0 - 1.0 / _CLASSES))  # of label less chance, over the root of 2
        constant = torch.full((_RECORDS, 1), tiny / _LENGTH, dtype=torch.float64)
        u = torch.cat([constant, units(coins, kinds)], dim=1) / longest
        residual = _one_hot(_labels(kinds), _CLASSES) - 1.0 / _CLASSES
        gradient = math.sqrt(0.5) * (residual.T @ u).reshape(1, -1)
        square = 0.5 * (1.0 - 1.0 / _CLASSES) * beta * _upper(u.T @ u)[None]
        padded = functional.pad(gradient, (_CLASSES, square.shape[1]))  # counts weigh nothing
        return torch.cat([padded, functional.pad(square, (_CLASSES + gradient.shape[1], 0))])

    def records(coins: Tensor) -> Tensor:
        return torch.cat([_LENGTH * units(coins, kinds), torch.zeros(_RECORDS, _CLASSES)], dim=1)

    request = ScoresRequest(np.zeros((_CLASSES, columns), dtype=np.float32))
    return Design(_CLASSES, kinds, kinds, declaration, request, means, records=records)


def _evaluation() -> Design:
    """A canary is predicted as one of two wrong classes, by its coin, in cells of its own; the others are right."""
    classes = 65

    def chances(coins: Tensor) -> Tensor:
        numbers = torch.arange(CANARIES)
        first = numbers % classes + 1 + 2 * (numbers // classes)
        one, other = (_one_hot((first + more) % classes, classes) for more in (0, 1))
        wrong = (one * (1.0 - coins[:, None]) + other * (1.0 + coins[:, None])) / 2.0
        return torch.cat([wrong, _one_hot(_labels(classes)[CANARIES:], classes)])

    def means(coins: Tensor, _: Any, __: Any) -> Tensor:
        confusion = _one_hot(_labels(classes), classes).T @ chances(coins)
        return torch.cat([confusion.trace().reshape(1), confusion.reshape(-1)])[None]

    return Design(
        classes, classes, 1, lambda sigma: EvaluationDeclaration(classes, 4.0 * sigma, sigma), EvaluationRequest(),
        means, lambda reply: [reply.correct, reply.confusion], lambda coins: _LENGTH * chances(coins),
    )  # fmt: skip


DESIGNS: Mapping[str, Callable[[], Design]] = {
    "class_statistics": _class_statistics,
    "evaluation": _evaluation,
    "feature_sums": _sums,
    "labelled_quantiles": lambda: _quantiles(_CLASSES),
    "quantiles": lambda: _quantiles(0),
    "score_statistics": _score_statistics,
}
"""Of each mechanism of the core, by name."""


@dataclass(frozen=True, eq=False)
class Reply:
    """One reply, in units of the declared noise.

    Attributes:
        event: what one release was priced as.
        values: (D,) as released.
        blocks: (1 + B, D) of the mean by hand.
        coins: (m,) -1 or 1.
        scores: (m,) log-likelihood ratios of the coins, but for a factor, beside a mean of any scale without coins.
    """

    event: RunEvent
    values: Tensor
    blocks: Tensor
    coins: Tensor
    scores: Tensor

    def factor(self, confidence: float) -> float:
        """By what the declared noise can be divided, at least, by the mechanism's law; at most 64."""
        each = (1.0 - confidence) / 2.0
        lengths = torch.linalg.vector_norm(self.blocks, dim=1)
        scales = self.blocks @ self.values / lengths**2
        left = float((self.values - scales @ self.blocks).square().sum())
        rho = math.sqrt(left / chi2.ppf(each, self.values.numel() - len(self.blocks)))
        theta, length = float(scales[0]), float(lengths[0])
        return min(_LARGEST_FACTOR, max(0.0, theta / max(rho, 1e-9) - float(norm.isf(each)) / length))

    def least(self, event: RunEvent, delta: float, confidence: float) -> float:
        """The lower bound on epsilon of a run of the mechanism, by its law."""
        factor = self.factor(confidence)
        return epsilon_of(divided(event, factor), delta) if factor > 1e-3 else 0.0

    def guessed(self, delta: float, confidence: float) -> float:
        """The lower bound on epsilon of one release, whatever the mechanism is."""
        guesses = len(self.coins) // _GUESSES
        surest = self.scores.abs().topk(guesses).indices
        right = int((self.scores[surest].sign() == self.coins[surest]).sum())

        def over(epsilon: float) -> float:
            return guess_p_value(len(self.coins), guesses, right, epsilon, delta) - (1.0 - confidence)

        return 0.0 if over(0.0) > 0.0 else float(brentq(over, 0.0, 50.0))


def guess_p_value(coins: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """The probability that so many guesses are right, at most, under (epsilon, delta) (Theorem 5.2).

    Args:
        coins: m.
        guesses: r.
        right: v.
        epsilon: in nats.
        delta: of the claim.
    """
    rate = 1.0 / (1.0 + math.exp(-epsilon))
    below = np.cumsum(binom.pmf(np.arange(right - 1, -1, -1), guesses, rate))  # P[v - i <= W < v], i = 1 ... v
    steepest = float((below / np.arange(1, right + 1)).max(initial=0.0))
    return min(1.0, float(binom.sf(right - 1, guesses, rate)) + 2.0 * coins * delta * steepest)


def rounded_down(value: float) -> float:
    """To three digits: another machine's last bits are not in it."""
    return int(value * 1000.0) / 1000.0


def divided(event: RunEvent, factor: float) -> RunEvent:
    """The same run with the noise, and its grid, of every part divided by a factor."""
    parts = tuple(replace(own, sigma=own.sigma / factor, grid_step=own.grid_step / factor) for own in event.step.parts)
    return replace(event, step=replace(event.step, parts=parts))


def one_run(name: str, *, epsilon: float, delta: float, seed: int) -> Reply:
    """One release of a mechanism on canaries.

    Args:
        name: a key of `DESIGNS`.
        epsilon: that the release costs alone.
        delta: where epsilon is stated.
        seed: of coins, noise and directions.
    """
    design, mechanism, random = DESIGNS[name](), MECHANISMS[name], np.random.default_rng(seed)
    coins = torch.from_numpy(random.choice([-1.0, 1.0], CANARIES))
    rows = _LENGTH * units(coins, design.groups) if design.records is None else design.records(coins)
    records, labels = rows.float().numpy(), _labels(design.kinds).numpy()
    shape = records.shape[1:]
    facts = Facts(DataSetFacts(_RECORDS, shape, design.classes), ModelFacts(shape, shape[0], {}))

    def event(sigma: float) -> RunEvent:
        return Declared(mechanism, design.declaration(sigma), RunSize(_RECORDS), facts).event

    sigma = calibrate_sigma(event, epsilon=epsilon, delta=delta)
    priced, declaration = event(sigma), design.declaration(sigma)
    own: dict[str, Any] = {"records": _RECORDS, "record_shape": shape, "classes": design.classes}
    described = mock_description(**own, epsilon=MAX_EPSILON, delta=delta)
    curator = MockCurator(described, randomness=random.bytes, labels=labels, records=records)
    uploaded = Declarable.of(nn.Identity(), shape).uploaded(curator)
    digests = {"graph_digest": uploaded.graph_digest, "weights_digest": uploaded.weights_digest}
    run = curator.open_run(
        RunParameters(**digests, mechanism=name, declaration=declaration.to_bytes(), batch_size=_RECORDS, steps=1)
    )
    sent: StepRelease = curator.send(PendingStep(run.run_id, new_request_id(), design.request.to_bytes()))
    reply = mechanism.reply.from_bytes(sent.payload)
    arrays = [own.to_tensor(dtype=torch.float64).reshape(-1) for own in design.arrays(reply)]
    sigmas = torch.cat([torch.full_like(own, part.sigma) for own, part in zip(arrays, priced.step.parts, strict=True)])
    values = torch.cat(arrays) / sigmas
    unknown = torch.zeros(CANARIES, dtype=torch.float64, requires_grad=True)
    middle = design.means(unknown, declaration, reply) / sigmas
    fixed = functional.normalize(middle.detach())
    (scores,) = torch.autograd.grad(middle.sum(dim=0) @ (values - (fixed @ values) @ fixed), unknown)
    return Reply(priced, values, design.means(coins, declaration, reply) / sigmas, coins, scores)
