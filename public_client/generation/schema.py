"""What everybody may know of a table's columns: bounds, categories, the code of a missing value. The operator says it.

A schema is JSON::

    {"columns": [
      {"name": "age", "kind": "numeric", "low": 17, "high": 90, "bins": 16, "whole": true},
      {"name": "sex", "kind": "categorical", "values": [0, 1], "names": ["female", "male"]},
      {"name": "chol", "kind": "numeric", "low": 85, "high": 605, "missing": 0}]}

Nothing in it may be read off the records: a range that was, tells of the person at its end. A value beyond its bounds
counts as the nearest bin, one that is no category as the nearest category; neither is ever reported.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dpswd.public_client.plans.recipe import refuse
from dpswd.shared.core.errors import InvalidValue, SettingsError

MAX_BINS = 200
"""Of one column: pairs of bins are what is released."""
MAX_COLUMNS = 200
DEFAULT_BINS = 16
_KINDS = ("numeric", "categorical")
_USUAL = 0.9
"""Share of the records that a usual value is taken to have."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column; a record holds one number of it.

    Attributes:
        name: of the column.
        kind: "numeric" or "categorical".
        low: least value of a numeric column, public.
        high: largest.
        bins: of equal width, between them; of whole numbers as nearly as these allow, and no more than there are.
        whole: drawn values are whole numbers.
        values: the codes of a categorical column, increasing.
        names: of the codes, for people; or none.
        missing: the code of a missing value, outside of the bounds and none of the codes; None: none is missing.
        usual: what nine records in ten hold by public knowledge, as "no" of a rare drug; None: nothing is known.
        unit: of its numbers, for people.
    """

    name: str
    kind: str
    low: float | None = None
    high: float | None = None
    bins: int = DEFAULT_BINS
    whole: bool = False
    values: tuple[float, ...] = ()
    names: tuple[str, ...] = ()
    missing: float | None = None
    usual: float | None = None
    unit: str = ""

    def __post_init__(self) -> None:
        refuse(f"column {self.name!r}: {problem}" for problem in self._problems())

    def _problems(self) -> list[str]:
        if self.kind not in _KINDS:
            return [f"kind is {self.kind!r}; allowed: {', '.join(_KINDS)}"]
        if not all(code is None or math.isfinite(code) for code in (self.missing, self.usual)):
            return ["missing or usual is not finite; a missing value is stored as a number outside of the bounds"]
        if self.kind == "categorical":
            if not 1 <= len(self.values) <= MAX_BINS or sorted(set(self.values)) != list(self.values):
                return [f"values must be 1 to {MAX_BINS} different numbers, increasing"]
            if self.names and len(self.names) != len(self.values):
                return [f"has {len(self.names)} names for {len(self.values)} values; give one for each, or none"]
            if self.usual not in (None, self.missing, *self.values):
                return [f"usual is {self.usual:g}, none of its values"]
            return [f"missing is {self.missing:g}, one of its values"] if self.missing in self.values else []
        low, high = self.low, self.high
        if low is None or high is None or not (math.isfinite(low) and math.isfinite(high) and low < high):
            return [f"a numeric column needs low below high, both finite and public; got {low!r} and {high!r}"]
        if type(self.bins) is not int or not 1 <= self.bins <= MAX_BINS:
            return [f"bins is {self.bins!r}; allowed are 1 to {MAX_BINS}"]
        if self.whole and not (float(low).is_integer() and float(high).is_integer()):
            return [f"whole numbers need whole bounds; got {low:g} to {high:g}"]
        if self.missing is not None and self.bounds_of_numbers[0] <= self.missing <= self.bounds_of_numbers[-1]:
            return [f"missing is {self.missing:g}, within its bounds {low:g} to {high:g}; choose a code outside"]
        return []

    @property
    def bounds(self) -> list[tuple[float, float]]:
        """Of each bin, lower and upper, increasing; a category's is a point. The missing code is one of them."""
        if self.kind == "categorical":
            bounds = [(value, value) for value in self.values]
        else:
            bounds = list(pairwise(self.bounds_of_numbers))
        return sorted(bounds + ([] if self.missing is None else [(self.missing, self.missing)]))

    @property
    def bounds_of_numbers(self) -> list[float]:
        """Edges of a numeric column's bins, increasing. Whole numbers end halfway: none is drawn into another bin."""
        assert self.low is not None
        assert self.high is not None
        edges = [self.low + (self.high - self.low) * i / self.bins for i in range(self.bins + 1)]
        if self.whole:
            edges = sorted({math.ceil(edge) - 0.5 for edge in edges[:-1]} | {self.high + 0.5})
        return edges

    @property
    def cuts(self) -> list[float]:
        """Between one bin and the next: halfway."""
        bounds = self.bounds
        return [0.5 * (one[1] + other[0]) for one, other in pairwise(bounds)]

    @property
    def expected(self) -> list[float]:
        """Shares of its bins before anything is released: nine tenths of a usual value's, else all the same."""
        k = len(self.bounds)
        if self.usual is None or k == 1:
            return [1.0 / k] * k
        own = sum(self.usual > cut for cut in self.cuts)
        return [_USUAL if place == own else (1.0 - _USUAL) / (k - 1) for place in range(k)]


@dataclass(frozen=True)
class Schema:
    """The columns of a record, in their order."""

    columns: tuple[Column, ...]

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        if not 1 <= len(names) <= MAX_COLUMNS or len(set(names)) != len(names):
            raise InvalidValue(f"a schema has 1 to {MAX_COLUMNS} columns of different names; got {len(names)}: {names}")

    @property
    def width(self) -> int:
        """d, bins of all columns."""
        return sum(len(column.bounds) for column in self.columns)

    @property
    def expected(self) -> npt.NDArray[np.float64]:
        """(d,) shares of all bins before anything is released: what is released are departures from them."""
        return np.concatenate([column.expected for column in self.columns])

    @property
    def norm(self) -> float:
        """Of the zeros and ones of a record, less the expected shares: the root of what is expected of its square."""
        return math.sqrt(len(self.columns) - float((self.expected**2).sum())) or 1.0

    @property
    def starts(self) -> list[int]:
        """The first bin of each column."""
        return list(accumulate((len(column.bounds) for column in self.columns[:-1]), initial=0))

    def snapped(self, records: Tensor) -> Tensor:
        """Drawn values (n, columns) as a table holds them: codes exactly, numbers within bounds, whole where told."""
        made = records.clone()
        for place, column in enumerate(self.columns):
            own = made[:, place]
            points = [low for low, high in column.bounds if low == high]
            if column.kind == "numeric":
                gap = torch.full_like(own, math.inf) if column.missing is None else (own - column.missing).abs()
                snapped = own.clamp(column.low, column.high)
                snapped = snapped.round() if column.whole else snapped
                absent = gap < (own - snapped).abs()
                made[:, place] = torch.where(absent, torch.tensor(column.missing or 0.0), snapped)
            else:
                codes = torch.tensor(points)
                made[:, place] = codes[(own[:, None] - codes).abs().argmin(dim=1)]
        return made

    def to_json(self) -> dict[str, Any]:
        """Plain values, equal to themselves after JSON; `from_json` reads them back."""
        columns = [asdict(column) for column in self.columns]
        return {"columns": [{k: list(v) if isinstance(v, tuple) else v for k, v in one.items()} for one in columns]}

    @classmethod
    def from_json(cls, values: Any) -> Schema:
        """The inverse of `to_json`; what has a default may be left out.

        Raises:
            InvalidValue: it is none; the column is named.
        """
        try:
            columns = []
            for one in values["columns"]:
                fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in one.items()}
                columns.append(Column(**fields))
            return cls(tuple(columns))
        except (KeyError, TypeError, AttributeError) as error:
            raise InvalidValue(f'a schema is {{"columns": [{{"name": ..., "kind": ...}}, ...]}}; {error}') from error

    @classmethod
    def read(cls, path: Path) -> Schema:
        """From a file of JSON.

        Raises:
            SettingsError: it cannot be read, or is none.
        """
        try:
            values: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            return cls.from_json(values)
        except (OSError, ValueError, InvalidValue) as error:
            raise SettingsError(f"{path} is not a schema: {error}") from error
