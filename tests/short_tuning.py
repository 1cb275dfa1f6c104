"""The client with a tenth of the updates that a replay makes after its fit; everything else is the product's.

Where a page or an example is run as it stands, what is delivered and charged is looked at, and how many updates it took
proves nothing: `shortened` for this process, the program for others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from dpswd import Replay
from dpswd.public_client.cli.main import main
from dpswd.public_client.ladder.rungs import RUNGS, VIEWS

STEPS = 150


@contextlib.contextmanager
def shortened() -> Iterator[None]:
    """While the block runs, a replay that names no number of updates makes so few, the ladder's as well."""
    defaults, (ladders,) = Replay.__init__.__kwdefaults__, (rung.method for rung in RUNGS if rung.name == VIEWS)
    usual = ladders.tuning_steps
    try:
        defaults["tuning_steps"] = STEPS
        object.__setattr__(ladders, "tuning_steps", STEPS)
        yield
    finally:
        defaults["tuning_steps"] = usual
        object.__setattr__(ladders, "tuning_steps", usual)


if __name__ == "__main__":
    with shortened():
        main(prog_name="dpswd-client")
