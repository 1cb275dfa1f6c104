"""The budget over time as SVG, drawn by hand: one file, no script, no font, readable in black and white."""

from __future__ import annotations

import datetime as dt
import html
from collections.abc import Sequence

from private_curator.operator.timeline import Point

_WIDTH, _HEIGHT = 720, 280
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 16, 16, 40
_TICKS = 5


def budget_chart(points: Sequence[Point], *, until: dt.datetime) -> str:
    """Spent epsilon and the budget as steps over time.

    Args:
        points: at least the opening.
        until: the right end.
    """
    times = [dt.datetime.fromisoformat(point.time) for point in points]
    begin, end = times[0], max(until, times[-1])
    seconds = max(1.0, (end - begin).total_seconds())
    top = 1.05 * max(max(point.epsilon for point in points), max(point.spent for point in points))

    def x(time: dt.datetime) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (time - begin).total_seconds() / seconds

    def y(epsilon: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * epsilon / top

    def steps(values: Sequence[float]) -> str:
        last = f"{y(values[0]):.1f}"
        path = f"M{x(times[0]):.1f},{last}"
        for time, value in zip(times[1:], values[1:], strict=True):
            height = f"{y(value):.1f}"
            path += f"H{x(time):.1f}" + (f"V{height}" if height != last else "")
            last = height
        return f"{path}H{x(end):.1f}"

    spent, budget = [point.spent for point in points], [point.epsilon for point in points]
    told = f"epsilon {spent[-1]:.3g} of {budget[-1]:g} is spent after {sum(bool(p.run) for p in points)} runs"
    lines = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{html.escape(told)}">',
        f"<title>{html.escape(told)}</title>",
    ]
    for tick in range(_TICKS + 1):
        value = top * tick / _TICKS
        lines.append(
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>'
        )
        lines.append(f'<text x="{_LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:.3g}</text>')
    for time, anchor in ((begin, "start"), (end, "end")):
        lines.append(f'<text x="{x(time):.1f}" y="{_HEIGHT - 16}" text-anchor="{anchor}">{time:%Y-%m-%d}</text>')
    lines.append(f'<text x="{_LEFT}" y="{_HEIGHT - 2}">line: epsilon spent; dashes: the budget</text>')
    lines.append(f'<path class="budget" d="{steps(budget)}"/>')
    lines.append(f'<path class="spent" d="{steps(spent)}"/>')
    return "\n".join([*lines, "</svg>"])
