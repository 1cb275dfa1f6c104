"""Public features of images, learned from nothing: a scattering of two layers, turned to the axes of drawn shapes.

Wavelets, modulus, wavelets again, blurred (Bruna and Mallat 2013), of fixed numbers alone; the modulus is the sum of
the absolute real and imaginary part, so that every operation is in the closed vocabulary. The second layer is computed
at half the resolution. What follows is linear: the largest principal axes of the scatterings of procedural images
(`procedural`), each divided by a power of its variance, and brought to norm 1/2, the clip norm, for every image.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from public_client.generation.procedural import procedural
from shared.kernels.clipping import RECORD_NORM

_TURNS = 8  # orientations of the wavelets
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
        fine = [_morlet(reach=3, width=0.8, turn=turn, frequency=0.75 * math.pi) for turn in range(_TURNS)]
        coarse = [_morlet(reach=5, width=1.6, turn=turn, frequency=0.375 * math.pi) for turn in range(_TURNS)]
        self.gain, self.shift = 1.0 / (high - low), -low / (high - low)
        self.fine = _fixed(_parts(fine).expand(-1, channels, -1, -1) / channels, padding=3)
        self.coarse = _fixed(_parts(coarse).expand(-1, channels, -1, -1) / channels, padding=5, stride=2)
        self.modulus = _fixed(_summing(1, _TURNS))
        self.halved = _fixed(_gaussian(1.0, 2).expand(_TURNS, 1, -1, -1), padding=2, stride=2, groups=_TURNS)
        self.second = _fixed(_parts(fine).repeat(_TURNS, 1, 1, 1), padding=3, groups=_TURNS)
        self.modulus_again = _fixed(_summing(_TURNS, _TURNS))
        self.blur = _fixed(_gaussian(2.08, 4).expand(channels, 1, -1, -1), padding=4, stride=4, groups=channels)
        every = _TURNS * (2 + _TURNS)
        self.blur_half = _fixed(_gaussian(1.04, 2).expand(every, 1, -1, -1), padding=2, stride=2, groups=every)
        self.flat = nn.Flatten()

    def forward(self, x: Tensor) -> Tensor:
        """(b, c, h, w) to (b, (c + 80) ceil(h / 4) ceil(w / 4))."""
        x = x * self.gain + self.shift
        fine = self.halved(self.modulus(_both_signs(self.fine(x))))
        coarse = self.modulus(_both_signs(self.coarse(x)))
        second = self.modulus_again(_both_signs(self.second(fine)))
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
        found: Tensor = self.norm(x) * self.gain
        return found


@functools.cache
def scattering_features(
    record_shape: tuple[int, int, int], *, low: float, high: float, axes: int, power: float
) -> nn.Module:
    """The public features of images of a shape; the same numbers at every call of one process.

    Args:
        record_shape: (c, h, w).
        low: black.
        high: white.
        axes: d.
        power: of an axis's variance, by which it is divided.
    """
    scattering = Scattering(record_shape[0], low, high).eval()
    pool = procedural(_POOL, record_shape, low=low, high=high, generator=torch.Generator().manual_seed(_POOL_SEED))
    values = computed(scattering, pool)
    places = math.ceil(record_shape[1] / 4) * math.ceil(record_shape[2] / 4)
    centre = values.mean(dim=0)
    # Channels are brought to one deviation first, each over all its places.
    deviation = (values - centre).reshape(len(values), -1, places).pow(2).mean(dim=(0, 2)).sqrt()
    gain = (1.0 / deviation).repeat_interleave(places)
    kept = min(axes, values.shape[1] - 1)
    variances, vectors = _principal((values - centre) * gain, kept)
    weight = (vectors * variances**-power * gain[:, None]).T  # (d, features)
    linear = nn.Linear(weight.shape[1], kept)
    with torch.no_grad():
        linear.weight.copy_(weight)
        linear.bias.copy_(-(weight @ centre))
    return nn.Sequential(scattering, linear, OnSphere(kept)).requires_grad_(False).eval()


def _principal(values: Tensor, kept: int) -> tuple[Tensor, Tensor]:
    """The largest variances (k,) and axes (features, k) of centred values (n, features), by subspace iteration."""
    some = torch.Generator().manual_seed(_POOL_SEED)
    width = min(values.shape[1], kept + _SPARE)
    basis = torch.linalg.qr(torch.randn((values.shape[1], width), generator=some))[0]
    for _ in range(_ROUNDS):
        basis = torch.linalg.qr(values.T @ (values @ basis))[0]
    seen = values @ basis
    variances, turned = torch.linalg.eigh(seen.T @ seen / len(values))
    return variances.flip(0)[:kept], (basis @ turned).flip(1)[:, :kept]


def computed(module: nn.Module, records: Tensor) -> Tensor:
    """The module's output for many records (n, ...), without gradients, some at a time."""
    with torch.no_grad():
        return torch.cat([module(part) for part in torch.split(records, _AT_A_TIME)])


def _both_signs(x: Tensor) -> Tensor:
    """Positive and negative parts, one after the other: their sum is the absolute value."""
    return torch.cat([F.relu(x), F.relu(-x)], dim=1)


def _fixed(weight: Tensor, *, padding: int = 0, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    inputs, outputs, side = weight.shape[1] * groups, weight.shape[0], weight.shape[2]
    made = nn.Conv2d(inputs, outputs, side, stride=stride, padding=padding, groups=groups, bias=False)
    with torch.no_grad():
        made.weight.copy_(weight)
    return made.requires_grad_(False)


def _morlet(*, reach: int, width: float, turn: int, frequency: float) -> npt.NDArray[np.complex128]:
    """An oriented wave under a Gaussian, less what makes its mean zero."""
    y, x = np.mgrid[-reach : reach + 1, -reach : reach + 1].astype(float)
    angle, slant = math.pi * turn / _TURNS, 4.0 / _TURNS
    along, across = x * math.cos(angle) + y * math.sin(angle), y * math.cos(angle) - x * math.sin(angle)
    envelope = np.exp(-(along**2 + (slant * across) ** 2) / (2.0 * width**2))
    wave = envelope * np.exp(1j * frequency * along)
    centred = (wave - wave.sum() / envelope.sum() * envelope) * slant / (2.0 * math.pi * width**2)
    return np.asarray(centred, dtype=np.complex128)


def _parts(wavelets: list[npt.NDArray[np.complex128]]) -> Tensor:
    """(2 m, 1, s, s): real parts, then imaginary ones."""
    stacked = np.stack([*(w.real for w in wavelets), *(w.imag for w in wavelets)])
    return torch.from_numpy(stacked).float()[:, None]


def _summing(groups: int, waves: int) -> Tensor:
    """(g m, 4 g m, 1, 1): adds both signs of both parts, where each of g groups has m real, then m imaginary parts."""
    parts = torch.kron(torch.eye(groups), torch.eye(waves).repeat(1, 2))
    return parts.repeat(1, 2)[:, :, None, None]


def _gaussian(width: float, reach: int) -> Tensor:
    y, x = np.mgrid[-reach : reach + 1, -reach : reach + 1]
    values = np.exp(-(x**2 + y**2) / (2.0 * width**2))
    return torch.from_numpy(values / values.sum()).float()[None, None]
