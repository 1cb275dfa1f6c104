"""The console's own process: a loopback address or a Unix socket, and nothing else, whatever is asked for."""

from __future__ import annotations

import ipaddress
import os
import resource
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from dpswd.private_curator.storage.home_directory import SAFE_UMASK
from dpswd.shared.core.errors import SettingsError

MOST_REQUESTS = 32
"""Under way at the same time: there is one operator."""
MAX_HEADER_BYTES = 16 * 1024


@dataclass(frozen=True)
class Listening:
    """A socket that is bound and listens.

    Attributes:
        socket: where requests come in.
        address: host:port, or empty for a Unix socket.
    """

    socket: socket.socket
    address: str


def listen_on_loopback(address: str) -> Listening:
    """Binds host:port.

    Raises:
        SettingsError: the host is not on the loopback, or the port cannot be had.
    """
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
    bound = socket.socket(socket.AF_INET6 if numeric.version == 6 else socket.AF_INET)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((str(numeric), number))
        bound.listen()
    except OSError as error:
        bound.close()
        raise SettingsError(
            f"--address {address} cannot be bound ({error.strerror}); free the port or choose another (0 takes a free "
            "one)"
        ) from error
    shown = f"[{numeric}]" if numeric.version == 6 else str(numeric)
    return Listening(bound, f"{shown}:{bound.getsockname()[1]}")


def listen_on_socket(path: Path) -> Listening:
    """Binds a Unix socket that its owner alone may use; one that nobody listens on any more is replaced.

    Raises:
        SettingsError: something else stands there, or it cannot be made.
    """
    bound = socket.socket(socket.AF_UNIX)
    previous = os.umask(SAFE_UMASK)
    try:
        if path.is_socket() and not _answers(path):
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
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,  # no line for a request: a token's address would be in it
        access_log=False,
        server_header=False,
        proxy_headers=False,  # nobody stands in front who could be believed
        limit_concurrency=MOST_REQUESTS,
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        timeout_graceful_shutdown=5,
    )


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as trying:
        try:
            trying.connect(str(path))
        except OSError:
            return False
    return True


def greeting(origins: Iterable[str], token: str) -> str:
    """The line that lets the operator sign in once; for the terminal alone."""
    return f"sign in once at {min(origins)}/sign-in?token={token}"
