"""Made shifts: what a target's records look like, beside the source's pool. Labels stay with their records."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from dpswd.public_client.data.datasets import Labelled

Shift = Callable[[Labelled, torch.Generator], Labelled]


def uniform(generator: torch.Generator, low: float, high: float) -> float:
    """One number between low and high."""
    return low + (high - low) * float(torch.rand((), generator=generator))


def _rarer(factor: float) -> Shift:
    """The second half of the classes is `factor` times rarer; infinite: absent."""

    def shift(data: Labelled, generator: torch.Generator) -> Labelled:
        classes = int(data.labels.max()) + 1
        rare = data.labels >= (classes + 1) // 2
        chosen = ~rare | (torch.rand(len(data), generator=generator) < 1.0 / factor)
        return data.part(chosen)

    return shift


def _warped(images: Tensor, turn: float, size: float, across: float) -> Tensor:
    cos, sin = math.cos(turn) / size, math.sin(turn) / size
    return resampled(images, torch.tensor([[cos, sin, across], [-sin, cos, -across]]).expand(len(images), 2, 3))


def resampled(images: Tensor, theta: Tensor) -> Tensor:
    """Images (n, 1, h, w) under affine maps (n, 2, 3) of the square; -1 comes in from outside."""
    grid = functional.affine_grid(theta, list(images.shape), align_corners=False)
    return functional.grid_sample(images + 1.0, grid, padding_mode="zeros", align_corners=False) - 1.0


def _turned(data: Labelled, generator: torch.Generator) -> Labelled:
    sign = 1.0 if float(torch.rand((), generator=generator)) < 0.5 else -1.0
    turn = sign * uniform(generator, 0.25, 0.45)
    seen = _warped(data.images, turn, uniform(generator, 0.8, 0.95), uniform(generator, -0.08, 0.08))
    return Labelled(seen * uniform(generator, 0.65, 0.85) + uniform(generator, -0.05, 0.1), data.labels)


def _inverted(data: Labelled, _: torch.Generator) -> Labelled:
    return Labelled(-data.images, data.labels)


def smooth(knots: int, like: Tensor, generator: torch.Generator) -> Tensor:
    """A random smooth pattern in [0, 1] for each image, (n, 1, h, w), through so many knots a side."""
    field = torch.rand(len(like), 1, knots, knots, generator=generator)
    return functional.interpolate(field, size=like.shape[-2:], mode="bicubic", align_corners=True).clamp(0.0, 1.0)


def _texture(data: Labelled, generator: torch.Generator) -> Labelled:
    """A random smooth pattern behind the object."""
    behind = 1.4 * smooth(6, data.images, generator) - 1.0
    return Labelled(torch.maximum(data.images, behind), data.labels)


def _blended(data: Labelled, generator: torch.Generator) -> Labelled:
    """MNIST-M in grey: |pattern - image|, as its authors blend; one channel instead of three, and made patterns."""
    pattern = smooth(5, data.images, generator)
    return Labelled((pattern - (data.images + 1.0) / 2.0).abs() * 2.0 - 1.0, data.labels)


def _blurred(data: Labelled, generator: torch.Generator) -> Labelled:
    return Labelled(blurred(data.images, uniform(generator, 0.5, 1.2), reach=4), data.labels)


def blurred(images: Tensor, width: float, reach: int) -> Tensor:
    """Images (n, 1, h, w) under a Gaussian of this deviation, that is cut at `reach`, both in pixels."""
    taps = torch.exp(-0.5 * (torch.arange(-reach, reach + 1.0) / width).square())
    kernel = torch.outer(taps, taps) / taps.sum() ** 2
    return functional.conv2d(functional.pad(images, 4 * (reach,), mode="replicate"), kernel[None, None])


def _noisy(data: Labelled, generator: torch.Generator) -> Labelled:
    width = uniform(generator, 0.3, 0.6)
    noise = width * torch.randn(data.images.shape, generator=generator)
    return Labelled((data.images + noise).clamp(-1.0, 1.0), data.labels)


def _occluded(data: Labelled, generator: torch.Generator) -> Labelled:
    images = data.images.clone()
    top = int(torch.randint(4, 8, (), generator=generator))
    images[..., top : top + 3, 3:11] = -1.0
    return Labelled(images, data.labels)


def _halved_and_turned(data: Labelled, generator: torch.Generator) -> Labelled:
    return _turned(_rarer(math.inf)(data, generator), generator)


def _permuted(data: Labelled, generator: torch.Generator) -> Labelled:
    return Labelled(data.images[:, torch.randperm(data.images.shape[1], generator=generator)], data.labels)


def _units(data: Labelled, generator: torch.Generator) -> Labelled:
    """A third of the columns in other units."""
    c = data.images.shape[1]
    chosen = torch.randperm(c, generator=generator)[: max(1, c // 3)]
    records = data.images.clone()
    records[:, chosen] *= torch.exp(uniform(generator, 0.5, 1.2) * torch.randn(len(chosen), generator=generator).sign())
    return Labelled(records, data.labels)


def _missing(data: Labelled, generator: torch.Generator) -> Labelled:
    """A quarter of the columns hold their median."""
    c = data.images.shape[1]
    chosen = torch.randperm(c, generator=generator)[: max(1, c // 4)]
    records = data.images.clone()
    records[:, chosen] = records[:, chosen].median(dim=0).values
    return Labelled(records, data.labels)


def _concept(data: Labelled, generator: torch.Generator) -> Labelled:
    """Records stay; a fifth of the labels is another class, most of those with a large first column."""
    classes = int(data.labels.max()) + 1
    first = data.images.flatten(1)[:, 0]
    high = first > first.quantile(0.7)
    moved = high & (torch.rand(len(data), generator=generator) < 0.6)
    return Labelled(data.images, torch.where(moved, (data.labels + 1) % classes, data.labels))


def _covariate(data: Labelled, generator: torch.Generator) -> Labelled:
    """Those with a large first column are three times rarer, whatever their class."""
    first = data.images.flatten(1)[:, 0]
    high = first > first.median()
    chosen = ~high | (torch.rand(len(data), generator=generator) < 1.0 / 3.0)
    return data.part(chosen)


def _gains(data: Labelled, generator: torch.Generator) -> Labelled:
    """One gain for each column, by 15%."""
    gains = torch.exp(0.15 * torch.randn(data.images.shape[1], generator=generator))
    return Labelled(data.images * gains, data.labels)


def _none(data: Labelled, _: torch.Generator) -> Labelled:
    return data


def _directions(data: Labelled, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor, float]:
    """Records with columns of deviation 1, those deviations, random directions among the first six components, and the
    deviation of the first.

    Returns:
        (m, c), (c,), (c, count) and a number.
    """
    spread = data.images.std(dim=0).clamp(min=1e-6)
    scaled = data.images / spread
    _, singular, components = torch.linalg.svd(scaled - scaled.mean(dim=0), full_matrices=False)
    top = components[: min(6, len(components))].T
    chosen = torch.linalg.qr(top @ torch.randn(top.shape[1], count, generator=generator))[0]
    return scaled, spread, chosen, float(singular[0]) / math.sqrt(len(scaled))


def _rotated(data: Labelled, generator: torch.Generator) -> Labelled:
    """A turn within one plane."""
    scaled, spread, plane, _ = _directions(data, 2, generator)
    turn = uniform(generator, 0.5, 0.9)
    cos, sin = math.cos(turn), math.sin(turn)
    within = (scaled - scaled.mean(dim=0)) @ plane
    turned = within @ torch.tensor([[cos, sin], [-sin, cos]])
    return Labelled((scaled + (turned - within) @ plane.T) * spread, data.labels)


def _lines(data: Labelled, generator: torch.Generator) -> Labelled:
    """Noise along two directions, as large as the first component."""
    scaled, spread, lines, first = _directions(data, 2, generator)
    noise = uniform(generator, 0.7, 1.2) * first * torch.randn(len(scaled), 2, generator=generator)
    return Labelled((scaled + noise @ lines.T) * spread, data.labels)


def _moved(data: Labelled, generator: torch.Generator) -> Labelled:
    """The mean moves along one direction."""
    scaled, spread, along, first = _directions(data, 1, generator)
    return Labelled((scaled + uniform(generator, 0.5, 1.0) * first * along[:, 0]) * spread, data.labels)


_CLASSES: dict[str, Shift] = {
    "none": _none,
    "half": _rarer(math.inf),
    "ten-to-one": _rarer(10.0),
    "hundred-to-one": _rarer(100.0),
}
SHIFTS: dict[str, dict[str, Shift]] = {
    "images": _CLASSES
    | {
        "turned": _turned,
        "half-and-turned": _halved_and_turned,
        "inverted": _inverted,
        "texture": _texture,
        "blended": _blended,
        "blurred": _blurred,
        "noisy": _noisy,
        "occluded": _occluded,
    },
    "vectors": _CLASSES | {"permuted": _permuted, "gains": _gains, "units": _units, "missing": _missing},
    "tables": {
        "none": _none,
        "ten-to-one": _rarer(10.0),
        "hundred-to-one": _rarer(100.0),
        "permuted": _permuted,
        "units": _units,
        "missing": _missing,
        "concept": _concept,
        "covariate": _covariate,
    },
}
"""By kind of record and name."""
LOW_RANK: dict[str, Shift] = {"rotated": _rotated, "lines": _lines, "moved": _moved}
"""Along few directions of vectors; not in the battery, whose order is fixed."""
INSIDE = frozenset({"turned", "half-and-turned", "usps", "mnist"})
"""Shifts of images that a view can follow, nearly; today's gains count there."""
