"""The papers' mechanism: noised projections, row by row (DP-SWD, Algorithm 1; docs/privacy, section 2).

M(X) = (U, X U + V) with V iid N(0, sigma^2). For one replaced record z the shift is ||z U||, a sum of k independent
Beta(1/2, (d-1)/2) variables at ||z|| = 1.
"""

from __future__ import annotations

from torch import Tensor

from dpswd.shared.core.mechanisms.interface import Facts, Limits, RunSize
from dpswd.shared.core.mechanisms.quantiles.coefficients import project
from dpswd.shared.core.mechanisms.sliced import Sliced, SlicedDeclaration
from dpswd.shared.core.noise.noise import GridArray, NoiseSource, grid_step, narrowest_integer, release_on_grid
from dpswd.shared.core.privacy.events import RowProjections
from dpswd.shared.core.wire.checks import Violation


class Rows(Sliced):
    """Every record of the sample as k noisy projections, in the sample's secret order."""

    name = "rows"

    def own_violations(self, declared: SlicedDeclaration, run: RunSize, limits: Limits) -> list[Violation]:
        if not declared.coefficients:
            return []
        return [("declaration.coefficients", f"is {declared.coefficients}; rows have none, send 0")]

    def part(self, declared: SlicedDeclaration, facts: Facts) -> RowProjections:
        d, k, sigma = self.dimension(facts), declared.directions, declared.sigma
        return RowProjections(d, k, sigma, grid_step(sigma))

    def released(self, features: Tensor, U: Tensor, declared: SlicedDeclaration, noise: NoiseSource) -> GridArray:
        return release_rows(features, U, sigma=declared.sigma, noise=noise)

    def summary(self, declared: SlicedDeclaration, facts: Facts) -> str:
        return f"noisy projections of every record in {declared.directions} directions"


class LabelledRows(Rows):
    """The same of features with labels beside them: the class-conditional release."""

    name = "labelled_rows"
    needs_labels = True

    def summary(self, declared: SlicedDeclaration, facts: Facts) -> str:
        return f"{super().summary(declared, facts)}, of features with their labels"


def release_rows(features: Tensor, U: Tensor, *, sigma: float, noise: NoiseSource) -> GridArray:
    """Noised projections of every record, in the order of the sample.

    Args:
        features: (b, d), each row clipped to norm 1/2 and in the sample's random order.
        U: (d, k), drawn after the extractor was fixed.
        sigma: standard deviation of the noise, in the features' units.
        noise: where the noise comes from.

    Returns:
        (b, k), as int16 unless the noise is so small that a projection (at most 1/2) is more than six sigma.
    """
    return release_on_grid(project(features, U), sigma=sigma, noise=noise, integer=narrowest_integer(0.5, sigma=sigma))


ROWS = Rows()
LABELLED_ROWS = LabelledRows()
