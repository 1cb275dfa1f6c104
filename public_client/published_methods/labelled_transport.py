"""Optimal transport of labelled points onto unlabelled ones: an entropic plan that keeps the classes apart.

The plan minimises sum(plan * cost) + penalty * entropy + group_penalty * sum over targets and classes of the norm of
what a target gets from the class (Courty, Flamary, Tuia and Rakotomamonjy 2017): a target that gets mass from one class
alone costs least. Each point is then moved to the mean of the targets that its mass went to (the barycentric map).
Large samples are cut at random and matched part by part. Everything here is public or released.
"""

from __future__ import annotations

import importlib.util
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpswd.shared.core.errors import SettingsError
from dpswd.shared.core.wire.limits import UNLABELLED

Values = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]

_ITERATIONS, _INNER, _CHANGE = 5, 100, 1e-6  # of the conditional gradient, of each of its plans, and where both stop


@dataclass(frozen=True, eq=False)
class Points:
    """Labelled points of any law.

    Attributes:
        places: (s, d).
        labels: (s,), 0 to C - 1.
        masses: (s,), positive, adding up to 1.
    """

    places: Values
    labels: Labels
    masses: Values


@dataclass(frozen=True)
class Matching:
    """How plans are solved.

    Attributes:
        penalty: of the entropy, in units of the median cost.
        group_penalty: of classes that share a target, in units of the median cost; 0 for none.
        part: targets that are matched at a time.
    """

    penalty: float
    group_penalty: float
    part: int


def require_solver() -> None:
    """Refuses where the library that solves is missing.

    Raises:
        SettingsError: with what to install.
    """
    if importlib.util.find_spec("ot") is None:
        raise SettingsError("plans are solved by POT, which is not installed: pip install 'dpswd[transport]'")


def moved(points: Points, targets: Values, labels: Labels, matching: Matching, seed: int) -> tuple[Points, Values]:
    """The points where the plan moves them, and what the plan says of each target's class.

    Args:
        points: what is moved; every part of the targets gets all of them.
        targets: (m, d).
        labels: (m,) labels of the targets, `UNLABELLED` for most; a labelled one takes mass of its class alone.
        matching: of the plans.
        seed: of the cuts.

    Returns:
        Moved points, for each part of the targets one copy of them all, of mass 1 together; and (m, C) shares of the
        mass that each target got from each class.
    """
    parts = math.ceil(len(targets) / matching.part)
    kinds = np.eye(int(points.labels.max()) + 1)[points.labels]  # (s, C)
    order = np.random.default_rng(seed).permutation(len(targets))
    places, masses = [], []
    shares = np.zeros((len(targets), kinds.shape[1]))
    for own in np.array_split(order, parts):
        plan = _matched(points, kinds, targets[own], labels[own], matching)
        mass = np.maximum(plan.sum(axis=1), 1e-300)
        places.append(plan @ targets[own] / mass[:, None])
        masses.append(mass * len(own) / len(targets))
        shares[own] = kinds.T.dot(plan).T
    together = np.concatenate(masses)
    shares /= np.maximum(shares.sum(axis=1, keepdims=True), 1e-300)
    return Points(np.concatenate(places), np.tile(points.labels, parts), together / together.sum()), shares


def _matched(points: Points, kinds: Values, targets: Values, labels: Labels, matching: Matching) -> Values:
    """(s, m) a plan of mass 1 onto uniform weights."""
    import ot  # takes a second to load

    costs = np.asarray(ot.dist(points.places, targets))
    costs /= max(float(np.median(costs)), 1e-12)
    # Far above all others: a target whose class is known takes mass of it alone, while any is left.
    forbidden = (labels[None, :] != UNLABELLED) & (labels[None, :] != points.labels[:, None])
    costs = np.where(forbidden, costs + 4.0 * costs.max(), costs)
    even = np.full(len(targets), 1.0 / len(targets))

    size = math.sqrt(len(kinds) / kinds.shape[1])  # a class's mass, spread over its points, has a norm as much smaller

    def norms(plan: Values) -> Values:
        return np.asarray(np.sqrt(kinds.T @ plan**2))  # (C, m)

    # Far from the largest float's logarithm, 709, the plain iteration is as exact as the one of logarithms, and faster.
    plain = float(costs.max()) < 500.0 * matching.penalty
    entropic = {"stopThr": _CHANGE, "warn": False, "method": "sinkhorn" if plain else "sinkhorn_log"}
    if not matching.group_penalty:
        return np.asarray(
            ot.sinkhorn(points.masses, even, costs, matching.penalty, numItermax=_ITERATIONS * _INNER, **entropic)
        )
    plan = ot.optim.gcg(
        points.masses, even, costs, matching.penalty, matching.group_penalty * size,
        lambda plan: float(norms(plan).sum()), lambda plan: plan / np.maximum(kinds @ norms(plan), 1e-12),
        numItermax=_ITERATIONS, numInnerItermax=_INNER, **entropic,
    )  # fmt: skip
    return np.asarray(plan)
