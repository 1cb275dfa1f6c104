"""Serves a curator that dies, or waits, at a named point of the pipeline: ``serve_with_stops.py HOME POINT ACTION``.

ACTION is ``kill`` (SIGKILL to itself, as a power cut would end it) or a number of seconds to wait.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from private_curator.operator.home_directory import Home
from private_curator.serving import server
from private_curator.settings import tree as settings


def main() -> None:
    home, point, action = Home(Path(sys.argv[1])), sys.argv[2], sys.argv[3]

    def checkpoint(name: str) -> None:
        if name != point:
            return
        if action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        (home.path / f"reached-{point}").touch()
        time.sleep(float(action))

    chosen = settings.load(home.path, {"listen.port": "0", "listen.host": "localhost", "compute.device": "cpu"})
    server.run_until_signal(server.CuratorServer(home, chosen, checkpoint=checkpoint))


if __name__ == "__main__":
    main()
