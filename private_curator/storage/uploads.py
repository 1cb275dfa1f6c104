"""What clients uploaded: extractor graphs and weights, kept on disk by content.

Uploads are public values, cost no budget and survive a restart. An object's name is the SHA-256 of its bytes. Each
client sees only what it uploaded itself: a digest alone opens nothing, so one client cannot learn what another one
works with. Quotas count each client's own objects.

Layout under the store's directory::

    objects/<sha256>                          the bytes
    clients/<client>/<kind>-<sha256>          empty: this client uploaded this object as this kind
"""

from __future__ import annotations

import enum
import hashlib
import threading
from collections import defaultdict
from pathlib import Path

from dpswd.private_curator.storage.certificates import check_client_name
from dpswd.shared.core.errors import LedgerUnavailable, RequestInvalid
from dpswd.shared.files import write_private


class Kind(enum.Enum):
    """What an object is."""

    GRAPH = "graph"
    WEIGHTS = "weights"


class UploadStore:
    """Content-addressed files with an owner's mark for each client.

    Args:
        directory: where the store lives; made when it does not exist.
        max_bytes: bytes that one client may keep.
        max_objects: objects that one client may keep.
    """

    def __init__(self, directory: Path, *, max_bytes: int, max_objects: int) -> None:
        self._objects = directory / "objects"
        self._clients = directory / "clients"
        self._max_bytes = max_bytes
        self._max_objects = max_objects
        self._putting: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)  # of each client
        for path in (directory, self._objects, self._clients):  # parents that mkdir makes take the umask's mode
            path.mkdir(parents=True, exist_ok=True, mode=0o700)

    def put(self, kind: Kind, data: bytes, *, client: str, field: str) -> str:
        """Stores bytes and returns their digest; storing the same again costs nothing.

        Args:
            kind: what the bytes are.
            data: the bytes, validated by the caller.
            client: the uploader.
            field: path in the request, for the error.

        Raises:
            RequestInvalid: the client's quota is used up.
            LedgerUnavailable: the disk cannot be written; nothing was stored.
        """
        digest = hashlib.sha256(data).hexdigest()
        mark = self._mark(kind, digest, client)
        with self._putting[client]:
            if self._read(digest) is not None and mark.exists():
                return digest
            self._check_quota(client, adding=len(data), field=field)
            try:
                if self._read(digest) is None:
                    write_private(self._objects / digest, data)
                mark.parent.mkdir(exist_ok=True, mode=0o700)
                mark.touch(mode=0o600)
            except OSError as error:
                raise LedgerUnavailable(
                    f"the curator cannot store uploads ({error.strerror}); nothing was spent, try again later"
                ) from error
        return digest

    def owns(self, kind: Kind, digest: str, *, client: str) -> bool:
        """Whether this client uploaded an object of this kind and digest."""
        if len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):  # never a path from outside
            return False
        return self._mark(kind, digest, client).exists()

    def get(self, kind: Kind, digest: str, *, client: str) -> bytes | None:
        """The bytes that this client uploaded under this digest, or None."""
        return self._read(digest) if self.owns(kind, digest, client=client) else None

    def _read(self, digest: str) -> bytes | None:
        try:
            data = (self._objects / digest).read_bytes()
        except FileNotFoundError:
            return None
        # A file that a crash cut short counts as absent: the client uploads it again.
        return data if hashlib.sha256(data).hexdigest() == digest else None

    def _check_quota(self, client: str, *, adding: int, field: str) -> None:
        directory = self._clients / client
        digests = {mark.name.rpartition("-")[2] for mark in directory.iterdir()} if directory.is_dir() else set()
        files = [self._objects / digest for digest in digests]
        used = sum(file.stat().st_size for file in files if file.exists())
        if used + adding > self._max_bytes or len(digests) + 1 > self._max_objects:
            text = (
                f"would exceed this client's storage: {len(digests)} objects with {used} bytes are kept, allowed are "
                f"{self._max_objects} objects with {self._max_bytes} bytes; ask the operator to raise the limit"
            )
            raise RequestInvalid(((field, text),))

    def _mark(self, kind: Kind, digest: str, client: str) -> Path:
        check_client_name(client)  # the name becomes a path
        return self._clients / client / f"{kind.value}-{digest}"
