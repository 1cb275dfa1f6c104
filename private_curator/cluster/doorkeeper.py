"""The curator's side of `transport.Door`: opens connections to one address for a process that may open none."""

from __future__ import annotations

import socket
import threading
from urllib.parse import urlsplit


def start(channel: socket.socket, scheduler: str, *, connect_s: float) -> None:
    """Hands over a new connection to the scheduler for each byte that comes, until the channel ends; b"-" for none.

    Nothing is read from a connection here, or written to it.

    Args:
        channel: to the courier; closed in the end.
        scheduler: tls://host:port.
        connect_s: seconds that a connection may take.
    """
    threading.Thread(target=_serve, args=(channel, scheduler, connect_s), name="door", daemon=True).start()


def _serve(channel: socket.socket, scheduler: str, connect_s: float) -> None:
    place = urlsplit(scheduler)
    try:
        while channel.recv(1):
            try:
                opened = socket.create_connection((place.hostname or "", place.port or 0), timeout=connect_s)
            except OSError:
                channel.sendall(b"-")
                continue
            with opened:
                socket.send_fds(channel, [b"+"], [opened.fileno()])
    except OSError:  # the courier has ended
        return
    finally:
        channel.close()
