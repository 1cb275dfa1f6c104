"""Small smooth deformations of images, at random: elastic distortions (Simard and others, 2003).

A network of few latents draws a thin sheet among images, and a classifier that is taught by it goes astray beside the
sheet. So each image is deformed a little after it was drawn, in the fit as well, which learns by how much: what has the
released sums is what comes out of it.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

_SIDE = 5  # of the grid of local moves
_LOCAL = 0.7  # of their deviation, in units of the whole's
NORMALS = 6 + 2 * _SIDE**2  # standard normal numbers that one deformation takes
MAX_DEFORMATION = 0.5  # of an image, in half sides: more leaves nothing of it


def deformed(images: Tensor, normals: Tensor, deviation: float | Tensor) -> Tensor:
    """Images (b, c, h, w) turned, stretched and moved as a whole, and bent here and there; edges are continued.

    Args:
        images: of any values; they have a gradient, and so has a tensor of the deviation.
        normals: (b, `NORMALS`) of standard normal numbers.
        deviation: of the moves, in half sides of the image, and of the map's entries; at 0 images stay as they are.
    """
    if not deviation:
        return images
    whole, moves = normals[:, :6].reshape(-1, 2, 3), normals[:, 6:].reshape(-1, 2, _SIDE, _SIDE)
    places = F.affine_grid(torch.eye(2, 3).to(whole) + deviation * whole, list(images.shape), align_corners=False)
    local = F.interpolate(moves, size=images.shape[2:], mode="bicubic", align_corners=False).permute(0, 2, 3, 1)
    return F.grid_sample(images, places + deviation * _LOCAL * local, padding_mode="border", align_corners=False)
