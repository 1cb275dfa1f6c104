"""How much a test tries that could try for ever: a fixed part in `make test`, far more in `make test-exhaustive`.

Examples and random moments are the same at every `make test`, so that one commit has one answer. `make test-exhaustive`
draws new ones at every run, twenty times as many, and runs the tests marked `exhaustive`, which are long.
"""

from __future__ import annotations

import os
import random

EXPLORING = os.environ.get("HYPOTHESIS_PROFILE") == "explore"
_TIMES = 20


def tried(usual: int) -> int:
    """Of a property, in the place of hypothesis's own 100."""
    return _TIMES * usual if EXPLORING else usual


def seeded(usual: int) -> random.Random:
    """A source of random moments; where we explore its seed is new, and printed, so that a failure can be repeated."""
    seed = random.SystemRandom().randrange(1 << 32) if EXPLORING else usual
    print(f"seed {seed}")
    return random.Random(seed)
