"""A person's words in requests."""

from __future__ import annotations

from dpswd.shared.core.wire.checks import Violation

MAX_PURPOSE_LENGTH = 200
"""Characters of a run's purpose, and of the reason of a request for budget: a sentence for the hospital's board."""


def one_line(field: str, text: str, *, least: int = 0) -> list[Violation]:
    """Holds a person's words to one printable line; they are shown to an operator and kept for good."""
    if least <= len(text) <= MAX_PURPOSE_LENGTH and text.isprintable():
        return []
    return [(field, f"must be one line of {least} to {MAX_PURPOSE_LENGTH} printable characters")]
