"""Acts that weaken the promise more than most want: shown with their effect, and done only when typed out.

Pure: what an act would change, in words, and which words confirm it. The command line and the console ask for them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpswd.shared.core.errors import SettingsError, rounded
from dpswd.shared.core.privacy.budget import PrivacyBudget

LARGE_EPSILON = 10.0
"""Above it a conclusion about one person may become more than 22,000 times as probable: hardly a promise."""
LARGE_FACTOR = 2.0
"""An extension by more than this is rather another study than more of the same."""


@dataclass(frozen=True)
class Effect:
    """What an act would change.

    Attributes:
        preview: sentences for whoever acts.
        doubts: why it has to be typed out; empty where it has not.
        words: what has to be typed then.
    """

    preview: tuple[str, ...]
    doubts: tuple[str, ...]
    words: str

    def confirm(self, typed: str | None) -> None:
        """Holds the act to what was typed; nothing is needed where there are no doubts.

        Raises:
            SettingsError: with the effect, the doubts and the words to type.
        """
        if self.doubts and (typed or "").strip() != self.words:
            lines = "".join(f"\n  {line}" for line in (*self.preview, *self.doubts))
            raise SettingsError(
                f"this is not done without being typed out:{lines}\n  type exactly {self.words!r} (--confirm), if that "
                "is what you want"
            )


def opening(*, records: int, budget: PrivacyBudget) -> Effect:
    """The effect of a data set's first budget."""
    return Effect((meaning(budget),), _doubts(records, budget), words(budget))


def extending(*, records: int, before: PrivacyBudget, after: PrivacyBudget, spent: float) -> Effect:
    """The effect of a larger budget.

    Args:
        records: n.
        before: in force, for a person.
        after: wanted, the same.
        spent: epsilon so far, the same.
    """
    preview = (
        f"now: {meaning(before)}; epsilon {rounded(spent, up=True)} is spent",
        f"then: {meaning(after)}; epsilon {rounded(max(0.0, after.epsilon - spent), up=False)} is left",
        "what was promised before is over; nothing that was released can be taken back",
    )
    doubts = _doubts(records, after)
    if after.epsilon > LARGE_FACTOR * before.epsilon or after.delta > LARGE_FACTOR * before.delta:
        doubts += (f"this extends by more than the factor {LARGE_FACTOR:g}",)
    return Effect(preview, doubts, words(after))


def words(budget: PrivacyBudget) -> str:
    """What confirms a budget."""
    return f"epsilon {budget.epsilon:g}, delta {budget.delta:g}"


def meaning(budget: PrivacyBudget) -> str:
    """A budget in a sentence: the factor that it allows."""
    return (
        f"epsilon {budget.epsilon:g} lets what is concluded of one person become up to {factor(budget.epsilon)} times "
        f"as probable, but for a chance of {budget.delta:g}"
    )


def factor(epsilon: float) -> str:
    """How much more probable a conclusion may become, in words."""
    times = math.exp(min(epsilon, 50.0))
    return f"{times:.3g}" if times < 1e6 else "more than a million"


def _doubts(records: int, budget: PrivacyBudget) -> tuple[str, ...]:
    doubts: tuple[str, ...] = ()
    if budget.epsilon > LARGE_EPSILON:
        doubts += (f"epsilon {budget.epsilon:g} is above {LARGE_EPSILON:g}: hardly a promise",)
    if budget.delta * records >= 1.0:
        doubts += (f"delta {budget.delta:g} is 1/n or more of {records} records: showing one whole keeps that promise",)
    return doubts
