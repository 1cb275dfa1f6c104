"""Small trainable layers that move a private target's features onto the source's (docs/privacy, 6).

The noise on a sanitized gradient grows with the square root of the number of parameters; an adapter of a few numbers
inside a frozen extractor therefore learns under budgets where the whole network cannot. Each layer is the identity
when it is made, differentiable in its parameters under `torch.func.vmap`, and a word of the closed vocabulary.

The functions without a batch dimension (``*_record``) are what the curator runs under vmap; the client trains modules
that call the same functions (`dpswd.public_client.extractor.adapter_layers`).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from dpswd.shared.sandbox import steady


def affine_warp2d_record(x: Tensor, theta: Tensor) -> Tensor:
    """Resamples one image (c, h, w) bilinearly on the affine grid theta (2, 3); the border is repeated outside."""
    return affine_warp2d(x.unsqueeze(0), theta).squeeze(0)


def affine_warp2d(x: Tensor, theta: Tensor) -> Tensor:
    """Resamples (b, c, h, w). The grid holds, for output pixel (x, y) in [-1, 1], where to read: theta [x, y, 1]."""
    height, width = x.shape[-2:]
    # Pixel centres in [-1, 1], as grid_sample(align_corners=False) reads them.
    across = (2 * torch.arange(width, device=x.device, dtype=x.dtype) + 1) / width - 1
    down = (2 * torch.arange(height, device=x.device, dtype=x.dtype) + 1) / height - 1
    gx = theta[0, 0] * across[None, :] + theta[0, 1] * down[:, None] + theta[0, 2]  # (h, w)
    gy = theta[1, 0] * across[None, :] + theta[1, 1] * down[:, None] + theta[1, 2]
    grid = torch.stack((gx, gy), dim=-1).unsqueeze(0).expand(x.shape[0], height, width, 2)
    return functional.grid_sample(x, grid, mode="bilinear", padding_mode="border", align_corners=False)


def channel_affine_record(x: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
    """One gain and one bias for each channel of one record (c, ...)."""
    trailing = (-1,) + (1,) * (x.dim() - 1)
    return x * gain.reshape(trailing) + bias.reshape(trailing)


def low_rank_affine(x: Tensor, left: Tensor, right: Tensor, bias: Tensor) -> Tensor:
    """X -> x + left (right x) + bias on the last dimension; left (d, r), right (r, d), bias (d,)."""
    return x + (x @ right.T) @ left.T + bias


def monotone_columns(x: Tensor, knots: Tensor, log_slope: Tensor, offset: Tensor) -> Tensor:
    """An increasing piecewise-linear map for each column.

    Args:
        x: (..., d).
        knots: (d, m), public, increasing in each row: where the slope may change.
        log_slope: (d, m + 1), the logarithm of the slope left of, between and right of the knots.
        offset: (d,), added to the result.

    Returns:
        (..., d); equal to x when log_slope and offset are zero.
    """
    slope = torch.exp(log_slope)
    above = x.unsqueeze(-1) - knots  # (..., d, m), the way past each knot
    inner = steady.between(above[..., :-1], knots[:, 1:] - knots[:, :-1])  # (..., d, m - 1)
    left = -torch.relu(-above[..., 0]) * slope[:, 0]
    right = torch.relu(above[..., -1]) * slope[:, -1]
    return knots[:, 0] + offset + left + (inner * slope[:, 1:-1]).sum(dim=-1) + right
