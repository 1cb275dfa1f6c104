"""How Dask is set up here.

Whoever holds a certificate of the cluster can run code on its scheduler and nodes: Dask sends functions. So the cluster
has an authority of its own, which signs nothing else, and everything that Dask opens beside TLS is closed.

Each side looks at the role in the other's certificate, its organizational unit, before it says a word. The scheduler
takes in nodes and the curator, and calls nodes; a node takes in the scheduler and nodes, and accepts the scheduler's
certificate alone at the scheduler's address; the curator calls the scheduler, and takes in nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cryptography import x509
from cryptography.x509.oid import NameOID

from dpswd.private_curator.storage.certificates import (
    CA_CERTIFICATE,
    CURATOR,
    MEMBER_CERTIFICATE,
    MEMBER_KEY,
    NODE,
    SCHEDULER,
)
from dpswd.shared.core.errors import SettingsError

if TYPE_CHECKING:
    from distributed.security import Security

_log = logging.getLogger(__name__)

_CONFIGURATION: dict[str, Any] = {
    "distributed.comm.require-encryption": True,
    "distributed.comm.tls.min-version": 1.3,
    "distributed.comm.timeouts.connect": "30s",
    # Sums of shards are private and not noised yet: none is written to a disk.
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": False,
    # A profile or a log of events would hold what is computed, and when.
    "distributed.worker.profile.enabled": False,
    "distributed.admin.log-length": 0,
    "distributed.admin.low-level-log-length": 0,
    "distributed.admin.system-monitor.gil.enabled": False,
    "distributed.diagnostics.nvml": False,
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
    "distributed.scheduler.work-stealing": False,
    "distributed.scheduler.active-memory-manager.start": False,
    # A node that has gone is noticed by its connection; this is for one that hangs.
    "distributed.scheduler.worker-ttl": "60s",
    # The second computation of a shard may wait for nodes that have all gone.
    "distributed.scheduler.no-workers-timeout": "60s",
}


def configure(
    role: str, certificates: Path, *, scheduler: str | None = None, channel: socket.socket | None = None
) -> None:
    """Sets Dask up for this process, before anything of it is started.

    Args:
        role: of this member.
        certificates: the member's folder.
        scheduler: its address; None at the scheduler.
        channel: to the curator, which opens this process's connections.

    Raises:
        SettingsError: Dask is not installed, or the folder lacks a file or is of another role.
    """
    try:
        import dask
        import distributed
    except ImportError as error:
        raise SettingsError("a cluster needs Dask; install dpswd[cluster]") from error
    dask.config.set(_CONFIGURATION)
    member: Any = distributed.node.ServerNode  # which would open an HTTP server beside its port
    member.start_http_server = lambda self, *_, **__: setattr(self, "http_server", None)
    logging.getLogger("distributed").setLevel(logging.WARNING)  # each connection would be a line
    missing = [name for name in (CA_CERTIFICATE, MEMBER_CERTIFICATE, MEMBER_KEY) if not (certificates / name).is_file()]
    if missing:
        raise SettingsError(
            f"{certificates} lacks {', '.join(missing)}; make it with `dpswd-curator cluster certificates` and copy "
            "the member's folder here"
        )
    subject = x509.load_pem_x509_certificate((certificates / MEMBER_CERTIFICATE).read_bytes()).subject
    own = ", ".join(str(unit.value) for unit in subject.get_attributes_for_oid(NameOID.ORGANIZATIONAL_UNIT_NAME))
    if own != role:
        raise SettingsError(f"{certificates} is the folder of a {own or 'stranger'}; needed is that of a {role}")
    _tell_roles_apart(role, scheduler=scheduler, door=None if channel is None else Door(channel))


def _tell_roles_apart(own: str, *, scheduler: str | None, door: Door | None) -> None:
    """From now on this process speaks TLS as a member of this role, and looks at the role of whomever it meets."""
    from distributed.comm.core import FatalCommClosedError
    from distributed.comm.registry import backends
    from distributed.comm.tcp import TLSBackend, TLSConnector, TLSListener

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


def role_of(certificate: Mapping[str, Any] | None) -> str:
    """The role in a peer's certificate, as `ssl` tells it; "" where there is none."""
    subject = (certificate or {}).get("subject", ())
    units = [value for part in subject for name, value in part if name == "organizationalUnitName"]
    return units[0] if len(units) == 1 else ""


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
        from tornado.iostream import IOStream

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


def security(folder: Path) -> Security:
    """Mutual TLS with a member's certificate: ca.crt, member.crt and member.key of a folder, read now for all calls."""
    from distributed.security import Security

    class ReadOnce(Security):
        """For a process that can read no file later; members have one role each."""

    own = {"cert": str(folder / MEMBER_CERTIFICATE), "key": str(folder / MEMBER_KEY)}
    members = {f"tls_{role}_{what}": path for role in ("client", "scheduler", "worker") for what, path in own.items()}
    authority, least = str(folder / CA_CERTIFICATE), ssl.TLSVersion.TLSv1_3
    made: Any = ReadOnce(  # type: ignore[no-untyped-call]
        require_encryption=True, tls_ca_file=authority, tls_min_version=least, **members
    )
    read = made.get_connection_args("client")
    made.get_connection_args = lambda _: read
    return made  # type: ignore[no-any-return]


def stop_asked() -> asyncio.Event:
    """Set at SIGTERM or SIGINT, from now on: a signal that comes while a member starts is not lost."""
    asked = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, asked.set)
    return asked


async def _only(role: str, comm: Any, registered: Callable[..., Awaitable[None]], arguments: dict[str, Any]) -> None:
    if (own := role_of(comm.extra_info.get("peercert"))) == role:
        return await registered(comm, **arguments)
    _log.error("a member with a certificate for %r came as a %s; it was sent away", own, role)
    comm.abort()
    return None


@contextlib.contextmanager
def refusing_address(address: str) -> Iterator[None]:
    """Raises SettingsError where Dask finds that this is no address."""
    try:
        yield
    except ValueError as error:
        raise SettingsError(f"{address!r} is no address of a cluster; write host:port, or tls://host:port") from error


def schedule(address: str, certificates: Path) -> None:
    """Schedules on one port until SIGTERM or SIGINT; prints one line once it listens."""
    configure(SCHEDULER, certificates)
    asyncio.run(_scheduling(address, certificates))


async def _scheduling(address: str, folder: Path) -> None:
    from distributed import Scheduler

    class TwoRoles(Scheduler):
        """A node gives no tasks, the curator computes none."""

        async def add_client(self, comm: Any, **arguments: Any) -> None:  # type: ignore[override]
            await _only(CURATOR, comm, super().add_client, arguments)

        async def add_worker(self, comm: Any, **arguments: Any) -> None:
            await _only(NODE, comm, super().add_worker, arguments)

    asked = stop_asked()
    host, _, port = address.rpartition(":")
    with refusing_address(address):
        made = TwoRoles(host=f"tls://{host}", port=int(port), security=security(folder), dashboard=False)
    async with made as member:
        print(f"scheduling on {member.address}", flush=True)
        await asked.wait()


answer: Callable[[bytes, bytes, bytes], bytes] | None = None
"""Of this process's node, which `node.serve` sets: what Dask calls is a function."""


def sum_shard(request: bytes, extractor: tuple[bytes, bytes]) -> bytes:
    """What Dask calls on a node: its answer to a task (private_curator/cluster/task.py); none where no node serves.

    Args:
        request: the task.
        extractor: graph and weights.
    """
    return b"" if answer is None else answer(request, *extractor)
