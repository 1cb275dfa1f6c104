"""Serves a curator that dies, or waits, at a named point of the pipeline: ``serve_with_stops.py HOME POINT ACTION``.

ACTION is ``kill`` (SIGKILL to itself, as a power cut would end it) or a number of seconds to wait.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from dpswd.private_curator.serving import server
from dpswd.private_curator.settings import tree as settings
from dpswd.private_curator.storage.home_directory import HomeDirectory
from dpswd.shared.core.mechanisms.interface import AnyMechanism
from dpswd.shared.published_mechanisms import ALL_MECHANISMS


def main(arguments: Sequence[str], *, mechanisms: Mapping[str, AnyMechanism] = ALL_MECHANISMS) -> None:
    """Serves HOME until a signal; with POINT and ACTION, until a step reaches that point."""
    home = HomeDirectory(Path(arguments[0]))
    point, action = arguments[1:] or ("", "")

    def checkpoint(name: str) -> None:
        if name != point:
            return
        if action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        (home.path / f"reached-{point}").touch()
        time.sleep(float(action))

    chosen = settings.load(home.path, {"listen.port": "0", "listen.host": "localhost", "compute.device": "cpu"})
    server.run_until_signal(server.CuratorServer(home, chosen, checkpoint=checkpoint, mechanisms=mechanisms))


if __name__ == "__main__":
    main(sys.argv[1:])
