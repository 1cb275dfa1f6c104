"""Where a ledger stands, as its entries state it: a copy of it stands elsewhere, and two would spend one budget twice.

A file is known by its inode and by when that was born: both stay when a machine starts again, when a disk is attached
to another one, and when a container is made anew around its volume, and whatever copies the file gets others. A disk
that is copied as a whole keeps both, so a machine that has an id of its own (our images have none) is named as well,
with the path. PostgreSQL names itself. What the system does not tell says nothing: no ledger is refused for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import re
import struct
from collections.abc import Mapping
from pathlib import Path

Place = Mapping[str, int | str | None]
_MACHINE_ID = Path("/etc/machine-id")
_AT_FDCWD, _STATX_BTIME = -100, 0x800  # linux/fcntl.h, linux/stat.h


def place_of(file: Path, *, named: Path) -> Place:
    """The place of a file that stands at ``named``, or is going to."""
    return {"inode": file.stat().st_ino, "born": _born(file), "machine": _machine(named)}


def elsewhere(stated: Place, actual: Place) -> bool:
    """Whether two places differ in something that both tell."""
    return any(None not in (value, actual.get(name)) and value != actual[name] for name, value in stated.items())


def _born(file: Path) -> int | None:
    """When the file was made, in nanoseconds since 1970, where its file system keeps that.

    It is not opened: to close it would end SQLite's locks on it.
    """
    buffer = ctypes.create_string_buffer(256)
    statx = getattr(ctypes.CDLL(None), "statx", None)
    if statx is None or statx(_AT_FDCWD, os.fsencode(file), 0, _STATX_BTIME, buffer):
        return None
    (mask,) = struct.unpack_from("=I", buffer)
    seconds, nanoseconds = struct.unpack_from("=qI", buffer, 80)
    return seconds * 10**9 + nanoseconds if mask & _STATX_BTIME else None


def _machine(named: Path) -> str | None:
    """The machine and the path on it, as a digest: systemd wants the id itself told to nobody."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        machine = _MACHINE_ID.read_text(encoding="ascii").strip()
        if re.fullmatch("[0-9a-f]{32}", machine):
            return hashlib.sha256(f"dpswd-1 place\0{machine}\0{named.resolve()}".encode()).hexdigest()[:32]
    return None
