"""Networks of the published generators: latents with one-hot classes to records.

A generator's file holds operations of the closed vocabulary only, which has no transposed convolutions. `ImageNetwork`
trains with them, and is rewritten for the file: between the pixels zeros are put, by a product with (1, 0), and a
convolution with the turned kernel follows.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from dpswd.shared.core.errors import InvalidValue

Kind = Literal["auto", "images", "dense"]
"""Which network: "auto" takes the one of images where records are images that it can draw."""

_SLOPE = 0.2
_GROWTH = 4  # a side grows from a quarter, by two doublings
_DENSE = 4  # times `width`: units of each hidden layer of the dense network


def network(kind: Kind, *, latent: int, classes: int, width: int, record_shape: tuple[int, ...]) -> nn.Module:
    """A new network from (b, latent + classes) to (b, values) between -1 and 1; weights from torch's own generator.

    Args:
        kind: see `Kind`.
        latent: k.
        classes: C.
        width: h, channels before the last layer.
        record_shape: of one record.

    Raises:
        InvalidValue: records of this shape are no images with sides that four divides.
    """
    fits = len(record_shape) in (2, 3) and all(side % _GROWTH == 0 for side in record_shape[-2:])
    if kind == "images" and not fits:
        raise InvalidValue(
            f"records of shape {record_shape} are no images that this network draws; needed is ((channels,) height, "
            'width) with sides that 4 divides; use network "dense"'
        )
    if kind == "dense" or not fits:
        hidden = _DENSE * width
        layers = [nn.Linear(latent + classes, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(hidden, math.prod(record_shape)), nn.Tanh())
    return ImageNetwork(latent + classes, width, (math.prod(record_shape[:-2]), *record_shape[-2:]))


class ImageNetwork(nn.Module):
    """The convolutional generator of DP-Sinkhorn's code: a linear map, two doublings of the sides, a convolution.

    Args:
        inputs: latent + C.
        width: h; channels are 4h, 2h, h.
        shape: (channels, height, width) of an image.
    """

    def __init__(self, inputs: int, width: int, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.width, self.shape = width, shape
        self.small = (shape[1] // _GROWTH, shape[2] // _GROWTH)
        self.first = nn.Linear(inputs, 4 * width * math.prod(self.small), bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(width * times) for times in (4, 2, 1))
        self.grow = nn.ModuleList(
            nn.ConvTranspose2d(width * times, width * times // 2, 4, 2, 1, bias=False) for times in (4, 2)
        )
        self.last = nn.Conv2d(width, shape[0], 3, padding=1)

    def forward(self, z: Tensor) -> Tensor:
        """(b, inputs) to (b, values)."""
        x = self.first(z).unflatten(1, (4 * self.width, *self.small))
        x = nn.functional.leaky_relu(self.norms[0](x), _SLOPE)
        for grow, norm in zip(self.grow, list(self.norms)[1:], strict=True):
            x = nn.functional.leaky_relu(norm(grow(x)), _SLOPE)
        return torch.tanh(self.last(x)).flatten(1)

    def rewritten(self) -> nn.Module:
        """The same function in the closed vocabulary, in evaluation mode."""
        return _Rewritten(self).eval()


class _Rewritten(nn.Module):
    """See `ImageNetwork.rewritten`."""

    def __init__(self, trained: ImageNetwork) -> None:
        super().__init__()
        self.width, self.small = trained.width, trained.small
        self.first, self.norms, self.last = trained.first, trained.norms, trained.last
        self.spread = nn.Linear(trained.first.in_features, 2)
        self.grow = nn.ModuleList(_convolution(layer) for layer in trained.grow)
        with torch.no_grad():
            self.spread.weight.zero_()
            self.spread.bias.copy_(torch.tensor([1.0, 0.0]))

    def forward(self, z: Tensor) -> Tensor:
        """(b, inputs) to (b, values)."""
        across, down = self.spread(z).unflatten(1, (1, 1, 2)), self.spread(z).unflatten(1, (1, 2, 1))
        channels, (height, width) = 4 * self.width, self.small
        x = self.first(z).unflatten(1, (channels, height, width))
        x = nn.functional.leaky_relu(self.norms[0](x), _SLOPE)
        for number in range(2):
            x = x.reshape(-1, channels * height, width, 1) * across
            x = x.reshape(-1, channels * height, 1, 2 * width) * down
            height, width = 2 * height, 2 * width
            x = self.grow[number](x.reshape(-1, channels, height, width))
            channels //= 2
            x = nn.functional.leaky_relu(self.norms[number + 1](x), _SLOPE)
        return torch.tanh(self.last(x)).flatten(1)


def _convolution(layer: nn.Module) -> nn.Conv2d:
    """What follows the zeros.

    With y[2i] = x[i], sum_i x[i] W[o - 2i + 1] = sum_t V[t] y[o - 2 + t] where V[3 - k] = W[k] and V[4] = 0.
    """
    assert isinstance(layer, nn.ConvTranspose2d)
    made = nn.Conv2d(layer.in_channels, layer.out_channels, 5, padding=2, bias=False)
    with torch.no_grad():
        made.weight.zero_()
        made.weight[:, :, :4, :4] = layer.weight.flip(2, 3).transpose(0, 1)
    return made


class Ranged(nn.Module):
    """A network's values between -1 and 1 as a record's between low and high.

    Args:
        inner: the network.
        low: least value.
        high: largest.
    """

    def __init__(self, inner: nn.Module, low: float, high: float) -> None:
        super().__init__()
        self.inner, self.middle, self.reach = inner, 0.5 * (low + high), 0.5 * (high - low)

    def forward(self, z: Tensor) -> Tensor:
        """(b, inputs) to (b, values)."""
        made: Tensor = self.inner(z) * self.reach + self.middle
        return made


def decoder_of(trained: nn.Module, *, low: float, high: float) -> nn.Module:
    """What a generator's file holds of a trained network: values from low to high, in the closed vocabulary."""
    inner = trained.rewritten() if isinstance(trained, ImageNetwork) else trained
    return Ranged(inner, low, high).eval()


class Centred(nn.Module):
    """Records flat, with values from low to high brought to -1 to 1.

    Args:
        low: least value of a record.
        high: largest.
    """

    def __init__(self, low: float, high: float) -> None:
        super().__init__()
        self.middle, self.gain = 0.5 * (low + high), 2.0 / (high - low)
        self.flat = nn.Flatten()

    def forward(self, x: Tensor) -> Tensor:
        """(b, ...) to (b, values)."""
        flat: Tensor = self.flat((x - self.middle) * self.gain)
        return flat
