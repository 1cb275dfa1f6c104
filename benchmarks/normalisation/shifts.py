"""Made shifts of 28 x 28 images from -1 to 1. Widths were set by the accuracy of source-only models, nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.shifts.made import blurred, resampled, smooth
from dpswd.public_client.data.datasets import Labelled

Change = Callable[[Tensor, torch.Generator], Tensor]


def _noisy(images: Tensor, width: float, generator: torch.Generator) -> Tensor:
    return (images + width * torch.randn(images.shape, generator=generator)).clamp(-1.0, 1.0)


def _salt_and_pepper(images: Tensor, generator: torch.Generator) -> Tensor:
    """A twentieth of the pixels black, a twentieth white."""
    drawn = torch.rand(images.shape, generator=generator)
    return torch.where(drawn < 0.05, -1.0, torch.where(drawn > 0.95, 1.0, images))


def _occluded(images: Tensor, _: torch.Generator) -> Tensor:
    """The upper third."""
    seen = images.clone()
    seen[..., :9, :] = -1.0
    return seen


def _turned(images: Tensor, _: torch.Generator) -> Tensor:
    cos, sin = math.cos(math.pi / 6), math.sin(math.pi / 6)
    return resampled(images, torch.tensor([[cos, sin, 0.0], [-sin, cos, 0.0]]).expand(len(images), 2, 3))


def _elastic(images: Tensor, generator: torch.Generator) -> Tensor:
    """A smooth field of moves for each image, through 5 knots a side, of deviation 0.12 of half an image's."""
    knots = 0.12 * torch.randn(len(images), 2, 5, 5, generator=generator)
    field = functional.interpolate(knots, size=images.shape[-2:], mode="bicubic", align_corners=True)
    still = torch.eye(2, 3).expand(len(images), 2, 3)
    grid = functional.affine_grid(still, list(images.shape), align_corners=False)
    moved = grid + field.permute(0, 2, 3, 1)
    return functional.grid_sample(images + 1.0, moved, padding_mode="zeros", align_corners=False) - 1.0


CHANGES: dict[str, Change] = {
    "none": lambda x, _: x,
    "noise": lambda x, generator: _noisy(x, 0.4, generator),
    "salt and pepper": _salt_and_pepper,
    "blur": lambda x, _: blurred(x, 1.3, reach=4),
    "blur and noise": lambda x, generator: _noisy(blurred(x, 1.0, reach=4), 0.4, generator),
    "contrast": lambda x, _: 0.3 * x,
    "occluded third": _occluded,
    "gamma": lambda x, _: 2.0 * ((x + 1.0) / 2.0) ** 1.5 - 1.0,
    "texture": lambda x, generator: torch.maximum(x, 1.4 * smooth(6, x, generator) - 1.0),
    "turned by 30": _turned,
    "inverted": lambda x, _: -x,
    "elastic": _elastic,
    "mirrored": lambda x, _: x.flip(-1),
}
"""Of the pixels, by name."""

FREQUENCIES: dict[str, Callable[[torch.Generator], Tensor]] = {
    "half of the classes": lambda _: torch.tensor([1.0] * 5 + [0.0] * 5),
    "ten times rarer": lambda _: torch.tensor([1.0] * 5 + [0.1] * 5),
    "any frequencies": lambda generator: -torch.rand(10, generator=generator).clamp(min=1e-6).log(),
}
"""Of the classes, up to a factor, by name."""

NAMES = (*CHANGES, *FREQUENCIES)


def shifted(name: str, pool: Labelled, test: Labelled, records: int, seed: int) -> tuple[Labelled, Labelled]:
    """A hospital's records and further ones like them.

    Args:
        name: one of `NAMES`.
        pool: that the records are drawn from.
        test: that the further ones are made of, all of them.
        records: n.
        seed: of the draw and the shift.
    """
    generator = torch.Generator().manual_seed(1000 + seed)
    shares = torch.ones(10)
    if name in FREQUENCIES:
        shares = FREQUENCIES[name](generator)
        shares = shares / shares.max()

    def drawn(data: Labelled, count: int) -> Labelled:
        order = torch.randperm(len(data), generator=generator)
        chosen = order[torch.rand(len(order), generator=generator) < shares[data.labels[order]]][:count]
        change = CHANGES.get(name, CHANGES["none"])
        return Labelled(change(data.images[chosen], generator), data.labels[chosen])

    return drawn(pool, records), drawn(test, len(test))
