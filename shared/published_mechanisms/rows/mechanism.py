"""The papers' mechanism: noised projections row by row (DP-SWD, Algorithm 1; docs/privacy, section 2)."""

from __future__ import annotations

from torch import Tensor

from dpswd.shared.core.mechanisms.interface import Facts, Limits, RunSize
from dpswd.shared.core.mechanisms.sliced import Sliced, SlicedDeclaration
from dpswd.shared.core.noise.noise import GridArray, NoiseSource, grid_step
from dpswd.shared.core.privacy.events import RowProjections
from dpswd.shared.core.wire.checks import Violation
from dpswd.shared.published_mechanisms.rows.projections import release_rows


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


ROWS = Rows()
LABELLED_ROWS = LabelledRows()
