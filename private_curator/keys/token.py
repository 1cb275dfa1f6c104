"""A key in a hardware security module, or any other token, behind PKCS#11: it signs there and never leaves."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pkcs11
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from pkcs11 import Attribute, Mechanism, ObjectClass

from dpswd.shared.core.errors import SettingsError

_ATTRIBUTES = {"token", "object", "module-path", "pin-source"}


class TokenKey:
    """An Ed25519 key pair of one label in one token; both halves must be there. Safe for threads.

    Args:
        uri: RFC 7512, with token, object, module-path and pin-source, the path of a file whose first line is the PIN.

    Raises:
        SettingsError: the URI, the library, the token, the PIN or the key is none.
    """

    def __init__(self, uri: str) -> None:
        self._uri, self._named = uri, _attributes(uri)
        self._lock = threading.Lock()
        self._session: pkcs11.Session | None = None
        point = bytes(self._find(ObjectClass.PUBLIC_KEY)[Attribute.EC_POINT])
        self._public = Ed25519PublicKey.from_public_bytes(point[-32:])  # behind a DER header of two bytes
        self._private = self._find(ObjectClass.PRIVATE_KEY)

    @classmethod
    def at(cls, uri: str) -> TokenKey:
        """The one of this process: a token takes one log-in of a process, and none over a fork."""
        return _opened(uri, os.getpid())

    def public_key(self) -> Ed25519PublicKey:
        """See `SigningKey`."""
        return self._public

    def sign(self, data: bytes, /) -> bytes:
        """See `SigningKey`; a token that was away is asked anew."""
        with self._lock:
            try:
                return bytes(self._private.sign(data, mechanism=Mechanism.EDDSA))
            except pkcs11.PKCS11Error:
                self._leave()
                self._private = self._find(ObjectClass.PRIVATE_KEY)
                return bytes(self._private.sign(data, mechanism=Mechanism.EDDSA))

    def _find(self, kind: ObjectClass) -> Any:
        named = self._named
        try:
            if self._session is None:
                pin = Path(named["pin-source"]).read_text(encoding="utf-8").partition("\n")[0]
                token = pkcs11.lib(named["module-path"]).get_token(token_label=named["token"])
                self._session = token.open(user_pin=pin)
            return self._session.get_key(object_class=kind, label=named["object"])
        except (pkcs11.PKCS11Error, OSError, RuntimeError) as error:
            self._leave()
            raise SettingsError(
                f"{self._uri.partition('?')[0]} gives no key ({type(error).__name__}: {error}); both halves of an "
                "Ed25519 key stand under that label, and pin-source and module-path name files (docs/operator/keys.md)"
            ) from error

    def _leave(self) -> None:
        if self._session is not None:
            with contextlib.suppress(pkcs11.PKCS11Error):
                self._session.close()
        self._session = None


@functools.lru_cache(maxsize=8)
def _opened(uri: str, _process: int) -> TokenKey:
    return TokenKey(uri)


def _attributes(uri: str) -> dict[str, str]:
    path, _, query = uri.removeprefix("pkcs11:").partition("?")
    pairs = [each.partition("=") for each in (*path.split(";"), *query.split("&")) if each]
    named = {name: unquote(value) for name, _, value in pairs}
    if set(named) != _ATTRIBUTES:
        raise SettingsError(
            f"ledger.keys names a token by {', '.join(sorted(named))}; write pkcs11:token=LABEL;object=LABEL?"
            "module-path=LIBRARY&pin-source=FILE"
        )
    return named | {"pin-source": named["pin-source"].removeprefix("file:")}
