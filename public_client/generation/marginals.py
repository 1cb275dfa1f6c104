"""What a release said of each class, with its noise bands, beside what the generator draws; no record enters.

A generator that was fitted to class statistics keeps, of each class, its share and its mean along the first features:
as released, the deviation of the noise on it, and as drawn.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import nn

from dpswd.public_client.generation.generator import Generator
from dpswd.public_client.generation.method import Fitting
from dpswd.public_client.generation.scattering import computed
from dpswd.public_client.methods.statistics_head import ClassSums, shares_of
from dpswd.shared.core.noise.clipping import RECORD_NORM

FEATURES = 8
"""Of each class: those in front, along which public records vary most."""
_DRAWN = 2000


def marginals(
    generator: Generator, statistics: ClassSums, features: nn.Module, fitting: Fitting
) -> list[dict[str, Any]]:
    """Of each class and figure: class, what, released, deviation of the noise on it, drawn.

    Args:
        generator: fitted to it.
        statistics: what was released.
        features: records (n, ...) to features (n, d) of norm 1/2.
        fitting: where it was fitted, and by which seed.
    """
    records, labels = generator.sample(_DRAWN, fitting.seed)
    u, y = computed(features, records.to(fitting.device)).cpu().numpy() / RECORD_NORM, labels.numpy()
    classes, n = len(statistics.counts), statistics.records
    shares = shares_of(statistics)
    sums = statistics.features + statistics.total / classes
    deviation = (statistics.feature_variance + statistics.total_variance / classes**2) ** 0.5
    rows = []
    for c in range(classes):
        released = float(statistics.counts[c] / n + 1.0 / classes)
        drawn = float((y == c).mean())
        rows.append(_row(c, "share", released, statistics.count_variance**0.5 / n, drawn))
        for j in range(min(FEATURES, u.shape[1])):
            own = float(u[y == c, j].mean()) if (y == c).any() else float("nan")
            size = n * shares[c]
            rows.append(_row(c, f"mean of feature {j + 1}", float(sums[c, j] / size), deviation / size, own))
    return rows


def _row(c: int, what: str, released: float, deviation: float, drawn: float) -> dict[str, Any]:
    shown = None if np.isnan(drawn) else drawn
    return {"class": c, "what": what, "released": released, "deviation": float(deviation), "drawn": shown}
