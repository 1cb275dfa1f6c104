"""Sign tests on pairs of times: exact, however busy the machine is and whatever the law of its delays."""

from __future__ import annotations

from scipy.stats import binomtest

ALPHA = 1e-6
"""Probability of a false alarm."""


class Signs:
    """How often the second of two took longer."""

    def __init__(self):
        self.longer = self.pairs = 0

    def add(self, first, second):
        self.pairs += 1
        self.longer += second > first

    @property
    def pvalue(self):
        return binomtest(self.longer, self.pairs).pvalue

    def __str__(self):
        return f"{self.longer} of {self.pairs} pairs, p = {self.pvalue:.2g}"


def in_random_order(rng, first, second):
    """Times both and returns (first's, second's) seconds."""
    if rng.random() < 0.5:
        return first(), second()
    later = second()
    return first(), later
