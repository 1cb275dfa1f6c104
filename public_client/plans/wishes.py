"""The least epsilon for what is wanted: what sites of such data needed, from stored results (`benchmarks.wishes`).

A site reached a want with records n at an epsilon if the mean of its runs did there, and at all that tells more. For a
hospital of another size n^a epsilon counts, with the a of 0, 1/2 and 1 by which the sites agree best among themselves.
"""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

from dpswd.public_client.curator.description import Description
from dpswd.public_client.plans.measured import modality_of
from dpswd.shared.core.errors import InvalidValue

RECALIBRATE = "recalibrate"
_ACCURACY = re.compile(r"accuracy \+(\d+(?:\.\d+)?)")
_LEFT = 0.5  # of the calibration error, at most
_POWERS = (0.0, 0.5, 1.0)
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

    @property
    def records(self) -> int:
        """Of the first run."""
        return self.runs[0][0]

    def least(self, want: str) -> tuple[int, float] | None:
        """Records and epsilon from which on the want was reached, infinite for never; None where not measured.

        Raises:
            InvalidValue: the want is none.
        """
        points = _points(want)
        if points is None and any(left is None for *_, left in self.runs):
            return None
        least = self.records, math.inf
        for records, epsilon, gain, left in reversed(self.runs):
            if not (gain >= points if points is not None else (left or 0.0) <= _LEFT):
                break
            least = records, epsilon
        return least


@dataclass(frozen=True)
class Answer:
    """What sites of such data say of a want.

    Attributes:
        want: as asked.
        epsilon: that half of those that reached it needed at most, for these records; infinite where none did.
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


def stored() -> tuple[list[Site], float]:
    """All sites of this version's results, and the share of right answers where a site reached it, others held out."""
    text = resources.files("dpswd.public_client.plans").joinpath("wishes.json").read_text(encoding="ascii")
    content = json.loads(text)
    sites = [Site(**{**each, "runs": tuple(map(tuple, each["runs"]))}) for each in content["sites"]]
    return sites, content["right"]


def alike(facts: Description, sites: Sequence[Site]) -> list[Site]:
    """Those of the data's kind: modality, classes, labels where they are needed, and about as many records."""
    return [
        site
        for site in sites
        if site.modality == modality_of(facts.record_shape)
        and (site.classes == facts.classes or not (facts.classes or site.labelled))
        and max(site.records, facts.records) <= _SIZES * min(site.records, facts.records)
    ]


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
    needed = [least for site in sites if (least := site.least(want)) is not None]
    if len(needed) < _FEWEST:
        return Answer(want, math.inf, 0, 0)
    if not (reached := [(n, epsilon) for n, epsilon in needed if math.isfinite(epsilon)]):
        return Answer(want, math.inf, 0, len(needed))

    def logs(power: float) -> list[float]:
        return [power * math.log(n / records) + math.log(epsilon) for n, epsilon in reached]

    def spread(power: float) -> float:
        middle = statistics.median(logs(power))
        return statistics.mean(abs(each - middle) for each in logs(power))

    best = min(_POWERS, key=spread)
    return Answer(want, math.exp(statistics.median(logs(best))), len(reached), len(needed))


def _points(want: str) -> float | None:
    """Of accuracy; None for a recalibration."""
    if want == RECALIBRATE:
        return None
    if matched := _ACCURACY.fullmatch(want):
        return float(matched[1])
    raise InvalidValue(f'{want!r} cannot be wanted; ask for "recalibrate", or for points of accuracy: "accuracy +2"')
