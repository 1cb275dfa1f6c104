"""Serves a curator that fails, or leaks, when a file in its home says so: ``serve_with_canaries.py HOME``.

``HOME/raise-at`` holds the name of a point of the pipeline: there an exception is raised whose text quotes a record, as
a library's might. ``HOME/plant`` is the control of the test that greps: the record is written to the log on purpose.
"""

from __future__ import annotations

import logging
import resource
import sys
from pathlib import Path

import numpy as np

from dpswd.private_curator.observability import logs
from dpswd.private_curator.serving import server
from dpswd.private_curator.settings import tree as settings
from dpswd.private_curator.storage.home_directory import HomeDirectory


def main() -> None:
    home = HomeDirectory(Path(sys.argv[1]))
    chosen = settings.load(
        home.path,
        {
            "listen.port": "0",
            "listen.host": "localhost",
            "clients.published_mechanisms": "true",
            "compute.device": "cpu",
            "compute.torch_threads": "1",
            "metrics.enabled": "true",
            "metrics.port": "0",
        },
    )
    with np.load(chosen.records_file) as archive:
        record, label = archive["records"][0], archive["labels"][0]

    def checkpoint(name: str) -> None:
        failing, planting = home.path / "raise-at", home.path / "plant"
        if planting.exists():
            logging.getLogger("dpswd.private_curator.core.steps.release").error("record %r", record.tolist())
        if failing.exists() and failing.read_text() == name:
            try:
                raise KeyError(f"label {label} of {chosen.records_file}")
            except KeyError as error:
                raise ValueError(f"could not use {record.tolist()!r} ({record.tobytes().hex()})") from error

    logs.configure(chosen.log)
    logs.close_side_doors()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    server.run_until_signal(server.CuratorServer(home, chosen, checkpoint=checkpoint))


if __name__ == "__main__":
    main()
