"""What a worker takes away from itself before it sees a client's graph or a record; none of it can be undone.

Three layers of the Linux kernel, each used where it is there, none of which needs privileges:

- namespaces: a network without any interface, and, by the user namespace, no capabilities over the machine;
- Landlock: only the interpreter and the libraries can be read, nothing can be written, no TCP;
- a seccomp filter (private_curator/sandbox/system_calls.py): no sockets, no programs, no children, no new files.

Limits of memory and of file sizes come on top. `probe` tries the forbidden things, because what a kernel promises and
what a container's own policy lets through differ.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import socket
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from dpswd import shared

_libc = ctypes.CDLL(None, use_errno=True)

_CLONE_NEWNET, _CLONE_NEWUSER, _CLONE_NEWIPC = 0x40000000, 0x10000000, 0x08000000
_PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 4, 38
_MAX_OPEN_FILES = 256

# Landlock (uapi/linux/landlock.h); the numbers are the same on every architecture.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_RULE_PATH_BENEATH = 1
_READ = 1 << 2 | 1 << 3  # READ_FILE, READ_DIR
_WRITE_FILE = 1 << 1
_RIGHTS_OF_ABI = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}


def leave_network() -> bool:
    """Moves this process into a network, and where possible a user namespace, of its own.

    Call before any thread is started: the kernel allows a new user namespace to processes of one thread only.

    Returns:
        Whether it worked; containers often forbid it.
    """
    wishes = (_CLONE_NEWUSER | _CLONE_NEWNET | _CLONE_NEWIPC, _CLONE_NEWNET | _CLONE_NEWIPC, _CLONE_NEWNET)
    return any(_libc.unshare(wish) == 0 for wish in wishes)


def forbid_privileges(*, files: bool = False) -> None:
    """No new privileges, no core dump (it would hold records), no files of any size, few open ones.

    Args:
        files: whether files may have a size: those in memory have one too.
    """
    _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    limits = [(resource.RLIMIT_CORE, 0), (resource.RLIMIT_NOFILE, _MAX_OPEN_FILES)]
    for limit, value in limits if files else [*limits, (resource.RLIMIT_FSIZE, 0)]:
        resource.setrlimit(limit, (value, value))


def limit_memory(allowed_bytes: int) -> None:
    """Bounds what this process may allocate from now on, beyond what it has.

    RLIMIT_DATA counts private writable memory, so that it depends on the sizes that are asked for and not on the
    values in them; memory shared with the curator does not count. RLIMIT_AS would count libraries as well, and a GPU
    driver's reservations.
    """
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmData:"):
            used = int(line.split()[1]) << 10
            resource.setrlimit(resource.RLIMIT_DATA, (used + allowed_bytes, used + allowed_bytes))
            return
    raise OSError(errno.ENOSYS, "this kernel does not tell a process's memory")


def restrict_files(*, devices: bool) -> bool:
    """Lets this process read the interpreter and the libraries, and nothing else; write nothing; open no TCP.

    Args:
        devices: whether it needs a GPU's device files.

    Returns:
        Whether the kernel has Landlock and allows it.
    """
    abi = _libc.syscall(_CREATE_RULESET, None, 0, 1)
    if abi < 1:
        return False
    rights = _RIGHTS_OF_ABI[min(abi, 5)]
    # Files; bind and connect; signals and abstract sockets.
    fields = [rights] + [3] * (abi >= 4) + [3] * (abi >= 6)
    attributes = (ctypes.c_uint64 * len(fields))(*fields)
    ruleset = _libc.syscall(_CREATE_RULESET, attributes, ctypes.sizeof(attributes), 0)
    if ruleset < 0:
        return False
    try:
        for path in _readable():
            _allow(ruleset, path, _READ)
        _allow(ruleset, Path(os.devnull), 1 << 2 | _WRITE_FILE)
        if devices:
            for place in ("/dev", "/proc", "/sys", "/etc"):
                _allow(ruleset, Path(place), (_READ | _WRITE_FILE | 1 << 15) & rights)
        return bool(_libc.syscall(_RESTRICT_SELF, ruleset, 0) == 0)
    finally:
        os.close(ruleset)


def probe(*, port: int, secret: str) -> dict[str, bool]:
    """Tries what a worker must not be able to do; each value says whether it could.

    Args:
        port: of a listener on this machine's loopback interface.
        secret: a file of the curator's.
    """

    def write_file() -> None:
        with tempfile.NamedTemporaryFile(dir="/tmp") as file:
            file.write(b"x")

    attempts: dict[str, Callable[[], object]] = {
        "connect": lambda: socket.create_connection(("127.0.0.1", port), timeout=1.0).close(),
        "open a socket": lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM).close(),
        "write a file": write_file,
        "start a program": lambda: os.posix_spawn(sys.executable, [sys.executable, "-c", "pass"], {}),
        "read the curator's files": lambda: Path(secret).read_bytes(),
    }
    return {name: _works(attempt) for name, attempt in attempts.items()}


def _works(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except OSError:
        return False
    return True


def _readable() -> Iterable[Path]:
    """The interpreter, the libraries and the two packages that the worker is made of."""
    names = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    names |= {sys.prefix, sys.base_prefix, "/usr/lib", "/usr/lib64", "/lib", "/lib64", "/usr/local/lib"}
    names |= {"/etc/ld.so.cache", "/usr/share/zoneinfo", "/dev/urandom"}
    for name in sorted(names):
        path = Path(name)
        if path.exists() and path.resolve() != Path("/"):
            yield path
    yield Path(shared.__file__ or "").resolve().parent
    yield Path(__file__).resolve().parent


def _allow(ruleset: int, path: Path, rights: int) -> None:
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not path.is_dir():
            rights &= ~(1 << 3)
        rule = rights.to_bytes(8, sys.byteorder) + descriptor.to_bytes(4, sys.byteorder)
        if _libc.syscall(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, rule, 0) != 0:
            raise OSError(ctypes.get_errno(), f"Landlock refuses a rule for {path}")
    finally:
        os.close(descriptor)
