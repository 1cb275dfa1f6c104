"""Clipping record by record.

What bounds the sensitivity must not couple the records: a norm taken over the batch (the papers divide by the batch's
largest) lets one outlier rescale every other row (docs/privacy, section 5).
"""

from __future__ import annotations

import torch
from torch import Tensor

from dpswd.shared.core.errors import InvalidValue

RECORD_NORM = 0.5  # two records of norm 1/2 differ by at most 1, the shift that the accountant prices
# Clipped norms end a hair below the limit, which absorbs every rounding that follows: float32 features (2^-24),
# float32 directions (2^-24 in each entry) and the products of the two.
_MARGIN = 1.0 - 2.0**-20
_NEAR_VALUES = 1 << 16  # half a megabyte in float64, which stays in a core's own cache


def neutralise(values: Tensor) -> Tensor:
    """Replace NaN and infinities by zero, so that no arithmetic downstream can behave unusually.

    Args:
        values: any shape, floating point.

    Returns:
        The same shape and type, finite.
    """
    return torch.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)


def clip_records(records: Tensor, max_norm: float = RECORD_NORM) -> Tensor:
    """Shrink each row to norm at most `max_norm`; rows that are shorter stay as they are.

    Args:
        records: (b, d), float32 or float64; NaN and infinities count as zero.
        max_norm: the limit, positive.

    Returns:
        (b, d) in the type of `records`, each row with norm at most `max_norm`, a function of that row alone.

    Raises:
        InvalidValue: the shape, the type or the limit is outside what is allowed.
    """
    finite = neutralise(records)
    return (finite.to(torch.float64) * clip_factors(finite, max_norm)).to(records.dtype)


def clip_factors(records: Tensor, max_norm: float) -> Tensor:
    """By how much `clip_records` multiplies each row.

    Args:
        records: (b, d), float32 or float64, finite.
        max_norm: the limit, positive.

    Returns:
        (b, 1) float64, at most 1.

    Raises:
        InvalidValue: the shape, the type or the limit is outside what is allowed.
    """
    if records.dim() != 2:
        raise InvalidValue(f"records have shape {tuple(records.shape)}; use two axes, (records, features)")
    if records.dtype not in (torch.float32, torch.float64):
        raise InvalidValue(f"records have type {records.dtype}; use float32 or float64")
    if not 0.0 < max_norm < float("inf"):
        raise InvalidValue(f"the clip norm is {max_norm}; it must be positive and finite")
    few = _NEAR_VALUES // max(1, records.shape[1])
    parts = torch.split(records, few) if few > 1 and records.device.type == "cpu" else (records,)
    norms = torch.cat(  # (b, 1), each row's by itself, in any parts
        [torch.linalg.vector_norm(part.to(torch.float64), dim=1, keepdim=True) for part in parts]
    )
    # A row whose norm overflows gets the factor 0 and leaves as zeros, which is within the limit.
    return torch.clamp(max_norm * _MARGIN / norms, max=1.0)
