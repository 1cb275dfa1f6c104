"""The target branch's gradient: clipped record by record, summed, noised.

The gradient of a distance with respect to the weights passes through each private record's own Jacobian, so it is not
post-processing of the released projections: with a linear extractor its row space contains every record of the
batch (docs/privacy, section 5). Here each record's gradient is clipped to C; one replaced record moves the sum by at
most 2 C.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.noise.clipping import clip_factors, neutralise
from dpswd.shared.core.noise.noise import GridArray, NoiseSource, finest_exponent, release_finely

_CHUNK = 1 << 18  # numbers held in float64 at a time: 2 MiB stay in a core's own cache


def gradient_step(*, batch: int, clip_norm: float, sigma: float) -> float:
    """The grid's step of a noised sum, as fine as 32 bits allow; from public numbers only.

    All p coordinates change with one record, so that a coarse grid would cost as much as the root of p of its steps.

    Args:
        batch: b, records in the sample.
        clip_norm: C.
        sigma: standard deviation of the noise on the sum.

    Raises:
        InvalidValue: the sum may saturate on any grid.
    """
    return math.ldexp(sigma, -_exponent(batch, clip_norm, sigma))


def _exponent(batch: int, clip_norm: float, sigma: float) -> int:
    if not 0.0 < clip_norm < float("inf"):
        raise InvalidValue(f"the clip norm is {clip_norm}; it must be positive and finite")
    return finest_exponent(batch * clip_norm, sigma=sigma)


def release_gradient(per_record: Tensor, *, clip_norm: float, sigma: float, noise: NoiseSource) -> GridArray:
    """Clip, sum, add noise.

    Each clipped gradient is rounded to the grid before it is summed: the sum is then exact in integers, the same on
    every device and in every order, and one replaced record moves it by at most 2 C plus one step in each
    coordinate, which is what the accountant charges.

    Args:
        per_record: (b, p), row i a function of record i and of public or already released values alone.
        clip_norm: C, in the gradient's units.
        sigma: standard deviation of the noise on the sum, in the same units.
        noise: where the noise comes from.

    Returns:
        (p,), the noised sum over the batch, in steps of `gradient_step`.

    Raises:
        InvalidValue: the shape is wrong, or the sum could leave int32.
    """
    if per_record.dim() != 2:
        raise InvalidValue(f"per-record gradients have shape {tuple(per_record.shape)}; use (records, parameters)")
    batch, parameters = per_record.shape
    exponent = _exponent(batch, clip_norm, sigma)
    step = math.ldexp(sigma, -exponent)
    total = torch.zeros(parameters, dtype=torch.float64, device=per_record.device)
    for rows in torch.split(per_record.detach(), max(1, _CHUNK // max(1, parameters))):
        finite = neutralise(rows)
        clipped = finite.to(torch.float64) * clip_factors(finite, clip_norm)
        total += torch.round(clipped / step).sum(dim=0)  # integers below 2^53: exact in any order
    return release_finely(total * step, sigma=sigma, exponent=exponent, noise=noise)
