"""The simplest generator: each class a normal law of raw values, of its own mean and a covariance that all share.

It is the baseline that any other method must beat, and exact where records are normal. One release of class statistics
of the records themselves; a draw is mean_c + L z with L L^T the covariance, so the decoder is one linear layer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpswd.public_client.curator.description import Description
from dpswd.public_client.extractor.adapter_layers import filled_linear
from dpswd.public_client.generation.generator import Generator, traced
from dpswd.public_client.generation.method import Fitting
from dpswd.public_client.generation.statistics import StatisticsGeneration
from dpswd.public_client.methods.statistics_head import classes_of
from dpswd.public_client.plans.recipe import not_positive
from dpswd.public_client.training.run import Release
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.noise.clipping import RECORD_NORM

MOST_VALUES = 1024
"""Of a record: its second moments take 4 MB then, and their eigenvectors a second."""


@dataclass(frozen=True, kw_only=True)
class Gaussian(StatisticsGeneration):
    """Class means and one covariance of the records' own values.

    Attributes:
        low: least value of a record, public: 0 in the released features.
        high: largest; drawn values are brought back into this range.
        typical: root mean square of a typical record's values in units of high - low; larger records are clipped.
    """

    name = "gaussian"

    low: float = -1.0
    high: float = 1.0
    typical: float = 0.4

    def problems(self) -> list[str]:
        return [*super().problems(), *not_positive(self, "typical")]

    def features(self, description: Description) -> nn.Module:
        """See `GenerationMethod`: the values themselves, on the scale of the clip."""
        values = math.prod(description.record_shape)
        if values > MOST_VALUES:
            raise InvalidValue(
                f"records have {values} values; {self.name} takes at most {MOST_VALUES}: use a method of features"
            )
        return Scaled(self.low, self.high, self.typical * math.sqrt(values)).eval()

    def fit(self, run: Release[Any], features: nn.Module, fitting: Fitting) -> Generator:
        assert isinstance(features, Scaled), "this method made it"
        laws = classes_of(self.read(run, fitting))
        values, vectors = np.linalg.eigh(laws.covariance)
        spread = vectors * np.sqrt(np.maximum(values, 0.0))  # (d, d)
        unit = (self.high - self.low) * features.typical  # u = (x - low) / unit
        weight = torch.from_numpy(np.ascontiguousarray(np.hstack([spread, laws.means.T]) * unit))
        decoder = filled_linear(weight, torch.full((len(weight),), self.low))
        made, shares = traced(decoder, decoder.in_features), tuple(laws.shares.tolist())
        return Generator(made, run.plan.record_shape, shares, low=self.low, high=self.high)


class Scaled(nn.Module):
    """Records flat, low at 0, brought to a norm where theirs is `typical` times the range.

    Args:
        low: least value of a record.
        high: largest.
        typical: norm of a typical record's values less low, in units of high - low.
        norm: to which it is brought; by default the clip norm.
    """

    def __init__(self, low: float, high: float, typical: float, *, norm: float = RECORD_NORM) -> None:
        super().__init__()
        self.low, self.typical = low, typical
        self.gain = norm / ((high - low) * typical)
        self.flat = nn.Flatten()

    def forward(self, x: Tensor) -> Tensor:
        """(b, ...) to (b, values)."""
        flat: Tensor = self.flat((x - self.low) * self.gain)
        return flat
