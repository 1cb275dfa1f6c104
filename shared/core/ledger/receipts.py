"""Signed ledger entries, and how either party checks them without trusting the other.

The curator's ledger is a chain of *statements*. A statement is canonical JSON::

    {"format":"dpswd-ledger-1","kind":"step-answered","payload":{...},
     "previous":"<SHA-256 of the statement before>","seq":17,"time":"2026-01-31T12:00:00.000000Z"}

and carries an Ed25519 signature. A *receipt* is the signed statement that a step was answered (``step-answered``) or
that a run was opened and charged (``run-opened``). It holds its position in the chain: whoever keeps receipts can hold
them against an export of the ledger and find any edit, deletion, reordering, truncation or rollback at or before them.

What must never change: the meaning of ``dpswd-ledger-1``. Another layout is another format string.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from dpswd.shared.core.errors import InvalidValue

FORMAT = "dpswd-ledger-1"
GENESIS = "0" * 64  # what the first entry names as its predecessor
RUN_OPENED = "run-opened"
STEP_ANSWERED = "step-answered"

MAX_STATEMENT_BYTES = 1 << 20  # a statement has some hundreds; with a run's price at many orders, some ten thousand
Sign = Callable[[bytes], bytes]
HEX_256 = re.compile(r"[0-9a-f]{64}")
_KEYS = {"format", "kind", "payload", "previous", "seq", "time"}
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


class Signed(enum.StrEnum):
    """What the ledger's key signs. Each kind has a prefix of its own: no signature means anything else."""

    ENTRY = "entry"
    VIEW = "view"
    REPORT = "report"
    PRINTED_REPORT = "printed-report"
    PUBLICATION = "publication"
    KEY = "key"

    def over(self, content: bytes) -> bytes:
        """The signed bytes; no kind's prefix, which a zero ends, begins another's."""
        return f"dpswd-1 {self}\0".encode("ascii") + content


def canonical_json(value: object) -> bytes:
    """The one byte string of a JSON value: sorted keys, no spaces, ASCII, no NaN or infinity.

    Raises:
        InvalidValue: the value is not JSON, or holds a number that JSON does not have.
    """
    try:
        text = _CANONICAL.encode(value)
    except (TypeError, ValueError) as error:
        raise InvalidValue(f"a ledger entry holds only finite JSON values: {error}") from error
    return text.encode("ascii")


def sha256(data: bytes) -> str:
    """SHA-256 in lower-case hexadecimal, the only digest that the ledger uses."""
    return hashlib.sha256(data).hexdigest()


def is_signed(kind: Signed, content: bytes, signature: bytes, public_key: bytes) -> bool:
    """Whether the signature of the content, as of this kind, is that of the raw 32-byte Ed25519 ``public_key``.

    Raises:
        InvalidValue: ``public_key`` is no Ed25519 key.
    """
    try:
        _key(public_key).verify(signature, kind.over(content))
    except InvalidSignature:
        return False
    return True


@functools.lru_cache(maxsize=16)
def _key(public_key: bytes) -> Ed25519PublicKey:
    try:
        return Ed25519PublicKey.from_public_bytes(public_key)
    except ValueError as error:
        raise InvalidValue(f"an Ed25519 public key has 32 raw bytes, this one has {len(public_key)}") from error


def signed_line(statement: bytes, signature: bytes, *, field: str = "statement") -> str:
    """A signed statement as one line of a file; ``field`` says what kind of statement it is."""
    return canonical_json({"signature": signature.hex(), field: statement.decode("ascii")}).decode("ascii")


def read_signed_line(line: str, *, field: str = "statement") -> tuple[bytes, bytes]:
    """The statement and the signature of a line; the signature is not checked.

    Raises:
        InvalidValue: the line holds no signed statement.
    """
    try:
        value = json.loads(line)
        statement, signature = value[field].encode("ascii"), bytes.fromhex(value["signature"])
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InvalidValue(f"not a signed entry: {error!r}") from error
    if signature.hex() != value["signature"]:
        raise InvalidValue("not a signed entry: a signature is written in lower-case hexadecimal, in one way only")
    return statement, signature


class KeysByPlace(Protocol):
    """The keys of a ledger whose key was changed (`dpswd.shared.core.ledger.keys`)."""

    def at(self, seq: int) -> bytes:
        """The key of one place in the chain."""


@dataclass(frozen=True, kw_only=True)
class SignedEntry:
    """One entry of the ledger: the signed bytes and what they say.

    Attributes:
        seq: position in the chain, 1 for the first.
        kind: what the entry states; docs/reference/ledger.md lists the kinds.
        time: UTC by the curator's clock; information only, nothing depends on it.
        payload: the kind's fields.
        previous: SHA-256 of the statement before, in hexadecimal.
        statement: what is signed, as of `Signed.ENTRY`.
        signature: Ed25519, 64 bytes.
    """

    seq: int
    kind: str
    time: str
    payload: Mapping[str, Any]
    previous: str
    statement: bytes
    signature: bytes

    @property
    def hash(self) -> str:
        """SHA-256 of the statement, in hexadecimal: what the next entry names as ``previous``."""
        return sha256(self.statement)

    def signed_by(self, public_key: bytes | KeysByPlace) -> bool:
        """Whether the signature is that of the raw 32-byte Ed25519 ``public_key``, or of the keys' one for this place.

        Raises:
            InvalidValue: ``public_key`` is no Ed25519 key.
        """
        key = public_key if isinstance(public_key, bytes) else public_key.at(self.seq)
        return is_signed(Signed.ENTRY, self.statement, self.signature, key)

    @classmethod
    def following(
        cls, last: SignedEntry | None, *, kind: str, payload: Mapping[str, Any], time: str, sign: Sign
    ) -> SignedEntry:
        """A new entry behind the last one; None begins a chain.

        Raises:
            InvalidValue: the payload is not JSON.
        """
        previous, seq = (GENESIS, 1) if last is None else (last.hash, last.seq + 1)
        stated = {"kind": kind, "payload": payload, "previous": previous, "seq": seq, "time": time}
        statement = canonical_json({"format": FORMAT, **stated})
        return cls.parse(statement, sign(Signed.ENTRY.over(statement)))

    def to_json(self) -> str:
        """One line of an export or of a client's receipt file."""
        return signed_line(self.statement, self.signature)

    @classmethod
    def from_json(cls, line: str) -> SignedEntry:
        """The inverse of `to_json`.

        Raises:
            InvalidValue: the line is no signed entry.
        """
        return cls.parse(*read_signed_line(line))

    @classmethod
    def parse(cls, statement: bytes, signature: bytes) -> SignedEntry:
        """Reads a statement. The signature is kept, not checked: see `signed_by`.

        Raises:
            InvalidValue: the bytes are not the canonical form of a statement of this format.
        """
        if len(statement) > MAX_STATEMENT_BYTES:
            raise InvalidValue(f"a statement has at most {MAX_STATEMENT_BYTES} bytes, this one has {len(statement)}")
        try:
            value = json.loads(statement)
        except (ValueError, RecursionError) as error:
            raise InvalidValue(f"a statement is canonical JSON: {error}") from error
        if not isinstance(value, dict) or set(value) != _KEYS or value["format"] != FORMAT:
            raise InvalidValue(f"a statement is an object of format {FORMAT!r} with the keys {sorted(_KEYS)}")
        if canonical_json(value) != statement:
            # Two spellings of one statement would have two hashes: only one of them may exist.
            raise InvalidValue("the statement is not in canonical form")
        seq, previous = value["seq"], value["previous"]
        typed = isinstance(value["kind"], str) and isinstance(value["time"], str) and isinstance(value["payload"], dict)
        if type(seq) is not int or seq < 1 or not typed:
            raise InvalidValue("a statement has a positive seq, a kind, a time and a payload")
        if not isinstance(previous, str) or not HEX_256.fullmatch(previous):
            raise InvalidValue("a statement names its predecessor by SHA-256 in hexadecimal")
        stated = {key: value[key] for key in ("seq", "kind", "time", "payload", "previous")}
        return cls(**stated, statement=statement, signature=signature)


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """A signed entry that states a charge or an answer to this client.

    Attributes:
        entry: the signed entry itself; everything else is read from it.
        run_id: the run.
        step: 1 for the first step of the run, 0 for the opening of the run, which charges all its steps.
        client: the name under which the operator knows the client.
        request_id: the client's own id of the request.
        request_digest: SHA-256 of the validated request, as the curator computed it.
        reply_digest: SHA-256 of the released bytes; None for the opening of a run.
    """

    entry: SignedEntry
    run_id: str
    step: int
    client: str
    request_id: str
    request_digest: str
    reply_digest: str | None

    @classmethod
    def of(cls, entry: SignedEntry) -> Receipt:
        """The receipt that an entry is.

        Raises:
            InvalidValue: the entry states neither a charge nor an answer.
        """
        if entry.kind not in (RUN_OPENED, STEP_ANSWERED):
            raise InvalidValue(f"a receipt states {RUN_OPENED!r} or {STEP_ANSWERED!r}, not {entry.kind!r}")
        answered = entry.kind == STEP_ANSWERED
        texts = ("run", "client", "request_id", "digest", *(("reply",) if answered else ()))
        payload = entry.payload
        step = payload.get("step", -1) if answered else 0
        if not all(isinstance(payload.get(key), str) for key in texts) or type(step) is not int or step < 0:
            raise InvalidValue(f"a receipt of kind {entry.kind!r} holds the texts {texts} and a step")
        return cls(
            entry=entry,
            run_id=payload["run"],
            step=step,
            client=payload["client"],
            request_id=payload["request_id"],
            request_digest=payload["digest"],
            reply_digest=payload["reply"] if answered else None,
        )
