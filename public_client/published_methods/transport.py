"""Optimal transport between public records and a hospital's, by noised rows of all its records (DPOT).

The hospital releases its clipped features along k random directions, row by row and noised, once (LeTien and others
2019, at the record's sensitivity: docs/privacy/optimal-transport.md). From them and from public features the client
estimates squared distances, takes off what the noise adds, and solves for distance and plan: exactly, with an entropic
penalty, or over random parts of both samples where they are large. All of it is post-processing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import sparse
from torch import Tensor, nn

from dpswd.public_client.curator.stub import Curator
from dpswd.public_client.data.accuracy import features as features_of
from dpswd.public_client.data.feature_maps import map_from_source
from dpswd.public_client.plans.declarable import Declarable
from dpswd.public_client.plans.plan import make_plan
from dpswd.public_client.plans.recipe import Recipe, RunTerms, not_counts, not_one_of, not_positive, refuse
from dpswd.public_client.published_methods.dpda import Values, require_solver
from dpswd.public_client.training.run import Release
from dpswd.shared.core.mechanisms.interface import Payload
from dpswd.shared.core.mechanisms.sliced import SlicedDeclaration, SlicedReply
from dpswd.shared.published_mechanisms.rows.mechanism import ROWS

Solver = Literal["exact", "entropic"]


@dataclass(frozen=True, kw_only=True)
class Transport(Recipe):
    """Distance and plan of optimal transport from public records to a hospital's.

    Attributes:
        directions: k. More of them estimate distances better; the noise on a squared distance hardly depends on k.
        target_norm: the public map gives public features this mean norm; the hospital's are clipped at 1/2.
        solver: "exact", or "entropic" (Sinkhorn's), whose plan follows the noise less.
        penalty: of the entropy, in units of the mean estimated cost.
        part: points of either sample that are matched at a time; larger samples are cut at random.
    """

    name = "transport"
    mechanism = ROWS

    directions: int = 100
    target_norm: float = 0.4
    solver: Solver = "exact"
    penalty: float = 0.05
    part: int = 500

    def __post_init__(self) -> None:
        problems = not_counts(self, "directions", "part") + not_positive(self, "target_norm", "penalty")
        refuse(problems + not_one_of(self, "solver", ("exact", "entropic")))

    def declaration(self, run: RunTerms) -> Payload:
        """See `Recipe`; the mean squared shift along k of d directions is k / d."""
        sigma = run.sliced_sigma(self.directions, 0)
        return SlicedDeclaration(self.directions, sigma, feature_map=run.feature_map)


@dataclass(frozen=True, eq=False)
class Transported:
    """What a release says of the transport to the hospital's records. Noised, in the units of mapped features.

    Attributes:
        distance: the estimated squared 2-Wasserstein distance. Noise lowers it: a plan is chosen for costs that
            happen to be low; it may be negative.
        plan: (m, n), mass from each public point to each released row, in all 1.
        epsilon: that the ledger charged.
        sigma: of the noise on each released projection.
    """

    distance: float
    plan: sparse.csr_matrix
    epsilon: float
    sigma: float


def transported(
    curator: Curator, extractor: nn.Module, records: Tensor, method: Transport | None = None, *, epsilon: float
) -> Transported:
    """Opens (hence charges) one release of rows, and solves.

    Args:
        curator: of a hospital.
        extractor: records to features, in evaluation mode.
        records: (m, ...) public ones, from which mass is moved; they make the public map.
        method: directions and solver; `Transport()` by default.
        epsilon: what the release may cost.

    Raises:
        BudgetExhausted: the budget does not allow it; nothing was spent.
        InvalidValue: the curator does not offer rows, or all its records are more than one release may hold.
        SettingsError: the library that solves is not installed; nothing was spent.
    """
    require_solver()
    method = Transport() if method is None else method
    plan = make_plan(curator.describe(), method, epsilon=epsilon)
    raw = features_of(extractor, records)
    feature_map = map_from_source(raw, target_norm=method.target_norm)
    points = feature_map.clipped(raw)  # (m, d)
    ready = Declarable.of(extractor, plan.record_shape)
    run = Release[SlicedReply](curator, ready, plan, feature_map=feature_map).open()
    reply, sigma = run.draw().reply, run.declared.sigma
    solved = solve(
        (points @ reply.directions(points)).double().cpu().numpy(),
        reply.values.to_numpy(),
        dimension=points.shape[1],
        sigma=sigma,
        method=method,
    )
    return Transported(*solved, epsilon=run.run.quote.epsilon, sigma=sigma)


def estimated_costs(points: Values, rows: Values, *, dimension: int, sigma: float) -> Values:
    """Unbiased estimates of squared distances, from projections along k directions of uniform law (LeTien, eq. 5).

    E |(x - y) U|^2 = k/d |x - y|^2, and noise adds k sigma^2.

    Args:
        points: (m, k), projections of public features.
        rows: (n, k), noised ones of private features.
        dimension: d.
        sigma: of the noise on each projection.

    Returns:
        (m, n); single entries may be negative.
    """
    k = rows.shape[1]
    squared = (points**2).sum(axis=1)[:, None] + (rows**2).sum(axis=1) - 2.0 * points @ rows.T
    costs: Values = (squared - k * sigma**2) * (dimension / k)
    return costs


def solve(
    points: Values, rows: Values, *, dimension: int, sigma: float, method: Transport, seed: int = 0
) -> tuple[float, sparse.csr_matrix]:
    """The distance and the plan; see `estimated_costs` for the arguments.

    Samples larger than `method.part` are cut into as many random parts each, and part is matched with part (Fatras and
    others 2020). That distance is above the whole samples', as of any coupling.

    Args:
        points: (m, k).
        rows: (n, k).
        dimension: d.
        sigma: of the noise.
        method: solver and sizes.
        seed: of the cut.
    """
    m, n = len(points), len(rows)
    parts = min(math.ceil(max(m, n) / method.part), m, n)
    rng = np.random.default_rng(seed)
    distance, mass, sources, targets = 0.0, [], [], []
    left, right = (np.array_split(rng.permutation(size), parts) for size in (m, n))
    for some, others in zip(left, right, strict=True):
        costs = estimated_costs(points[some], rows[others], dimension=dimension, sigma=sigma)
        matched = _matched(costs, method) / parts
        distance += float((matched * costs).sum())
        at, to = np.nonzero(matched)
        mass.append(matched[at, to])
        sources.append(some[at])
        targets.append(others[to])
    where = (np.concatenate(sources), np.concatenate(targets))
    return distance, sparse.csr_matrix((np.concatenate(mass), where), shape=(m, n))


def _matched(costs: Values, method: Transport) -> Values:
    """A plan of mass 1 between uniform weights."""
    import ot  # takes a second to load

    a, b = (np.full(size, 1.0 / size) for size in costs.shape)
    # A plan does not change when a number is added to all costs of a row or a column; POT wants none below zero.
    shifted = costs - costs.min()
    if method.solver == "exact":
        return np.asarray(ot.emd(a, b, shifted, numItermax=1_000_000))
    penalty = method.penalty * max(float(shifted.mean()), 1e-12)
    return np.asarray(ot.sinkhorn(a, b, shifted, penalty, method="sinkhorn_log", numItermax=2000, stopThr=1e-7))
