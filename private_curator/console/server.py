"""The console's own process: a loopback address or a Unix socket, and nothing else, whatever is asked for."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import resource
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from dpswd.private_curator.console.people import PEER, peer_of
from dpswd.private_curator.storage.home_directory import SAFE_UMASK
from dpswd.shared.core.errors import SettingsError

MOST_CONNECTIONS = 256
"""For a further one, the one goes that has kept the console waiting longest."""
WAIT_S = 5.0
"""That a request's head may take to arrive, and then its body; a body from a session may take its time."""
MAX_HEADER_BYTES = 16 * 1024


class PatientConnection(H11Protocol):
    """One connection, which may keep the console waiting neither for long nor at another's cost.

    Whoever has an account on the machine may connect, and send half a head: uvicorn would wait for the rest for ever,
    and count it among the requests under way.
    """

    _waits: asyncio.TimerHandle | None = None
    _since = 0.0

    @property
    def _is_awaited(self) -> bool:
        """Whether the next move is the other side's: to ask, to send the rest, to take the answer."""
        request = self.cycle
        if request is None or request.response_complete:
            return True
        signed_in = request.scope["state"].get("session") is not None
        return not signed_in and (request.more_body or self.flow.write_paused)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Makes room where there is none."""
        super().connection_made(transport)
        self.app_state = {**self.app_state, PEER: peer_of(transport.get_extra_info("socket"))}
        self._wait()
        if len(self.connections) > MOST_CONNECTIONS:
            mine = [each for each in self.connections if isinstance(each, PatientConnection) and each._is_awaited]
            oldest = min(mine, key=lambda each: each._since)  # at least this one is awaited
            self.connections.discard(oldest)
            oldest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forgets the time."""
        super().connection_lost(exc)
        if self._waits is not None:
            self._waits.cancel()

    def handle_events(self) -> None:
        """Waits anew where a head is whole."""
        before = self.cycle
        super().handle_events()
        if self.cycle is not before:
            self._wait()

    def on_response_complete(self) -> None:
        """Waits anew, for the next request."""
        self._wait()
        super().on_response_complete()

    def _wait(self) -> None:
        if self._waits is not None:
            self._waits.cancel()
        self._since = self.loop.time()
        self._waits = self.loop.call_later(WAIT_S, self._look)

    def _look(self) -> None:
        if self._is_awaited:
            self.transport.abort()
        else:
            self._wait()


class Listening(NamedTuple):
    """A socket that is bound and listens, and its host:port, which a Unix socket has not."""

    socket: socket.socket
    address: str


def listen_on_loopback(address: str) -> Listening:
    """Binds host:port; raises SettingsError: the host is not on the loopback, or the port cannot be had."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        numeric = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
        loopback, number = numeric.is_loopback, int(port)
    except ValueError:
        loopback, number = False, 0
    if not loopback or not 0 <= number <= 65535:
        raise SettingsError(
            f"--address is {address!r}; the console listens on this machine's loopback alone: write 127.0.0.1:8466 or "
            "[::1]:8466. From another machine come over ssh -L, or give it a --socket"
        )
    family, shown = (socket.AF_INET6, f"[{numeric}]") if numeric.version == 6 else (socket.AF_INET, str(numeric))
    try:
        bound = socket.create_server((str(numeric), number), family=family)
    except OSError as error:
        text = f"--address {address} cannot be bound ({error.strerror})"
        raise SettingsError(f"{text}; free the port or choose another (0 takes a free one)") from error
    return Listening(bound, f"{shown}:{bound.getsockname()[1]}")


def listen_on_socket(path: Path) -> Listening:
    """Binds a Unix socket that its owner alone may use; one that nobody listens on any more is replaced.

    Raises:
        SettingsError: something else stands there, or it cannot be made.
    """
    bound = socket.socket(socket.AF_UNIX)
    previous = os.umask(SAFE_UMASK)
    try:
        with socket.socket(socket.AF_UNIX) as trying:
            if path.is_socket() and trying.connect_ex(str(path)) != 0:
                path.unlink()
        bound.bind(str(path))
        bound.listen()
    except OSError as error:
        bound.close()
        raise SettingsError(
            f"--socket {path} cannot be made ({error.strerror}); stop what listens there, or choose another path"
        ) from error
    finally:
        os.umask(previous)
    return Listening(bound, "")


def serve(application: ASGIApp, listening: Listening) -> None:
    """Serves until SIGTERM or SIGINT."""
    os.umask(SAFE_UMASK)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # an act's process holds the ledger's key for a moment
    uvicorn.Server(configuration(application)).run(sockets=[listening.socket])


def configuration(application: ASGIApp) -> uvicorn.Config:
    """What is asked of uvicorn: plain HTTP/1.1 for one operator, and no line in a log."""
    return uvicorn.Config(
        application,
        http=PatientConnection,
        ws="none",
        lifespan="off",
        log_config=None,  # no line for a request: a token's address would be in it
        access_log=False,
        server_header=False,
        proxy_headers=False,  # whoever stands in front is believed by `people.Proxy` alone
        backlog=MOST_CONNECTIONS // 4,  # taken at a time: whoever sends at once is heard before the next come
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        timeout_graceful_shutdown=5,
    )


def greeting(origins: Iterable[str], token: str) -> str:
    """The line that lets the operator sign in once; for the terminal alone."""
    return f"sign in once at {min(origins)}/sign-in?token={token}"
