"""Publishes and dies by SIGKILL at a named point: ``publish_with_stops.py HOME PROPOSAL OUT POINT``.

POINT is one of the ledger's or the pipeline's, or ``kept``: after the copy in the home, before the file is written.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from published_site import CLIENT, PURPOSE

from dpswd.private_curator.operator.publishing import Publishing
from dpswd.private_curator.serving.server import CuratorServer
from dpswd.private_curator.settings import tree as settings
from dpswd.private_curator.storage.home_directory import HomeDirectory
from dpswd.shared.protocol.publications import Proposal


def main(home: HomeDirectory, proposal: Proposal, point: str) -> None:
    def reached(name: str) -> None:
        if name == point:
            os.kill(os.getpid(), signal.SIGKILL)

    asked = Publishing(home, proposal, CLIENT)
    with CuratorServer(home, settings.load(home.path), checkpoint=reached) as server:
        service = server.ready()
        asked.preview(service)
        asked.publish(service, purpose=PURPOSE)
        reached("kept")


if __name__ == "__main__":
    main(HomeDirectory(Path(sys.argv[1])), Proposal.read(Path(sys.argv[2])), sys.argv[4])
