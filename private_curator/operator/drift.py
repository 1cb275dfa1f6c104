"""How the hospital's records differ from the public source that a model was trained on. Local, never released.

**Not private**: every figure here is computed from the records without noise. It is for the operator's own eyes; an ML
team learns about the records through `evaluation` and the releases, which are charged.

Value by value (or channel by channel) the records are compared with the source's quantiles, which the adapted model's
file carries: a bound from below on the Kolmogorov-Smirnov distance, the shift of the mean, the share outside the
source's range. The features are compared on random directions, by the sliced Wasserstein distance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.models.source_statistics import (
    CONFIDENCE_BINS,
    LEVELS,
    SourceStatistics,
    confidence_shares,
    flattened,
    quantiles_of,
    sliced_distance,
)

NOTICE = "local and not private: computed from the records without noise; do not hand it to anyone outside"
LARGE_DISTANCE = 0.3
"""A Kolmogorov-Smirnov distance above which a value is counted as drifted: half of a population's mass moved by 0.6."""
MOST_SLICED = 100_000
"""Records whose features are kept for the sliced distance; further ones do not change it visibly."""
_SMALLEST_DEVIATION = 1e-6


@dataclass(frozen=True)
class ValueDrift:
    """One value of a record (or one channel), compared over all records.

    Attributes:
        name: the column, the place in the record, or the channel.
        distance: Kolmogorov-Smirnov distance from the source, at least.
        mean_shift: difference of the means in the source's standard deviations; None where the source is constant.
        outside: share of records outside the source's range.
    """

    name: str
    distance: float
    mean_shift: float | None
    outside: float


@dataclass(frozen=True)
class DriftReport:
    """The records beside the source.

    Attributes:
        records: how many records were compared.
        source_records: how many public records the model's file sums up.
        values: by name, largest distance first.
        drifted: share of the values whose distance exceeds `LARGE_DISTANCE`.
        feature_distance: sliced Wasserstein distance of the features from the source's, in standard deviations.
        chance: the same between two halves of the source: what is normal.
        confidences: shares of records by confidence, in equal bins from 0 to 1.
        source_confidences: the same of the source.
        notice: that this is not private.
    """

    records: int
    source_records: int
    values: tuple[ValueDrift, ...]
    drifted: float
    feature_distance: float
    chance: float
    confidences: tuple[float, ...]
    source_confidences: tuple[float, ...]
    notice: str = NOTICE

    def to_json(self) -> dict[str, Any]:
        """Plain values; what is not known is null."""
        return asdict(self)


class DriftMeter:
    """Compares records chunk by chunk; memory does not grow with their number.

    Args:
        statistics: of the public source.
        record_shape: of one record.
        names: of the values of a record, for tables; by default their places.
    """

    def __init__(
        self, statistics: SourceStatistics, *, record_shape: tuple[int, ...], names: Sequence[str] = ()
    ) -> None:
        rows = len(statistics.mean)
        if not statistics.by_channel and rows != math.prod(record_shape):
            raise InvalidValue(f"the source's statistics have {rows} values, the records {math.prod(record_shape)}")
        self._statistics = statistics
        self._names = _names(record_shape, rows, by_channel=statistics.by_channel, given=names)
        self._below = torch.zeros(rows, LEVELS, dtype=torch.float64)  # values below each source quantile
        self._upto = torch.zeros(rows, LEVELS, dtype=torch.float64)  # values below or at it
        self._sum = torch.zeros(rows, dtype=torch.float64)
        self._outside = torch.zeros(rows, dtype=torch.float64)
        self._values = 0
        self._records = 0
        self._sliced: list[Tensor] = []
        self._confidences = torch.zeros(CONFIDENCE_BINS, dtype=torch.float64)

    def add(self, records: Tensor, features: Tensor, scores: Tensor) -> None:
        """Takes a chunk.

        Args:
            records: (m, *record_shape).
            features: (m, d).
            scores: (m, C).
        """
        statistics = self._statistics
        flat, by_channel = flattened(records.to("cpu", torch.float32))
        if by_channel != statistics.by_channel:
            raise InvalidValue("the source's statistics were made for records of another size")
        for level in range(LEVELS):
            at = statistics.quantiles[:, level]
            self._below[:, level] += (flat < at).sum(dim=0)
            self._upto[:, level] += (flat <= at).sum(dim=0)
        self._sum += flat.sum(dim=0, dtype=torch.float64)
        low, high = statistics.quantiles[:, 0], statistics.quantiles[:, -1]
        self._outside += ((flat < low) | (flat > high)).sum(dim=0)
        self._values += len(flat)
        room = MOST_SLICED - self._records
        if room > 0:
            self._sliced.append(statistics.slice(features[:room]))
        self._confidences += confidence_shares(scores.to("cpu")).to(torch.float64) * len(records)
        self._records += len(records)

    def report(self) -> DriftReport:
        """What was found.

        Raises:
            InvalidValue: no record was added.
        """
        if not self._records:
            raise InvalidValue("no records were compared")
        statistics = self._statistics
        distance = ks_at_least(statistics.quantiles, self._below / self._values, self._upto / self._values)
        spread = statistics.deviation.to(torch.float64)
        shift = (self._sum / self._values - statistics.mean) / spread
        constant = (spread < _SMALLEST_DEVIATION).tolist()
        outside = self._outside / self._values
        values = [
            ValueDrift(name, float(distance[i]), None if constant[i] else float(shift[i]), float(outside[i]))
            for i, name in enumerate(self._names)
        ]
        sliced = quantiles_of(torch.cat(self._sliced))
        return DriftReport(
            records=self._records,
            source_records=statistics.records,
            values=tuple(sorted(values, key=lambda value: -value.distance)),
            drifted=sum(value.distance > LARGE_DISTANCE for value in values) / len(values),
            feature_distance=sliced_distance(sliced, statistics.slices),
            chance=statistics.self_distance,
            confidences=tuple((self._confidences / self._records).tolist()),
            source_confidences=tuple(statistics.confidences.tolist()),
        )


def ks_at_least(quantiles: Tensor, below: Tensor, upto: Tensor) -> Tensor:
    """A lower bound on the Kolmogorov-Smirnov distance of a population from one whose quantiles are known.

    At a source quantile q that stands at the levels a to b, the source's distribution function lies between b and the
    next level, and its left limit between the level before a and a. What the other population's lies outside of these
    is a true difference, also where values repeat (pixels, counts).

    Args:
        quantiles: (f, LEVELS) of the source, not decreasing.
        below: (f, LEVELS) share of the other population below each.
        upto: (f, LEVELS) share below or at each.

    Returns:
        (f,) float64, from 0 to 1.
    """
    levels = torch.linspace(0.0, 1.0, LEVELS, dtype=torch.float64)
    step = 1.0 / (LEVELS - 1)
    same = quantiles[:, :, None] == quantiles[:, None, :]  # (f, LEVELS, LEVELS)
    first = torch.where(same, levels, 2.0).amin(dim=2)  # a
    last = torch.where(same, levels, -1.0).amax(dim=2)  # b
    low, high = last, (last + step).clamp(max=1.0)  # of the source's F(q)
    left_low, left_high = (first - step).clamp(min=0.0), first  # of its F(q-)
    left_low = torch.where(first == 0.0, 0.0, left_low)
    gaps = torch.stack([low - upto, upto - high, left_low - below, below - left_high])
    return gaps.clamp(min=0.0).amax(dim=(0, 2))


def _names(shape: tuple[int, ...], rows: int, *, by_channel: bool, given: Sequence[str]) -> list[str]:
    if by_channel:
        return [f"channel {i}" for i in range(rows)] if rows > 1 else ["all values"]
    if len(given) == rows:
        return list(given)
    places = torch.cartesian_prod(*(torch.arange(side) for side in shape)).reshape(rows, -1)
    return [",".join(map(str, place)) for place in places.tolist()]
