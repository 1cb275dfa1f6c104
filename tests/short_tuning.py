"""The client with a tenth of the steps of a view's fit and a thirtieth of the updates after it; the rest is its own.

Where a page or an example is run as it stands, what is delivered and charged is looked at, and how many updates it took
proves nothing: `shortened` for this process, the program for others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from dpswd import Replay
from dpswd.public_client.cli.main import main
from dpswd.public_client.ladder.rungs import RUNGS, VIEWS
from dpswd.public_client.replay import posterior

STEPS = 50
ROUNDS = tuple(posterior._Round(*each) for each in ((4, 4, 1.0), (3, 6, 1.0), (2, 10, 0.5), (1, 12, 0.5)))


@contextlib.contextmanager
def shortened() -> Iterator[None]:
    """While the block runs, a replay is short if it names no number of updates, the ladder's as well."""
    defaults, (ladders,) = Replay.__init__.__kwdefaults__, (rung.method for rung in RUNGS if rung.name == VIEWS)
    usual, rounds = ladders.tuning_steps, posterior._ROUNDS
    try:
        posterior._ROUNDS = ROUNDS
        defaults["tuning_steps"] = STEPS
        object.__setattr__(ladders, "tuning_steps", STEPS)
        yield
    finally:
        posterior._ROUNDS = rounds
        defaults["tuning_steps"] = usual
        object.__setattr__(ladders, "tuning_steps", usual)


if __name__ == "__main__":
    with shortened():
        main(prog_name="dpswd-client")
