"""Public features of an image's pixels, beside those of its shapes: three blocks of one record, each of its own norm.

The sum over records of e_y (x) [seen, coordinates, waves] is one release of class statistics, with all second moments:

* seen: a scattering on one norm (`scattering`), or the team's own features: what labels are known by;
* coordinates: of an image along the largest axes of procedural images: means and covariances of its pixels;
* waves: cosines and sines of random directions at three scales. Their class sums are the class's characteristic
  function at these places, hence its mean under Gaussian kernels of three widths (Rahimi and Recht 2007; DP-MERF).
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dpswd.public_client.extractor.adapter_layers import filled_linear
from dpswd.public_client.generation.procedural import procedural
from dpswd.public_client.generation.scattering import principal
from dpswd.shared.core.noise.clipping import RECORD_NORM

SCALES = (0.25, 0.4, 0.6)
"""Widths of the kernels, in units of the root of the number of values, which lie between -1 and 1."""
_POOL, _SEED = 2_000, 0  # procedural images that the axes are of
_TYPICAL = 0.9  # of the procedural images are not clipped


class Waves(nn.Module):
    """(cos, sin) of D random directions, a third at each of `SCALES`, of norm 1/2; sin t = cos(t - pi/2)."""

    def __init__(self, shape: tuple[int, ...], low: float, high: float, directions: int) -> None:
        super().__init__()
        values, own = math.prod(shape), torch.Generator().manual_seed(_SEED)
        each = -(-directions // len(SCALES))
        drawn = torch.cat([torch.randn((each, values), generator=own) / (s * math.sqrt(values)) for s in SCALES])
        self.middle, self.reach = 0.5 * (low + high), 2.0 / (high - low)
        phases = torch.tensor([0.0, -0.5 * math.pi]).repeat_interleave(len(drawn))
        self.flat, self.angles = nn.Flatten(), filled_linear(torch.cat([drawn, drawn]), phases)
        self.gain = RECORD_NORM / math.sqrt(len(drawn))

    def forward(self, x: Tensor) -> Tensor:
        """(b, c, h, w) to (b, 2 D)."""
        return torch.cos(self.angles(self.flat((x - self.middle) * self.reach))) * self.gain


class Coordinates(nn.Module):
    """Coordinates of an image along k axes, of norm 1/2 at most: longer ones are shortened.

    Args:
        axes: (k, values).
        centre: (values,) of all coordinates 0.
    """

    def __init__(self, axes: Tensor, centre: Tensor) -> None:
        super().__init__()
        self.flat, self.axes = nn.Flatten(), filled_linear(axes.contiguous(), -(axes @ centre))

    def forward(self, x: Tensor) -> Tensor:
        """(b, c, h, w) to (b, k)."""
        shortened: Tensor = F.normalize(self.axes(self.flat(x)), dim=1, eps=1.0) * RECORD_NORM
        return shortened


@functools.cache
def public_axes(
    shape: tuple[int, int, int], *, low: float, high: float, count: int, power: float
) -> tuple[Tensor, Tensor]:
    """Axes (k, values) of procedural images, each divided by a power of its variance, and their centre (values,)."""
    pool = procedural(_POOL, shape, low=low, high=high, generator=torch.Generator().manual_seed(_SEED)).flatten(1)
    centre = pool.mean(dim=0)
    variances, vectors = principal(pool - centre, min(count, pool.shape[1] - 1))
    axes = (vectors * variances**-power).T
    return axes / ((pool - centre) @ axes.T).norm(dim=1).quantile(_TYPICAL), centre


class Joint(nn.Module):
    """Three blocks of norm 1/2 at most beside each other, each by the root of its share of the squared norm."""

    def __init__(
        self, seen: nn.Module, coordinates: Coordinates, waves: nn.Module, shares: tuple[float, float, float]
    ) -> None:
        super().__init__()
        self.seen, self.coordinates, self.waves = seen, coordinates, waves
        self.roots = [math.sqrt(share) for share in shares]

    def shapes(self, x: Tensor) -> Tensor:
        """The first block."""
        return torch.mul(self.seen(x), self.roots[0])

    def pixels(self, x: Tensor) -> Tensor:
        """The blocks that cost little: coordinates and waves."""
        return torch.cat([self.coordinates(x) * self.roots[1], self.waves(x) * self.roots[2]], dim=1)

    def forward(self, x: Tensor) -> Tensor:
        """(b, c, h, w) to (b, d)."""
        return torch.cat([self.shapes(x), self.pixels(x)], dim=1)
