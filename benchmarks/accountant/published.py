"""The papers' own accounting recipes, reproduced as labelled baselines. They admit nothing.

DP-SWD (Rakotomamonjy and Ralaivola) bounds the sensitivity H of a unit record change with high probability, puts
the bound w into the Gaussian mechanism's Renyi curve alpha w / (2 sigma^2), amplifies by Wang et al. 2019,
Theorem 9, composes T times and converts with Mironov's log(1/delta)/(alpha-1). Half of delta goes to w once, half to
the conversion. Why that does not hold is told in docs/privacy, section 5: T draws of U and n rows need a bound each.

    bernstein            w = k/d + (2/3) ln(1/delta) + (2/d) sqrt(k (d-1)/(d+2) ln(1/delta))       (Lemma 2)
    bernstein-published  the same with k counted twice under the root, as the published code does
    clt                  w = k/d + (z_{1-delta}/d) sqrt(2 k (d-1)/(d+2))
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtri

from dpswd.shared.accounting import calibration
from dpswd.shared.accounting.amplification import LARGEST_ORDER, subsampled_curve
from dpswd.shared.accounting.bounds import Bound
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.privacy.budget import check_delta
from dpswd.shared.core.privacy.curves import ShiftLaw
from dpswd.shared.core.privacy.events import RowProjections, RunEvent


class Recipe(enum.Enum):
    """A published recipe, by name."""

    CLT = "clt"
    """DP-SWD's central-limit bound on the sensitivity, with Theorem 9: not rigorous."""

    BERNSTEIN = "bernstein"
    """DP-SWD's Lemma 2 as printed, with Theorem 9."""

    BERNSTEIN_PUBLISHED = "bernstein-published"
    """DP-SWD's Lemma 2 as in the published code, which counts k twice under the root."""


def sensitivity_bound(*, feature_dimension: int, directions: int, delta: float, bound: Recipe) -> float:
    """The recipe's bound w on H = ||z U||^2 for a unit record change.

    Args:
        feature_dimension: d.
        directions: k.
        delta: failure probability given to the bound.
        bound: the recipe.
    """
    d, k = feature_dimension, directions
    log_inverse = math.log(1.0 / delta)
    if bound is Recipe.CLT:
        quantile = -float(ndtri(delta))
        return k / d + quantile / d * math.sqrt(2.0 * k * (d - 1) / (d + 2))
    counted = float(k) if bound is Recipe.BERNSTEIN else float(k) * k
    return k / d + 2.0 / 3.0 * log_inverse + 2.0 / d * math.sqrt(counted * (d - 1) / (d + 2) * log_inverse)


def epsilon(run: RunEvent, delta: float, bound: Bound | Recipe) -> float:
    """Epsilon of a run by a bound of ours, or as a published recipe claims it."""
    return calibration.epsilon(run, delta, bound) if isinstance(bound, Bound) else claimed(run, delta, bound)


def claimed(run: RunEvent, delta: float, bound: Recipe) -> float:
    """The epsilon that a published recipe claims for a run of row projections. Not a guarantee.

    Args:
        run: steps of exactly one ``RowProjections`` part on a continuous grid.
        delta: the target delta.
        bound: the recipe.

    Raises:
        InvalidValue: the run holds anything else, or delta is out of range.
    """
    check_delta(delta)
    part = run.step.parts[0]
    if len(run.step.parts) != 1 or not isinstance(part, RowProjections) or part.grid_step != 0.0:
        raise InvalidValue(f"{bound.value} is defined for row projections alone, without a grid")
    w = sensitivity_bound(
        feature_dimension=part.feature_dimension, directions=part.directions, delta=delta / 2.0, bound=bound
    )
    gaussian = ShiftLaw(feature_dimension=1, directions=1, scale=w / part.sigma**2)
    gamma = run.step.sampling_ratio
    if gamma == 1.0:
        orders = 1.0 + np.geomspace(1e-4, 1e8, 20_001)
        curve = gaussian.renyi(orders)
    else:
        orders, curve = subsampled_curve(gaussian, gamma, Bound.WBK9, largest=LARGEST_ORDER)
    # Mironov 2017, Proposition 3.
    return float(np.min(run.steps * curve + math.log(2.0 / delta) / (orders - 1.0)))


def calibrate_sigma(
    make_run: Callable[[float], RunEvent], *, epsilon: float, delta: float, bound: Bound | Recipe = Bound.AUTO
) -> float:
    """The sigma whose run costs epsilon by a bound of ours, or by what a recipe claims."""
    if isinstance(bound, Bound):
        return calibration.calibrate_sigma(make_run, epsilon=epsilon, delta=delta, bound=bound)

    def gap(log_sigma: float) -> float:
        return math.log(claimed(make_run(math.exp(log_sigma)), delta, bound) / epsilon)

    return math.exp(brentq(gap, math.log(1e-3), math.log(1e6), xtol=1e-7))
