"""What an operator declares of the records' values: public, checked at the hospital, compared with a team's source.

Both sides compute on records as they are served. That they are on one scale, and that the columns mean the same, no
release tells: it is declared. Nothing here follows from a record.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.wire.checks import Violation
from dpswd.shared.core.wire.payloads import MessagePayload
from dpswd.shared.core.wire.v1 import curator_pb2 as pb

Floats = npt.NDArray[np.float64]

_ROUNDING = 1e-4
"""Of the range's width: float32, and a normalisation to four digits, may leave it by so much."""
_NARROW = 0.1
"""Of the range's width: a source whose values all lie in less is on another scale."""
_AT_AN_END = 0.02
"""Of a scale's width: values that come so near to its end reach it."""
_SCALES_OF_IMAGES = ((0.0, 1.0), (-1.0, 1.0))
_MOST_NAMES, _LONGEST_NAME = 65_536, 200
_SHOWN = 12
"""Of the names, in a notice."""


@dataclass(frozen=True)
class DataContract(MessagePayload, message=pb.DataContract, field="contract"):
    """Public facts of the records' values; what is empty is not declared.

    Attributes:
        value_range: smallest and largest value, before the normalisation where there is one.
        channel_mean: of each channel, or one for all: a served value is (value - mean) / std.
        channel_std: the same.
        column_names: of the numbers of a table's row, in order.
        units: of the columns, in order.
        class_names: of the labels 0, 1, ..., in order.
    """

    value_range: tuple[float, ...] = ()
    channel_mean: tuple[float, ...] = ()
    channel_std: tuple[float, ...] = ()
    column_names: tuple[str, ...] = ()
    units: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()

    def broken_structure(self) -> list[Violation]:
        """See `MessagePayload`."""
        broken: list[Violation] = []
        low_high = self.value_range
        if low_high and not (len(low_high) == 2 and all(map(math.isfinite, low_high)) and low_high[0] < low_high[1]):
            broken.append(("value_range", "must be two finite numbers, the smaller first"))
        if len(self.channel_mean) != len(self.channel_std):
            broken.append(("channel_mean", "and channel_std must have one number for each channel, or one, both"))
        if not all(math.isfinite(mean) for mean in self.channel_mean):
            broken.append(("channel_mean", "must be finite"))
        if not all(math.isfinite(std) and std > 0 for std in self.channel_std):
            broken.append(("channel_std", "must be positive and finite"))
        for name in ("column_names", "units", "class_names"):
            words = getattr(self, name)
            if len(words) > _MOST_NAMES or any(not w or len(w) > _LONGEST_NAME or not w.isprintable() for w in words):
                broken.append((name, f"must be printable words of at most {_LONGEST_NAME} characters"))
        named = {name: getattr(self, name) for name in ("column_names", "class_names")}
        return broken + [(name, "must differ") for name, words in named.items() if len(set(words)) != len(words)]

    def problems(self, record_shape: Sequence[int]) -> list[str]:
        """Why records of this shape cannot be described so, in words; empty where they can."""
        problems = [f"{name} {text}" for name, text in self.broken_structure()]
        channels = len(self.channel_mean)
        if channels > 1 and (len(record_shape) < 2 or record_shape[0] != channels):
            problems.append(f"channel_mean has {channels} numbers; records have shape {tuple(record_shape)}")
        words = {name: len(getattr(self, name)) for name in ("column_names", "units")}
        wrong = {name: count for name, count in words.items() if count and tuple(record_shape) != (count,)}
        return problems + [
            f"{name} has {count} words; records have shape {tuple(record_shape)}" for name, count in wrong.items()
        ]

    def bounds(self, record_shape: Sequence[int]) -> tuple[Floats, Floats] | None:
        """Smallest and largest served value, (channels or 1, 1, ...) each, beside a record; None where undeclared."""
        if not self.value_range:
            return None
        sides = (1,) * (len(record_shape) - 1)
        mean = np.array(self.channel_mean or (0.0,)).reshape(-1, *sides)
        std = np.array(self.channel_std or (1.0,)).reshape(-1, *sides)
        low, high = self.value_range
        return (low - mean) / std, (high - mean) / std

    def outside(self, records: npt.NDArray[np.float32]) -> bool:
        """Whether any value of records (m, ...) lies outside the declared range, by more than rounding."""
        bounds = self.bounds(records.shape[1:])
        if bounds is None or not records.size:
            return False
        low, high = bounds
        slack = _ROUNDING * (high - low)
        return bool(((records < low - slack) | (records > high + slack)).any())

    def differences(self, lows: Floats, highs: Floats, record_shape: Sequence[int], own: DataContract) -> str:
        """How a public source departs from the declared scale, in words; empty where it does not.

        Refused are values outside of what is declared. Inside, a source is taken to be on another scale where each
        channel fills less than a tenth of the declared width, or lies within another usual scale and reaches an end of
        that, and no channel reaches an end of the declared one (`_other_scales`). Images whose darkest or lightest
        values are rare are thus left alone. A team that declares the same scale of its source is believed about the
        inside.

        Args:
            lows: (channels,) its smallest value in each; of tables one.
            highs: (channels,) its largest.
            record_shape: of one record.
            own: the team's declaration.
        """
        bounds = self.bounds((1,))
        if bounds is None:
            return ""
        low, high = (np.broadcast_to(bound, lows.shape) for bound in bounds)
        width = high - low
        declared = (
            f"the hospital declares {low.min():.4g} to {high.max():.4g}{', normalised by channel' * self._normalised}"
        )
        shown = f"{lows.min():.4g} and {highs.max():.4g}"
        if ((lows < low - _ROUNDING * width) | (highs > high + _ROUNDING * width)).any():
            return f"the source's values reach from {shown.replace('and', 'to')}, {declared}"
        if own.value_range and self._scale == own._scale:
            return ""
        sure = "; if yours are on that scale, declare the same value_range, channel_mean and channel_std of your source"
        if (highs - lows < _NARROW * width).all():
            return f"the source's values lie between {shown} only, {declared}{sure}"
        for least, most in self._other_scales(record_shape):
            near = _AT_AN_END * (most - least)
            within = (lows >= least - _ROUNDING * (most - least)) & (highs <= most + _ROUNDING * (most - least))
            # An end that both scales have tells nothing.
            below, above = np.abs(low - least) > near, np.abs(high - most) > near
            reached = (below & (lows <= least + near)) | (above & (highs >= most - near))
            explained = (below & (lows <= low + _AT_AN_END * width)) | (above & (highs >= high - _AT_AN_END * width))
            if (within & reached).all() and not explained.any():
                return (
                    f"the source's values fill the scale from {least:g} to {most:g} in each channel, {declared}{sure}"
                )
        return ""

    def _other_scales(self, record_shape: Sequence[int]) -> list[tuple[float, float]]:
        """On which a source may be by mistake: not normalised, and of images those that are usual."""
        low_high = (self.value_range[0], self.value_range[1])
        usual = _SCALES_OF_IMAGES if len(record_shape) == 3 else ()
        return list(dict.fromkeys([*([low_high] * self._normalised), *usual]))

    def disagreements(self, own: DataContract) -> list[str]:
        """Where a team's own declaration of its source says otherwise, in words; what either leaves out agrees."""
        lines = []
        for field in fields(self):
            theirs, ours = getattr(self, field.name), getattr(own, field.name)
            if theirs and ours and theirs != ours:
                place = next((i for i, (a, b) in enumerate(zip(theirs, ours, strict=False)) if a != b), None)
                first = "" if place is None else f", first {ours[place]!r} for {theirs[place]!r} (number {place})"
                lines.append(f"{field.name} differ: {len(ours)} of the source, {len(theirs)} of the hospital{first}")
        return lines

    def uncompared(self, own: DataContract | None = None) -> list[str]:
        """What a team's source is not held to because one of the two declares nothing, in words.

        Args:
            own: the team's declaration; by default none.
        """
        own = own or DataContract()
        missing = [] if self.value_range else [
            "the hospital declares no range of values, so the scale of your source was not compared with its records'"
        ]  # fmt: skip
        for name, of_whom in (("column_names", "columns"), ("units", "units"), ("class_names", "classes")):
            if (theirs := getattr(self, name)) and not getattr(own, name):
                shown = ", ".join(theirs[:_SHOWN]) + ", ..." * (len(theirs) > _SHOWN)
                missing.append(
                    f"the hospital declares {of_whom} {shown}; you declared none (contract.{name}), so yours and their "
                    "order were not compared"
                )
        return missing

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> DataContract:
        """From a mapping of lists, as `dataclasses.asdict` and JSON give it.

        Raises:
            InvalidValue: a field is unknown, or a rule is broken.
        """
        try:
            made = cls(**{name: tuple(value) for name, value in values.items()})
        except TypeError as error:
            raise InvalidValue(f"this is no data contract: {error}") from error
        if broken := made.broken_structure():
            raise InvalidValue("; ".join(f"contract: {name} {text}" for name, text in broken))
        return made

    @property
    def _normalised(self) -> bool:
        return bool(self.channel_mean)

    @property
    def _scale(self) -> tuple[tuple[float, ...], ...]:
        return self.value_range, self.channel_mean, self.channel_std

    def __str__(self) -> str:
        """One line."""
        parts = []
        if self.value_range:
            parts.append("{:g} to {:g}".format(*self.value_range))
        if self.channel_mean:
            shown = [", ".join(f"{v:g}" for v in values) for values in (self.channel_mean, self.channel_std)]
            parts.append(f"then less {shown[0]}, over {shown[1]}")
        if self.column_names:
            units = self.units or ("",) * len(self.column_names)
            parts.append(", ".join(f"{c} ({u})" if u else c for c, u in zip(self.column_names, units, strict=True)))
        elif self.units:
            parts.append(f"in {', '.join(self.units)}")
        if self.class_names:
            parts.append(f"classes {', '.join(self.class_names)}")
        return "; ".join(parts) or "no range, names or units are declared"
