"""The service under attack: a whole curator with a real ledger, its servicer called with bytes as gRPC would."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2

from dpswd.private_curator.serving.authentication import PEER_CERTIFICATE
from dpswd.private_curator.serving.server import CuratorServer
from dpswd.private_curator.settings import tree as settings
from dpswd.private_curator.settings.groups import RecordsSettings
from dpswd.private_curator.storage import home_directory as homes
from dpswd.shared.core.wire.v1 import curator_pb2 as pb
from dpswd.shared.protocol.status import REASONS

SERVICE = pb.DESCRIPTOR.services_by_name["CuratorService"]
METHODS = tuple(method.name for method in SERVICE.methods)
CLIENT = "ml-team"
RECORD_SHAPE = (1, 8, 8)
RECORDS, CLASSES = 200, 10

UNDECODABLE = "UNDECODABLE"
"""gRPC refuses what protobuf cannot parse before the servicer sees it."""

SLOWEST_S = 20.0
"""An answer that takes longer counts as a hang; pricing a run of new parameters takes up to a second."""

_NAMED = {row.reason for row in REASONS} - {"INTERNAL"}


class Finding(Exception):
    """The service did what it must never do; the text says what."""


@dataclass(frozen=True)
class Outcome:
    """What came of one request.

    Attributes:
        reason: OK, UNDECODABLE or the refusal's reason.
        seconds: of the call, wall time.
        spent: whether the budget changed.
    """

    reason: str
    seconds: float
    spent: bool


class _Aborted(Exception):
    def __init__(self, status: object) -> None:
        super().__init__("aborted")
        self.status = status


class _Context:
    """As much of grpc.ServicerContext as the servicer uses, for an authenticated client."""

    def __init__(self, certificate: bytes) -> None:
        self._peer = {PEER_CERTIFICATE: [certificate]}

    def peer(self):
        return "ipv4:127.0.0.1:50123"

    def auth_context(self) -> dict[str, list[bytes]]:
        return self._peer

    def add_callback(self, callback: Callable[[], None]) -> bool:
        callback()
        return True

    def cancel(self) -> None:
        raise AssertionError("a request that is all there was received too slowly")

    def abort_with_status(self, status: object) -> None:
        raise _Aborted(status)


class Site:
    """A curator of 200 small labelled images. A context manager.

    Args:
        directory: empty; a fast file system makes a long run shorter.
        epsilon: the budget, which the run soon exhausts.
        isolation: ``process`` computes in the confined worker, as a hospital does.
        storage_objects: uploads that the client may keep.
    """

    def __init__(
        self, directory: Path, *, epsilon: float = 60.0, isolation: str = "in-process", storage_objects: int = 10_000
    ) -> None:
        rng = np.random.default_rng(0)
        np.savez(
            directory / "records.npz",
            records=rng.random((RECORDS, *RECORD_SHAPE), dtype=np.float32),
            labels=np.arange(RECORDS) % CLASSES,
        )
        self._home = homes.create(
            directory / "home",
            records=RecordsSettings(
                file=directory / "records.npz", array="records", labels_array="labels", classes=CLASSES
            ),
            epsilon=epsilon,
            delta=1e-5,
            names=["localhost"],
            groups={
                "limits": {
                    "reply_quantum_ms": 0.0,
                    "max_batch_size": 64,
                    "client_storage_bytes": 1 << 26,
                    "client_storage_objects": storage_objects,
                },
                "compute": {"device": "cpu", "isolation": isolation},
                "listen": {"port": 0},
                "clients": {"published_mechanisms": True},
            },
        )
        issued, _ = self._home.authority.make_client(name=CLIENT)
        with self._home.open_ledger() as ledger:
            ledger.add_client(CLIENT, issued.fingerprint)
        self._server = CuratorServer(self._home, settings.load(self._home.path))
        self._server.start()
        self._context = _Context(issued.pem)
        self._ledger = self._server._ledger
        self._service = self._server._service
        self._spent = self._state()

    def __enter__(self) -> Site:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.stop()

    def _state(self) -> tuple[object, ...]:
        return self._ledger.budget_of(CLIENT)

    def describe_with_receipt(self) -> pb.DescribeRequest:
        """A description asked for by a client that holds a receipt of this ledger."""
        held = self._ledger.head()
        return pb.DescribeRequest(newest_receipt=pb.SignedStatement(statement=held.statement, signature=held.signature))

    def call(self, method: str, message: Message) -> Message:
        """A valid request's reply.

        Raises:
            Finding: it was refused.
        """
        try:
            reply = self._service.answer(method, iter([message.SerializeToString()]), self._context)
        except _Aborted as aborted:
            text = _status(aborted).message
            raise Finding(f"a valid {method} was refused: {text}") from aborted
        self._spent = self._state()
        return reply

    def send(self, method: str, data: bytes) -> Outcome:
        """Sends bytes and holds the answer against everything that must be true of one.

        Raises:
            Finding: it is not.
        """
        begun = time.perf_counter()
        reason = self._reason(method, data)
        seconds = time.perf_counter() - begun
        if seconds > SLOWEST_S:
            raise Finding(f"{method} took {seconds:.1f} s")
        before, self._spent = self._spent, self._state()
        spent = self._spent != before
        if spent and (reason != "OK" or method != "OpenRun"):
            raise Finding(f"{method} was answered with {reason}, and the budget went from {before} to {self._spent}")
        account = self._ledger.budget_of(CLIENT)[0]
        if account.epsilon_spent > account.epsilon:
            raise Finding(f"{account.epsilon_spent} is spent of a budget of {account.epsilon}")
        return Outcome(reason, seconds, spent)

    def _reason(self, method: str, data: bytes) -> str:
        descriptor = SERVICE.methods_by_name[method]
        try:
            getattr(pb, descriptor.input_type.name).FromString(data)
            decodable = True
        except DecodeError:
            decodable = False
        try:
            reply = self._service.answer(method, iter([data]), self._context)
        except _Aborted as aborted:
            reason = _refusal(method, aborted)
            return reason if decodable else UNDECODABLE
        except Exception as error:
            raise Finding(f"{method} raised {type(error).__name__}: {error}") from error
        if not decodable:
            raise Finding(f"{method} answered what is no request")
        if type(reply).DESCRIPTOR is not descriptor.output_type:
            raise Finding(f"{method} answered with a {type(reply).__name__}")
        return "OK"


def _status(aborted: _Aborted) -> status_pb2.Status:
    """The google.rpc.Status behind what the servicer aborted with."""
    for key, value in aborted.status.trailing_metadata:  # type: ignore[attr-defined]
        if key == "grpc-status-details-bin":
            return status_pb2.Status.FromString(value)
    raise Finding("a refusal without google.rpc.Status")


def _refusal(method: str, aborted: _Aborted) -> str:
    status, info = _status(aborted), error_details_pb2.ErrorInfo()
    if not status.details or not status.details[0].Unpack(info):
        raise Finding(f"{method} was refused without ErrorInfo")
    if info.reason not in _NAMED:
        raise Finding(f"{method} was refused with {info.reason}: {status.message}")
    if not status.message:
        raise Finding(f"{method} was refused with {info.reason} and no text")
    return info.reason
