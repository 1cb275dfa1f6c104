"""Weights of class statistics that cost nothing beside the others; docs/privacy/class-statistics.md proves them."""

from __future__ import annotations

import math
from dataclasses import replace

from dpswd.shared.core.mechanisms.class_statistics.geometry import Weights


def free_count(weights: Weights) -> float:
    """The largest a that does not raise the sensitivity of the rest."""
    without = weights.two_classes() - 2.0 * weights.count * weights.count
    return math.sqrt(max(0.0, 0.5 * (weights.same_class() - without)))


def with_free_counts(classes: int, moment: float) -> Weights:
    """Plain sums and second moments of weight beta, and of the counts as much as is free beside them."""
    plain = Weights(classes, 0.0, moment, 0.0)
    return replace(plain, count=free_count(plain))


def free_moment_weight(classes: int, centring: float) -> float:
    """The largest beta that does not raise the sensitivity: up to it the furthest records have equal second moments.

    Args:
        classes: C.
        centring: kappa.
    """
    shared = Weights(classes, 0.0, 0.0, centring).overlap
    if 4.0 * (1.0 - shared) > 2.0:  # opposite features decide, up to where they no longer do
        return math.sqrt(0.5 * (1.0 - shared))
    return math.sqrt(0.5 * shared)
