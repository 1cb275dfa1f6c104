"""Decoded images moved until their features are those that were drawn for them.

A decoder fitted by least squares draws soft images, whose features lie nearer to the middle than those that the law
asked for. A few steps of descent on the pixels bring them there: edges and strokes come back, as far as the features
know them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.sandbox.building import Extractor

_RATE = 0.3
"""Of Adam, on the logits of the pixels between low and high."""
_EDGE = 0.02
"""How near to low and high a pixel begins, as a share of their distance: its logit is finite there."""


@dataclass(frozen=True, eq=False)
class Matching:
    """What an image's features should be, and how they are computed.

    Attributes:
        law: latents with one-hot classes (k + C,) to the features asked for, (d,).
        features: a record to its features (d,).
        steps: of descent.
    """

    law: Extractor
    features: Extractor
    steps: int

    def __post_init__(self) -> None:
        asked, made = self.law.graph.feature_dimension, self.features.graph.feature_dimension
        if asked != made or self.steps < 1:
            raise InvalidValue(
                f"matching takes {self.steps} steps towards {asked} features where images have {made}; needed are at "
                "least one step, and as many features"
            )

    def on(self, device: torch.device) -> Matching:
        """The same on a device."""
        return Matching(self.law.on(device), self.features.on(device), self.steps)

    def matched(self, images: Tensor, latents: Tensor, *, low: float, high: float) -> Tensor:
        """Moves each image by itself.

        Args:
            images: (n, ...) as decoded.
            latents: (n, k + C) of which they were decoded.
            low: least value of a pixel.
            high: largest.

        Returns:
            (n, ...) between low and high, on the features' device.
        """
        targets = self.law.features(latents)
        begun = ((images.to(targets.device) - low) / (high - low)).clamp(_EDGE, 1.0 - _EDGE)
        with torch.enable_grad():
            pixels = torch.logit(begun).requires_grad_()
            optimizer = torch.optim.Adam([pixels], lr=_RATE)
            for _ in range(self.steps):
                optimizer.zero_grad()
                seen = self.features.differentiable(low + (high - low) * torch.sigmoid(pixels))
                (seen - targets).square().sum().backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        return low + (high - low) * torch.sigmoid(pixels.detach())
