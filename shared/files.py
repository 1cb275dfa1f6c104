"""Files that appear whole or not at all, and keys, which are never overwritten."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO


def write_private(path: Path, data: bytes) -> None:
    """Writes a file that only its owner may read; it appears whole or not at all."""
    with whole_file(path) as file:
        file.write(data)


def write_public(path: Path, data: bytes) -> None:
    """Writes a file that everybody may read; it appears whole or not at all."""
    with whole_file(path, mode=0o644) as file:
        file.write(data)


def create_private(path: Path) -> IO[bytes]:
    """Makes a file that only its owner may read.

    Raises:
        FileExistsError: there is one of this name.
    """
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


@contextlib.contextmanager
def whole_file(path: Path, *, mode: int = 0o600) -> Iterator[IO[bytes]]:
    """A file that appears under its name, on the disk, when the block has ended without an error."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # created with mode 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            yield file
            file.flush()
            os.fsync(descriptor)
        Path(temporary).replace(path)
    finally:
        Path(temporary).unlink(missing_ok=True)
