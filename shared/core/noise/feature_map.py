"""The public affine map that brings features to the size of the clip norm.

Its numbers come from public source features only. A statistic of the private batch in its place would couple the
records and void the sensitivity proof.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.noise.clipping import RECORD_NORM, clip_records


@dataclass(frozen=True, eq=False)
class FeatureMap:
    """x -> (x - center) * scale, feature by feature (as on the wire), then clipping to norm 1/2.

    Attributes:
        center: (d,), finite.
        scale: (d,), finite and positive.
    """

    center: Tensor
    scale: Tensor

    def __post_init__(self) -> None:
        if self.center.dim() != 1 or self.center.shape != self.scale.shape:
            raise InvalidValue(
                f"center has shape {tuple(self.center.shape)} and scale {tuple(self.scale.shape)}; "
                "both must be (feature dimension,)"
            )
        if not bool(torch.isfinite(self.center).all()):
            raise InvalidValue("center holds NaN or infinity; it must be finite")
        if not bool((torch.isfinite(self.scale) & (self.scale > 0.0)).all()):
            raise InvalidValue("scale holds a number that is not positive and finite")

    @classmethod
    def identity(cls, dimension: int) -> FeatureMap:
        """The map of d features that changes nothing; the clip follows all the same."""
        return cls(center=torch.zeros(dimension), scale=torch.ones(dimension))

    def to(self, device: torch.device | str) -> FeatureMap:
        """The map on a device."""
        return FeatureMap(center=self.center.to(device), scale=self.scale.to(device))

    def extended(self, values: int) -> FeatureMap:
        """The map of features with further values beside them, which it leaves as they are; the clip is of all."""
        zeros = torch.zeros(values).to(self.center)
        return FeatureMap(center=torch.cat([self.center, zeros]), scale=torch.cat([self.scale, zeros + 1.0]))

    def apply(self, features: Tensor) -> Tensor:
        """The affine part alone, differentiable.

        Args:
            features: (b, d).

        Returns:
            (b, d).
        """
        return (features - self.center).mul_(self.scale)  # in the difference's memory

    def clipped(self, features: Tensor) -> Tensor:
        """What the mechanisms take: mapped, then clipped record by record.

        Args:
            features: (b, d) raw features.

        Returns:
            (b, d), rows of norm at most 1/2, each a function of its own record alone.
        """
        return clip_records(self.apply(features), RECORD_NORM)
