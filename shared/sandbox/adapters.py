"""Small layers that move a private target's records onto the source's: warps, gains and biases.

The functions of one record are what the curator runs under vmap; what a client computes is the same
(`dpswd.public_client.extractor.adapter_layers`).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


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
