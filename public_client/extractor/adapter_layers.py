"""Adapters as modules that a client trains; the curator evaluates `dpswd.shared.sandbox.adapters`."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.sandbox.adapters import affine_grid, low_rank_affine, monotone_columns


class AffineWarp2d(nn.Module):
    """An affine resampling of images, six parameters: shift, scale, rotation, shear.

    Attributes:
        theta: (2, 3), in units of half an image side; the identity is [[1, 0, 0], [0, 1, 0]].
    """

    def __init__(self) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]))

    def forward(self, x: Tensor) -> Tensor:
        """Resamples (b, c, h, w); what the curator computes as products, which take longer."""
        grid = affine_grid(self.theta, *x.shape[-2:]).expand(x.shape[0], -1, -1, -1)
        return functional.grid_sample(x, grid, mode="bilinear", padding_mode="border", align_corners=False)


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
