"""The public affine map that brings features to the size of the clip norm.

Its numbers come from public source features only. A statistic of the private batch in its place would couple the
records and void the sensitivity proof.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.noise.clipping import RECORD_NORM, clip_factors, clip_records, neutralise

DEFAULT_TARGET_NORM = 0.25  # half the clip norm: source records then seldom reach it


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

    @classmethod
    def from_source(cls, features: Tensor, *, target_norm: float = DEFAULT_TARGET_NORM) -> FeatureMap:
        """Centre public source features on zero and bring their mean norm to `target_norm`.

        One scale serves all features, so the geometry that the distance sees is the extractor's own.

        Args:
            features: (m, d) source features, m at least 1.
            target_norm: mean norm of the mapped source features.

        Returns:
            The map, on the features' device and in their type.

        Raises:
            InvalidValue: the features are empty or not finite, or the target norm is not positive.
        """
        if features.dim() != 2 or features.shape[0] < 1:
            raise InvalidValue(f"source features have shape {tuple(features.shape)}; use (m, d) with m >= 1")
        if not bool(torch.isfinite(features).all()):
            raise InvalidValue("source features hold NaN or infinity; check the extractor's weights")
        if not 0.0 < target_norm < float("inf"):
            raise InvalidValue(f"the target norm is {target_norm}; it must be positive and finite")
        exact = features.detach().to(torch.float64)
        center = exact.mean(dim=0)
        norm = torch.linalg.vector_norm(exact - center, dim=1).mean()
        # Identical features have no size of their own: any positive scale is as good as another.
        scale = target_norm / norm if float(norm) > 0.0 else torch.ones_like(norm)
        return cls(center=center.to(features.dtype), scale=scale.expand(center.shape).to(features.dtype).contiguous())

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

    def pull_back(self, features: Tensor, cotangents: Tensor) -> Tensor:
        """Carry cotangents of the clipped features back to the raw ones: the transposed Jacobian of `clipped`.

        A clipped row moves on a sphere, so the part of its cotangent along the row drops out; entries that
        were not finite are constants and get zero.

        Args:
            features: (b, d) raw features.
            cotangents: (b, d) with respect to `clipped(features)`.

        Returns:
            (b, d), each row a function of its own record and cotangent alone.
        """
        mapped = self.apply(features)
        finite = neutralise(mapped).to(torch.float64)
        factors = clip_factors(finite, RECORD_NORM)  # (b, 1)
        pulled = cotangents.to(torch.float64) * factors
        squared = (finite * finite).sum(dim=1, keepdim=True)
        radial = (finite * pulled).sum(dim=1, keepdim=True) / torch.where(squared > 0.0, squared, 1.0)
        pulled = torch.where(factors < 1.0, pulled - radial * finite, pulled)
        # A product, for `where` takes longer for some patterns than for others; what is multiplied is finite.
        pulled = pulled * torch.isfinite(mapped) * self.scale
        return neutralise(pulled).to(features.dtype)
