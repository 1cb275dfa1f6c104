"""Random compositions of shifts of images, of random strengths: what nobody thought of beforehand.

Each is one to five operations in a random order, some that a view of images can express and some that none can, of all
records or of a part of them (a second device), with the classes' frequencies changed or not.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import astuple

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.shifts.made import blurred, resampled, smooth, uniform
from dpswd.public_client.data.datasets import Labelled
from dpswd.public_client.replay.augmentation import Warps

_SOURCES = ("fashion", "mnist", "usps")
_RECORDS = (150, 10_000)  # wanted, log-uniform
_EPSILONS = (0.3, 1.0, 3.0, 10.0)
_SEEDS = (0, 1, 2)
PLANNED = 300
"""Compositions on the list."""

_Operation = Callable[[Tensor, Tensor, torch.Generator], Tensor]
"""Images (n, 1, h, w) in [-1, 1] and labels (n,) to images."""


_FAR = Warps(turn=0.5, scale=0.35, aspect=0.2, shear=0.2, shift=0.12)  # its own: no fit's constants move a check of it
_NEAR = Warps(turn=0.3, scale=0.25, aspect=0.15, shear=0.2, shift=0.1)


def _drawn(count: int, most: Warps, generator: torch.Generator) -> Tensor:
    """Warps (count, 2, 3) of one random strength."""
    strength = uniform(generator, 0.3, 1.0)
    return Warps(*(strength * part for part in astuple(most))).draw(count, generator)


def _affine(x: Tensor, _labels: Tensor, generator: torch.Generator) -> Tensor:
    """One warp of all."""
    return resampled(x, _drawn(1, _FAR, generator).expand(len(x), 2, 3))


def _stroke(x: Tensor, _labels: Tensor, generator: torch.Generator) -> Tensor:
    mix = uniform(generator, -0.8, 0.8)
    other = functional.max_pool2d(x, 3, 1, 1) if mix > 0 else -functional.max_pool2d(-x, 3, 1, 1)
    return (1 - abs(mix)) * x + abs(mix) * other


def _blur(x: Tensor, _labels: Tensor, generator: torch.Generator) -> Tensor:
    return blurred(x, uniform(generator, 0.4, 1.2), reach=4)


def _gamma(x: Tensor, _labels: Tensor, generator: torch.Generator) -> Tensor:
    return ((x + 1) / 2).clamp(0.0, 1.0).pow(math.exp(uniform(generator, -0.8, 0.8))) * 2 - 1


def _contrast(x: Tensor, _labels: Tensor, generator: torch.Generator) -> Tensor:
    return x * uniform(generator, 0.5, 0.95) + uniform(generator, -0.15, 0.2)


def _noise(x: Tensor, _labels: Tensor, generator: torch.Generator) -> Tensor:
    return (x + uniform(generator, 0.1, 0.5) * torch.randn(x.shape, generator=generator)).clamp(-1.0, 1.0)


def _inverted(x: Tensor, _labels: Tensor, _generator: torch.Generator) -> Tensor:
    return -x


def _each(x: Tensor, _labels: Tensor, generator: torch.Generator) -> Tensor:
    """A warp for each record."""
    return resampled(x, _drawn(len(x), _NEAR, generator))


def _each_class(x: Tensor, labels: Tensor, generator: torch.Generator) -> Tensor:
    """A warp for each class."""
    return resampled(x, _drawn(10, _NEAR, generator)[labels])


def _boxed(x: Tensor, _labels: Tensor, generator: torch.Generator) -> Tensor:
    """What is brighter than a quarter is stretched to fill the image, or so much of it."""
    fill, bright = uniform(generator, 0.7, 1.0), x[:, 0] > -0.5
    theta = torch.zeros(len(x), 2, 3)
    for axis, across in ((0, 1), (1, 2)):
        lit = bright.any(dim=across)  # (n, places along the axis)
        ends = torch.stack((lit.int().argmax(dim=1), lit.shape[1] - lit.flip(1).int().argmax(dim=1)))
        first, last = torch.where(lit.any(dim=1), 2.0 * ends / lit.shape[1] - 1.0, torch.tensor([[-1.0], [1.0]]))
        theta[:, axis, axis], theta[:, axis, 2] = (last - first) / 2 / fill, (last + first) / 2
    return resampled(x, theta)


def _texture(x: Tensor, _labels: Tensor, generator: torch.Generator) -> Tensor:
    return torch.maximum(x, uniform(generator, 0.1, 1.4) * smooth(6, x, generator) - 1.0)


def _occluded(x: Tensor, _labels: Tensor, generator: torch.Generator) -> Tensor:
    top, left, height = (int(torch.randint(most, (), generator=generator)) for most in (9, 7, 3))
    x = x.clone()
    x[..., top : top + 1 + height, left : left + 8] = -1.0
    return x


def _coarse(x: Tensor, _labels: Tensor, _generator: torch.Generator) -> Tensor:
    """Fewer pixels."""
    few = functional.interpolate(x, size=(9, 9), mode="area")
    return functional.interpolate(few, size=x.shape[-2:], mode="bilinear")


def _rolled(x: Tensor, _labels: Tensor, generator: torch.Generator) -> Tensor:
    """Columns begin elsewhere, as a reader with a wrong offset has them."""
    return torch.roll(x, int(torch.randint(2, 6, (), generator=generator)), dims=-1)


_INSIDE: tuple[_Operation, ...] = (_affine, _affine, _stroke, _blur, _gamma, _contrast, _noise, _inverted)
_OUTSIDE: tuple[_Operation, ...] = (_each, _each_class, _boxed, _texture, _occluded, _coarse, _rolled)


class Composed:
    """The composition of a number.

    Attributes:
        source: whose model meets it.
        records: n that is wanted.
        epsilon: of the release.
        seed: of the model.
        outside: whether no view can express all of it.
        part: share of the records that it befalls.
    """

    def __init__(self, number: int) -> None:
        draw = random.Random(31_000 + number)
        operations = draw.sample(_INSIDE, draw.choice((0, 1, 1, 2, 3))) + draw.sample(
            _OUTSIDE, draw.choice((0, 1, 1, 1, 2))
        )
        draw.shuffle(operations)
        self._operations = operations or [draw.choice(_INSIDE)]
        self._number = number
        self._classes = draw.random() < 0.2
        self.part = 1.0 if draw.random() < 0.85 else draw.choice((0.5, 0.7, 0.9))
        self.outside = self.part < 1.0 or any(one in _OUTSIDE for one in self._operations)
        self.source, self.seed = draw.choice(_SOURCES), draw.choice(_SEEDS)
        self.records = round(math.exp(draw.uniform(*(math.log(end) for end in _RECORDS))))
        self.epsilon = draw.choice(_EPSILONS)

    def __call__(self, data: Labelled, _: torch.Generator) -> Labelled:
        """Records of the source's pool as the target has them; all strengths are the number's own."""
        generator = torch.Generator().manual_seed(self._number)
        if self._classes:
            shares = torch.rand(10, generator=generator)
            data = data.part(torch.rand(len(data), generator=generator) < (shares / shares.max())[data.labels])
        befallen = torch.rand(len(data), generator=generator) < self.part
        seen, labels = data.images[befallen], data.labels[befallen]
        for operation in self._operations:
            seen = operation(seen, labels, generator)
        images = data.images.clone()
        images[befallen] = seen.clamp(-1.0, 1.0)
        return Labelled(images, data.labels)
