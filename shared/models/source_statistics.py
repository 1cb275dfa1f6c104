"""Public statistics of the source that travel with an adapted model, for comparisons with a hospital's records.

They are computed from public records alone: value by value of a record (by channel where a record is large), and of the
features on random directions, whose quantiles give a sliced Wasserstein distance.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.noise.directions import directions

MAX_VALUES = 4096
"""Values of one record that are told apart; larger records are summed up by channel."""
LEVELS = 33
"""Quantile levels 0, 1/32, ..., 1 of each value and direction."""
SLICES = 64
"""Directions on which features are compared."""
CONFIDENCE_BINS = 20
"""Bins of the confidence histogram, from 0 to 1."""

_SEED = b"dpswd source statistics: slices."  # 32 bytes; public, the same directions for everybody
_SMALLEST_SCALE = 1e-6


@dataclass(frozen=True, eq=False)
class SourceStatistics:
    """What is known of the public source.

    Attributes:
        records: m, how many source records were summed up.
        by_channel: whether `mean` and the like are by channel and not by value.
        mean: (f,) of each value (or channel) of a record.
        deviation: (f,) standard deviations.
        quantiles: (f, LEVELS), increasing in each row.
        feature_mean: (d,) of the features.
        feature_deviation: (d,).
        slices: (SLICES, LEVELS), quantiles of standardised features on the directions of `slice_directions`.
        self_distance: sliced Wasserstein distance of one half of the source from the other: what chance alone makes.
        confidences: (CONFIDENCE_BINS,) shares of source records by the model's confidence.
    """

    records: int
    by_channel: bool
    mean: Tensor
    deviation: Tensor
    quantiles: Tensor
    feature_mean: Tensor
    feature_deviation: Tensor
    slices: Tensor
    self_distance: float
    confidences: Tensor

    @classmethod
    def of(cls, records: Tensor, features: Tensor, scores: Tensor) -> SourceStatistics:
        """Sums up public records.

        Args:
            records: (m, ...) as the extractor takes them.
            features: (m, d) of these records.
            scores: (m, C) of these records.

        Raises:
            InvalidValue: fewer than two records, or values that are not finite.
        """
        records, features, scores = (tensor.detach().to("cpu", torch.float32) for tensor in (records, features, scores))
        if not 2 <= len(records) == len(features) == len(scores):
            raise InvalidValue("source statistics need two records at least, with features and scores for each")
        if not all(bool(torch.isfinite(tensor).all()) for tensor in (records, features, scores)):
            raise InvalidValue("source records, features and scores must be finite")
        flat, by_channel = flattened(records)
        center = features.mean(dim=0)
        scale = features.std(dim=0).clamp(min=_SMALLEST_SCALE)
        sliced = (features - center) / scale @ slice_directions(features.shape[1])
        half = len(sliced) // 2
        return cls(
            records=len(records),
            by_channel=by_channel,
            mean=flat.mean(dim=0),
            deviation=flat.std(dim=0),
            quantiles=quantiles_of(flat),
            feature_mean=center,
            feature_deviation=scale,
            slices=quantiles_of(sliced),
            self_distance=sliced_distance(quantiles_of(sliced[:half]), quantiles_of(sliced[half:])),
            confidences=confidence_shares(scores),
        )

    def tensors(self) -> dict[str, Tensor]:
        """The arrays by name."""
        return {field.name: value for field in fields(self) if isinstance(value := getattr(self, field.name), Tensor)}

    def facts(self) -> dict[str, Any]:
        """The other values by name."""
        return {"records": self.records, "by_channel": self.by_channel, "self_distance": self.self_distance}

    @classmethod
    def from_parts(
        cls, facts: str, tensors: Mapping[str, Tensor], *, record_values: int, features: int
    ) -> SourceStatistics:
        """Reads what `tensors` and `facts` gave; both may come from anybody.

        Args:
            facts: JSON.
            tensors: by name.
            record_values: numbers in one record of the model.
            features: d of the model.

        Raises:
            InvalidValue: a name, type, shape or value is not what it should be.
        """
        try:
            content = json.loads(facts)
            records, by_channel, distance = content["records"], content["by_channel"], float(content["self_distance"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise InvalidValue("its source statistics are incomplete") from error
        rows = tensors["mean"].numel() if "mean" in tensors else 0
        if type(records) is not int or type(by_channel) is not bool or not (math.isfinite(distance) and distance >= 0):
            raise InvalidValue("its source statistics have wrong facts")
        if not (1 <= rows <= MAX_VALUES and (by_channel or rows == record_values)):
            raise InvalidValue(f"its source statistics have {rows} values for records of {record_values}")
        shapes: dict[str, tuple[int, ...]] = {
            "mean": (rows,),
            "deviation": (rows,),
            "quantiles": (rows, LEVELS),
            "feature_mean": (features,),
            "feature_deviation": (features,),
            "slices": (SLICES, LEVELS),
            "confidences": (CONFIDENCE_BINS,),
        }
        for name, shape in shapes.items():
            tensor = tensors.get(name)
            if tensor is None or tuple(tensor.shape) != shape or tensor.dtype != torch.float32:
                raise InvalidValue(f"its source statistics' {name} must be float32 of shape {shape}")
            if not bool(torch.isfinite(tensor).all()):
                raise InvalidValue(f"its source statistics' {name} holds values that are not finite")
        if bool((tensors["feature_deviation"] <= 0).any()):
            raise InvalidValue("its source statistics' feature_deviation must be positive")
        return cls(
            records=records, by_channel=by_channel, self_distance=distance, **{name: tensors[name] for name in shapes}
        )

    def slice(self, features: Tensor) -> Tensor:
        """Standardised features (n, d) on the slices' directions, (n, SLICES)."""
        standard = (features.to("cpu", torch.float32) - self.feature_mean) / self.feature_deviation
        return standard @ slice_directions(features.shape[1])


def flattened(records: Tensor) -> tuple[Tensor, bool]:
    """Records (m, ...) as (m, f) values, or (m * pixels, channels) where a record has more than MAX_VALUES."""
    values = records.reshape(len(records), -1)
    if values.shape[1] <= MAX_VALUES:
        return values, False
    if records.dim() < 3:  # a long vector has no channels: one row of all values
        return values.reshape(-1, 1), True
    return records.movedim(1, -1).reshape(-1, records.shape[1]), True


def quantiles_of(values: Tensor) -> Tensor:
    """Quantiles (f, LEVELS) of each column of (m, f), by order statistics, without a copy of all of them at once."""
    ordered = values.sort(dim=0).values
    places = torch.linspace(0, len(ordered) - 1, LEVELS).round().to(torch.int64)
    return ordered[places].T.contiguous()


def slice_directions(dimension: int) -> Tensor:
    """The public directions (d, SLICES), unit columns."""
    return directions(_SEED, dimension, SLICES).to(torch.float32)


def sliced_distance(one: Tensor, other: Tensor) -> float:
    """The root of the mean squared difference of quantiles, over levels and slices: sliced W_2 on a grid of levels.

    Args:
        one: (k, LEVELS).
        other: (k, LEVELS).
    """
    squared = (one.to(torch.float64) - other.to(torch.float64)).pow(2)
    weights = torch.ones(LEVELS, dtype=torch.float64)
    weights[0] = weights[-1] = 0.5  # the trapezoidal rule over the levels
    return math.sqrt(float((squared @ weights).mean() / weights.sum()))


def confidence_shares(scores: Tensor) -> Tensor:
    """Shares of records by their largest softmax value, (CONFIDENCE_BINS,), from 0 to 1."""
    confidences = torch.softmax(scores.to(torch.float64), dim=1).max(dim=1).values
    bins = (confidences * CONFIDENCE_BINS).to(torch.int64).clamp(0, CONFIDENCE_BINS - 1)
    return (torch.bincount(bins, minlength=CONFIDENCE_BINS) / len(scores)).to(torch.float32)
