"""Which key signs where in a ledger whose key was changed: a reader who pinned one of them finds the others.

A change is one entry, which both keys sign: the old one as any entry, the new one in its payload, over its place in the
chain and the entry before it. So a pinned key leads forward and back, offline, as far as changes are shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.ledger.receipts import HEX_256, Signed, SignedEntry, canonical_json, is_signed

KEY_CHANGED = "key-changed"


class SigningKey(Protocol):
    """An Ed25519 key that signs: cryptography's own, or one that never leaves a device or a service.

    To put a key service behind it, write a class with these two methods (docs/operator/keys.md).
    """

    def public_key(self) -> Ed25519PublicKey:
        """Its public half; asked often, and always the same."""

    def sign(self, data: bytes, /) -> bytes:
        """The signature of the data itself, 64 bytes; called by several threads at a time."""


@dataclass(frozen=True)
class LedgerKeys:
    """The keys of one ledger, in the order of their use.

    Attributes:
        pinned: the raw key, 32 bytes, that a reader trusts.
        changes: entries that lead from key to key, in order; the pinned one is among them.
    """

    pinned: bytes
    changes: tuple[SignedEntry, ...] = ()

    @classmethod
    def of(cls, key: bytes | LedgerKeys, entries: Iterable[SignedEntry | str] = ()) -> LedgerKeys:
        """A key, or keys, with what further entries, or their lines, lead to.

        Raises:
            InvalidValue: a line is no entry.
        """
        read = (SignedEntry.from_json(entry) if isinstance(entry, str) else entry for entry in entries)
        return (key if isinstance(key, LedgerKeys) else cls(key)).joined(read)

    @property
    def every(self) -> tuple[bytes, ...]:
        """Each key, the newest last."""
        return (*(_key(change, "replaces") for change in self.changes), self.newest)

    @property
    def newest(self) -> bytes:
        """The key that signs now."""
        return _key(self.changes[-1], "public_key") if self.changes else self.pinned

    def at(self, seq: int) -> bytes:
        """The key of one place in the chain."""
        return next((_key(change, "replaces") for change in self.changes if seq <= change.seq), self.newest)

    def joined(self, entries: Iterable[SignedEntry]) -> LedgerKeys:
        """With those entries that are changes from, or to, one of these keys; others say nothing."""
        further = sorted({e.hash: e for e in entries if is_key_change(e)}.values(), key=lambda entry: entry.seq)
        changes = list(self.changes)
        for each in further:
            newest = _key(changes[-1], "public_key") if changes else self.pinned
            if _key(each, "replaces") == newest and (not changes or changes[-1].seq < each.seq):
                changes.append(each)
        for each in reversed(further):
            oldest = _key(changes[0], "replaces") if changes else self.pinned
            if _key(each, "public_key") == oldest and (not changes or each.seq < changes[0].seq):
                changes.insert(0, each)
        return LedgerKeys(self.pinned, tuple(changes))

    def to_text(self) -> str:
        """What ``ledger.pub`` holds: the key in hexadecimal, and a line for each change."""
        return "".join(f"{line}\n" for line in (self.pinned.hex(), *(change.to_json() for change in self.changes)))

    @classmethod
    def from_text(cls, text: str) -> LedgerKeys:
        """The inverse of `to_text`; the changes must lead from or to the key.

        Raises:
            InvalidValue: the text holds no key, or something else beside it.
        """
        first, *lines = text.strip().splitlines() or [""]
        if not HEX_256.fullmatch(first):
            raise InvalidValue("a ledger's key has 64 hexadecimal digits")
        keys = cls.of(bytes.fromhex(first), lines)
        if len(keys.changes) != len(lines):
            raise InvalidValue("a line beside the key is no change of it that both keys signed")
        return keys


PinnedKey = bytes | LedgerKeys
"""What a reader trusts: a raw key, 32 bytes, or keys that it leads to."""


def key_change(last: SignedEntry, *, ledger: str, old: SigningKey, new: SigningKey) -> dict[str, str]:
    """What the entry behind the last one states when the ledger's key is changed."""
    before, after = (key.public_key().public_bytes_raw().hex() for key in (old, new))
    stated = {"ledger": ledger, "replaces": before, "public_key": after}
    return {**stated, "proof": new.sign(Signed.KEY.over(_proven(stated, last.seq + 1, last.hash))).hex()}


def is_key_change(entry: SignedEntry) -> bool:
    """Whether an entry is a change of the ledger's key that both keys have signed."""
    if entry.kind != KEY_CHANGED:
        return False
    try:
        payload, new = entry.payload, _key(entry, "public_key")
        stated = {name: payload[name] for name in ("ledger", "replaces", "public_key")}
        proven = is_signed(Signed.KEY, _proven(stated, entry.seq, entry.previous), bytes.fromhex(payload["proof"]), new)
        return proven and entry.signed_by(_key(entry, "replaces"))
    except (InvalidValue, KeyError, ValueError, TypeError):
        return False


def _proven(stated: Mapping[str, Any], seq: int, previous: str) -> bytes:
    return canonical_json({**stated, "seq": seq, "previous": previous})


def _key(change: SignedEntry, which: str) -> bytes:
    return bytes.fromhex(change.payload[which])
