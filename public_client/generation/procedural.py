"""Images drawn by rule: strokes of a pen, and shapes with texture. Public, and like no data set in particular.

Half of them are one to three smooth strokes, half up to four overlapping super-ellipses of different brightness, most
of them mirrored, with a texture. They show what edges, strokes and surfaces look like, and nothing else.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

_POINTS = 48  # of a stroke, where the pen is put down
_SHAPES = 4
_AT_A_TIME = 2000  # images; bounds memory


def procedural(
    count: int, record_shape: tuple[int, int, int], *, low: float, high: float, generator: torch.Generator
) -> Tensor:
    """Draws images.

    Args:
        count: n.
        record_shape: (c, h, w); with several channels each image has one colour for all.
        low: of the background.
        high: of the brightest.
        generator: of the choices.

    Returns:
        (n, c, h, w) in [low, high].
    """
    channels, height, width = record_shape
    parts = []
    for start in range(0, count, _AT_A_TIME):
        some = min(_AT_A_TIME, count - start)
        drawn = torch.cat(
            [_strokes(some // 2, height, width, generator), _surfaces(some - some // 2, height, width, generator)]
        )[torch.randperm(some, generator=generator)]
        if channels > 1:
            drawn = drawn[:, None] * (0.3 + 0.7 * torch.rand((some, channels, 1, 1), generator=generator))
        parts.append(drawn.reshape(some, channels, height, width))
    return torch.cat(parts) * (high - low) + low


def _strokes(count: int, height: int, width: int, generator: torch.Generator) -> Tensor:
    """(n, h, w) in [0, 1]: curves of three waves in each coordinate, drawn with a soft pen."""
    unit = min(height, width) / 28.0  # lengths below are of images of 28 x 28
    rows, columns = torch.arange(float(height)), torch.arange(float(width))
    image = torch.zeros(count, height, width)
    strokes = torch.randint(1, 4, (count,), generator=generator)
    pen = unit * (0.7 + torch.rand((count, 1, 1), generator=generator))
    time, middle = torch.linspace(0.0, 1.0, _POINTS), torch.tensor([height / 2.0, width / 2.0])[None, :, None]
    for number in range(3):
        centre = middle + 16.0 * unit * (torch.rand((count, 2, 1), generator=generator) - 0.5)
        sizes = torch.randn((count, 2, 3), generator=generator) * torch.tensor([7.0, 4.0, 2.0]) * unit
        phases = 2.0 * math.pi * torch.rand((count, 2, 3), generator=generator)
        pace = 0.5 + 0.7 * torch.rand((count, 1, 1), generator=generator)
        turns = 2.0 * math.pi * torch.tensor([0.5, 1.0, 1.5]) * pace
        path = centre + (sizes[..., None] * torch.sin(turns[..., None] * time + phases[..., None])).sum(dim=2)
        inside = torch.tensor([height, width])[None, :, None] - 1.0 - 3.0 * unit
        path = torch.minimum(path.clamp(min=3.0 * unit), inside)  # (n, 2, points)
        down = torch.exp(-((rows[None, :, None] - path[:, 0, None, :]) ** 2) / (2.0 * pen**2))
        across = torch.exp(-((columns[None, :, None] - path[:, 1, None, :]) ** 2) / (2.0 * pen**2))
        length = (path[:, :, 1:] - path[:, :, :-1]).norm(dim=1).sum(dim=1)
        weight = (length / _POINTS / pen[:, 0, 0]).clamp(min=0.05)  # the ink of a stroke does not depend on its pace
        drawn = (1.2 * torch.bmm(down, across.transpose(1, 2)) * weight[:, None, None]).clamp(max=1.0)
        image = torch.where((strokes > number)[:, None, None], torch.maximum(image, drawn), image)
    return image


def _surfaces(count: int, height: int, width: int, generator: torch.Generator) -> Tensor:
    """(n, h, w) in [0, 1]: super-ellipses over each other, some cut out, with smooth and fine texture."""
    y, x = torch.meshgrid(torch.linspace(-1.0, 1.0, height), torch.linspace(-1.0, 1.0, width), indexing="ij")
    x, y = x.flatten(), y.flatten()
    image = torch.zeros(count, height * width)
    shapes = torch.randint(1, _SHAPES + 1, (count,), generator=generator)
    mirrored = torch.rand(count, generator=generator) < 0.6
    for number in range(_SHAPES):
        centre = 0.35 * torch.randn((count, 2, 1), generator=generator)
        radius = 0.08 + 0.8 * torch.rand((count, 2, 1), generator=generator) ** 1.5
        turn = 0.6 * torch.randn((count, 1), generator=generator)
        power = torch.tensor([2.0, 4.0, 8.0])[torch.randint(0, 3, (count,), generator=generator)][:, None]
        level = 0.2 + 0.8 * torch.rand((count, 1), generator=generator)
        frame = (centre, radius, turn, power)
        covered = _inside(x, y, *frame)
        covered = torch.where(mirrored[:, None], torch.maximum(covered, _inside(-x, y, *frame)), covered)
        cut = (torch.rand((count, 1), generator=generator) < 0.25) & (number > 0)
        level = torch.where(cut, torch.zeros_like(level), level)
        image = torch.where((shapes > number)[:, None], image * (1.0 - covered) + level * covered, image)
    smooth = torch.randn((count, 1, 7, 7), generator=generator)
    smooth = F.interpolate(smooth, size=(height, width), mode="bicubic")[:, 0].flatten(1)
    fine = torch.randn((count, height * width), generator=generator)
    smoothly = 0.25 * torch.rand((count, 1), generator=generator)
    finely = 0.15 * torch.rand((count, 1), generator=generator) ** 2
    return (image * (1.0 + smoothly * smooth + finely * fine)).clamp(0.0, 1.0).reshape(count, height, width)


def _inside(x: Tensor, y: Tensor, centre: Tensor, radius: Tensor, turn: Tensor, power: Tensor) -> Tensor:
    """(n, values): 1 inside of a turned super-ellipse, 0 outside, with a soft edge."""
    along = (x - centre[:, 0]) * turn.cos() + (y - centre[:, 1]) * turn.sin()
    across = (y - centre[:, 1]) * turn.cos() - (x - centre[:, 0]) * turn.sin()
    reach = (along / radius[:, 0]).abs() ** power + (across / radius[:, 1]).abs() ** power
    return torch.sigmoid(4.0 * (1.0 - reach))
