"""Public features of images, learned from nothing: a scattering of two layers, turned to the axes of drawn shapes.

Wavelets, modulus, wavelets again, blurred (Bruna and Mallat 2013), of fixed numbers alone; the modulus is the sum of
the absolute real and imaginary part, so that every operation is in the closed vocabulary. The second layer is computed
at half the resolution. What follows is linear: the largest principal axes of the scatterings of procedural images
(`procedural`), each divided by a power of its variance, and brought to norm 1/2, the clip norm, for every image.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor, nn

from dpswd.public_client.extractor.adapter_layers import filled_linear
from dpswd.public_client.generation.procedural import procedural
from dpswd.public_client.generation.wavelets import TURNS, fixed, gaussian, modulus, morlet, real_and_imaginary
from dpswd.shared.core.noise.clipping import RECORD_NORM

_POOL, _POOL_SEED = 6_000, 0  # procedural images that the axes are of
_SPARE, _ROUNDS = 40, 3
"""Of the subspace iteration: more axes than are kept, and products with the data."""
_AT_A_TIME = 500  # images; bounds memory


class Scattering(nn.Module):
    """(b, c, h, w) in [low, high] to c + 80 channels of a quarter of the sides, flat.

    Args:
        channels: c; wavelets see their mean.
        low: black.
        high: white.
    """

    def __init__(self, channels: int, low: float, high: float) -> None:
        super().__init__()
        fine = [morlet(reach=3, width=0.8, turn=turn, frequency=0.75 * math.pi) for turn in range(TURNS)]
        coarse = [morlet(reach=5, width=1.6, turn=turn, frequency=0.375 * math.pi) for turn in range(TURNS)]
        self.gain, self.shift = 1.0 / (high - low), -low / (high - low)
        self.fine = fixed(real_and_imaginary(fine).expand(-1, channels, -1, -1) / channels, padding=3)
        self.coarse = fixed(real_and_imaginary(coarse).expand(-1, channels, -1, -1) / channels, padding=5, stride=2)
        self.halved = fixed(gaussian(1.0, 2).expand(TURNS, 1, -1, -1), padding=2, stride=2, groups=TURNS)
        self.second = fixed(real_and_imaginary(fine).repeat(TURNS, 1, 1, 1), padding=3, groups=TURNS)
        self.blur = fixed(gaussian(2.08, 4).expand(channels, 1, -1, -1), padding=4, stride=4, groups=channels)
        every = TURNS * (2 + TURNS)
        self.blur_half = fixed(gaussian(1.04, 2).expand(every, 1, -1, -1), padding=2, stride=2, groups=every)
        self.flat = nn.Flatten()

    def forward(self, x: Tensor) -> Tensor:
        """(b, c, h, w) to (b, (c + 80) ceil(h / 4) ceil(w / 4))."""
        x = x * self.gain + self.shift
        fine = self.halved(modulus(self.fine(x)))
        coarse = modulus(self.coarse(x))
        second = modulus(self.second(fine), groups=TURNS)
        rest = self.blur_half(torch.cat([fine, coarse, second], dim=1))
        flat: Tensor = self.flat(torch.cat([self.blur(x), rest], dim=1))
        return flat


class OnSphere(nn.Module):
    """Features (b, d) less the mean of their coordinates, brought to the clip norm: the clip changes none of them.

    Args:
        width: d.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.gain = RECORD_NORM / math.sqrt(width)

    def forward(self, x: Tensor) -> Tensor:
        """(b, d) to (b, d) of norm 1/2."""
        scaled: Tensor = self.norm(x) * self.gain
        return scaled


@functools.cache
def scattering_features(
    record_shape: tuple[int, int, int], *, low: float, high: float, axes: int, power: float
) -> nn.Module:
    """Public features (d = axes) of images (c, h, w), divided by a power of its variance; a process's are alike."""
    scattering = Scattering(record_shape[0], low, high).eval()
    pool = procedural(_POOL, record_shape, low=low, high=high, generator=torch.Generator().manual_seed(_POOL_SEED))
    values = computed(scattering, pool)
    places = math.ceil(record_shape[1] / 4) * math.ceil(record_shape[2] / 4)
    centre = values.mean(dim=0)
    # Channels are brought to one deviation first, each over all its places.
    deviation = (values - centre).reshape(len(values), -1, places).pow(2).mean(dim=(0, 2)).sqrt()
    gain = (1.0 / deviation).repeat_interleave(places)
    count = min(axes, values.shape[1] - 1)
    variances, vectors = principal((values - centre) * gain, count)
    weight = (vectors * variances**-power * gain[:, None]).T  # (d, features)
    linear = filled_linear(weight.contiguous(), -(weight @ centre))
    return nn.Sequential(scattering, linear, OnSphere(count)).requires_grad_(False).eval()


def principal(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The largest variances (k,) and axes (features, k) of centred values (n, features), by subspace iteration."""
    some = torch.Generator().manual_seed(_POOL_SEED)
    width = min(values.shape[1], count + _SPARE)
    basis = torch.linalg.qr(torch.randn((values.shape[1], width), generator=some))[0]
    for _ in range(_ROUNDS):
        basis = torch.linalg.qr(values.T @ (values @ basis))[0]
    seen = values @ basis
    variances, turned = torch.linalg.eigh(seen.T @ seen / len(values))
    return variances.flip(0)[:count], (basis @ turned).flip(1)[:, :count]


def computed(module: nn.Module, records: Tensor) -> Tensor:
    """The module's output for many records (n, ...), without gradients, some at a time."""
    with torch.no_grad():
        return torch.cat([module(part) for part in torch.split(records, _AT_A_TIME)])
