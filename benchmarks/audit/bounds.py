"""From how often an attack tells D from D' to a lower bound on epsilon, with confidence.

(epsilon, delta)-differential privacy bounds every test: TPR <= e^epsilon FPR + delta, in both directions. With upper
and lower Clopper-Pearson limits of the two rates, epsilon >= log((TPR_low - delta) / FPR_high) with the stated
confidence, whatever the mechanism is (Jagielski, Ullman, Oprea, NeurIPS 2020). The threshold is chosen on a part of the
trials that the limits do not use.

`noise_bound` assumes more and says more: that the mechanism is the declared one up to the size of its noise. Then
TPR <= delta_m(e) + e^e FPR for every e, where delta_m is the exact profile with the noise divided by m, and m has a
lower bound (the idea of Nasr et al., USENIX Security 2023, with our own profile in the place of the Gaussian's).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta, norm

from benchmarks.audit.delta import run_delta
from dpswd.public_client.testing.artefacts import upper_limit
from dpswd.shared.accounting import pld
from dpswd.shared.core.privacy.events import RunEvent

SELECTION = 0.25  # part of the trials on which the threshold and the direction are chosen
_LARGEST_FACTOR = 64.0
_EPSILONS = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.5, 8.0, 10.0)


@dataclass(frozen=True)
class Evidence:
    """What the trials of one attack prove.

    Attributes:
        epsilon: lower bound on epsilon at `delta`; 0 where nothing is proved.
        delta: of the claim.
        false_positives: upper limit of the rate.
        true_positives: lower limit of the rate.
        trials: with D and with D' each, those of the selection not counted.
        alpha: probability that the bound is wrong for a mechanism whose epsilon is smaller.
    """

    epsilon: float
    delta: float
    false_positives: float
    true_positives: float
    trials: int
    alpha: float


def lower_limit(hits: int, trials: int, alpha: float) -> float:
    """Clopper-Pearson: the rate is at least this, wrong with probability at most alpha."""
    return 1.0 - upper_limit(trials - hits, trials, alpha)


def evidence(
    scores: NDArray[np.float64],
    scores_of_neighbour: NDArray[np.float64],
    *,
    delta: float,
    alpha: float,
    centred: bool = False,
) -> Evidence:
    """What scores of independent trials prove.

    Args:
        scores: (N,), of trials with D.
        scores_of_neighbour: (N,), of trials with D'; larger is more like D'.
        delta: of the claim.
        alpha: probability of error.
        centred: choose the threshold where the two rates differ most in normal quantiles, for `noise_bound`, and not
            where epsilon's own bound is largest.
    """
    chosen = max(1, int(SELECTION * min(len(scores), len(scores_of_neighbour))))
    test = _select(
        scores[:chosen],
        scores_of_neighbour[:chosen],
        delta,
        alpha=alpha / 2,
        scale=len(scores) / chosen - 1.0,
        centred=centred,
    )
    null, other = test.oriented(scores[chosen:], scores_of_neighbour[chosen:])
    high = upper_limit(int((null >= test.threshold).sum()), len(null), alpha / 2)
    low = lower_limit(int((other >= test.threshold).sum()), len(other), alpha / 2)
    return Evidence(
        epsilon=max(0.0, math.log((low - delta) / high)) if low > delta else 0.0,
        delta=delta,
        false_positives=high,
        true_positives=low,
        trials=min(len(null), len(other)),
        alpha=alpha,
    )


def dependence(
    first: NDArray[np.float64], second: NDArray[np.float64], *, seed: int, permutations: int = 20_000
) -> float:
    """p-value of: the two halves of a run tell nothing about each other, given the data set (permutation test).

    A fresh sample for each step makes them independent; a sample that is kept makes them agree on whether the canary
    is in it.

    Args:
        first: (N,), score of each run's first half.
        second: (N,), of its second half.
        seed: of the permutations.
        permutations: how many.
    """
    generator = np.random.default_rng(seed)
    a, b = first - first.mean(), second - second.mean()
    observed = float(a @ b)
    at_least = sum(float(a @ generator.permutation(b)) >= observed for _ in range(permutations))
    return (at_least + 1) / (permutations + 1)


def noise_bound(evidence: Evidence, scaled: Callable[[float], RunEvent], delta: float) -> float:
    """Epsilon at `delta` of the declared mechanism with the largest noise that the evidence allows.

    Args:
        evidence: what an attack on it proved.
        scaled: the run with every sigma divided by a factor.
        delta: at which the result is wanted.
    """

    def possible(factor: float) -> bool:
        event = scaled(factor)
        return all(
            evidence.true_positives <= run_delta(event.step, event.steps, e) + math.exp(e) * evidence.false_positives
            for e in _EPSILONS
            if math.exp(e) * evidence.false_positives < evidence.true_positives
        )

    low, high = 1.0 / _LARGEST_FACTOR, _LARGEST_FACTOR
    if possible(low):
        return 0.0
    while high / low > 1.02:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if possible(middle) else (middle, high)
    event = scaled(low)
    return pld.epsilon(event.step, event.steps, delta)


@dataclass(frozen=True)
class _Test:
    """Which of the two is the null hypothesis, which scores speak against it, and from where on."""

    swapped: bool
    sign: int
    threshold: float

    def oriented(
        self, scores: NDArray[np.float64], others: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Null and alternative, larger is more like the alternative."""
        pair = (others, scores) if self.swapped else (scores, others)
        return self.sign * pair[0], self.sign * pair[1]


def _select(
    scores: NDArray[np.float64],
    others: NDArray[np.float64],
    delta: float,
    *,
    alpha: float,
    scale: float,
    centred: bool,
) -> _Test:
    """The test that would prove most if the other trials, `scale` times as many, had the same rates as these."""
    best, choice = -math.inf, _Test(False, 1, math.inf)
    for swapped in (False, True):
        for sign in (1, -1):
            null, other = _Test(swapped, sign, 0.0).oriented(scores, others)
            pooled = np.unique(np.concatenate([null, other]))
            # Between two scores that were seen: on one of them the threshold would sit on the edge of an atom.
            thresholds = np.concatenate([[pooled[0] - 1.0], 0.5 * (pooled[1:] + pooled[:-1])])
            false = _counts(null, thresholds) * scale
            true = _counts(other, thresholds) * scale
            many, most = len(null) * scale, len(other) * scale
            high = np.where(false >= many, 1.0, beta.ppf(1.0 - alpha, false + 1.0, np.maximum(many - false, 1e-9)))
            low = np.where(true <= 0, 0.0, beta.ppf(alpha, np.maximum(true, 1e-9), most - true + 1.0))
            if centred:
                values = norm.ppf(np.maximum(low, 1e-12)) - norm.ppf(np.minimum(high, 1.0 - 1e-12))
            else:
                values = np.log(np.maximum(low - delta, 1e-12) / high)
            at = int(np.argmax(values))
            if values[at] > best:
                best, choice = float(values[at]), _Test(swapped, sign, float(thresholds[at]))
    return choice


def _counts(values: NDArray[np.float64], thresholds: NDArray[np.float64]) -> NDArray[np.float64]:
    ordered = np.sort(values)
    return len(values) - np.searchsorted(ordered, thresholds, side="left").astype(np.float64)
