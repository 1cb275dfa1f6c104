"""Who acts: a name, and the key that proves it. Two persons are two keys, and the ledger states which of them signed.

A key is a file of one operator's own, of mode 0600; the ledger holds its public half. From the first that is enrolled
every act is signed: the signature covers the act and the entry before it, so that nobody can say it again. Anybody may
still freeze and pause, for nothing is lost by it. Each reader of the ledger checks all of this from its entries.
"""

from __future__ import annotations

import json
import os
import secrets
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from dpswd.private_curator.core.ledger.database import Session
from dpswd.private_curator.core.ledger.statements import Kind, hex_256
from dpswd.private_curator.core.ledger.store import head
from dpswd.shared.core.errors import InvalidValue, SettingsError
from dpswd.shared.core.ledger.receipts import canonical_json
from dpswd.shared.files import create_private

MAX_OPERATOR_LENGTH = 100
"""Characters of an operator's name in the ledger."""
FREE = frozenset({Kind.DATA_SET_OPENED, Kind.FROZEN, Kind.CLIENT_PAUSED})
"""What needs no credential: the beginning, and what only stops."""
SECONDED = {
    "extend": {Kind.BUDGET_EXTENDED},
    "approve": {Kind.CLIENT_ADDED, Kind.CERTIFICATE_ADDED},
    "restore": {Kind.RESTORED, Kind.STATE_ACCEPTED, Kind.COPIES_COUNTED},
    "state": {Kind.STATED},
    "enrol": {Kind.OPERATOR_ADDED},
    "remove": {Kind.OPERATOR_REMOVED},
}
"""The acts that two operators can want, and the entries that they become."""
WISH = {"operator", "credential", "subject", "act", "arguments", "reason", "time", "ledger", "nonce", "signature"}
"""What an operator's wish states, see `Operator.wish`."""
_FORMAT = "dpswd-operator-1"
_ACT, _WISH = b"dpswd-1 operator's act\0", b"dpswd-1 operator's wish\0"


@dataclass(frozen=True)
class Operator:
    """Whoever acts.

    Attributes:
        name: as the ledger states it.
        key: this operator's own; None where nothing proves the name.
        first: what another operator signed, see `wished`, and this one does.
        seconds_only: whether this one only does what another one has noted.
        subject: who signed in elsewhere, and acts through this operator: an issuer, its sub for the person, and a name.
    """

    name: str
    key: Ed25519PrivateKey | None = None
    first: Mapping[str, Any] | None = None
    subject: Mapping[str, str] | None = None
    seconds_only: bool = False

    @property
    def credential(self) -> str | None:
        """The public key, hexadecimal: what the ledger calls this operator by."""
        return None if self.key is None else self.key.public_key().public_bytes_raw().hex()

    @property
    def text(self) -> str:
        """The names, for a reader."""
        return who({**self.named, "first": self.first})

    @property
    def named(self) -> dict[str, Any]:
        """As acts state this operator, without what another one signed."""
        own = {} if self.subject is None else {"subject": dict(self.subject)}
        return {"operator": self.name, "credential": self.credential, **own}

    @classmethod
    def of(cls, by: Operator | str | None) -> Operator:
        """An operator; a text is a name that nothing proves."""
        return by if isinstance(by, Operator) else cls(by or "")

    @classmethod
    def read(cls, path: Path) -> Operator:
        """Reads a credential's file.

        Raises:
            SettingsError: it cannot be read, is none, or others than its owner may read it.
        """
        try:
            with path.open("rb") as file:
                status, data = os.fstat(file.fileno()), file.read()
            value = json.loads(data)
            if value["format"] != _FORMAT:
                raise ValueError  # noqa: TRY301 said below
            made = cls(
                checked_operator(value["operator"]), Ed25519PrivateKey.from_private_bytes(bytes.fromhex(value["key"]))
            )
        except OSError as error:
            raise SettingsError(f"{path} cannot be read: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, InvalidValue):
            text = f"{path} is no operator's credential; make one with `dpswd-curator operators --make`"
            raise SettingsError(text) from None  # the error may quote the key
        if stat.S_IMODE(status.st_mode) & 0o077 or status.st_uid != os.geteuid():
            raise SettingsError(
                f"{path} is a credential that others may use; it must be yours alone: chown it to yourself, chmod 600"
            )
        return made

    @classmethod
    def make(cls, path: Path, name: str) -> Operator:
        """Makes a credential's file, which its owner alone may read.

        Raises:
            InvalidValue: the name is none.
            SettingsError: the file exists.
        """
        made = cls(checked_operator(name), Ed25519PrivateKey.generate())
        assert made.key is not None
        value = {"format": _FORMAT, "operator": made.name, "key": made.key.private_bytes_raw().hex()}
        try:
            with create_private(path) as file:
                file.write(f"{json.dumps(value)}\n".encode())
        except FileExistsError as error:
            raise SettingsError(f"{path} exists, and a credential is never overwritten; choose another file") from error
        return made

    def propose(self) -> None:
        """Raises SettingsError where this one only does what another one has noted."""
        if self.seconds_only:
            raise SettingsError("a second operator does what another operator has noted, and nothing else")

    def acting(
        self, session: Session, kind: Kind, payload: Mapping[str, Any], books: Enrolled | None
    ) -> dict[str, Any]:
        """An act's payload with who does it, signed behind the ledger's last entry.

        Args:
            session: sees the entries.
            kind: what is done.
            payload: its fields.
            books: who is enrolled; None where nobody can be asked, as in a backup from before.

        Raises:
            SettingsError: the ledger would not take it from this operator.
        """
        by = self.named
        if self.first is None:
            self.propose()
        else:
            by["first"] = self.first
        last = head(session)
        if self.key is not None and last is not None:
            by["signature"] = self.key.sign(_signed(kind, payload, by, last.hash)).hex()
        acted = {**payload, "by": by}
        try:
            if books is not None:
                books.take(kind, acted, "" if last is None else last.hash, try_only=True)
        except InvalidValue as error:
            raise SettingsError(f"nothing was done: {error}") from error
        return acted

    def wish(self, act: str, arguments: Mapping[str, Any], *, reason: str, ledger: str, time: str) -> dict[str, Any]:
        """What this operator wants, signed, for another one to do."""
        assert self.key is not None
        fields = {
            "subject": None, **self.named, "act": act, "arguments": arguments, "reason": reason, "time": time,
            "ledger": ledger, "nonce": secrets.token_hex(16),
        }  # fmt: skip
        return {**fields, "signature": self.key.sign(_WISH + canonical_json(fields)).hex()}


class Enrolled:
    """The operators of a ledger, by name, and the wishes that were done.

    Attributes:
        keys: public keys, hexadecimal.
        issuers: whose subjects an operator speaks for; those of persons are missing.
        ledger: the ledger's id.
        second: acts that take two, whatever the settings say by now: those that two have done, and those that the
            settings named when an operator was enrolled. When two operators change who is enrolled, they say anew.
    """

    def __init__(self) -> None:
        self.keys: dict[str, str] = {}
        self.issuers: dict[str, str] = {}
        self.ledger = ""
        self.second: set[str] = set()
        self._done: set[str] = set()

    def take(self, kind: str, payload: Mapping[str, Any], previous: str, *, try_only: bool = False) -> None:
        """Takes an act: who did it must be who they say.

        Args:
            kind: of the entry.
            payload: with ``by``.
            previous: SHA-256 of the entry before.
            try_only: changes nothing.

        Raises:
            InvalidValue: a name, a credential or a signature does not fit.
        """
        by = payload["by"]
        name, credential, first = by["operator"], by["credential"], by.get("first")
        # A backup may be older than who restores it; whoever does is held to the ledger that stands there before.
        enrolled = kind != Kind.RESTORED and bool(self.keys)
        if credential is None:
            if enrolled and kind not in FREE:
                raise InvalidValue(
                    f"{name!r} is a name without a credential, and this ledger has operators "
                    f"({', '.join(sorted(self.keys))}): give yours with --credential FILE"
                )
            if first is not None:
                raise InvalidValue("a second operator has a credential")
        else:
            if enrolled:
                self._hold_enrolled(name, credential, by.get("subject") or {})
            if previous:
                _verify(by, _signed(kind, payload, by, previous))
        if kind == Kind.OPERATOR_ADDED:
            self._hold_first(payload)
        if first is not None:
            if problem := self.problem(first, by, enrolled=enrolled):
                raise InvalidValue(problem)
            if kind not in SECONDED.get(first["act"], ()):
                raise InvalidValue(f"what {first['operator']!r} wanted was {first['act']!r}, not {kind!r}")
            if not try_only:
                self._done.add(first["nonce"])
                self.second.add(first["act"])
        elif enrolled and (taken := [act for act in self.taking_two() if kind in SECONDED[act]]):
            raise InvalidValue(
                f"{taken[0]} takes two operators here: the ledger remembers it, whatever the settings say"
            )

    def taking_two(self) -> set[str]:
        """What takes two operators, and so does a change of who they are, as soon as there are two."""
        return self.second | {"enrol", "remove"} if self.second and len(self.keys) > 1 else self.second

    def counts(self, name: str, credential: str | None) -> bool:
        """Whether this is the credential by which an operator of this name is enrolled."""
        return credential is not None and self.keys.get(name) == credential

    def problem(self, wish: Mapping[str, Any], by: Mapping[str, Any], *, enrolled: bool = True) -> str:
        """Why a wish of another operator may not be done by this one; empty where it may."""
        name, first, second = wish["operator"], person(wish), person(by)
        if set(first) & set(second):
            return f"{who(wish)} wants it already; another operator does it"
        if len(first) != len(second):
            return "one of the two signed in and the other showed a credential: both do the same, to be told apart"
        if enrolled and not self.counts(name, wish["credential"]):
            return f"{name!r} is not enrolled with the credential that wants it"
        if wish["ledger"] != self.ledger or wish["nonce"] in self._done:
            return "it is another ledger's, or was done already"
        try:
            _verify(wish, _WISH + canonical_json({key: value for key, value in wish.items() if key != "signature"}))
        except InvalidValue as error:
            return str(error)
        return ""

    def add(self, payload: Mapping[str, Any]) -> None:
        """Enrols an operator; raises InvalidValue: the name or the key is taken, or is none."""
        name, key = checked_operator(payload["operator"]), hex_256(payload["key"], "an operator's public key")
        if name in self.keys or key in self.keys.values():
            raise InvalidValue(f"an operator {name!r}, or one with this key, is enrolled already")
        self.keys[name] = key
        if payload.get("issuer"):
            self.issuers[name] = payload["issuer"]
        self._say(payload)

    def remove(self, payload: Mapping[str, Any]) -> None:
        """Takes an operator out; raises InvalidValue: there is none of this name."""
        if self.keys.pop(payload["operator"], None) is None:
            raise InvalidValue(f"no operator {payload['operator']!r} is enrolled")
        self.issuers.pop(payload["operator"], None)
        self._say(payload)

    def _hold_enrolled(self, name: str, credential: str, subject: Mapping[str, str]) -> None:
        if not self.counts(name, credential):
            raise InvalidValue(f"the credential {credential[:16]} of {name!r} is not one that is enrolled here")
        if subject.get("issuer") != (own := self.issuers.get(name)):
            raise InvalidValue(f"{name!r} acts for those whom {own or 'nobody'} signs in, and this is none of them")

    def _hold_first(self, payload: Mapping[str, Any]) -> None:
        added, by = (payload["operator"], payload["key"]), payload["by"]
        if not self.keys and added != (by["operator"], by["credential"]):
            raise InvalidValue(f"the first operator enrols themselves: give the --credential FILE of {added[0]!r}")

    def _say(self, payload: Mapping[str, Any]) -> None:
        said = set(payload["second"])
        if not said <= SECONDED.keys():
            raise InvalidValue(f"{sorted(said - SECONDED.keys())} are no acts that two can be wanted for")
        self.second = said if payload.get("by", {}).get("first") else self.second | said


def who(by: Mapping[str, Any] | None) -> str:
    """The names of whoever acted, for a reader, each with the first digits of the credential that proves it."""
    if not by:
        return ""
    name = by["operator"] + (f" ({by['credential'][:8]})" if by["credential"] else "")
    if subject := by.get("subject"):
        name = f"{subject['name']} ({subject['sub']} at {subject['issuer']}) through {name}"
    return f"{who(by['first'])}, seconded by {name}" if by.get("first") else name


def person(by: Mapping[str, Any]) -> tuple[object, ...]:
    """What tells whoever acted from every other one: the subject of an issuer, or name and credential, each of both."""
    subject = by.get("subject")
    return ((subject["issuer"], subject["sub"]),) if subject else (by["operator"], by["credential"])


def checked_operator(name: str) -> str:
    """An operator's name as acts state it.

    Raises:
        InvalidValue: it is not 1 to `MAX_OPERATOR_LENGTH` printable characters.
    """
    if not 1 <= len(name.strip()) <= MAX_OPERATOR_LENGTH or not name.isprintable():
        raise InvalidValue(f"an operator's name has 1 to {MAX_OPERATOR_LENGTH} printable characters, not {name!r}")
    return name.strip()


def _signed(kind: str, payload: Mapping[str, Any], by: Mapping[str, Any], previous: str) -> bytes:
    unsigned = {key: value for key, value in by.items() if key != "signature"}
    return _ACT + canonical_json({"kind": kind, "payload": {**payload, "by": unsigned}, "previous": previous})


def _verify(stated: Mapping[str, Any], text: bytes) -> None:
    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(stated["credential"]))
        key.verify(bytes.fromhex(stated["signature"]), text)
    except (InvalidSignature, KeyError, ValueError, TypeError):
        raise InvalidValue(
            f"the signature of {stated['operator']!r} is not one of the credential that is named"
        ) from None
