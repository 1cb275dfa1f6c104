"""What travels by hand between a team and a hospital that serves nobody: a proposal there, a publication back.

A *proposal* is everything that one step on all records needs: the extractor, the run's declaration, the step's request.
A *publication* holds that proposal, what the hospital answered to it, the receipts of charge and answer, and the
signature of the ledger's key over all of it. Each is one line that names the format, then (of a publication) 64 bytes
of Ed25519 over that line and the message, then one protobuf message.

What must never change: the meaning of a format's name. Another layout is another name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dpswd.shared.core.errors import DataInvalid, InvalidValue, RequestInvalid
from dpswd.shared.core.ledger.keys import LedgerKeys, PinnedKey
from dpswd.shared.core.ledger.receipts import Receipt, Signed, SignedEntry, is_signed
from dpswd.shared.core.wire.checks import Violation, positive
from dpswd.shared.core.wire.limits import MAX_MESSAGE_BYTES
from dpswd.shared.core.wire.messages import RunParameters, StepRelease, run_digest, step_digest
from dpswd.shared.core.wire.payloads import MessagePayload, parsed, written
from dpswd.shared.core.wire.v1 import curator_pb2 as pb
from dpswd.shared.protocol.receipts import decode_receipt, receipt_problems

MAX_FILE_BYTES = 2 * MAX_MESSAGE_BYTES
"""Of a proposal or a publication: the largest extractor that may be uploaded, and the largest reply."""

PROPOSAL = b"dpswd-proposal-1\n"
PUBLICATION = b"dpswd-publication-1\n"
_HEAD = len(PUBLICATION) + 64  # Ed25519


@dataclass(frozen=True)
class Proposal(MessagePayload, message=pb.Proposal, field="proposal"):
    """One step on all records, as a team prepared it.

    Attributes:
        graph: of the extractor, canonical bytes.
        weights: of the extractor, safetensors.
        parameters: the run's declaration; one step, and as many records as the data set has.
        payload: the step's request.
        purpose: in the team's words.
        epsilon: what the team expects it to cost.
        delta: at which.
        noise: the factor of the method's noises; the team's own note.
    """

    graph: bytes
    weights: bytes
    parameters: RunParameters
    payload: bytes
    purpose: str
    epsilon: float
    delta: float
    noise: float

    def broken_structure(self) -> list[Violation]:
        """See `MessagePayload`."""
        asked = self.parameters
        broken = [] if asked.steps == 1 else [("parameters.steps", f"is {asked.steps}; a publication is one step")]
        digests = {"graph": asked.graph_digest, "weights": asked.weights_digest}
        broken += [
            (name, "is another one than the declaration names")
            for name, digest in digests.items()
            if hashlib.sha256(getattr(self, name)).hexdigest() != digest
        ]
        if not self.purpose.isprintable():
            broken.append(("purpose", "holds control characters; write one line of text"))
        return broken + [rule for name in ("epsilon", "delta", "noise") for rule in positive(name, getattr(self, name))]

    @property
    def digest(self) -> str:
        """SHA-256 of the proposal, hexadecimal."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    def to_file(self) -> bytes:
        """The content of a proposal's file."""
        return PROPOSAL + self.to_bytes()

    @classmethod
    def read(cls, path: Path) -> Proposal:
        """Reads a proposal's file; it may come from anybody.

        Raises:
            DataInvalid: it cannot be read, or is no proposal; the message names the field.
        """
        data = _data(path, PROPOSAL, "proposal")
        try:
            return cls.from_bytes(data[len(PROPOSAL) :])
        except (RequestInvalid, InvalidValue) as error:
            raise DataInvalid(f"{path} is no proposal that could be published: {error}") from error


@dataclass(frozen=True)
class Publication:
    """A proposal with its answer, signed. Nothing of it is verified before `problems` was asked.

    Attributes:
        message: what it says.
        content: the message's bytes, as they were signed.
        signature: of these bytes, as of `Signed.PUBLICATION`.
    """

    message: pb.Publication
    content: bytes
    signature: bytes

    @classmethod
    def signed(cls, message: pb.Publication, *, sign: Callable[[bytes], bytes]) -> Publication:
        """The publication of a message, under the ledger's key."""
        content = written(message)
        return cls(message, content, sign(Signed.PUBLICATION.over(content)))

    def to_file(self) -> bytes:
        """The content of a publication's file."""
        return PUBLICATION + self.signature + self.content

    @classmethod
    def from_file(cls, data: bytes) -> Publication:
        """The inverse of `to_file`.

        Raises:
            InvalidValue: the bytes are none.
        """
        if not data.startswith(PUBLICATION):
            raise InvalidValue(f"it does not begin with {PUBLICATION.decode().strip()}")
        signature, content = data[len(PUBLICATION) : _HEAD], data[_HEAD:]
        try:
            return cls(parsed(pb.Publication, content, field="publication"), content, signature)
        except RequestInvalid as error:
            raise InvalidValue(str(error)) from error

    @classmethod
    def read(cls, path: Path) -> Publication:
        """Reads a publication's file; it may come from anybody.

        Raises:
            DataInvalid: it cannot be read, or is none.
        """
        data = _data(path, PUBLICATION, "publication")
        try:
            return cls.from_file(data)
        except InvalidValue as error:
            raise DataInvalid(f"{path} is no publication: {error}") from error

    @property
    def proposal(self) -> Proposal:
        """What was asked.

        Raises:
            RequestInvalid: it is no proposal.
        """
        return Proposal.from_message(self.message.proposal)

    @property
    def release(self) -> StepRelease:
        """What was answered.

        Raises:
            RequestInvalid: it is no release.
        """
        return StepRelease.from_bytes(self.message.step.step_release)

    def receipts(self) -> tuple[Receipt, Receipt]:
        """Of the charge and of the answer, not verified.

        Raises:
            InvalidValue: one is none.
        """
        message, run_id = self.message, self.message.run.run_id
        return (
            decode_receipt(message.run.receipt, run_id=run_id, request_id=message.run_request_id),
            decode_receipt(message.step.receipt, run_id=run_id, request_id=message.step_request_id),
        )

    def entries(self) -> list[SignedEntry]:
        """The receipts that can be read, as entries of the ledger."""
        try:
            return [receipt.entry for receipt in self.receipts()]
        except InvalidValue:
            return []

    def problems(self, public_key: PinnedKey) -> list[str]:
        """What of signature, receipts and digests does not hold together; empty when all of it does.

        Args:
            public_key: the ledger's raw Ed25519 key, 32 bytes, as it was pinned, or its keys.

        Returns:
            One sentence for each disagreement.
        """
        wire, problems = self.message, []
        described = wire.description.ledger_public_key
        try:
            keys = LedgerKeys.of(public_key, wire.description.key_changes)
        except InvalidValue as error:
            return [f"it is not whole: {error}"]
        if foreign := described not in keys.every:
            problems.append(f"it names another ledger's key, {described.hex()}")
        if foreign or not is_signed(Signed.PUBLICATION, self.content, self.signature, described):
            problems.append("it is not signed by the ledger's key, or was changed afterwards")
        try:
            proposal, release = self.proposal, self.release
            charge, answer = self.receipts()
        except (RequestInvalid, InvalidValue) as error:
            return [*problems, f"it is not whole: {error}"]
        run_id = wire.run.run_id
        of_charge = receipt_problems(
            charge, public_key=keys, run_id=run_id, request_id=wire.run_request_id, reply=None, step=0,
            request_digest=run_digest(proposal.parameters),
        )  # fmt: skip
        of_answer = receipt_problems(
            answer, public_key=keys, run_id=run_id, request_id=wire.step_request_id, reply=wire.step.step_release,
            step=1, request_digest=step_digest(run_id=run_id, payload=proposal.payload),
        )  # fmt: skip
        problems += [f"the receipt of the charge: {text}" for text in of_charge]
        problems += [f"the receipt of the answer: {text}" for text in of_answer]
        if (release.run_id, release.step) != (run_id, 1):
            problems.append(f"its release is step {release.step} of run {release.run_id!r}, charged was run {run_id!r}")
        if wire.description.records != proposal.parameters.batch_size:
            problems.append(
                f"its release is of {proposal.parameters.batch_size} records, described are {wire.description.records}"
            )
        return problems


def is_publication(path: Path) -> bool:
    """Whether a file says of itself that it is one."""
    try:
        with path.open("rb") as file:
            return file.read(len(PUBLICATION)) == PUBLICATION
    except OSError:
        return False


def _data(path: Path, start: bytes, what: str) -> bytes:
    """A file that begins with the format's name."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise DataInvalid(f"{path} has more than {MAX_FILE_BYTES} bytes; no {what} is as large")
        data = path.read_bytes()
    except OSError as error:
        raise DataInvalid(f"{path} cannot be read: {error.strerror or error}") from error
    if not data.startswith(start):
        raise DataInvalid(f"{path} is no {what}: it does not begin with {start.decode().strip()}")
    return data
