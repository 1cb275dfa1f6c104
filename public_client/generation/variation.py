"""Changes of decoded images by rule: edges as sharp as drawn ones, a surface with texture, more or less contrast.

A decoder that was fitted by least squares draws soft, even surfaces, which no camera and no pen makes. Each image is
sharpened, parted from its ground by a soft threshold, and textured, all by amounts of its own. The label is given
afterwards, so a change that goes too far changes the label with it.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def varied(images: Tensor, *, low: float, high: float, generator: torch.Generator) -> Tensor:
    """Changes each image by amounts of its own; the amounts were chosen on halves of training sets (docs).

    Args:
        images: (n, c, h, w) about [low, high].
        low: of the ground.
        high: of the brightest.
        generator: of the amounts.

    Returns:
        (n, c, h, w) in [low, high].
    """
    count, channels, height, width = images.shape

    def amounts(least: float, most: float) -> Tensor:
        return least + (most - least) * torch.rand((count, 1, 1, 1), generator=generator)

    x = ((images - low) / (high - low)).clamp(0.0, 1.0)
    blurred = F.avg_pool2d(F.pad(x, (2, 2, 2, 2)), 5, 1)
    sharp = x + amounts(0.0, 3.0) * (x - blurred)
    inside = torch.sigmoid(amounts(6.0, 24.0) * (sharp - amounts(0.15, 0.45)))
    surface = 0.5 * amounts(0.3, 1.0) + 0.5 * sharp.clamp(0.0, 1.2)
    smooth = torch.randn((count, 1, 7, 7), generator=generator)
    smooth = F.interpolate(smooth, size=(height, width), mode="bicubic")
    fine = torch.randn((count, channels, height, width), generator=generator)
    texture = 1.0 + amounts(0.0, 0.25) * smooth + amounts(0.0, 0.12) * fine
    return (inside * surface * texture).clamp(0.0, 1.0) * (high - low) + low
