"""How members of a cluster connect: each side looks at the role in the other's certificate before it says a word.

A certificate's organizational unit is its role. The scheduler takes in nodes and the curator, and calls nodes; a node
takes in the scheduler and nodes, and accepts the scheduler's certificate alone at the scheduler's address; the curator
calls the scheduler, and takes in nobody.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Mapping
from typing import Any

from distributed.comm.core import FatalCommClosedError
from distributed.comm.registry import backends
from distributed.comm.tcp import TLSBackend, TLSConnector, TLSListener
from tornado.iostream import IOStream

from dpswd.private_curator.storage.certificates import CURATOR, NODE, SCHEDULER

_log = logging.getLogger(__name__)


def role_of(certificate: Mapping[str, Any] | None) -> str:
    """The role in a peer's certificate, as `ssl` tells it; "" where there is none."""
    subject = (certificate or {}).get("subject", ())
    units = [value for part in subject for name, value in part if name == "organizationalUnitName"]
    return units[0] if len(units) == 1 else ""


def use(own: str, *, scheduler: str | None, door: Door | None = None) -> None:
    """From now on this process speaks TLS as a member of this role.

    Args:
        own: the role.
        scheduler: its address, tls://host:port; None at the scheduler.
        door: where the curator opens connections for this process, which may not.
    """
    others = {SCHEDULER: {NODE, CURATOR}, NODE: {SCHEDULER, NODE}, CURATOR: set[str]()}[own]

    class Connector(TLSConnector):
        """Calls."""

        if door is not None:
            client = door  # type: ignore[assignment]

        async def connect(self, address: str, deserialize: bool = True, **arguments: Any) -> Any:
            comm = await super().connect(address, deserialize, **arguments)  # type: ignore[no-untyped-call]
            required = SCHEDULER if own == CURATOR or f"tls://{address}" == scheduler else NODE
            if (role := role_of(comm.extra_info.get("peercert"))) != required:
                comm.abort()
                _log.error("the member at %s has a certificate for %r, and not for %r", address, role, required)
                raise FatalCommClosedError(f"{address} has a certificate for {role!r}; needed is one for {required!r}")
            return comm

    class Listener(TLSListener):
        """Takes in."""

        async def _prepare_stream(self, stream: Any, address: str) -> Any:
            ready = await super()._prepare_stream(stream, address)  # type: ignore[no-untyped-call]
            if ready is None or (role := role_of(ready.socket.getpeercert())) in others:
                return ready
            _log.error("the member at %s has a certificate for %r, whom a %s does not take in", address, role, own)
            ready.close()
            return None

    class Roles(TLSBackend):
        """TLS whose members are told apart."""

        _connector_class, _listener_class = Connector, Listener

    backends["tls"] = Roles()


class Door:
    """In the place of a TCP client, in a process that may open no socket: asks the curator for connections.

    Args:
        channel: to `connection._keep_door`, at the curator.
    """

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._turn = threading.Lock()

    async def connect(self, _: str, __: int, *, max_buffer_size: int, ssl_options: Any) -> Any:
        """A stream to the scheduler, whatever address was asked for."""
        raw = await asyncio.get_running_loop().run_in_executor(None, self._opened)
        return await IOStream(raw, max_buffer_size=max_buffer_size).start_tls(False, ssl_options)

    def _opened(self) -> socket.socket:
        with self._turn:
            self._channel.sendall(b"?")
            _, files, _, _ = socket.recv_fds(self._channel, 1, 1)
        if not files:
            raise ConnectionRefusedError("the scheduler cannot be reached")
        raw = socket.socket(fileno=files[0])
        raw.setblocking(False)
        return raw
