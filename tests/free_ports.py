"""Ports for servers that stop and start again on them while other tests run."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_WIDTH = 12_000


def own_port() -> int:
    """A free port below those that the kernel gives to whoever asks for any: nobody takes it between two starts."""
    lowest = int(_RANGE.read_text().split()[0]) if _RANGE.exists() else 32_768
    choice = random.SystemRandom()  # pytest may have seeded the other one alike in all workers
    for _ in range(200):
        port = choice.randrange(max(1024, lowest - _WIDTH), lowest)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise OSError(f"no free port below {lowest}")
