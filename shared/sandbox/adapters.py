"""Small trainable layers that move a private target's features onto the source's (docs/privacy, 6).

The noise on a sanitized gradient grows with the square root of the number of parameters; an adapter of a few numbers
inside a frozen extractor therefore learns under budgets where the whole network cannot. Each layer is the identity
when it is made, differentiable in its parameters under `torch.func.vmap`, and a word of the closed vocabulary.

The functions without a batch dimension (``*_record``) are what the curator runs under vmap; the modules are what
the client trains, and call the same functions.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.sandbox import steady


def affine_warp2d_record(x: Tensor, theta: Tensor) -> Tensor:
    """Resamples one image (c, h, w) bilinearly on the affine grid theta (2, 3); the border is repeated outside."""
    return _warp(x.unsqueeze(0), theta).squeeze(0)


def _warp(x: Tensor, theta: Tensor) -> Tensor:
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


class AffineWarp2d(nn.Module):
    """An affine resampling of images, six parameters: shift, scale, rotation, shear.

    Attributes:
        theta: (2, 3), in units of half an image side; the identity is [[1, 0, 0], [0, 1, 0]].
    """

    def __init__(self) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]))

    def forward(self, x: Tensor) -> Tensor:
        """Resamples (b, c, h, w)."""
        return _warp(x, self.theta)


class ChannelAffine(nn.Module):
    """One gain and one bias for each channel.

    Attributes:
        gain: (c,), ones at first.
        bias: (c,), zeros at first.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels
        self.gain = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Maps (b, c, ...)."""
        trailing = (-1,) + (1,) * (x.dim() - 2)
        return x * self.gain.reshape(trailing) + self.bias.reshape(trailing)


class FeatureAffine(nn.Module):
    """One gain and one bias for each feature (the last dimension).

    Attributes:
        gain: (d,), ones at first.
        bias: (d,), zeros at first.
    """

    def __init__(self, features: int) -> None:
        super().__init__()
        self.features = features
        self.gain = nn.Parameter(torch.ones(features))
        self.bias = nn.Parameter(torch.zeros(features))

    def forward(self, x: Tensor) -> Tensor:
        """Maps (b, ..., d)."""
        return x * self.gain + self.bias


class LowRankAffine(nn.Module):
    """x -> (I + left right) x + bias on the last dimension.

    Attributes:
        left: (d, r), zeros at first, so that the layer starts as the identity.
        right: (r, d), orthonormal rows at first (from a fixed seed, so that two parties start alike).
        bias: (d,), zeros at first.
    """

    def __init__(self, features: int, rank: int) -> None:
        super().__init__()
        if not 1 <= rank <= features:
            raise InvalidValue(f"rank must be between 1 and the {features} features, got {rank}")
        self.features = features
        self.rank = rank
        seeded = torch.Generator().manual_seed(0)
        basis, _ = torch.linalg.qr(torch.randn(features, rank, generator=seeded))
        self.left = nn.Parameter(torch.zeros(features, rank))
        self.right = nn.Parameter(basis.T.contiguous())
        self.bias = nn.Parameter(torch.zeros(features))

    def forward(self, x: Tensor) -> Tensor:
        """Maps (b, ..., d)."""
        return low_rank_affine(x, self.left, self.right, self.bias)


class MonotoneColumns(nn.Module):
    """An increasing piecewise-linear map for each column of a table: recalibrates each measured quantity.

    Args:
        knots: (d, m), m >= 2, increasing in each row, public (quantiles of the source's columns, for example).

    Attributes:
        log_slope: (d, m + 1), zeros at first (slope one).
        offset: (d,), zeros at first.
    """

    knots: Tensor

    def __init__(self, knots: Tensor) -> None:
        super().__init__()
        if knots.dim() != 2 or knots.shape[1] < 2 or not bool((knots[:, 1:] > knots[:, :-1]).all()):
            raise InvalidValue(
                f"knots must be (columns, at least 2) and increase in each row, got shape {tuple(knots.shape)}"
            )
        self.register_buffer("knots", knots.detach().to(torch.float32).clone())
        self.log_slope = nn.Parameter(torch.zeros(knots.shape[0], knots.shape[1] + 1))
        self.offset = nn.Parameter(torch.zeros(knots.shape[0]))

    def forward(self, x: Tensor) -> Tensor:
        """Maps (b, ..., d)."""
        return monotone_columns(x, self.knots, self.log_slope, self.offset)


ADAPTERS: tuple[type[nn.Module], ...] = (AffineWarp2d, ChannelAffine, FeatureAffine, LowRankAffine, MonotoneColumns)
"""Every adapter; `adapter_parameter_names` finds a module's trainable adapter parameters by these types."""

PREFIX = "target_adapter"
"""Where adapters stand in an adapted module: `target_adapter.input_warp.theta` and so on."""


def adapter_parameter_names(module: nn.Module) -> list[str]:
    """Names of the trainable parameters that belong to adapters, in the order of `module.named_parameters()`.

    These are what a client declares when only the adapters shall receive a sanitized gradient: the parameters of the
    layers of this module, and of whatever stands below `PREFIX`. Frozen ones (requires_grad false) are left out.
    """
    owned = {
        f"{path}.{name}" if path else name
        for path, child in module.named_modules()
        if type(child) in ADAPTERS
        for name, _ in child.named_parameters(recurse=False)
    }
    return [
        name
        for name, parameter in module.named_parameters()
        if (name in owned or PREFIX in name.split(".")) and parameter.requires_grad
    ]
