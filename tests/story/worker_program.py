"""A worker that can do more than others: runs code inside the confinement, for `test_worker`."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import socket
import time
from pathlib import Path

from dpswd.private_curator.sandbox.start import main


def attempts(curator: int) -> dict[str, object]:
    libc = ctypes.CDLL(None, use_errno=True)

    def called(number, *arguments):
        if libc.syscall(number, *arguments) < 0:
            raise OSError(ctypes.get_errno(), "refused")

    def overwrite():
        Path("/proc/self/comm").write_text("x")

    def child():
        if os.fork() == 0:
            os._exit(0)

    def shrink():
        for descriptor in range(3, 64):  # among them the memory that the curator reads
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, 0)
                return
        raise OSError(errno.EPERM, "none of them can be shrunk")

    x86 = os.uname().machine == "x86_64"
    return {
        "TCP over IPv6": lambda: socket.socket(socket.AF_INET6, socket.SOCK_STREAM),
        "UDP": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
        "a Unix socket": lambda: socket.socket(socket.AF_UNIX, socket.SOCK_STREAM),
        "a raw socket": lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP),
        "a socket pair": socket.socketpair,
        "io_uring": lambda: called(425, 4, ctypes.create_string_buffer(256)),
        "a child": child,
        "a program": lambda: os.execv("/bin/true", ["true"]),
        "another namespace": lambda: called(272 if x86 else 97, 0x40000000),
        "a file in shared memory": lambda: Path("/dev/shm/dpswd-test").write_bytes(b"x"),
        "a file of its own": lambda: Path("dpswd-test").write_bytes(b"x"),
        "a directory": lambda: Path("/tmp/dpswd-test").mkdir(),
        "another mode": lambda: Path("/tmp").chmod(0o1777),
        "its own name": overwrite,
        "shrinking shared memory": shrink,
        "the curator's memory": lambda: Path(f"/proc/{curator}/mem").open("rb"),
        "the curator's environment": lambda: Path(f"/proc/{curator}/environ").read_bytes(),
        "a signal to the curator": lambda: os.kill(curator, signal.SIGCONT),
        "tracing the curator": lambda: called(101 if x86 else 117, 16, curator, 0, 0),
        "the passwords": lambda: Path("/etc/passwd").read_bytes(),
        "the temporary files": lambda: list(Path("/tmp").iterdir()),
        "more open files": lambda: __import__("resource").setrlimit(7, (4096, 4096)),
    }


def escape(message, _files):
    could = {}
    for name, attempt in attempts(message["curator"]).items():
        try:
            attempt()
        except (OSError, ValueError):
            could[name] = False
        else:
            could[name] = True
    return could


def sleep(message, _files):
    time.sleep(message["seconds"])
    return {}


def die(_message, _files):
    os.abort()


def quote(message, _files):
    raise ValueError(f"the record is {message['canary']}")


def environment(_message, _files):
    return {"environment": dict(os.environ), "arguments": Path("/proc/self/cmdline").exists()}


if __name__ == "__main__":
    main(lambda: {"escape": escape, "sleep": sleep, "die": die, "quote": quote, "environment": environment})
