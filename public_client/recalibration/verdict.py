"""What is delivered of a posterior, and what is said of it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpswd.public_client.recalibration.inference import Posterior

TOLERATED = 0.005
"""Log-loss by which a delivered model may be worse, except with a probability of 27%."""
_LEVEL = 0.6
_LEAST = 0.05  # of a correction: less is none
_INTERVAL, _SHOWN = 1.96, 5e-4  # nats: less is printed as 0.000


@dataclass(frozen=True)
class Verdict:
    """What was found, and what is done with it.

    Attributes:
        moved: "kept", or what explains most of the gain: "biases", "slopes", "reversed" or "head".
        share: of the correction that is delivered; 0 where the model is kept.
        gain: expected fall of the log-loss by what is delivered, or would have been.
        low: its 95% interval.
        high: its 95% interval.
        evidence: nats for any move.
    """

    moved: str
    share: float
    gain: float
    low: float
    high: float
    evidence: float

    @classmethod
    def of(cls, posterior: Posterior) -> Verdict:
        """Delivers as much of the correction as is likely no worse than the team's model, and none without evidence."""
        share = safe_share(posterior.gain, posterior.deviation)
        unchanged = share < _LEAST or posterior.evidence <= 0.0 or _gain(share, posterior.gain) < _SHOWN
        counted = 1.0 if unchanged else share
        gain, spread = _gain(counted, posterior.gain), _INTERVAL * counted * posterior.deviation
        moved, delivered = ("kept", 0.0) if unchanged else (posterior.moved, share)
        return cls(moved, delivered, gain, gain - spread, gain + spread, posterior.evidence)

    def sentence(self) -> str:
        """In plain words."""
        expected = f"log-loss {self.gain:.3f} lower ({self.low:.3f} to {self.high:.3f})"
        if self.moved == "kept":
            return "the hospital's labels, as far as this release tells, ask for no other scores"
        what = {
            "biases": "its classes are more or less frequent here than the scores say",
            "slopes": "its scores are too sure or not sure enough here",
            "reversed": "a higher score means another class here: look whether its classes are in your model's order",
            "head": "what the features say of the classes is different here",
        }[self.moved]
        part = "" if self.share > 0.995 else f"; {100 * self.share:.0f}% of the correction is delivered, to be safe"
        return f"the scores were corrected: {what}; expect {expected}{part}"


def safe_share(gain: float, deviation: float) -> float:
    """The largest share of a correction that is not worse than tolerated, but for 27% of the posterior.

    The gain of a share s of the posterior's mean is normal, of mean (2 s - s^2) gain and deviation s times the whole
    one's.
    """
    whole = _gain(1.0, gain) + TOLERATED - _LEVEL * deviation
    if whole >= 0.0:
        return 1.0
    # The root of -gain s^2 + (2 gain - level deviation) s + tolerated, which is positive at 0 and negative at 1.
    slope = 2.0 * gain - _LEVEL * deviation
    if gain <= 0.0:
        return min(1.0, TOLERATED / -slope)
    return (slope + math.sqrt(slope * slope + 4.0 * gain * TOLERATED)) / (2.0 * gain)


def _gain(share: float, whole: float) -> float:
    return (2.0 - share) * share * whole
