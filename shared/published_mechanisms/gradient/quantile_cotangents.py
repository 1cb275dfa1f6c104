"""In which direction each record's features should move, from released coefficients and public source data alone.

The exact gradient of the distance needs a record's rank in its batch, which depends on the other records. In its
place stands the *public* source distribution function (docs/privacy, section 6), so the cotangent of a record is a
function of that record alone and per-record clipping bounds its gradient.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.mechanisms.quantiles.coefficients import basis_function, cosine_basis

CDF_CELLS = 256  # of the tabulated distribution functions; the error of one level is below one cell's mass
_SMALLEST_SCALE = 1e-12  # features have norm at most 1/2; a mean displacement below this is rounding


@dataclass(frozen=True, eq=False)
class SourceDistribution:
    """Empirical distribution functions of source projections, tabulated on equal cells and interpolated linearly.

    A table costs the same for every record however large the source is, and works under `torch.func.vmap`.

    Attributes:
        low: (k,), the smallest projection.
        cells_per_unit: (k,).
        levels: (cells + 1, k), values at the cells' edges.
    """

    low: Tensor
    cells_per_unit: Tensor
    levels: Tensor

    @classmethod
    def from_projections(cls, projections: Tensor) -> SourceDistribution:
        """Tabulate; ties count half (mid-ranks).

        Args:
            projections: (m, k) source projections.

        Returns:
            The functions, one for each column.
        """
        ordered = projections.detach().sort(dim=0).values.T.contiguous()  # (k, m)
        low, high = ordered[:, 0], ordered[:, -1]
        # A direction in which the source is constant has one step; a tiny width puts every value outside it.
        width = torch.clamp(high - low, min=torch.finfo(ordered.dtype).tiny * 1e6)
        edges = torch.linspace(0.0, 1.0, CDF_CELLS + 1, device=ordered.device, dtype=ordered.dtype)
        at = torch.lerp(low[:, None], high[:, None], edges[None, :].expand(ordered.shape[0], -1)).contiguous()
        below = torch.searchsorted(ordered, at, right=False) + torch.searchsorted(ordered, at, right=True)
        levels = below.to(ordered.dtype) / (2 * ordered.shape[1])
        return cls(low=low, cells_per_unit=CDF_CELLS / width, levels=levels.T.contiguous())

    def __call__(self, projections: Tensor) -> Tensor:
        """Levels in [0, 1] of given projections; constant outside the source's range.

        Args:
            projections: (b, k).

        Returns:
            (b, k).
        """
        cells = self.levels.shape[0] - 1
        position = ((projections - self.low) * self.cells_per_unit).clamp(0.0, float(cells))
        cell = position.floor().clamp(max=cells - 1.0)
        index = cell.to(torch.int64)
        left = torch.gather(self.levels, 0, index)
        right = torch.gather(self.levels, 0, index + 1)
        return left + (position - cell) * (right - left)


@dataclass(frozen=True, eq=False)
class QuantileCotangent:
    """One record's clipped features -> its cotangent, from public values only.

    cot(v) = (d / k) sum_j u_j sum_l (c_jl^t - c_jl^s) / sqrt(b) basis_l(Fs_j(v u_j)) / scale

    Before the division it is the displacement, in feature units, that would carry the record from the source's
    distribution to where it is now: for a pure translation it estimates the translation (E[u u^T] = I / d). It is
    d/2 times the gradient of the squared distance for one record; a descent step moves against it.

    Attributes:
        U: (d, k).
        gaps: (L, k), (c^t - c^s) / sqrt(b).
        distribution: of the source in each direction.
        scale: mean norm of the displacement over the *source* records, so that cotangents have norm about 1.
    """

    U: Tensor
    gaps: Tensor
    distribution: SourceDistribution
    scale: float

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

        Raises:
            InvalidValue: the shapes do not fit together.
        """
        source = source_features.detach()
        U = U.to(source)
        if released.dim() != 2 or source.dim() != 2 or (source.shape[1], released.shape[1]) != U.shape:
            raise InvalidValue(
                f"coefficients have shape {tuple(released.shape)}, source features {tuple(source.shape)} and "
                f"directions {tuple(U.shape)}; use (L, k), (m, d) and (d, k)"
            )
        projections = source @ U
        own = source_coefficients(projections, batch=batch, coefficients=released.shape[0])
        gaps = (released.detach().to(source) - own) / math.sqrt(batch)
        plain = cls(U=U, gaps=gaps, distribution=SourceDistribution.from_projections(projections), scale=1.0)
        return replace(plain, scale=mean_norm(plain.batch(source)))

    def batch(self, features: Tensor) -> Tensor:
        """Cotangents of many records at once; each row is a function of its own row alone.

        Args:
            features: (b, d), clipped.

        Returns:
            (b, d).
        """
        levels = self.distribution(features @ self.U)  # (b, k)
        along = torch.zeros_like(levels)
        for order in range(self.gaps.shape[0]):
            along = along + self.gaps[order] * basis_function(levels, order)
        d, k = self.U.shape
        return (along @ self.U.T) * (d / k / self.scale)


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

    The source's quantile function is averaged over each of the batch's b parts before the basis is applied; for
    m == b that is the sorted sample itself.

    Args:
        source_projections: (m, k); m may differ from b.
        batch: b of the release.
        coefficients: L.

    Returns:
        (L, k); differentiable in the projections.

    Raises:
        InvalidValue: L is outside 1..b.
    """
    ordered = source_projections.sort(dim=0).values
    weights = _source_weights(ordered.shape[0], batch, coefficients).to(ordered)
    return weights @ ordered


def _source_weights(source: int, batch: int, coefficients: int) -> Tensor:
    """(L, m): averaging over the batch's parts and the basis in one matrix, without a b x m matrix between them.

    The integral of a basis function that is constant on the batch's parts is piecewise linear, so its values at the
    source's levels i / m give each source point's weight.
    """
    basis = cosine_basis(batch, coefficients)
    integral = torch.cat([torch.zeros(1, coefficients, dtype=torch.float64), basis.cumsum(dim=0)])  # (b + 1, L)
    scaled = torch.arange(source + 1) * batch  # level i / m, in units of 1 / (b m)
    whole = torch.div(scaled, source, rounding_mode="floor")
    part = (scaled - whole * source).to(torch.float64) / source
    following = torch.cat([basis, torch.zeros(1, coefficients, dtype=torch.float64)])
    return (integral[whole] + part[:, None] * following[whole]).diff(dim=0).T
