"""How far one record moves the sum of class statistics: exact, from the weights of its blocks alone.

A record (y, u), |u| <= 1, adds psi = [t_y (x) (a, u), beta svec(u u^T)], t_y = e_y - (kappa / C) 1.
docs/privacy/class-statistics.md proves what stands here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Weights:
    """The weights of a record's blocks.

    Attributes:
        classes: C, at least 2.
        count: a of a record's one in its class's count; 0 without counts.
        moment: beta of its second moments; 0 without.
        centring: kappa, from 0 to 1: how much of what the classes have in common is taken off.
    """

    classes: int
    count: float
    moment: float
    centring: float

    @property
    def overlap(self) -> float:
        """eta, minus the inner product of two classes' t; that of one with itself is 1 - eta."""
        return self.centring * (2.0 - self.centring) / self.classes

    def sensitivity(self) -> float:
        """The largest distance of two records' vectors, rounded up: what replacing one record may move the sum by."""
        return root_up(max(self.same_class(), self.two_classes()))

    def same_class(self) -> float:
        """The largest squared distance of two records of one class: at unit features with inner product -p."""
        own, moments = 1.0 - self.overlap, self.moment * self.moment
        if own >= 2.0 * moments:  # p = 1: opposite features, whose second moments are the same
            return 4.0 * own
        return 2.0 * own + 2.0 * moments + own * own / (2.0 * moments)

    def two_classes(self) -> float:
        """The largest squared distance of two records of different classes: at unit features with inner product s."""
        shared, moments, count = self.overlap, self.moment * self.moment, 2.0 * self.count * self.count
        if shared >= 2.0 * moments:  # s = 1: equal features under different labels
            return count + 2.0
        return count + 2.0 * (1.0 - shared) + 2.0 * moments + shared * shared / (2.0 * moments)


def root_up(squared: float) -> float:
    """A square root, rounded up."""
    root = math.sqrt(squared)
    return math.nextafter(root, math.inf) if math.isfinite(root) else root
