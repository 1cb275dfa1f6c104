"""Fisher scoring with noised gradients: a linear classifier's posterior, around the public source's weights.

The mean gradient of the cross-entropy at weights v is m(v) - a, where m(v) is the mean of softmax(v z) z over the
hospital's records and a the mean of its labels' e_y z. What the labels ask for are the weights w with m(w) = a. The
released gradients g at v_1, v_2, ... tell m(v_t) - g_t, each with noise of known deviation. m is not known, since it
needs the hospital's features; the public source's stand in, an error that vanishes as v_t comes near w, so that later
steps count more (and those with more noise less). What m(v_t) - g_t scatter beyond their noise is that error too, and
counts as noise: were it not so, less noise would make the mean trust the public features more. With a normal prior
around the source's weights this makes a posterior; its mean, found by Fisher scoring on public records, is the next
step's v and, after the last one, the classifier. How far a hospital's weights lie from the source's is not a setting:
it is averaged over, by what each distance makes of the probability of what was released (empirical Bayes). All of it
reads released and public numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from public_client.methods.head_descent import HeadDescent

MOST_WEIGHTS = 2048
"""Of the classifier: scoring takes the eigenvectors of (p, p) matrices."""
_DISTANCES = torch.logspace(-2.0, 0.0, 21, dtype=torch.float64)
"""Deviations of a weight from the source's, of features whose mean norm is 1, that are taken for possible."""
_BIAS_SCALE = 3.0
"""In units of a weight's deviation, how far a bias may lie from the source's: shares of classes differ more."""
_LEAST = 1e-9
"""Of the largest eigenvalue: below it nothing was observed, as of what all classes have in common."""
_ITERATIONS, _LONGEST, _ENOUGH = 20, 1.0, 1e-3
"""Of one scoring; root mean square of a change of scores on public records, at most and where it ends."""


class Scoring(HeadDescent):
    """Goes to the posterior's mean of a softmax classifier, from one noised mean gradient after another.

    Args:
        head: the classifier, (C, d) with a bias; its weights at this moment are the prior's mean.
        features: (m, d) of public records, as the head takes them.
        records: n, distinct ones behind all gradients together.
        noise: deviation of each coordinate of a gradient.
    """

    def __init__(self, head: nn.Linear, features: Tensor, *, records: float, noise: float) -> None:
        super().__init__(head, features, noise=noise)
        self._records = records
        start = self.values()
        scale = torch.ones_like(start)
        scale[:, -1] = _BIAS_SCALE
        self._scale = scale.flatten()
        # Steps taken, and sums over them of weights, these times the noise's variance, their squares times the same,
        # weighted m(v) - g and its weighted mean square.
        sums = {"weight": 0.0, "each": 0.0, "mean": 0.0, "told": torch.zeros_like(start), "length": 0.0}
        self.state[head.weight].update(start=start, step=0, **sums)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Takes the present gradient in and goes to the new mean."""
        state: dict[str, Any] = self.state[self.param_groups[0]["params"][0]]
        state["step"] += 1
        weight, variance = state["step"] * self.noise**-2, self.noise**2
        state["weight"] += weight
        state["each"] += weight * variance
        state["mean"] += weight**2 * variance
        values = self.values()
        one = self._mean(values) - self.gradient()
        state["told"] += weight * one
        state["length"] += weight * float(one.square().mean())
        told = state["told"] / state["weight"]
        noise = state["mean"] / state["weight"] ** 2  # variance, of told
        if state["step"] > 1:
            scatter = state["length"] / state["weight"] - float(told.square().mean())
            noise *= max(1.0, scatter / (state["each"] / state["weight"] - noise))  # to what noise alone makes of it
        for _ in range(_ITERATIONS):
            change, size = self.within(self._scored(values, state["start"], told, noise) - values, _LONGEST)
            values += change
            if size < _ENOUGH:
                break
        self.install(values)

    def _scored(self, values: Tensor, start: Tensor, told: Tensor, noise: float) -> Tensor:
        """(C, d + 1) the posterior's mean, with m taken for linear around `values`."""
        curvature, vectors = torch.linalg.eigh(self._curvature(values))
        curvature = curvature.clamp(min=0.0)
        precision = curvature / (noise + curvature / self._records)  # (p,): of the noise and of sampling
        away = vectors.T @ (values - start).flatten()
        missing = vectors.T @ (told - self._mean(values)).flatten()
        pull = self._scale * (vectors @ (precision * (curvature * away + missing)))
        scaled = self._scale[:, None] * vectors
        found = self._scale * _averaged((scaled * (precision * curvature)) @ scaled.T, pull)
        return start + found.reshape(start.shape)

    def _mean(self, values: Tensor) -> Tensor:
        """(C, d + 1) m: the mean over public records of softmax(v z) z."""
        return torch.softmax(self.wide @ values.T, dim=1).T @ self.wide / len(self.wide)

    def _curvature(self, values: Tensor) -> Tensor:
        """(p, p) of m, class by class; symmetric."""
        shares = torch.softmax(self.wide @ values.T, dim=1)  # (m, C)
        classes, wide = shares.shape[1], self.wide
        whole = torch.empty(classes, wide.shape[1], classes, wide.shape[1]).to(wide)
        for c in range(classes):
            for other in range(c, classes):
                each = shares[:, c] * (float(c == other) - shares[:, other]) / len(wide)
                block = (wide * each[:, None]).T @ wide
                whole[c, :, other], whole[other, :, c] = block, block
        return whole.reshape(len(self._scale), len(self._scale))


def _averaged(information: Tensor, pull: Tensor) -> Tensor:
    """(p,) the posterior's mean under N(0, t^2 I), averaged over the distances t by the probability of the pull."""
    seen, vectors = torch.linalg.eigh(information)
    kept = seen > _LEAST * seen[-1]
    seen, vectors = seen[kept], vectors[:, kept]
    along = vectors.T @ pull  # N(0, seen + t^2 seen^2) before the weights are known
    squared = _DISTANCES.to(seen)[:, None].square()  # (21, 1)
    spread = seen * (1.0 + squared * seen)
    evidence = -0.5 * (spread.log() + along.square() / spread).sum(dim=1)
    chance = torch.softmax(evidence, dim=0)
    found: Tensor = vectors @ ((chance[:, None] * squared / (1.0 + squared * seen)).sum(dim=0) * along)
    return found
