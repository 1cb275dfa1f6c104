"""In which direction each record's features should move, from what is released and public alone.

By rows (DP-SWD, Algorithm 2) it is post-processing: P is released, the source and its noise are public. The source gets
the same noise, so that both sides are smeared alike and the distance compares like with like. By quantiles the exact
gradient would need a record's rank in its batch, which depends on the other records; in its place stands the *public*
source distribution function (docs/privacy, section 6), so that the cotangent of a record is a function of that record
alone and per-record clipping bounds its gradient.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from dpswd.shared.core.mechanisms.quantiles.coefficients import basis_function, cosine_basis
from dpswd.shared.core.noise.noise import grid_step
from dpswd.shared.seeded_noise import SeededNoise

CDF_CELLS = 256  # of a table; the error of a level is below one cell's mass
_SMALLEST_SCALE = 1e-12  # features have norm at most 1/2; a mean displacement below this is rounding


def noised_source_projections(source_features: Tensor, U: Tensor, *, sigma: float, seed: bytes) -> Tensor:
    """Source projections with the release's noise law, from a public seed: the same bits at both parties.

    Args:
        source_features: (m, d), mapped and clipped like the target's.
        U: (d, k).
        sigma: standard deviation of the release's noise.
        seed: 32 public bytes; the seed of U serves, its uses do not overlap.

    Returns:
        (m, k); differentiable in the features.
    """
    step = grid_step(sigma)
    steps = SeededNoise(seed, purpose="source noise").grid_gaussian(
        (source_features.shape[0], U.shape[1]), sigma=sigma, step=step
    )
    return source_features @ U.to(source_features) + torch.from_numpy(steps * step).to(source_features)


def row_cotangents(released: Tensor, noised_source: Tensor, U: Tensor) -> tuple[Tensor, float]:
    """The gradient of the squared sliced W_2 distance with respect to the target rows, mapped back to features.

    Row r moves by (d / k) sum_j u_j (P_rj - the source quantile that the sorted matching gives to P_rj), b d / 2
    times the gradient: a displacement in feature units, which does not shrink as b or k grows.

    Args:
        released: (b, k), noised target projections.
        noised_source: (m, k).
        U: (d, k).

    Returns:
        Cotangents (b, d), in the sample's order and divided by their scale; and that scale, the mean norm of the source
        rows' own cotangents, in feature units: it comes from the source rows alone.
    """
    source = noised_source.detach()
    target, directions = released.detach().to(source), U.to(source)
    scale = mean_norm(_displacements(source, target, directions))
    return _displacements(target, source, directions) / scale, scale


def _displacements(rows: Tensor, others: Tensor, U: Tensor) -> Tensor:
    """(n, d): from each row's partner under the sorted matching to the row, averaged over directions."""
    partners = resample_quantiles(others.sort(dim=0).values, rows.shape[0])  # (n, k)
    order = rows.argsort(dim=0)
    matched = torch.empty_like(rows).scatter_(0, order, partners)
    d, k = U.shape
    return (rows - matched) @ U.T * (d / k)


def resample_quantiles(ordered: Tensor, count: int) -> Tensor:
    """Averages over `count` equal parts of (0, 1) of functions that are constant on m: a sorted sample's quantiles.

    For count == m this is the sorted sample itself; otherwise it is the sorted sample of `count` points that is
    nearest in W_2.

    Args:
        ordered: (m, k), a function in each column.
        count: b, at least 1.

    Returns:
        (b, k), sorted upwards where they were; differentiable.
    """
    m = ordered.shape[0]
    if m == count:
        return ordered
    # Integral of the quantile function from 0 to r / b: whole points, and a part of the next one.
    edges = np.arange(count + 1, dtype=np.int64) * m
    whole = torch.from_numpy(edges // count).to(ordered.device)
    part = torch.from_numpy((edges % count) / count).to(device=ordered.device, dtype=torch.float64)
    exact = ordered.to(torch.float64)
    sums = torch.cat([torch.zeros_like(exact[:1]), exact.cumsum(dim=0)])  # (m + 1, k)
    following = torch.cat([exact, torch.zeros_like(exact[:1])])  # nothing follows the last point
    integral = sums[whole] + part[:, None] * following[whole]
    return (integral.diff(dim=0) * (count / m)).to(ordered.dtype)


@dataclass(frozen=True, eq=False)
class QuantileCotangent:
    """One record's clipped features -> its cotangent, from public values only.

    cot(v) = (d / k) sum_j u_j sum_l (c_jl^t - c_jl^s) / sqrt(b) basis_l(Fs_j(v u_j)) / scale

    Before the division it is the displacement, in feature units, that would carry the record from the source's
    distribution to where it is now: for a pure translation it estimates the translation (E[u u^T] = I / d). It is
    d/2 times the gradient of the squared distance for one record; a descent step moves against it.

    The sum over l is tabulated on equal cells of each direction's source projections and interpolated linearly: a table
    costs the same for every record however large the source is, and works under `torch.func.vmap`.

    Attributes:
        U: (d, k).
        low: (k,), the smallest source projection.
        cells_per_unit: (k,).
        along: (cells + 1, k), the sums over l at the cells' edges.
        scale: mean norm of the displacement over the *source* records, so that cotangents have norm about 1.
    """

    U: Tensor
    low: Tensor
    cells_per_unit: Tensor
    along: Tensor
    scale: float = 1.0

    @classmethod
    def from_release(cls, released: Tensor, source_features: Tensor, U: Tensor, *, batch: int) -> QuantileCotangent:
        """Build it from what is public after the release.

        Args:
            released: (L, k), the noised target coefficients.
            source_features: (m, d), mapped and clipped like the target's.
            U: (d, k).
            batch: b of the release.

        Returns:
            The function, in the source features' type and on their device.
        """
        source = source_features.detach()
        U = U.to(source)
        ordered = (source @ U).sort(dim=0).values.T.contiguous()  # (k, m)
        low, high = ordered[:, 0], ordered[:, -1]
        # A direction in which the source is constant has one step; a tiny width puts every value outside it.
        width = torch.clamp(high - low, min=torch.finfo(ordered.dtype).tiny * 1e6)
        edges = torch.linspace(0.0, 1.0, CDF_CELLS + 1).to(source)
        at = torch.lerp(low[:, None], high[:, None], edges[None, :].expand(len(low), -1)).contiguous()
        below = torch.searchsorted(ordered, at, right=False) + torch.searchsorted(ordered, at, right=True)
        levels = below.T.to(source) / (2 * len(source))  # (cells + 1, k); ties count half (mid-ranks)
        own = source_coefficients(ordered.T, batch=batch, coefficients=len(released))
        gaps = (released.detach().to(source) - own) / math.sqrt(batch)  # (L, k)
        along = sum(gap * basis_function(levels, order) for order, gap in enumerate(gaps))
        plain = cls(U, low, CDF_CELLS / width, torch.as_tensor(along))
        return replace(plain, scale=mean_norm(plain.batch(source)))

    def batch(self, features: Tensor) -> Tensor:
        """Cotangents of many records at once; each row is a function of its own row alone.

        Args:
            features: (b, d), clipped.

        Returns:
            (b, d).
        """
        position = ((features @ self.U - self.low) * self.cells_per_unit).clamp(0.0, float(CDF_CELLS))  # (b, k)
        cell = position.floor().clamp(max=CDF_CELLS - 1.0)
        left, right = (torch.gather(self.along, 0, cell.to(torch.int64) + after) for after in (0, 1))
        d, k = self.U.shape
        return torch.lerp(left, right, position - cell) @ self.U.T * (d / k / self.scale)


def mean_norm(cotangents: Tensor) -> float:
    """A public scale: the mean norm of rows that come from public records.

    Args:
        cotangents: (m, d) of source records; never of private ones, which a mean over the batch would couple.

    Returns:
        The mean norm, at least 1e-12.
    """
    return max(float(torch.linalg.vector_norm(cotangents.to(torch.float64), dim=1).mean()), _SMALLEST_SCALE)


def source_coefficients(source_projections: Tensor, *, batch: int, coefficients: int) -> Tensor:
    """Coefficients of the public source at the batch's size; the source is public and needs no noise.

    The basis is averaged over each source point's part of (0, 1): the same as the source's quantile function averaged
    over each of the batch's b parts; for m == b that is the sorted sample itself.

    Args:
        source_projections: (m, k); m may differ from b.
        batch: b of the release.
        coefficients: L.

    Returns:
        (L, k); differentiable in the projections.

    Raises:
        InvalidValue: L is outside 1..b.
    """
    m = len(source_projections)
    weights = resample_quantiles(cosine_basis(batch, coefficients), m) * (batch / m)  # (m, L)
    return weights.T.to(source_projections) @ source_projections.sort(dim=0).values
