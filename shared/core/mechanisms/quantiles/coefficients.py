"""Sliced quantile coefficients (docs/privacy, section 6): a few numbers for each direction instead of one for each row.

q_j = sort(F u_j), c = B^T [q_1 ... q_k] + V with V iid N(0, sigma^2). One replaced record z moves c by at most
sqrt(kappa / b) ||z U||, kappa = 1 + 2 (L - 1).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.noise.noise import GridArray, NoiseSource, narrowest_integer, release_on_grid

_NEAR_VALUES = 1 << 16  # half a megabyte in float64, which stays in a core's own cache


def project(features: Tensor, U: Tensor) -> Tensor:
    """Projections in float64, whose rounding is far below the grid's.

    Args:
        features: (b, d), clipped.
        U: (d, k) unit columns.

    Returns:
        (b, k) float64.

    Raises:
        InvalidValue: the shapes do not fit together.
    """
    if features.dim() != 2 or U.dim() != 2 or features.shape[1] != U.shape[0]:
        raise InvalidValue(f"features {tuple(features.shape)} and directions {tuple(U.shape)}; use (b, d) and (d, k)")
    return features.to(torch.float64) @ U.to(torch.float64)


def cosine_basis(
    batch: int, coefficients: int, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float64
) -> Tensor:
    """B: B_0 = 1 / sqrt(b), B_l(r) = sqrt(2 / b) cos(pi l (r + 1/2) / b).

    Args:
        batch: b, at least 1.
        coefficients: L, between 1 and b.
        device: where the tensor lives.
        dtype: of the result.

    Returns:
        (b, L), orthonormal columns.

    Raises:
        InvalidValue: L is outside 1..b.
    """
    if not 1 <= coefficients <= batch:
        raise InvalidValue(f"asked for {coefficients} coefficients of {batch} records; use 1 to {batch}")
    levels = (torch.arange(batch, dtype=torch.float64) + 0.5) / batch  # (b,)
    basis = torch.stack([basis_function(levels, order) for order in range(coefficients)], dim=1)
    return (basis / math.sqrt(batch)).to(device=device, dtype=dtype)


def basis_function(levels: Tensor, order: int) -> Tensor:
    """sqrt(b) B_l at quantile levels t in [0, 1], of any shape: 1, or sqrt(2) cos(pi l t) for l of 1 and more."""
    return math.sqrt(2.0) * torch.cos(math.pi * order * levels) if order else torch.ones_like(levels)


def in_order(values: Tensor) -> Tensor:
    """Each column of (b, k) upwards, by Batcher's bitonic network (1968): which places are compared is fixed by b."""
    count, levels, ordered = len(values), (len(values) - 1).bit_length(), []
    wide = functional.pad(values, (0, 0, 0, (1 << levels) - count), value=math.inf)
    for part in torch.split(wide, max(1, _NEAR_VALUES >> levels), dim=1):
        columns = part.shape[1]
        for run in range(levels):  # pieces of 2^run rows are in order, and are merged two by two
            for step in range(run, -1, -1):
                low, high = part.reshape(-1, 2, 1 << step, columns).unbind(dim=1)
                high = high.flip(1) if step == run else high
                part = torch.stack((torch.minimum(low, high), torch.maximum(low, high)), dim=1)
        ordered.append(part.reshape(-1, columns)[:count])
    return torch.cat(ordered, dim=1)


def release_coefficients(
    features: Tensor, U: Tensor, *, coefficients: int, sigma: float, noise: NoiseSource
) -> GridArray:
    """Noised quantile coefficients of the batch.

    Args:
        features: (b, d), each row clipped to norm 1/2.
        U: (d, k), drawn after the extractor was fixed.
        coefficients: L, between 1 and b.
        sigma: standard deviation of the noise, in the features' units.
        noise: where the noise comes from.

    Returns:
        (L, k). A coefficient is at most sqrt(b) / 2: the sorted projections have norm at most sqrt(b) / 2, and the
        basis is orthonormal.

    Raises:
        InvalidValue: a shape or L is outside what is allowed.
    """
    ordered = in_order(project(features, U))  # (b, k)
    basis = cosine_basis(ordered.shape[0], coefficients, device=ordered.device)
    integer = narrowest_integer(math.sqrt(ordered.shape[0]) / 2, sigma=sigma)
    return release_on_grid(basis.T @ ordered, sigma=sigma, noise=noise, integer=integer)
