"""What releases are found to say of a target: a view, other class frequencies, nothing, or nothing that is understood.

Three explanations are compared by the law of the releases' noise, simplest first: the source as it is, the source
with other class frequencies (any, absent classes too), the source seen through a view with other class frequencies.
The first that *fits* is taken. An explanation fits if the largest misfit that the release leaves plausible is a small
part of the features' own variance (`Evidence.fits`): so a release of few records or little epsilon certifies nothing,
and the model is kept, but for views of images that leave nothing to be seen (`NOTHING_LEFT`) or little of the energy
(`VIEW_LEAVES`). A richer explanation must also be more probable than the simpler one, by its marginal likelihood.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from dpswd.public_client.replay.class_frequencies import Frequencies
from dpswd.public_client.replay.views import View

Outcome = Literal["adapted by a view", "priors corrected", "seen and not explained", "kept"]
UNEXPLAINED: Outcome = "seen and not explained"
"""Something has changed, and no explanation that is known fits: the model is kept, and may be worse there."""
UNCHANGED = ("kept", UNEXPLAINED)
"""Outcomes that leave the team's model as it is."""
FITS = 0.0125
"""Part of the variance of a projection that an explanation may leave unexplained (docs/ml-team/shifts.md)."""
VIEW_FITS = 0.2
"""A view changes more than frequencies do, so it may also leave this part of what it was asked to explain,"""
VIEW_MOST = 0.06
"""but no more of the variance than this."""
VIEW_LEAVES = 1 / 3
"""A view of images may leave this part of the energy above the noise that was there without it, whatever its part of
the variance: models are not tuned by it alone (`Evidence.stays`)."""
NOTHING_LEFT = 1.0
"""Nats of misfit below which nothing points to more being left than the noise. Then a view of images, which can say
far less than a view of features, may leave `VIEW_MOST` whatever it was asked to explain: of a thin release that is what
its noise hides, not what is there."""
MOST_STAY = 0.5
"""Of the records that models are tuned on, as they are: more keep the model from learning the view."""
LEAST_CHANGE = 0.1
"""Share of the records that must be of another class than the source's frequencies say: below, nothing is gained."""
CONVINCED = math.log(1e6)
"""Nats by which an explanation must be more probable than a simpler one, or the simpler one is taken."""


_SEEN = 11.3  # nats: half the 1e-6 quantile of chi-square with one degree of freedom, at its boundary


@dataclass(frozen=True)
class Evidence:
    """How well one explanation fits.

    Attributes:
        frequencies: fitted under it.
        penalty: minus the logarithm of the prior of what else it assumes.
    """

    frequencies: Frequencies
    penalty: float = 0.0

    @property
    def log_evidence(self) -> float:
        """Of the release, up to a constant that all explanations share."""
        return self.frequencies.log_evidence - self.penalty

    @property
    def unexplained(self) -> float:
        """Part of the features' variance that it most probably leaves unexplained."""
        return self.frequencies.unexplained

    @property
    def at_most(self) -> float:
        """The largest such part that the release leaves plausible."""
        return self.frequencies.at_most

    @property
    def leaves_nothing_seen(self) -> bool:
        """Whether nothing points to more being left than the noise."""
        return self.frequencies.misfit < NOTHING_LEFT

    def leaves_of(self, other: Evidence) -> float:
        """The part of the energy above the noise that `other` leaves which this leaves, plausibly.

        With two deviations of a noncentral chi-square, by which what is left differs by chance.
        """
        own, asked = self.frequencies.chi_square, other.frequencies.chi_square - 1.0
        chance = 2.0 * math.sqrt(max(2.0, 4.0 * own - 2.0) / self.frequencies.values)
        return (own - 1.0 + chance) / asked if asked > 0.0 else math.inf

    def stays(self, other: Evidence) -> float:
        """Share of the records that models are tuned on as they are, where a view explains what `other` leaves.

        The part of the shift's length that the view leaves, of which energy is the square, but at most `MOST_STAY`. A
        view may be wrong, most probably where it leaves much. Where it is, the model does not forget what it knew;
        where it is right, that costs little.
        """
        return min(MOST_STAY, math.sqrt(max(0.0, self.leaves_of(other))))

    @property
    def changed(self) -> float:
        """Half the summed change of the class frequencies."""
        return 0.5 * float((self.frequencies.frequencies - self.frequencies.before).abs().sum())

    @property
    def sees_misfit(self) -> bool:
        """Whether more than the noise is left: 1 in a million by chance alone."""
        return self.frequencies.misfit > _SEEN

    def fits(self, most: float = FITS) -> bool:
        """Whether what is left is at most `most`, plausibly."""
        return self.at_most <= most

    def __str__(self) -> str:
        return (
            f"squared residuals of {self.frequencies.chi_square:.2f} per value where the noise alone gives 1, "
            f"{100 * self.unexplained:.1f}% of the features' variance unexplained and at most {100 * self.at_most:.1f}%"
        )


@dataclass(frozen=True)
class Fitted:
    """What the releases say of the target.

    Attributes:
        view: how it sees the source's records; the identity unless the outcome is a view.
        class_weights: (classes,), its class frequencies over the source's.
        left: estimated distance F that is left.
        outcome: what is to be done with the model.
        plain: why, in one plain clause.
        class_draws: (s, classes), plausible values of `class_weights`, whose mean it is, where priors may be corrected.
        tuned_by: what models are tuned by, if that is more than the view.
        evidence: the odds, and the misfit beside the noise floor.
    """

    view: View
    class_weights: Tensor
    left: float
    outcome: Outcome
    plain: str
    class_draws: Tensor | None = None
    tuned_by: View | None = None
    evidence: str = ""

    @property
    def reason(self) -> str:
        """Why, with the evidence."""
        return f"{self.plain} ({self.evidence})" if self.evidence else self.plain

    @property
    def convinced(self) -> bool:
        """Whether the view is to be used."""
        return self.outcome == "adapted by a view"
