"""Fisher scoring with noised gradients: a linear classifier's posterior, around the public source's weights.

A record z with label y says of weights v the clipped gradient f_y (softmax(v z) - e_y) z, with f_y at most 1 so that
its norm is at most C. If labels follow a softmax model with weights w, its mean is
G(v, w) = mean of sum over classes c of softmax(w z)_c f_c (softmax(v z) - e_c) z. What the labels ask for are the
weights w with G(v_t, w) = g_t for all released gradients g_t at v_1, v_2, ..., each with noise of known deviation: what
the clip takes is part of the equation. The mean is over the hospital's features, which are not known; the public
source's stand in, an error that vanishes as v_t comes near w, so that later steps count more (and those with more noise
less). What G(v_t, w) - g_t scatter beyond their noise is that error too, and counts as noise: were it not so, less
noise would make the mean trust the public features more. With a normal prior around the source's weights this makes a
posterior; its mean, found by Fisher scoring on public records, is the next step's v and, after the last one, the
classifier. How far a hospital's weights lie from the source's is not a setting: it is averaged over, by what each
distance makes of the probability of what was released (empirical Bayes). All of it reads released and public numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from dpswd.public_client.published_methods.head_descent import HeadDescent

MOST_WEIGHTS = 2048
"""Of the classifier: scoring takes the eigenvectors of (p, p) matrices."""
_DISTANCES = torch.logspace(-2.0, 0.0, 21, dtype=torch.float64)
"""Deviations of a weight from the source's, of features whose mean norm is 1, that are taken for possible."""
_BIAS_SCALE = 3.0
"""In units of a weight's deviation, how far a bias may lie from the source's: shares of classes differ more."""
LEAST = 1e-9
"""Of the largest eigenvalue: below it nothing was observed, as of what all classes have in common."""
_ITERATIONS, _LONGEST, _ENOUGH = 20, 1.0, 1e-3
"""Of one scoring; root mean square of a change of scores on public records, at most and where it ends."""


@dataclass(frozen=True)
class Heard:
    """What a hospital has released so far.

    Attributes:
        gradients: (t, C, d + 1), of all steps.
        seen: of each step, see `Scoring._seen`.
        weights: (t,) of the steps in a mean; their sum is 1.
        noise: variance of a coordinate of that mean, not less than what the gradients scatter by.
    """

    gradients: Tensor
    seen: list[tuple[Tensor, Tensor]]
    weights: Tensor
    noise: float


class Scoring(HeadDescent):
    """Goes to the posterior's mean of a softmax classifier, from one noised mean gradient after another.

    Args:
        head: the classifier, (C, d) with a bias; its weights at this moment are the prior's mean.
        features: (m, d) of public records, as the head takes them.
        records: n, distinct ones behind all gradients together.
        noise: deviation of each coordinate of a gradient.
        clip_norm: of a record's gradient.
    """

    def __init__(self, head: nn.Linear, features: Tensor, *, records: float, noise: float, clip_norm: float) -> None:
        super().__init__(head, features, noise=noise)
        self._records, self._clip_norm = records, clip_norm
        self._norms = self.wide.norm(dim=1, keepdim=True)  # (m, 1)
        start = self.values()
        scale = torch.ones_like(start)
        scale[:, -1] = _BIAS_SCALE
        self._scale = scale.flatten()
        # Of all steps: where they were, their gradients, and the variance of the noise on these.
        self.state[head.weight].update(start=start, at=[], gradients=[], variances=[])

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Takes the present gradient in and goes to the new mean."""
        self.take()
        go([self], lambda equations: [_averaged(*equations[0])])

    def take(self, *, share: float = 1.0) -> None:
        """Takes the present gradient in; the classifier stays where it is.

        Args:
            share: by which the gradient was multiplied.
        """
        state = self._state
        state["at"].append(self.values())
        state["gradients"].append(self.gradient() / share)
        state["variances"].append(self.noise**2)

    def heard(self) -> Heard | None:
        """All gradients so far; None before the first."""
        state, values = self._state, self.values()
        if not state["at"]:
            return None
        variances = torch.tensor(state["variances"]).to(values)  # (t,)
        weights = torch.arange(1, len(variances) + 1).to(values) / variances
        weights /= weights.sum()
        noise = float(weights.square() @ variances)  # of the weighted mean of gradients
        seen = [self._seen(at.to(values)) for at in state["at"]]
        heard = Heard(torch.stack(state["gradients"]).to(values), seen, weights, noise)
        if len(variances) == 1:
            return heard
        each = self._missing(values, heard)
        scatter = float(weights @ each.square().mean(dim=(1, 2)) - _mean(weights, each).square().mean())
        beyond = scatter / (float(weights @ variances) - noise)  # in units of what noise alone makes of it
        return replace(heard, noise=noise * max(1.0, beyond))

    def linearise(self, values: Tensor, heard: Heard | None) -> tuple[Tensor, Tensor]:
        """What was heard says of the weights, with what is expected taken for linear around `values`.

        Returns:
            (p, p) A and (p,) b = A x + N(0, A), with x the weights' way from the source's in units of the prior's
            deviations.
        """
        if heard is None:
            return torch.zeros(len(self._scale), len(self._scale)).to(values), torch.zeros_like(self._scale)
        curvature, vectors = torch.linalg.eigh(self._curvature(values))
        curvature = curvature.clamp(min=0.0)
        precision = curvature / (heard.noise + curvature / self._records)  # (p,): of the noise and of sampling
        away = vectors.T @ (values - self._start).flatten()
        missing = _mean(heard.weights, self._missing(values, heard))
        pull = self._scale * (vectors @ (precision * (curvature * away + vectors.T @ missing.flatten())))
        scaled = self._scale[:, None] * vectors
        return (scaled * (precision * curvature)) @ scaled.T, pull

    def placed(self, way: Tensor) -> Tensor:
        """(C, d + 1) the weights that lie a way (p,) from the source's."""
        return self._start + (self._scale * way).reshape(self._start.shape)

    @property
    def _state(self) -> dict[str, Any]:
        state: dict[str, Any] = self.state[self.param_groups[0]["params"][0]]
        return state

    @property
    def _start(self) -> Tensor:
        start: Tensor = self._state["start"]
        return start

    def _missing(self, values: Tensor, heard: Heard) -> Tensor:
        """(t, C, d + 1) what is expected of each step, if labels follow `values`, less what came."""
        return torch.stack([self._expected(values, *one) for one in heard.seen]) - heard.gradients

    def _seen(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """(m, C) softmax(v z) of public records, and (m, C) by how much the clip shortens each label's gradient."""
        shares = torch.softmax(self.wide @ values.T, dim=1)
        lengths = (shares.square().sum(dim=1, keepdim=True) - 2.0 * shares + 1.0).clamp(min=0.0).sqrt() * self._norms
        return shares, (self._clip_norm / lengths.clamp(min=1e-12)).clamp(max=1.0)

    def _expected(self, values: Tensor, shares: Tensor, clipped: Tensor) -> Tensor:
        """(C, d + 1) G: the mean clipped gradient where the classifier was, if labels follow `values`."""
        likely = torch.softmax(self.wide @ values.T, dim=1) * clipped
        return (likely.sum(dim=1, keepdim=True) * shares - likely).T @ self.wide / len(self.wide)

    def _curvature(self, values: Tensor) -> Tensor:
        """(p, p) of what is expected, class by class, where the classifier is at `values`; symmetric."""
        shares, clipped = self._seen(values)  # (m, C)
        likely = shares * clipped
        both = likely.sum(dim=1)
        classes, wide = shares.shape[1], self.wide
        whole = torch.empty(classes, wide.shape[1], classes, wide.shape[1]).to(wide)
        for c in range(classes):
            for other in range(c, classes):
                each = both * shares[:, c] * shares[:, other] + float(c == other) * likely[:, c]
                each -= likely[:, c] * shares[:, other] + shares[:, c] * likely[:, other]
                block = (wide * (each / len(wide))[:, None]).T @ wide
                whole[c, :, other], whole[other, :, c] = block, block
        return whole.reshape(len(self._scale), len(self._scale))


def go(hospitals: Sequence[Scoring], mean: Callable[[list[tuple[Tensor, Tensor]]], Sequence[Tensor]]) -> None:
    """Takes each hospital's classifier to the posterior's mean, by scoring until it stands.

    Args:
        hospitals: at least one.
        mean: from what each hospital was told (`linearise`) to every hospital's mean way (p,).
    """
    heard = [one.heard() for one in hospitals]
    values = [one.values() for one in hospitals]
    longest, before = [_LONGEST] * len(hospitals), [float("inf")] * len(hospitals)
    for _ in range(_ITERATIONS):
        ways = mean([one.linearise(at, own) for one, at, own in zip(hospitals, values, heard, strict=True)])
        furthest = 0.0
        for place, (one, way) in enumerate(zip(hospitals, ways, strict=True)):
            change, size = one.within(one.placed(way) - values[place], longest[place])
            if size >= before[place]:  # to and fro: where public records' curvature changes fast
                longest[place] /= 2.0
                change, _ = one.within(change, longest[place])
            values[place] = values[place] + change
            before[place], furthest = size, max(furthest, size)
        if furthest < _ENOUGH:
            break
    for one, weights in zip(hospitals, values, strict=True):
        one.install(weights)


def _mean(weights: Tensor, each: Tensor) -> Tensor:
    """(C, d + 1) of steps (t, C, d + 1), by weights (t,)."""
    return (weights[:, None, None] * each).sum(dim=0)


def _averaged(information: Tensor, pull: Tensor) -> Tensor:
    """(p,) the posterior's mean under N(0, t^2 I), averaged over the distances t by the probability of the pull."""
    seen, vectors = torch.linalg.eigh(information)
    telling = seen > LEAST * seen[-1]
    seen, vectors = seen[telling], vectors[:, telling]
    along = vectors.T @ pull  # N(0, seen + t^2 seen^2) before the weights are known
    squared = _DISTANCES.to(seen)[:, None].square()  # (21, 1)
    spread = seen * (1.0 + squared * seen)
    evidence = -0.5 * (spread.log() + along.square() / spread).sum(dim=1)
    chance = torch.softmax(evidence, dim=0)
    way: Tensor = vectors @ ((chance[:, None] * squared / (1.0 + squared * seen)).sum(dim=0) * along)
    return way
