"""The least epsilon for what is wanted: what sites of such data needed, from stored results (`benchmarks.wishes`).

A site reached a want if its run did that tells most. At what epsilon is estimated by likelihood: with probability p
a site reaches the want from x = log(n^a epsilon) on, x ~ N(m, s^2), else never; a run says the opposite with
probability r. The answer is exp(m) / n^a, of the likeliest a, and m averaged over p, r, s and itself.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

import numpy as np
from scipy import special

from dpswd.shared.core.errors import InvalidValue

RECALIBRATE = "recalibrate"
_ACCURACY = re.compile(r"accuracy \+(\d+(?:\.\d+)?)")
_LEFT = 0.5  # of the calibration error, at most
_POWERS, _ERRORS = (0.0, 0.5, 1.0), (0.03, 0.1, 0.2)  # a, r
_SHARES, _SPREADS, _PLACES = np.linspace(0.05, 0.95, 10), (0.3, 0.6, 1.0, 1.5), 60  # p, s; how many x
_FEWEST, _SIZES = 3, 10.0  # sites of such data; times as many or as few records


@dataclass(frozen=True)
class Site:
    """One site's results.

    Attributes:
        name: of table and site, or of the shift.
        modality: see `modality_of`.
        classes: of its labels, or of the model.
        labelled: whether what was asked needs labels.
        runs: (records, epsilon, points of accuracy gained, share of the calibration error that is left or None), the
            one that tells least first.
    """

    name: str
    modality: str
    classes: int
    labelled: bool
    runs: tuple[tuple[int, float, float, float | None], ...]

    def reached(self, want: str) -> list[bool]:
        """Of each run; empty where it was not measured.

        Raises:
            InvalidValue: the want is none.
        """
        if (points := _points(want)) is not None:
            return [gain >= points for *_, gain, _ in self.runs]
        return [left <= _LEFT for *_, left in self.runs if left is not None]


@dataclass(frozen=True)
class Answer:
    """What sites of such data say of a want.

    Attributes:
        want: as asked.
        epsilon: that half of those that reach it need at most, for these records; infinite where none did.
        reached: how many did.
        sites: of such data.
    """

    want: str
    epsilon: float
    reached: int
    sites: int

    def __str__(self) -> str:
        """In one sentence."""
        if not self.sites:
            return f"{self.want}: no results cover such data; `evaluate` tells, for a small epsilon of its own"
        share = f"{self.reached} of {self.sites} sites of such data reached it"
        if math.isinf(self.epsilon):
            return f"{self.want}: none reached it at any epsilon that was measured; {share}"
        most = "" if 2 * self.reached >= self.sites else "most do not reach it; those that did needed "
        return f"{self.want}: {most}about epsilon {self.epsilon:.2g}; {share}, half of them with no more"


def stored() -> tuple[list[Site], dict[str, float]]:
    """All sites of this version's results, and shares of right answers where it was reached, held out by site."""
    content = json.loads(resources.files("dpswd.public_client.plans").joinpath("wishes.json").read_text("ascii"))
    sites = [Site(**{**each, "runs": tuple(map(tuple, each["runs"]))}) for each in content["sites"]]
    return sites, content["right"]


def alike(modality: str, classes: int, records: int, sites: Sequence[Site]) -> list[Site]:
    """Sites of such data: modality, classes (0 without labels), about as many records, and labels used if there are."""
    sized = [site for site in sites if any(1 / _SIZES <= n / records <= _SIZES for n, *_ in site.runs)]
    every = [each for each in sized if each.classes == classes or not (classes or each.labelled)]
    every = [each for each in every if each.modality == modality]
    return [each for each in every if each.labelled] or every


def least_epsilon(want: str, records: int, sites: Sequence[Site]) -> Answer:
    """What a want takes at a hospital.

    Args:
        want: "recalibrate" (half of the calibration error is left at most), or "accuracy +2" (percentage points).
        records: n of the hospital.
        sites: of such data (`alike`).

    Raises:
        InvalidValue: the want is neither.
    """
    _points(want)
    outcomes = {site: reached for site in sites if (reached := site.reached(want))}
    if len(outcomes) < _FEWEST:
        return Answer(want, math.inf, 0, 0)
    if not (count := sum(runs[-1] for runs in outcomes.values())):
        return Answer(want, math.inf, 0, len(outcomes))
    power, middle = _estimated(want, tuple(outcomes))
    return Answer(want, math.exp(middle) / records**power, count, len(outcomes))


@functools.lru_cache(maxsize=8)
def _estimated(want: str, sites: tuple[Site, ...]) -> tuple[float, float]:
    """The likeliest a, and the mean of m."""
    n, epsilons = np.array([run[:2] for site in sites for run in site.runs], dtype=np.float64).T[..., None]
    reached = np.array([each for site in sites for each in site.reached(want)])[:, None]
    first, best = np.cumsum([0, *(len(site.runs) for site in sites[:-1])]), (-math.inf, 0.0, 0.0)
    for power in _POWERS:
        x = np.log(n**power * epsilons)
        places = np.linspace(x.min(), x.max(), _PLACES)
        middles, spreads, shares = (each.reshape(-1, 1) for each in np.meshgrid(places, _SPREADS, _SHARES))
        law = np.exp(-0.5 * ((places - middles) / spreads) ** 2)
        law = np.concatenate([law * (shares / law.sum(axis=1, keepdims=True)), 1.0 - shares], axis=1)
        as_said = np.concatenate([x >= places - 1e-9, np.zeros_like(reached)], axis=1) == reached  # the last: never
        logs = [np.where(as_said, math.log(1.0 - error), math.log(error)) for error in _ERRORS]
        tried = [np.log(np.exp(np.add.reduceat(each, first, axis=0)) @ law.T).sum(axis=0) for each in logs]
        chances = special.softmax(likelihoods := np.array(tried))
        best = max(best, (float(special.logsumexp(likelihoods)), power, float((chances @ middles).sum())))
    return best[1:]


def _points(want: str) -> float | None:
    """Of accuracy; None for a recalibration."""
    if want == RECALIBRATE:
        return None
    if matched := _ACCURACY.fullmatch(want):
        return float(matched[1])
    raise InvalidValue(f'{want!r} cannot be wanted; ask for "recalibrate", or for points of accuracy: "accuracy +2"')
