"""The client with a tenth of a view's steps, a thirtieth of the updates after it and a third of the directions.

Where a page or an example is run as it stands, what is delivered and charged is looked at, and how many updates it took
proves nothing: `shortened` for this process, the program for others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from dpswd import Replay
from dpswd.public_client.cli.main import main
from dpswd.public_client.ladder.rungs import RUNGS, VIEWS
from dpswd.public_client.replay import posterior

SHORT = {"directions": 60, "tuning_steps": 50}
ROUNDS = tuple(posterior._Round(*each) for each in ((4, 4, 1.0), (3, 6, 1.0), (2, 10, 0.5), (1, 12, 0.5)))


@contextlib.contextmanager
def shortened() -> Iterator[None]:
    """While the block runs, a replay is short if it names neither directions nor updates, the ladder's as well."""
    defaults, (ladders,) = Replay.__init__.__kwdefaults__, (rung.method for rung in RUNGS if rung.name == VIEWS)
    usual, rounds = {name: getattr(ladders, name) for name in SHORT}, posterior._ROUNDS
    try:
        posterior._ROUNDS = ROUNDS
        _set(defaults, ladders, SHORT)
        yield
    finally:
        posterior._ROUNDS = rounds
        _set(defaults, ladders, usual)


def _set(defaults: dict[str, Any], method: Replay, values: dict[str, int]) -> None:
    defaults |= values
    vars(method).update(values)  # it is frozen


if __name__ == "__main__":
    with shortened():
        main(prog_name="dpswd-client")
