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

from shared.errors import InvalidValue
from shared.protocol.checks import Violation
from shared.protocol.payloads import MessagePayload
from shared.protocol.v1 import curator_pb2 as pb

Floats = npt.NDArray[np.float64]

_ROUNDING = 1e-4
"""Of the range's width: float32, and a normalisation to four digits, may leave it by so much."""
_NARROW = 0.1
"""Of the range's width: a source whose values all lie in less is on another scale."""
_MOST_NAMES, _LONGEST_NAME = 65_536, 200


@dataclass(frozen=True)
class DataContract(MessagePayload, message=pb.DataContract, field="contract"):
    """Public facts of the records' values; what is empty is not declared.

    Attributes:
        value_range: smallest and largest value, before the normalisation where there is one.
        channel_mean: of each channel, or one for all: a served value is (value - mean) / std.
        channel_std: the same.
        column_names: of the numbers of a table's row, in order.
        units: of the columns, in order.
    """

    value_range: tuple[float, ...] = ()
    channel_mean: tuple[float, ...] = ()
    channel_std: tuple[float, ...] = ()
    column_names: tuple[str, ...] = ()
    units: tuple[str, ...] = ()

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
        for name in ("column_names", "units"):
            words = getattr(self, name)
            if len(words) > _MOST_NAMES or any(not w or len(w) > _LONGEST_NAME or not w.isprintable() for w in words):
                broken.append((name, f"must be printable words of at most {_LONGEST_NAME} characters"))
        if len(set(self.column_names)) != len(self.column_names):
            broken.append(("column_names", "must differ"))
        return broken

    def problems(self, record_shape: Sequence[int]) -> list[str]:
        """Why records of this shape cannot be described so, in words; empty where they can."""
        found = [f"{name} {text}" for name, text in self.broken_structure()]
        channels = len(self.channel_mean)
        if channels > 1 and (len(record_shape) < 2 or record_shape[0] != channels):
            found.append(f"channel_mean has {channels} numbers; records have shape {tuple(record_shape)}")
        words = {name: len(getattr(self, name)) for name in ("column_names", "units")}
        wrong = {name: count for name, count in words.items() if count and tuple(record_shape) != (count,)}
        return found + [
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

    def differences(self, low: float, high: float, *, outside: bool) -> str:
        """How a public source departs from the declared scale, in words; empty where it does not.

        Args:
            low: its smallest value.
            high: its largest.
            outside: what `outside` says of its records.
        """
        if not self.value_range:
            return ""
        bounds = self.bounds((1,))
        assert bounds is not None, "there is a range"
        least, most = float(bounds[0].min()), float(bounds[1].max())
        declared = f"the hospital declares {least:.4g} to {most:.4g}{self._normalised()}"
        if outside:
            return f"the source's values reach from {low:.4g} to {high:.4g}, {declared}"
        if high - low < _NARROW * (most - least):
            return f"the source's values lie between {low:.4g} and {high:.4g} only, {declared}"
        return ""

    def disagreements(self, own: DataContract) -> list[str]:
        """Where a team's own declaration of its source says otherwise, in words; what either leaves out agrees."""
        found = []
        for field in fields(self):
            theirs, ours = getattr(self, field.name), getattr(own, field.name)
            if theirs and ours and theirs != ours:
                place = next((i for i, (a, b) in enumerate(zip(theirs, ours, strict=False)) if a != b), None)
                first = "" if place is None else f", first {ours[place]!r} for {theirs[place]!r} (number {place})"
                found.append(f"{field.name} differ: {len(ours)} of the source, {len(theirs)} of the hospital{first}")
        return found

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

    def _normalised(self) -> str:
        return ", normalised by channel" if self.channel_mean else ""

    def __str__(self) -> str:
        """One line."""
        told = []
        if self.value_range:
            told.append("{:g} to {:g}".format(*self.value_range))
        if self.channel_mean:
            shown = [", ".join(f"{v:g}" for v in values) for values in (self.channel_mean, self.channel_std)]
            told.append(f"then less {shown[0]}, over {shown[1]}")
        if self.column_names:
            units = self.units or ("",) * len(self.column_names)
            told.append(", ".join(f"{c} ({u})" if u else c for c, u in zip(self.column_names, units, strict=True)))
        elif self.units:
            told.append(f"in {', '.join(self.units)}")
        return "; ".join(told) or "no range, names or units are declared"
