"""The places of the ledger's key, and which of them holds the one that signs now.

The ledger says which key signs; a place only holds one. So a change of the key is one entry of the ledger and nothing
else: whatever stops a program before or behind it, the next one finds the key that the ledger names.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from dpswd.shared.certificates import private_pem
from dpswd.shared.core.errors import LedgerUnavailable, SettingsError
from dpswd.shared.core.ledger.keys import SigningKey
from dpswd.shared.files import write_private

TOKEN = "pkcs11:"  # noqa: S105 a scheme


class KeyPlaces:
    """Where the keys of one ledger may be.

    Args:
        file: a PEM file of mode 0600; its successor stands beside it until the ledger names it.
        others: see `open_place`.
    """

    def __init__(self, file: Path, others: Sequence[str] = ()) -> None:
        self.file = file
        self._next = file.with_name(f"{file.name}.next")
        self._others = others

    def only(self) -> SigningKey | None:
        """The key, where there is one place alone; None where the ledger must be asked.

        Raises:
            SettingsError: it is missing or damaged.
        """
        return None if self._others or self._next.exists() else read_file(self.file)

    def find(self, public_key: str) -> SigningKey:
        """The key with this public half, hexadecimal.

        Raises:
            SettingsError: a place holds no key.
            LedgerUnavailable: it is in none of them.
        """
        for place, key in self._keys():
            if key.public_key().public_bytes_raw().hex() == public_key:
                if place == self._next:
                    with contextlib.suppress(FileNotFoundError):  # another program was faster
                        self._next.replace(self.file)
                return key
        raise LedgerUnavailable(
            f"the ledger's key is {public_key[:16]}... by now, and neither {self.file} nor ledger.keys holds it; put "
            "it there: without it the ledger cannot be continued (docs/operator/keys.md)"
        )

    def successor(self, used: Collection[bytes]) -> SigningKey:
        """A key that the ledger never had: the first such place of the settings, else a file's, made where missing.

        Raises:
            SettingsError: a place holds no key.
        """
        for place in self._others:
            key = open_place(place)
            if key.public_key().public_bytes_raw() not in used:
                return key
        if not self._next.exists():
            write_private(self._next, private_pem(Ed25519PrivateKey.generate()))
        return read_file(self._next)

    def _keys(self) -> Iterator[tuple[Path | None, SigningKey]]:
        # The successor first: it becomes the file at any moment, and is then found there.
        for path in (self._next, self.file):
            if path.exists():
                yield path, read_file(path)
        yield from ((None, open_place(place)) for place in self._others)


class CheckedKey:
    """A key that others' code or devices hold: each signature is checked before anything rests on it.

    Args:
        key: the key.
        place: of it, for messages.
    """

    def __init__(self, key: SigningKey, place: str) -> None:
        self._key, self._place = key, place
        self._public = key.public_key()
        if not isinstance(self._public, Ed25519PublicKey):
            raise SettingsError(f"{place} gives no Ed25519 key, the only kind that signs a ledger")

    def public_key(self) -> Ed25519PublicKey:
        """See `SigningKey`."""
        return self._public

    def sign(self, data: bytes, /) -> bytes:
        """See `SigningKey`.

        Raises:
            LedgerUnavailable: no signature came, or a wrong one.
        """
        try:
            signature = self._key.sign(data)
            self._public.verify(signature, data)
        except InvalidSignature as error:
            raise LedgerUnavailable(f"{self._place} gave a signature that is not its key's; nothing is done") from error
        except Exception as error:
            raise LedgerUnavailable(f"{self._place} did not sign ({type(error).__name__}); nothing is done") from error
        return signature


def open_place(place: str) -> SigningKey:
    """The key of a place that is no file.

    Args:
        place: a PKCS#11 URI (RFC 7512); or PACKAGE.MODULE:FUNCTION, called without arguments for a `SigningKey`.

    Raises:
        SettingsError: there is no such key.
    """
    if place.startswith(TOKEN):
        try:
            from dpswd.private_curator.keys.token import TokenKey
        except ImportError as error:
            raise SettingsError(f"{place} needs {error.name}; install dpswd[pkcs11]") from error
        return CheckedKey(TokenKey.at(place), place.partition("?")[0])
    module, _, function = place.partition(":")
    try:
        make: Callable[[], SigningKey] = getattr(importlib.import_module(module), function)
        return CheckedKey(make(), place)
    except Exception as error:
        raise SettingsError(
            f"ledger.keys is {place!r}, which gives no key ({type(error).__name__}: {error}); write a PKCS#11 URI or "
            "PACKAGE.MODULE:FUNCTION (docs/operator/keys.md)"
        ) from error


def read_file(path: Path) -> Ed25519PrivateKey:
    """The key of a PEM file.

    Raises:
        SettingsError: it is missing or damaged.
    """
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError) as error:
        raise SettingsError(
            f"{path} cannot be read ({type(error).__name__}); restore it from a backup: without it the ledger cannot "
            "be continued"
        ) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise SettingsError(f"{path} is no Ed25519 key; restore the ledger's own key from a backup")
    return key
