"""How far each class has moved, as far as noised sums of pseudo-labelled features tell.

The model: the target's features are the source's, those of class c moved by m + e_c along the components, where
m ~ N(0, t0^2) and e_c ~ N(0, t1^2) in every coordinate; and classes may be more or less frequent, with log-weights
~ N(0, tw^2). What such a target's sums would be is computed with the source's own records and the team's own
classifier, so its confusion of the classes, and how sure it is of them, are part of the model; around the last fit it
is taken as linear (Gauss-Newton). Everything is normal then: the posterior and the evidence of (t0, t1, tw) and of a
misfit kappa that no shift explains are closed forms, and the evidence chooses (empirical Bayes; MacKay 1992).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from public_client.methods.pseudo_label_sums import PseudoLabelSums
from shared.kernels.feature_map import FeatureMap
from shared.mechanisms.sliced import SlicedReply

_ROUNDS = 2
_STEP = 0.05  # of the differences that take the place of derivatives, in units of a source record's mean norm
_COMMON = (0.0, 0.05, 0.1, 0.2)
_OWN = (0.0, 0.02, 0.05, 0.1)
_FREQUENCIES = 1.0
_MISFIT = (0.0, 0.02, 0.05, 0.1, 0.2, 0.4)  # times the root mean square deviation of a record's values
_OTHER_FREQUENCIES = (10.0, 0.1)
"""By how much other frequencies must be likelier: nats, and a share of what shifts explain, which look like them."""
_JITTER = 1e-9


@dataclass(frozen=True)
class Observed:
    """What was released of a mean over the target's records: R s + noise.

    Attributes:
        values: (q,).
        rows: R, (q, D), of the mapped and clipped sums s over n.
        deviation: of the noise on each value.
        records: that the mean is over.
    """

    values: Tensor
    rows: Tensor
    deviation: float
    records: int

    @classmethod
    def of(cls, releases: Sequence[SlicedReply], *, dimension: int, sigma: float, batch: int, records: int) -> Observed:
        """From replies with one coefficient for each direction: sums along random directions, over the root of b.

        With U^T = Q R the values Q^T y tell all that the releases tell.

        Args:
            releases: of all steps.
            dimension: D.
            sigma: of the noise on each coefficient.
            batch: b of a step.
            records: that the steps together have seen.
        """
        like = torch.zeros(1, dimension, dtype=torch.float64)
        directions = torch.cat([release.directions(like) for release in releases], dim=1)  # (D, k)
        told = torch.cat([release.values.to_tensor().double()[0] for release in releases])
        q, r = torch.linalg.qr(directions.T)
        root = math.sqrt(batch)
        return cls(q.T @ told / root, r, sigma / root, records)

    def again(self, mean: Tensor, misfit: Tensor, generator: torch.Generator) -> Observed:
        """The release of another target, drawn anew, with mean (D,) and a misfit (D,)."""
        noise = self.deviation * torch.randn(self.values.shape, generator=generator, dtype=torch.float64)
        return replace(self, values=self.rows @ (mean + misfit) + noise)


@dataclass(frozen=True)
class Source:
    """The public side, in float64 on the processor.

    Attributes:
        features: (m, d).
        labels: (m,).
        sums: of features.
        feature_map: of the sums, as the run declares it.
    """

    features: Tensor
    labels: Tensor
    sums: PseudoLabelSums
    feature_map: FeatureMap

    @property
    def classes(self) -> int:
        """C."""
        return self.dimension // self.sums.axes.out_features

    @property
    def components(self) -> int:
        """R."""
        return self.sums.axes.out_features - 1

    @property
    def dimension(self) -> int:
        """D."""
        return len(self.feature_map.center)

    def part(self, chosen: Tensor) -> Source:
        """Some of the records."""
        return replace(self, features=self.features[chosen], labels=self.labels[chosen])

    def moved(self, shifts: Tensor) -> Tensor:
        """The records' features (m, d) where each class has moved by its shift, of (C, r)."""
        return self.sums.moved(self.features, self.labels, shifts)

    @torch.no_grad()
    def added(self, features: Tensor) -> Tensor:
        """(m, D): what records of these features add to the sums, mapped and clipped."""
        return self.feature_map.clipped(self.sums(features))


@dataclass(frozen=True)
class Shifts:
    """The posterior of how the target differs from the source.

    Attributes:
        mean: (r + C r + C,): what all classes share, each class's own, log-weights of their frequencies.
        covariance: of these.
        common, own, frequencies, misfit: t0, t1, tw and kappa.
        evidence: nats that they gain over the source as it is; 0 where nothing has changed.
        classes: C.
    """

    mean: Tensor
    covariance: Tensor
    common: float
    own: float
    frequencies: float
    misfit: float
    evidence: float
    classes: int

    def shifts(self, values: Tensor | None = None) -> Tensor:
        """(C, r) of these values (r + C r + C,), by default of the mean."""
        values = self.mean if values is None else values
        r = (len(values) - self.classes) // (self.classes + 1)
        return values[:r] + values[r : r + self.classes * r].reshape(self.classes, r)

    def weights(self, values: Tensor | None = None) -> Tensor:
        """(C,) of each class's records."""
        return (self.mean if values is None else values)[-self.classes :].exp()

    def drawn(self, generator: torch.Generator) -> Tensor:
        """Values (r + C r + C,) from the posterior."""
        spread, axes = torch.linalg.eigh(self.covariance)
        normal = torch.randn(len(spread), generator=generator, dtype=torch.float64)
        values: Tensor = self.mean + axes @ (spread.clamp(min=0.0).sqrt() * normal)
        return values


@dataclass(frozen=True)
class _Linear:
    """The model around one point: the released values are `offset` + `slopes` times the unknowns, plus noise."""

    offset: Tensor  # (q,)
    slopes: Tensor  # (q, P)


def spread(source: Source) -> Tensor:
    """Root mean square deviation, over all coordinates, of what a record adds: the unit of a misfit."""
    return source.added(source.features).var(dim=0).mean().sqrt()


def fitted(source: Source, observed: Observed) -> Shifts:
    """The posterior, at the hyperparameters with the most evidence."""
    still = source.added(source.features)
    # The noise, and the chance of a mean over n target records and over the source's own.
    noise = observed.deviation**2 * torch.eye(len(observed.values), dtype=torch.float64)
    chance = torch.cov(still.T) * (1.0 / observed.records + 1.0 / len(still))
    noise = noise + observed.rows @ chance @ observed.rows.T
    misfit = float(still.var(dim=0).mean()) * observed.rows @ observed.rows.T
    nothing = _log_likelihood(noise, observed.values - observed.rows @ still.mean(dim=0))
    C, r = source.classes, source.components
    values = torch.zeros(r + C * r + C, dtype=torch.float64)
    found = Shifts(values, torch.diag(values), 0.0, 0.0, 0.0, 0.0, 0.0, C)
    for _ in range(_ROUNDS):
        found = _posterior(_linearised(source, observed, found), observed, noise, misfit, nothing, found)
    return found


def _posterior(
    linear: _Linear, observed: Observed, noise: Tensor, misfit: Tensor, nothing: float, before: Shifts
) -> Shifts:
    """Of a linear model; `noise` (q, q) is of everything that is no shift, `misfit` (q, q) what kappa = 1 adds."""
    C, r = before.classes, len(before.shifts()[0])
    kinds = [r, C * r, C]
    shared, own, frequent = (part @ part.T for part in linear.slopes.tensor_split((r, r + C * r), dim=1))
    left = observed.values - linear.offset

    def best(tw: float) -> tuple[float, float, float, float, float]:
        return max(
            (
                _log_likelihood(noise + kappa**2 * misfit + t0**2 * shared + t1**2 * own + tw**2 * frequent, left),
                t0, t1, tw, kappa,
            )
            for kappa, t0, t1 in itertools.product(_MISFIT, _COMMON, _OWN)
        )  # fmt: skip

    same, other = best(0.0), best(_FREQUENCIES)
    nats, share = _OTHER_FREQUENCIES
    needed = max(nats, share * (same[0] - nothing))
    told, t0, t1, tw, kappa = other if other[0] - same[0] > needed else same
    scales = zip(kinds, (t0, t1, tw), strict=True)
    prior = torch.cat([torch.full((count,), scale**2, dtype=torch.float64) for count, scale in scales])
    slopes = linear.slopes * prior  # (q, P)
    covariance = noise + kappa**2 * misfit + slopes @ linear.slopes.T
    gain = torch.linalg.solve(covariance, slopes)
    return Shifts(gain.T @ left, torch.diag(prior) - slopes.T @ gain, t0, t1, tw, kappa, told - nothing, C)


def _linearised(source: Source, observed: Observed, around: Shifts) -> _Linear:
    """What the release of a target would be, around the mean of some shifts."""
    C, r = source.classes, source.components
    shifts, weights = around.shifts(), around.weights()[source.labels]
    weights = weights / weights.sum()
    by_class = functional.one_hot(source.labels, C).double().T  # (C, m)
    moved = source.added(source.moved(shifts))  # (m, D)
    expected = weights @ moved
    slopes = []
    for j in range(r):
        step = torch.zeros(C, r, dtype=torch.float64)
        step[:, j] = _STEP
        difference = (source.added(source.moved(shifts + step)) - moved) / _STEP
        slopes.append(by_class @ (weights[:, None] * difference))  # (C, D)
    own = torch.stack(slopes, dim=1)  # (C, r, D)
    frequent = by_class @ (weights[:, None] * (moved - expected))
    of_sums = torch.cat([own.sum(dim=0), own.flatten(0, 1), frequent])  # (P, D)
    found = observed.rows @ of_sums.T
    return _Linear(observed.rows @ expected - found @ around.mean, found)


def _log_likelihood(covariance: Tensor, residuals: Tensor) -> float:
    """Of normal residuals (q,), but for a constant."""
    scale = float(covariance.diagonal().mean())
    root = torch.linalg.cholesky(covariance + _JITTER * scale * torch.eye(len(residuals), dtype=torch.float64))
    white = torch.linalg.solve_triangular(root, residuals[:, None], upper=False)[:, 0]
    return float(-0.5 * white @ white - root.diagonal().log().sum())
