"""Random variation of public records: it makes up for what a fitted view of the target misses.

Everything here is drawn on the client's side from public numbers; it costs time and no budget.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

_KNOTS = 5  # displacements of an elastic field along each side, interpolated in between


@dataclass(frozen=True)
class Warps:
    """Uniform random affine resamplings; each number is the largest magnitude.

    Attributes:
        turn: radians.
        scale: logarithm of the size.
        aspect: logarithm of the ratio of width to height, halved.
        shear: added to the turn's sine, once.
        shift: half image sides.
    """

    turn: float
    scale: float
    aspect: float
    shear: float
    shift: float

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """(count, 2, 3) maps from where a pixel is seen to where it is read."""

        def uniform(most: float) -> Tensor:
            return (torch.rand(count, generator=generator) * 2 - 1) * most

        turn, aspect, shear = uniform(self.turn), uniform(self.aspect), uniform(self.shear)
        scale = torch.exp(uniform(self.scale))
        cos, sin = torch.cos(turn) * scale, torch.sin(turn) * scale
        first = torch.stack((cos * torch.exp(aspect), sin + shear * scale, uniform(self.shift)), dim=1)
        second = torch.stack((-sin, cos * torch.exp(-aspect), uniform(self.shift)), dim=1)
        return torch.stack((first, second), dim=1)


@dataclass(frozen=True)
class Variation:
    """How much records of one source may differ from each other beyond what the source shows.

    Attributes:
        warps: of each image.
        elastic: deviation of the smooth displacement field, in half image sides.
        stroke: deviation of `ImageView.stroke`.
        gamma: deviation of `ImageView.gamma`.
    """

    warps: Warps
    elastic: float
    stroke: float
    gamma: float


@dataclass(frozen=True)
class Drawn:
    """Variation of one batch.

    Attributes:
        theta: (b, 2, 3), affine maps from where a pixel is seen to where it is read.
        displacement: (b, h, w, 2), added to where it is read.
        stroke: (b, 1, 1, 1).
        gamma: (b, 1, 1, 1).
    """

    theta: Tensor
    displacement: Tensor
    stroke: Tensor
    gamma: Tensor


def draw_variation(variation: Variation, images: Tensor, generator: torch.Generator) -> Drawn:
    """One draw for each image.

    Args:
        variation: how much.
        images: (b, c, h, w), for the shape and the device.
        generator: on the processor, whatever the images' device.
    """
    count, _, height, width = images.shape
    knots = variation.elastic * torch.randn(count, 2, _KNOTS, _KNOTS, generator=generator)
    field = functional.interpolate(knots, size=(height, width), mode="bicubic", align_corners=True)
    each = (count, 1, 1, 1)
    return Drawn(
        theta=variation.warps.draw(count, generator).to(images),
        displacement=field.permute(0, 2, 3, 1).to(images),
        stroke=(variation.stroke * torch.randn(each, generator=generator)).to(images),
        gamma=(variation.gamma * torch.randn(each, generator=generator)).to(images),
    )
