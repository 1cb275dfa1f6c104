"""A layer between SQLite and the file system that writes down what SQLite asks the disk to do.

It wraps SQLite's own VFS (https://sqlite.org/vfs.html) through ctypes: files are opened by the original, and then
get a table of methods in which xWrite, xTruncate and xSync are recorded before they are done. A test can then
construct every state in which a loss of power could have left the disk.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import random
import sqlite3
from dataclasses import dataclass, field
from pathlib import Path

SECTOR = 512  # bytes that a disk writes or does not write together

_pointer, _int, _i64, _text = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_char_p
_WRITE = ctypes.CFUNCTYPE(_int, _pointer, _pointer, _int, _i64)
_TRUNCATE = ctypes.CFUNCTYPE(_int, _pointer, _i64)
_SYNC = ctypes.CFUNCTYPE(_int, _pointer, _int)
_OPEN = ctypes.CFUNCTYPE(_int, _pointer, _text, _pointer, _int, _pointer)
_DELETE = ctypes.CFUNCTYPE(_int, _pointer, _text, _int)


class _Methods(ctypes.Structure):  # sqlite3_io_methods, version 3
    _fields_ = [
        ("iVersion", _int), ("xClose", _pointer), ("xRead", _pointer), ("xWrite", _WRITE), ("xTruncate", _TRUNCATE),
        ("xSync", _SYNC), *((name, _pointer) for name in (
            "xFileSize", "xLock", "xUnlock", "xCheckReservedLock", "xFileControl", "xSectorSize",
            "xDeviceCharacteristics", "xShmMap", "xShmLock", "xShmBarrier", "xShmUnmap", "xFetch", "xUnfetch")),
    ]  # fmt: skip


class _File(ctypes.Structure):  # the beginning of every sqlite3_file
    _fields_ = [("pMethods", ctypes.POINTER(_Methods))]


class _Vfs(ctypes.Structure):  # sqlite3_vfs, version 3
    _fields_ = [
        ("iVersion", _int), ("szOsFile", _int), ("mxPathname", _int), ("pNext", _pointer), ("zName", _text),
        ("pAppData", _pointer), ("xOpen", _OPEN), ("xDelete", _DELETE), *((name, _pointer) for name in (
            "xAccess", "xFullPathname", "xDlOpen", "xDlError", "xDlSym", "xDlClose", "xRandomness", "xSleep",
            "xCurrentTime", "xGetLastError", "xCurrentTimeInt64", "xSetSystemCall", "xGetSystemCall",
            "xNextSystemCall")),
    ]  # fmt: skip


@dataclass(frozen=True)
class Event:
    """What was asked of the disk, or, with kind "mark", what the world outside learned then."""

    kind: str  # "write", "truncate", "sync", "delete", "mark"
    name: str
    offset: int = 0
    data: bytes = b""
    directory: bool = False  # a deletion whose directory is synced


class RecordingVfs:
    """Registers the layer under ``name``; `events` is what happened, in order."""

    def __init__(self, name: str) -> None:
        self.name, self.events = name, []
        library = ctypes.util.find_library("sqlite3")
        if library is None:
            raise LookupError("SQLite is built into this Python: no shared library to hook into")
        self._sqlite = ctypes.CDLL(library)
        self._sqlite.sqlite3_vfs_find.restype = ctypes.POINTER(_Vfs)
        original = self._sqlite.sqlite3_vfs_find(None).contents
        self._original = original
        self._paths: dict[int, str] = {}
        self._held: list[bytes | None] = []
        self._tables: dict[int, _Methods] = {}  # by the address of the original table
        self._vfs = _Vfs()
        ctypes.pointer(self._vfs)[0] = original
        self._vfs.zName, self._vfs.pNext = name.encode(), None
        self._vfs.xOpen, self._vfs.xDelete = _OPEN(self._open), _DELETE(self._delete)
        assert self._sqlite.sqlite3_vfs_register(ctypes.byref(self._vfs), 0) == 0
        try:
            sqlite3.connect(f"file::memory:?vfs={name}", uri=True).close()
        except sqlite3.OperationalError as error:
            self.unregister()
            raise LookupError(f"Python uses another SQLite than {library}") from error

    def unregister(self) -> None:
        self._sqlite.sqlite3_vfs_unregister(ctypes.byref(self._vfs))

    def mark(self, name: str, data: bytes = b"") -> None:
        """The world outside learns something."""
        self.events.append(Event("mark", name, data=data))

    def _open(self, vfs, path, file, flags, out_flags):
        self._held.append(path)  # SQLite keeps the pointer for as long as the file is open
        code = self._original.xOpen(vfs, path, file, flags, out_flags)
        header = _File.from_address(file)
        if code == 0 and path and header.pMethods:
            self._paths[file] = Path(path.decode()).name
            address = ctypes.addressof(header.pMethods.contents)
            if address not in self._tables:
                self._tables[address] = self._table(header.pMethods.contents)
            header.pMethods = ctypes.pointer(self._tables[address])
        return code

    def _delete(self, vfs, path, sync_directory):
        self.events.append(Event("delete", Path(path.decode()).name, directory=bool(sync_directory)))
        return self._original.xDelete(vfs, path, sync_directory)

    def _table(self, original: _Methods) -> _Methods:
        table = _Methods()
        ctypes.pointer(table)[0] = original
        write, truncate, sync = original.xWrite, original.xTruncate, original.xSync

        def recorded_write(file, data, length, offset):
            self.events.append(Event("write", self._paths[file], offset, ctypes.string_at(data, length)))
            return write(file, data, length, offset)

        def recorded_truncate(file, size):
            self.events.append(Event("truncate", self._paths[file], size))
            return truncate(file, size)

        def recorded_sync(file, flags):
            code = sync(file, flags)
            self.events.append(Event("sync", self._paths[file]))  # durable from now on, not before
            return code

        table.xWrite, table.xTruncate, table.xSync = (
            _WRITE(recorded_write),
            _TRUNCATE(recorded_truncate),
            _SYNC(recorded_sync),
        )
        return table


@dataclass
class Disk:
    """What is certainly on the disk, and what may be."""

    files: dict[str, bytearray]
    pending: list[Event] = field(default_factory=list)

    def take(self, event: Event) -> None:
        if event.kind == "sync":
            for waiting in [e for e in self.pending if e.name == event.name]:
                self._do(waiting)
            self.pending = [e for e in self.pending if e.name != event.name]
        elif event.kind == "delete" and event.directory:
            self.pending = [e for e in self.pending if e.name != event.name]
            self.files.pop(event.name, None)
        elif event.kind != "mark":
            self.pending.append(event)

    def lose_power(self, generator: random.Random) -> dict[str, bytes]:
        """One state that the disk may be in: each waiting operation was done, torn or dropped."""
        disk = Disk({name: bytearray(data) for name, data in self.files.items()})
        mood = generator.random()  # between a disk that had written nearly all and one that had written nearly nothing
        for event in self.pending:
            if event.kind != "write":
                if generator.random() < mood:
                    disk._do(event)
                continue
            for start in range(0, len(event.data), SECTOR):
                if generator.random() < mood:
                    disk._do(Event("write", event.name, event.offset + start, event.data[start : start + SECTOR]))
        return {name: bytes(data) for name, data in disk.files.items()}

    def _do(self, event: Event) -> None:
        if event.kind == "delete":
            self.files.pop(event.name, None)
            return
        data = self.files.setdefault(event.name, bytearray())
        if event.kind == "truncate":
            del data[event.offset :]
            return
        end = event.offset + len(event.data)
        data.extend(bytes(max(0, end - len(data))))
        data[event.offset : end] = event.data
