"""How far features of public records are from stored releases, in units of the releases' own noise.

The residuals are what a likelihood needs: where the features come from the target's distribution each of them is
standard normal, because the noise's law is known exactly. Source records may carry weights, so that classes which are
more frequent at the target count for more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from dpswd.shared.core.mechanisms.sliced import SlicedReply
from dpswd.shared.core.noise.clipping import RECORD_NORM, clip_factors
from dpswd.shared.core.noise.feature_map import FeatureMap

MOST_RELEASES = 8
"""That a judgement of a view looks at: more tell little that is new, and cost as much each."""


class Residuals:
    """Of one run: its releases, and how far any features are from them.

    Args:
        releases: of coefficients (L, k).
        like: any tensor of the features' type, (m, d), on their device.
        feature_map: the run's public map.
        batch: b.
        sigma: noise of each released value.

    Attributes:
        batch: b.
    """

    def __init__(
        self, releases: Sequence[SlicedReply], *, like: Tensor, feature_map: FeatureMap, batch: int, sigma: float
    ) -> None:
        self._map = feature_map
        self.batch = batch
        self._unit = sigma / math.sqrt(batch)
        self._directions = [release.directions(like) for release in releases]
        root = math.sqrt(batch)
        self._targets = [release.values.to_tensor().to(like) / root for release in releases]  # (L, k)

    def __len__(self) -> int:
        return len(self._targets)

    @property
    def values(self) -> int:
        """Numbers in one release, L k."""
        return self._targets[0].numel()

    @property
    def unit(self) -> float:
        """Deviation of a released coefficient over sqrt(b), in units of mapped features."""
        return self._unit

    def projections(self, features: Tensor) -> list[Tensor]:
        """(m, k) of raw features (m, d), for each of at most `MOST_RELEASES` releases."""
        return [self._projected(features, number) for number in range(min(len(self), MOST_RELEASES))]

    def targets(self) -> list[Tensor]:
        """Released coefficients over sqrt(b), (L, k), of the same releases."""
        return self._targets[:MOST_RELEASES]

    def of(self, features: Tensor, weights: Tensor, number: int) -> Tensor:
        """Coefficients of weighted source features less those of one release, over the noise's deviation.

        Args:
            features: (m, d), raw; differentiable.
            weights: (m,), positive; differentiable.
            number: of the release, from 0.

        Returns:
            (L, k).
        """
        target = self._targets[number]
        own = weighted_coefficients(self._projected(features, number), weights, len(target))
        return (own - target) / self._unit

    def of_all(self, features: Tensor, weights: Tensor) -> Tensor:
        """Those of at most `MOST_RELEASES` releases, (r, L, k); see `of`."""
        return torch.stack([self.of(features, weights, number) for number in range(min(len(self), MOST_RELEASES))])

    def slopes(self, features: Tensor, basis: Tensor, inputs: Tensor, weights: Tensor) -> Tensor:
        """Derivatives of source coefficients by D at 0, where each record's features become f + basis D x.

        Args:
            features: (m, d), raw.
            basis: (d, q).
            inputs: (m, p), x of each record.
            weights: (m,), positive.

        Returns:
            (N, q, p), with N = r L k in the order of `of_all`, in units of mapped features.
        """
        mapped = self._map.apply(features).double()
        factors = clip_factors(mapped, RECORD_NORM)  # (m, 1)
        at_rim = factors[:, 0] < 1.0
        along = mapped[at_rim] / torch.linalg.vector_norm(mapped[at_rim], dim=1, keepdim=True)
        moved, pulled = (basis * self._map.scale[:, None]).double(), factors * inputs
        # A record at the rim moves on a sphere: what goes along it drops out.
        radial = ((along @ moved)[:, :, None] * pulled[at_rim][:, None, :]).flatten(1)  # (m', q p)
        parts = []
        for number in range(min(len(self), MOST_RELEASES)):
            U, order = self._directions[number].double(), in_order(self._projected(features, number))[1]
            for masses in _masses(order, weights.double(), len(self._targets[number])):
                each = torch.empty_like(masses).scatter_(1, order, masses)  # (k, m)
                part = (U.T @ moved)[:, :, None] * (each @ pulled)[:, None, :]
                parts.append(part - ((each[:, at_rim] * (along @ U).T) @ radial).reshape(part.shape))
        return torch.cat(parts)

    def _projected(self, features: Tensor, number: int) -> Tensor:
        return self._map.clipped(features) @ self._directions[number]

    def distance(self, residuals: Tensor) -> float:
        """F of `losses`: d / 2 times the mean squared difference, less the noise's share; mean over releases.

        Args:
            residuals: (r, L, k), as `of_all` gives them.
        """
        d, k = self._directions[0].shape
        excess = residuals.square().sum() - residuals.numel()
        return 0.5 * d / k * self._unit**2 * float(excess) / len(residuals)


def weighted_coefficients(projections: Tensor, weights: Tensor, coefficients: int) -> Tensor:
    """Quantile coefficients, over sqrt(b), of a weighted sample: the integral of its quantile function times cosines.

    Args:
        projections: (m, k).
        weights: (m,), positive.
        coefficients: L.

    Returns:
        (L, k); for equal weights and m == b this is B^T sort(projections) / sqrt(b) up to O(1 / b^2).
    """
    ordered, order = in_order(projections)
    shares, levels = _shares(order, weights)
    gaps, by_degree = torch.diff(ordered, dim=1), [(ordered * shares).sum(dim=1)]
    for degree in range(1, coefficients):  # by parts: the cosine's integral is 0 at both ends
        waves = torch.sin(math.pi * degree * levels)
        by_degree.append((waves * gaps).sum(dim=1) * (-math.sqrt(2.0) / (math.pi * degree)))
    return torch.stack(by_degree)


def in_order(projections: Tensor) -> tuple[Tensor, Tensor]:
    """Projections (m, k) on each direction upwards, (k, m), differentiable, and the record of each, (k, m)."""
    each = projections.T.contiguous()
    if each.device.type == "cpu":  # NumPy sorts several numbers at once, PyTorch one: a fifth of the time
        order = torch.from_numpy(np.argsort(each.detach().numpy(), axis=1))
    else:
        order = each.argsort(dim=1)
    return each.gather(1, order), order


def _shares(order: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Of records in order (k, m): the part of the sample that each is, and the levels between them, (k, m - 1)."""
    shares = (weights / weights.sum())[order]
    return shares, shares.cumsum(dim=1)[:, :-1]


def _masses(order: Tensor, weights: Tensor, coefficients: int) -> Iterator[Tensor]:
    """What each record, in order (k, m), counts for in each coefficient of a weighted sample, (k, m)."""
    shares, levels = _shares(order, weights)
    yield shares
    for degree in range(1, coefficients):
        # The integral of sqrt(2) cos(pi l t) over each record's levels; it is 0 at both ends.
        waves = torch.sin(math.pi * degree * levels)
        edge = torch.zeros_like(waves[:, :1])
        yield torch.diff(waves, dim=1, prepend=edge, append=edge) * (math.sqrt(2.0) / (math.pi * degree))
