"""Sliced quantile coefficients: a few noised numbers for each direction (docs/privacy, section 6)."""

from __future__ import annotations

from torch import Tensor

from dpswd.shared.core.mechanisms.interface import Facts, Limits, RunSize
from dpswd.shared.core.mechanisms.quantiles.coefficients import release_coefficients
from dpswd.shared.core.mechanisms.sliced import Sliced, SlicedDeclaration
from dpswd.shared.core.noise.noise import GridArray, NoiseSource, grid_step
from dpswd.shared.core.privacy.events import QuantileCoefficients
from dpswd.shared.core.wire.checks import Violation, between


class Quantiles(Sliced):
    """L cosine coefficients of the sorted projections in each direction."""

    name = "quantiles"

    def own_violations(self, declared: SlicedDeclaration, run: RunSize, limits: Limits) -> list[Violation]:
        """See `Sliced`."""
        allowed = min(limits.max_coefficients, run.batch)
        return between("declaration.coefficients", declared.coefficients, allowed)

    def part(self, declared: SlicedDeclaration, facts: Facts) -> QuantileCoefficients:
        """See `Sliced`."""
        d, k, sigma = self.dimension(facts), declared.directions, declared.sigma
        return QuantileCoefficients(d, k, declared.coefficients, sigma, grid_step(sigma))

    def released(self, features: Tensor, U: Tensor, declared: SlicedDeclaration, noise: NoiseSource) -> GridArray:
        """See `Sliced`."""
        return release_coefficients(features, U, coefficients=declared.coefficients, sigma=declared.sigma, noise=noise)

    def summary(self, declared: SlicedDeclaration, facts: Facts) -> str:
        """See `Mechanism`."""
        return f"sliced quantile coefficients ({declared.coefficients} in each of {declared.directions} directions)"


class LabelledQuantiles(Quantiles):
    """The same of features with labels beside them: the class-conditional release."""

    name = "labelled_quantiles"
    needs_labels = True

    def summary(self, declared: SlicedDeclaration, facts: Facts) -> str:
        """See `Mechanism`."""
        return f"{super().summary(declared, facts)}, of features with their labels"


QUANTILES = Quantiles()
LABELLED_QUANTILES = LabelledQuantiles()
