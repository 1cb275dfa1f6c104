"""Small layers that move records, the identity at first; the curator evaluates `dpswd.shared.sandbox.adapters`.

Beside them linear layers of given weights.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpswd.shared.sandbox.adapters import affine_grid


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


def filled_linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """A linear layer with these weights."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")  # draws no numbers
    layer.weight = nn.Parameter(weight.float())
    if bias is not None:
        layer.bias = nn.Parameter(bias.float())
    return layer
