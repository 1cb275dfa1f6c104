"""Whether a model has become worse from one evaluation to another: post-processing, free.

An accuracy differs from its expectation by the release's noise, whose law is known, and by the sampling of the records
that it was measured on. Both are in every interval here. Records that stay from one evaluation to the next make the
two sampling errors alike; counting them as independent makes intervals wider than needed, never narrower.

Where the earlier records are all among the later ones, the added ones can be looked at alone: with c0 of n0 and c1 of
n1 correct predictions and m = n1 - n0 of them, the loss on them is c0 (1/m + 1/n0) - c1/m. The noises of the counts
enter with these factors, and the sampling as of m and n0 records that are not the same.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

_DEVIATIONS = 1.959964  # of a two-sided 95% interval
_POWER = 0.841621  # more of them: a loss that is seen in four of five cases


@dataclass(frozen=True)
class Round:
    """One evaluation of a watched model.

    Attributes:
        day: UTC, YYYY-MM-DD.
        model: the file's SHA-256; rounds of one model are compared.
        records: n.
        labelled: of them.
        public: whether `labelled` is no estimate.
        accuracy: share of correct predictions; None where too few records have a label.
        noise: its standard deviation through the release alone.
        epsilon: what it cost alone.
    """

    day: str
    model: str
    records: int
    labelled: float
    public: bool
    accuracy: float | None
    noise: float
    epsilon: float

    def line(self) -> str:
        """One row of the table of rounds."""
        if self.accuracy is None:
            return f"{self.day}  {self.records:>9,} records  too few of them have a label"
        half = _DEVIATIONS * math.sqrt(self.noise**2 + _spread(self.accuracy, self.labelled) / self.labelled)
        low, high = (100.0 * min(max(self.accuracy + side * half, 0.0), 1.0) for side in (-1.0, 1.0))
        return f"{self.day}  {self.records:>9,} records  {100.0 * self.accuracy:5.1f}% (95%: {low:.1f} to {high:.1f})"


@dataclass(frozen=True)
class Change:
    """A later evaluation beside an earlier one of the same model.

    Attributes:
        since: the earlier one's day.
        loss: of accuracy, as a share; negative for a gain.
        deviation: its standard deviation: the noise of both releases, and sampling.
        added: on how many added records; 0 for all records of then and now.
    """

    since: str
    loss: float
    deviation: float
    added: int = 0

    @classmethod
    def between(cls, first: Round, last: Round, *, appended: bool = False) -> Change | None:
        """Compares two rounds; None where an accuracy is not known.

        Args:
            first: the earlier one.
            last: the later one.
            appended: whether every record of the earlier one is among those of the later one, as it was. Used where
                there are more of them, and the numbers of labelled records are public.
        """
        if first.accuracy is None or last.accuracy is None:
            return None
        n0, n1, spread = first.labelled, last.labelled, _spread(last.accuracy, last.labelled)
        added = n1 - n0 if appended and first.public and last.public else 0.0
        if added >= 1.0:
            weight = 1.0 / added + 1.0 / n0
            loss = n0 * first.accuracy * weight - n1 * last.accuracy / added
            variance = (n0 * first.noise * weight) ** 2 + (n1 * last.noise / added) ** 2 + spread * weight
            return cls(first.day, loss, math.sqrt(variance), round(added))
        variance = first.noise**2 + last.noise**2 + _spread(first.accuracy, n0) / n0 + spread / n1
        return cls(first.day, first.accuracy - last.accuracy, math.sqrt(variance))

    @property
    def worse(self) -> bool:
        """Whether the 95% interval lies above 0; of an unchanged model with probability 1/40."""
        return self.loss > _DEVIATIONS * self.deviation

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self) | {"worse": self.worse, "sentence": str(self)}

    def __str__(self) -> str:
        """One plain sentence, or two."""
        loss, half, seen = 100.0 * self.loss, *(100.0 * z * self.deviation for z in (_DEVIATIONS, _DEVIATIONS + _POWER))
        on = f" on the {self.added:,} records that were added" if self.added else ""
        if abs(loss) > half:
            how, by = ("worse", loss) if self.worse else ("better", -loss)
            interval = f"95%: {by - half:.1f} to {by + half:.1f}"
            return f"The model is {how} by {by:.1f} points ({interval}) than on {self.since}{on}."
        interval = f"95%: {-loss - half:+.1f} to {-loss + half:+.1f}"
        return (
            f"No change can be told since {self.since}{on}: {-loss:+.1f} points ({interval}). A loss of {seen:.1f} "
            "points would be seen in four of five cases."
        )


def _spread(accuracy: float, records: float) -> float:
    """Variance of one prediction's being correct; not 0 where all or none are."""
    return max(accuracy * (1.0 - accuracy), 0.25 / records)
