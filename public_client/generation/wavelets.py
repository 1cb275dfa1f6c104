"""Fixed wavelets as layers of the closed vocabulary, of which scatterings are made (Bruna and Mallat 2013).

The modulus is the sum of the absolute real and imaginary part, so that every operation is in the vocabulary.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

TURNS = 8
"""Orientations."""


def modulus(x: Tensor, groups: int = 1) -> Tensor:
    """(b, 2 g m, h, w), where each of g groups has m real, then m imaginary parts, to (b, g m, h, w)."""
    real, imaginary = x.abs().reshape(x.shape[0], groups, -1, x.shape[3]).chunk(2, dim=2)
    return (real + imaginary).reshape(x.shape[0], -1, x.shape[2], x.shape[3])


def fixed(weight: Tensor, *, padding: int = 0, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    """A convolution without bias whose weight (out, in / groups, s, s) is never trained."""
    inputs, outputs, side = weight.shape[1] * groups, weight.shape[0], weight.shape[2]
    made = nn.Conv2d(inputs, outputs, side, stride=stride, padding=padding, groups=groups, bias=False)
    with torch.no_grad():
        made.weight.copy_(weight)
    return made.requires_grad_(False)


def morlet(*, reach: int, width: float, turn: int, frequency: float) -> npt.NDArray[np.complex128]:
    """An oriented wave under a Gaussian, less what makes its mean zero."""
    y, x = np.mgrid[-reach : reach + 1, -reach : reach + 1].astype(float)
    angle, slant = math.pi * turn / TURNS, 4.0 / TURNS
    along, across = x * math.cos(angle) + y * math.sin(angle), y * math.cos(angle) - x * math.sin(angle)
    envelope = np.exp(-(along**2 + (slant * across) ** 2) / (2.0 * width**2))
    wave = envelope * np.exp(1j * frequency * along)
    centred = (wave - wave.sum() / envelope.sum() * envelope) * slant / (2.0 * math.pi * width**2)
    return np.asarray(centred, dtype=np.complex128)


def real_and_imaginary(wavelets: list[npt.NDArray[np.complex128]]) -> Tensor:
    """(2 m, 1, s, s): real parts, then imaginary ones."""
    stacked = np.stack([*(w.real for w in wavelets), *(w.imag for w in wavelets)])
    return torch.from_numpy(stacked).float()[:, None]


def gaussian(width: float, reach: int) -> Tensor:
    """(1, 1, s, s) of sum 1, with s = 2 reach + 1."""
    y, x = np.mgrid[-reach : reach + 1, -reach : reach + 1]
    values = np.exp(-(x**2 + y**2) / (2.0 * width**2))
    return torch.from_numpy(values / values.sum()).float()[None, None]
