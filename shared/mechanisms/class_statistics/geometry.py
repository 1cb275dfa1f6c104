"""How far one record moves the sum of class statistics: exact, from the weights of its blocks alone.

A record (y, u), |u| <= 1, adds psi = [e_y (x) (a, u), beta svec(u u^T)]. docs/privacy/class-statistics.md proves what
stands here: a is `count_weight`, beta is `moment_weight`.
"""

from __future__ import annotations

import math


def sensitivity(*, count_weight: float, moment_weight: float) -> float:
    """The largest distance of two records' vectors, rounded up: what replacing one record may move the sum by.

    Args:
        count_weight: a of a record's one in its class's count; 0 without counts.
        moment_weight: beta of its second moments; 0 without.
    """
    a, moments = count_weight * count_weight, moment_weight * moment_weight
    largest = math.sqrt(max(_same_class(moments), 2.0 * (a + 1.0 + moments)))
    return math.nextafter(largest, math.inf) if math.isfinite(largest) else largest


def record_norm(*, count_weight: float, moment_weight: float) -> float:
    """The largest norm of one record's vector, rounded up: what adding or removing one record moves the sum by.

    Curators price replacements, where n is public; this is for comparisons with work that prices additions.

    Args:
        count_weight: a.
        moment_weight: beta.
    """
    squared = count_weight * count_weight + 1.0 + moment_weight * moment_weight
    return math.nextafter(math.sqrt(squared), math.inf)


def free_count_weight(moment_weight: float) -> float:
    """The largest a that does not raise the sensitivity: records of two classes are then no further apart than of one.

    Args:
        moment_weight: beta.
    """
    moments = moment_weight * moment_weight
    return math.sqrt(max(0.0, 0.5 * _same_class(moments) - 1.0 - moments))


FREE_MOMENT_WEIGHT = math.sqrt(0.5)
"""The largest beta at which second moments cost nothing: two records of a class are furthest apart as u and -u, and
these have the same second moments."""


def _same_class(moments: float) -> float:
    """The largest squared distance of two records of one class; `moments` is beta squared."""
    return 4.0 if moments <= 0.5 else 2.0 + 2.0 * moments + 0.5 / moments
