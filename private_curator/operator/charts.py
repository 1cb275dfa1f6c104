"""Figures as plain numbers, which the console's templates and the report draw as SVG.

Coordinates are in the units of the SVG's view box; no figure has a style of its own, a style sheet draws both light and
dark.
"""

from __future__ import annotations

import datetime as dt
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from dpswd.private_curator.operator.facts import Overview

_LEFT, _RIGHT, _TOP, _BOTTOM = 40.0, 6.0, 12.0, 30.0
_TICKS = 4  # about so many lines across
_ROOM_FOR_DATES = 600.0  # width; below, only the first and the last are written


@dataclass(frozen=True)
class Tick:
    """A line of the grid.

    Attributes:
        at: its coordinate.
        text: beside it.
    """

    at: float
    text: str


@dataclass(frozen=True)
class SpentOverTime:
    """Epsilon spent, and the budget, as two stairs.

    Attributes:
        spent: an SVG path.
        area: the same, closed at the bottom.
        budget: an SVG path.
        forecast: an SVG path from the last charge on; empty where there is none.
        across: lines of the grid, by epsilon.
        along: lines of the grid, by date.
        width: of the view box.
        height: the same.
    """

    spent: str
    area: str
    budget: str
    forecast: str
    across: tuple[Tick, ...]
    along: tuple[Tick, ...]
    width: float
    height: float

    left: float = _LEFT

    @property
    def right(self) -> float:
        """Where lines across end."""
        return self.width - _RIGHT


Stairs = Sequence[tuple[dt.datetime, float]]
"""(time, epsilon from then on), in order."""
Across = Callable[[dt.datetime], float]


def spent_over_time(overview: Overview, *, size: tuple[float, float], now: dt.datetime) -> SpentOverTime:
    """Draws the data set's life, and when nothing is left at the present rate where that is near enough to be seen.

    Args:
        overview: of the data set.
        size: width and height.
        now: the present.
    """
    width, height = size
    times = [dt.datetime.fromisoformat(point.time) for point in overview.points]
    spent = list(zip(times, (point.spent for point in overview.points), strict=True))
    budget = list(zip(times, (point.epsilon for point in overview.points), strict=True))
    day = overview.forecast.exhausted_on
    exhausted = None if day is None else dt.datetime.fromisoformat(f"{day}T00:00:00+00:00")
    begin = min(spent[0][0], budget[0][0])
    lived = max((now - begin).total_seconds(), 60.0)
    ahead = 0.0 if exhausted is None else (exhausted - now).total_seconds()
    shown = lived + (ahead if 0 < ahead <= 2 * lived else 0.15 * lived)
    highest = max(value for _, value in (*spent, *budget))
    step = _round_step(highest / _TICKS)
    top = step * math.ceil(highest * 1.02 / step)

    def x(time: dt.datetime) -> float:
        return _LEFT + (width - _LEFT - _RIGHT) * min(1.0, max(0.0, (time - begin).total_seconds() / shown))

    def y(epsilon: float) -> float:
        return height - _BOTTOM - (height - _TOP - _BOTTOM) * epsilon / top

    end = begin + dt.timedelta(seconds=shown)
    stairs = _path(spent, x, y, until=now)
    forecast = ""
    if exhausted is not None and ahead > 0:
        last, limit = spent[-1][1], budget[-1][1]
        share = min(1.0, (shown - lived) / ahead)
        forecast = f"M{x(now):.1f} {y(last):.1f}L{x(end):.1f} {y(last + (limit - last) * share):.1f}"
    return SpentOverTime(
        spent=stairs,
        area=f"{stairs}V{y(0):.1f}H{x(begin):.1f}Z",
        budget=_path(budget, x, y, until=end),
        forecast=forecast,
        across=tuple(Tick(y(step * number), f"{step * number:g}") for number in range(round(top / step) + 1)),
        along=tuple(_dates(begin, end, x, count=4 if width > _ROOM_FOR_DATES else 2)),
        width=width,
        height=height,
    )


def _path(stairs: Stairs, x: Across, y: Callable[[float], float], *, until: dt.datetime) -> str:
    first, value = stairs[0]
    drawn = f"M{x(first):.1f} {y(value):.1f}"
    for (_, before), (time, value) in itertools.pairwise(stairs):
        # What is spent is worked out anew with each budget: its last digits are no step.
        drawn += f"H{x(time):.1f}" + ("" if math.isclose(value, before, rel_tol=1e-9) else f"V{y(value):.1f}")
    return f"{drawn}H{x(until):.1f}"


def _round_step(about: float) -> float:
    """1, 2, 2.5 or 5 times a power of ten, at least so much."""
    power = 10.0 ** math.floor(math.log10(about)) if about > 0 else 1.0
    return next(factor * power for factor in (1.0, 2.0, 2.5, 5.0, 10.0) if factor * power >= about * 0.999)


def _dates(begin: dt.datetime, end: dt.datetime, x: Across, *, count: int) -> Iterator[Tick]:
    """So many dates, or times of day where all is within two days."""
    shown = (end - begin).total_seconds()
    pattern = "%H:%M" if shown < 2 * 86400 else "%d %b" if shown < 300 * 86400 else "%b %Y"
    for number in range(count):
        time = begin + (end - begin) * (number / (count - 1))
        yield Tick(x(time), time.strftime(pattern))
