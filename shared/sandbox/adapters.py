"""Small trainable layers that move a private target's features onto the source's (docs/privacy, 6).

The noise on a sanitized gradient grows with the square root of the number of parameters; an adapter of a few numbers
inside a frozen extractor therefore learns under budgets where the whole network cannot. Each layer is the identity
when it is made, differentiable in its parameters under `torch.func.vmap`, and a word of the closed vocabulary.

The functions of one record are what the curator runs under vmap; what a client trains computes the same
(`dpswd.public_client.extractor.adapter_layers`).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from dpswd.shared.sandbox import steady


def affine_warp2d_record(x: Tensor, theta: Tensor) -> Tensor:
    """Resamples one image (c, h, w) bilinearly on the affine grid theta (2, 3); the border is repeated outside.

    As products: every output pixel takes every pixel, most of them times zero, so that neither what is computed nor
    where memory is read depends on theta. A pixel that is not finite therefore makes its whole channel NaN.
    """
    height, width = x.shape[-2:]
    gx, gy = affine_grid(theta, height, width).reshape(-1, 2).unbind(-1)
    columns = x @ _bilinear(gx, width).T  # (c, h, places)
    return (columns * _bilinear(gy, height).T).sum(dim=-2).reshape(x.shape)


def affine_grid(theta: Tensor, height: int, width: int) -> Tensor:
    """Where each output pixel (x, y) in [-1, 1] reads: theta [x, y, 1], (h, w, 2); 0 where that is not a number."""
    # Pixel centres in [-1, 1], as grid_sample(align_corners=False) reads them.
    across = (2 * torch.arange(width, device=theta.device, dtype=theta.dtype) + 1) / width - 1
    down = (2 * torch.arange(height, device=theta.device, dtype=theta.dtype) + 1) / height - 1
    gx = theta[0, 0] * across[None, :] + theta[0, 1] * down[:, None] + theta[0, 2]
    gy = theta[1, 0] * across[None, :] + theta[1, 1] * down[:, None] + theta[1, 2]
    return torch.nan_to_num(torch.stack((gx, gy), dim=-1), nan=0.0)


def _bilinear(places: Tensor, size: int) -> Tensor:
    """Weights (p, size) of the pixels of one side at places (p,) in [-1, 1]; those outside are taken to the border."""
    at = functional.hardtanh(((places + 1) * size - 1) / 2, 0.0, size - 1.0).unsqueeze(-1)
    left = torch.floor(at.detach())
    pixels = torch.arange(size, device=at.device, dtype=at.dtype)
    share = at - left
    return (pixels == left).to(at.dtype) * (1 - share) + (pixels == left + 1).to(at.dtype) * share


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
    slope = steady.exp(log_slope)
    above = x.unsqueeze(-1) - knots  # (..., d, m), the way past each knot
    inner = steady.between(above[..., :-1], knots[:, 1:] - knots[:, :-1])  # (..., d, m - 1)
    left = -torch.relu(-above[..., 0]) * slope[:, 0]
    right = torch.relu(above[..., -1]) * slope[:, -1]
    return knots[:, 0] + offset + left + (inner * slope[:, 1:-1]).sum(dim=-1) + right
