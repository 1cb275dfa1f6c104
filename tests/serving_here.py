"""A curator that serves in the test's own process, for the length of a block."""

from __future__ import annotations

import contextlib

from dpswd.private_curator.serving import server
from dpswd.private_curator.settings import tree as settings


@contextlib.contextmanager
def serving(made, **changes):
    """Yields the address of the curator in a home."""
    chosen = {"listen.host": "localhost", "listen.port": "0", "compute.device": "cpu"}
    chosen |= {"compute.isolation": "in-process", "limits.reply_quantum_ms": "0", **changes}
    running = server.CuratorServer(made, settings.load(made.path, chosen))
    try:
        yield running.start()
    finally:
        running.stop()
