"""The papers' settings: what DP-SWD (Rakotomamonjy and Ralaivola) ran and what its released code claims for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dpswd.shared.core.privacy.events import Part, QuantileCoefficients, RowProjections, RunEvent, StepEvent

TARGETS = (10.0, 3.0, 1.0)


@dataclass(frozen=True)
class Setting:
    """One row of the papers' tables; ``steps`` = (records // batch + 1) * epochs."""

    name: str
    features: int
    directions: int
    records: int
    batch: int
    steps: int
    delta: float

    def rows(self, sigma: float, *, batch: int | None = None) -> RunEvent:
        """DP-SWD's release: every projected row with noise."""
        return self._run(RowProjections(self.features, self.directions, sigma), batch or self.batch)

    def coefficients(self, sigma: float, *, coefficients: int, batch: int) -> RunEvent:
        """Quantile coefficients of the sorted projections, with the same number of steps."""
        return self._run(QuantileCoefficients(self.features, self.directions, coefficients, sigma), batch)

    def _run(self, part: Part, batch: int) -> RunEvent:
        return RunEvent(step=StepEvent(self.records, batch, (part,)), steps=self.steps)


SETTINGS = (
    Setting("U-M", 784, 200, 10_000, 128, 7_900, 1e-5),
    Setting("M-U", 784, 200, 7_438, 128, 5_900, 1e-5),
    Setting("VisDA", 100, 1_000, 55_387, 128, 21_650, 1e-6),
    Setting("Office", 50, 100, 497, 32, 800, 1e-3),
    Setting("MNIST", 784, 1_000, 60_000, 100, 60_100, 1e-5),
    Setting("CelebA", 8_192, 2_000, 162_000, 256, 63_300, 1e-6),
    Setting("U-M, d = 320", 320, 200, 10_000, 128, 7_900, 1e-5),
    Setting("M-U, d = 320", 320, 200, 7_438, 128, 5_900, 1e-5),
)


@dataclass(frozen=True)
class PublishedRun:
    """A run at a published sigma (epsilon 10 by the recipe), and the number of records that its sigma belongs to."""

    setting: Setting
    bernstein: float
    clt: float


PUBLISHED = (
    PublishedRun(SETTINGS[0], 4.80, 0.915),
    # The published sigma of M-U was computed with 7468 records.
    PublishedRun(Setting("M-U", 784, 200, 7_468, 128, 5_900, 1e-5), 5.43, 1.035),
    PublishedRun(SETTINGS[2], 6.52, 2.335),
    PublishedRun(SETTINGS[3], 8.35, 3.372),
)

AS_RUN, AS_RUN_SIGMA = Setting("M-U as run", 320, 200, 7_438, 128, 41_652, 1e-5), 5.34
"""What the released M-U code does: 320 projected features, 468 steps in each of 89 epochs; its sigma."""


def show(value: float, digits: int = 4) -> str:
    """``value`` in so many significant digits, rounded up: a sigma or an epsilon that is safe to copy."""
    if not math.isfinite(value):
        return "∞"
    if value == 0.0:
        return "0"
    places = digits - 1 - math.floor(math.log10(abs(value)))
    up = math.ceil(round(value * 10.0**places, 9)) / 10.0**places
    return f"{up:.{max(0, places)}f}"


def markdown_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
