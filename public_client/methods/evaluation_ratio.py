"""The accuracy where only some records have a label: the ratio of two noised numbers, with an honest interval.

How many predictions are correct and how many are wrong is released with independent Gaussian noise of known deviation;
their sum, the number of labelled records, is as private as they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

FEWEST = 3.0
"""A number of labelled records below so many deviations of its noise gives no accuracy."""


@dataclass(frozen=True)
class Tally:
    """Unbiased, independent estimates.

    Attributes:
        right: number of correct predictions.
        right_variance: of its noise.
        wrong: number of wrong ones.
        wrong_variance: of its noise.
    """

    right: float
    right_variance: float
    wrong: float
    wrong_variance: float

    @property
    def labelled(self) -> float:
        """The estimated number of labelled records."""
        return self.right + self.wrong

    @property
    def sufficient(self) -> bool:
        """Whether there are enough labelled records against the noise to tell a share of them."""
        return self.labelled >= FEWEST * math.sqrt(self.right_variance + self.wrong_variance)

    def share(self) -> float:
        """The share of correct ones, from 0 to 1; NaN where it is not known."""
        return min(max(self.right / self.labelled, 0.0), 1.0) if self.sufficient else math.nan

    def interval(self, deviations: float, *, sampling: bool) -> tuple[float, float]:
        """Fieller's interval: the shares p that the noise does not speak against.

        For the true p, (1 - p) right - p wrong is normal with mean 0 and variance (1 - p)^2 v_right + p^2 v_wrong, so
        that the set covers p with the wanted probability however few records are labelled. Where noise alone explains
        the numbers, it is everything from 0 to 1.

        Args:
            deviations: of a standard normal, two-sided.
            sampling: for further records like these: each labelled one is itself a draw.
        """
        square = deviations * deviations
        variances = self.right_variance, self.wrong_variance
        if sampling and self.labelled > 0.0:
            # A record is right with probability p: (1 - p) right - p wrong gains p (1 - p) for each, at most 1/4 of N.
            p = min(max(self.right / self.labelled, 0.0), 1.0)
            more = max(p * (1.0 - p) * self.labelled, 0.25)
        else:
            more = 0.0
        # ((1 - p) r - p w)^2 <= square ((1 - p)^2 v_r + p^2 v_w + more), as a p^2 + 2 b p + c <= 0.
        a = self.labelled**2 - square * sum(variances)
        b = square * variances[0] - self.right * self.labelled
        c = self.right**2 - square * (variances[0] + more)
        inside = b * b - a * c
        if a <= 0.0 or inside < 0.0:
            return 0.0, 1.0
        root = math.sqrt(inside)
        low, high = ((-b + sign * root) / a for sign in (-1.0, 1.0))
        return min(max(low, 0.0), 1.0), min(max(high, 0.0), 1.0)
