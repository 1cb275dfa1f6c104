"""What a curator was asked and answered, stored as it came, and a curator that answers so again, from the file."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError, Message

from dpswd.public_client.curator.connection import Patience
from dpswd.public_client.curator.release_file import same_but_for_map
from dpswd.public_client.curator.transport import REPLIES, Exchange, Transport
from dpswd.shared.core.errors import DpswdError, InvalidValue, ProtocolError
from dpswd.shared.core.ledger.keys import PinnedKey
from dpswd.shared.core.ledger.receipts import SignedEntry, sha256
from dpswd.shared.core.wire.messages import RunParameters, StepRelease, run_digest, step_digest
from dpswd.shared.core.wire.v1 import curator_pb2 as pb
from dpswd.shared.protocol.receipts import decode_receipt, receipt_problems
from dpswd.shared.sandbox.graph import ExtractorGraph

_REQUESTS: dict[str, type[Message]] = {
    "Describe": pb.DescribeRequest,
    "OpenRun": pb.OpenRunRequest,
    "DrawStep": pb.DrawStepRequest,
}
MOST_BYTES = 2**28
"""Of stored replies: evidence that nobody would send along is none."""


@dataclass(frozen=True)
class Stored:
    """One exchange.

    Attributes:
        method: the RPC's name.
        request: its bytes.
        reply: its bytes.
    """

    method: str
    request: bytes
    reply: bytes

    def line(self) -> bytes:
        """One line of a file."""
        return b" ".join((self.method.encode(), base64.b64encode(self.request), base64.b64encode(self.reply)))

    def exchange(self) -> Exchange:
        """As messages."""
        request = _REQUESTS[self.method].FromString(self.request)
        return Exchange(request, REPLIES[self.method].FromString(self.reply))


def read_exchanges(content: bytes) -> list[Stored]:
    """The exchanges of a file's lines; a last line that a crash cut short is left out.

    Raises:
        InvalidValue: a line holds no exchange.
    """
    stored = []
    for line in content.split(b"\n")[:-1]:
        try:
            method, *parts = line.split(b" ")
            request, reply = (base64.b64decode(part, validate=True) for part in parts)
            stored.append(Stored(method.decode("ascii"), request, reply))
            stored[-1].exchange()
        except (ValueError, KeyError, DecodeError) as error:
            raise InvalidValue(f"line {len(stored) + 1} holds no exchange with a curator") from error
    return stored


class Recording:
    """A `Transport` that stores what goes through another: descriptions, prices, charges and answers.

    Args:
        transport: the other.
        path: of the file, which another process may have begun; without one they are stored in memory.

    Attributes:
        whole: whether all of it is stored: of long runs with large replies nothing more is, beyond `MOST_BYTES`.
    """

    def __init__(self, transport: Transport, path: Path | None = None) -> None:
        self.transport = transport
        self._path = path
        self._stored: list[Stored] = []
        self._bytes, self.whole = 0, True
        if path is not None and path.exists():
            content = path.read_bytes()
            whole = content[: content.rfind(b"\n") + 1]
            if whole != content:
                path.write_bytes(whole)
            self._stored = read_exchanges(whole)

    def exchange(self, method: str, request: Message, *, patience: Patience | None = None) -> Exchange:
        """See `Transport`; what is answered is on the disk before it is used."""
        sent = self.transport.exchange(method, request, patience=patience)
        if method in _REQUESTS and self.whole:
            stored = Stored(method, sent.request.SerializeToString(deterministic=True), sent.reply.SerializeToString())
            self._stored.append(stored)
            self._bytes += len(stored.reply)
            self.whole = self._bytes <= MOST_BYTES
            if self._path is not None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                with self._path.open("ab") as file:
                    file.write(stored.line() + b"\n")
                    file.flush()
                    os.fsync(file.fileno())
        return sent

    def close(self) -> None:
        """See `Transport`."""
        self.transport.close()

    def content(self) -> bytes:
        """The lines that a replay needs: the first description, each run and step once, each last price."""
        needed: dict[tuple[str, bytes], Stored] = {}
        for stored in self._stored:
            sent = stored.exchange()
            key = stored.method, b"" if stored.method == "Describe" else stored.request
            if key not in needed or (stored.method == "OpenRun" and sent.request.validate_only):
                needed[key] = stored
        return b"".join(stored.line() + b"\n" for stored in needed.values())


@dataclass(frozen=True)
class StoredRun:
    """A charged run with its steps.

    Attributes:
        opening: request and reply.
        steps: requests and replies, in order.
    """

    opening: Exchange
    steps: tuple[Exchange, ...]

    @property
    def parameters(self) -> RunParameters:
        """What was declared."""
        return RunParameters.from_message(self.opening.request.parameters)

    @property
    def entries(self) -> list[SignedEntry]:
        """The receipts, the run's first; signatures are not checked.

        Raises:
            InvalidValue: one is none.
        """
        return [
            decode_receipt(
                sent.reply.receipt, run_id=self.opening.reply.run_id, request_id=sent.request.request_id
            ).entry
            for sent in (self.opening, *self.steps)
        ]

    def problems(self, public_key: PinnedKey) -> Iterator[str]:
        """What of receipts, requests and replies does not hold together under a ledger's key."""
        run_id = self.opening.reply.run_id
        for number, sent in enumerate((self.opening, *self.steps)):
            what = f"step {number} of run {run_id}" if number else f"the opening of run {run_id}"
            stated: dict[str, Any] = {"run_id": run_id, "request_id": sent.request.request_id, "public_key": public_key}
            try:
                receipt = decode_receipt(sent.reply.receipt, run_id=run_id, request_id=sent.request.request_id)
                if number:
                    released = StepRelease.from_bytes(sent.reply.step_release)
                    if (released.run_id, sent.request.run_id) != (run_id, run_id):
                        yield f"{what}: its reply is of run {released.run_id}"
                    digest = step_digest(run_id=run_id, payload=sent.request.payload)
                    stated |= {"reply": sent.reply.step_release, "step": released.step, "request_digest": digest}
                else:
                    stated |= {"reply": None, "step": 0, "request_digest": run_digest(self.parameters)}
                yield from (f"{what}: {text}" for text in receipt_problems(receipt, **stated))
            except (DpswdError, ValueError) as error:
                yield f"{what}: {error}"


def runs_of(stored: Iterable[Stored]) -> list[StoredRun]:
    """The charged runs, in order.

    Raises:
        InvalidValue: a step belongs to none.
    """
    runs: dict[str, tuple[Exchange, list[Exchange]]] = {}
    for one in stored:
        sent = one.exchange()
        if one.method == "OpenRun" and sent.reply.run_id:
            runs[sent.reply.run_id] = (sent, [])
        elif one.method == "DrawStep":
            if sent.request.run_id not in runs:
                raise InvalidValue(f"a stored reply is of run {sent.request.run_id!r}, which is not among them")
            runs[sent.request.run_id][1].append(sent)
    return [StoredRun(opening, tuple(steps)) for opening, steps in runs.values()]


class Replaying:
    """A `Transport` that answers as a curator did, from stored exchanges; asked for more, it refuses.

    It answers by the order of runs and steps: where this machine rounds otherwise, a request differs in its last bits.

    Args:
        stored: the exchanges.
        published: whether they are of a release file, whose public map was made when it was prepared.

    Attributes:
        differences: requests that are not those that were answered, in words.
    """

    def __init__(self, stored: list[Stored], *, published: bool = False) -> None:
        self._published = published
        sent = [(one.method, one.exchange()) for one in stored]
        self._described = [each for method, each in sent if method == "Describe"]
        self._prices = [each for method, each in sent if method == "OpenRun" and each.request.validate_only]
        self._runs = runs_of(stored)
        self._steps = {run.opening.reply.run_id: list(run.steps) for run in self._runs}
        self.differences: list[str] = []

    def exchange(self, method: str, request: Any, *, patience: Patience | None = None) -> Exchange:  # noqa: ARG002
        """See `Transport`; the exchange returned is the one that the curator had.

        Raises:
            ProtocolError: nothing like it is stored.
        """
        if method == "UploadExtractor":
            graph = ExtractorGraph.from_bytes(request.graph)
            same: dict[str, Any] = {"graph_digest": sha256(request.graph), "weights_digest": sha256(request.weights)}
            return Exchange(request, pb.UploadExtractorResponse(**same, feature_dimension=graph.feature_dimension))
        if method == "OpenRun":
            return self._priced(request) if request.validate_only else self._opened(request)
        if method == "DrawStep" and self._steps.get(request.run_id):
            sent = self._steps[request.run_id].pop(0)
            if sent.request.payload != request.payload:
                self.differences.append(f"a step of run {request.run_id} asks for something else than was answered")
            return sent
        if method == "Describe" and self._described:
            return self._described[0]
        raise ProtocolError(f"the stored replies hold no answer to {method}")

    def close(self) -> None:
        """Nothing is open."""

    def _opened(self, request: Any) -> Exchange:
        wished = request.parameters
        for run in self._runs:
            if run.opening.request.parameters.mechanism == wished.mechanism:
                self._runs.remove(run)
                declared, own = run.parameters, RunParameters.from_message(wished)
                alike = same_but_for_map(own, declared) if self._published else own == declared
                if not alike:
                    names = [one.name for one in fields(own) if getattr(own, one.name) != getattr(declared, one.name)]
                    text = f"run {run.opening.reply.run_id} was declared with another {', '.join(names)}"
                    self.differences.append(text)
                return run.opening
        raise ProtocolError(f"the stored replies hold no further run of {wished.mechanism}")

    def _priced(self, request: Any) -> Exchange:
        alike = [each for each in self._prices if each.request.parameters.mechanism == request.parameters.mechanism]
        if not alike:
            raise ProtocolError(f"the stored replies hold no price of a run of {request.parameters.mechanism}")
        exact = [each for each in alike if each.request.parameters == request.parameters]
        declared = request.parameters.declaration  # of weights before the source's training, say
        return (exact or [each for each in alike if each.request.parameters.declaration == declared] or alike)[0]
