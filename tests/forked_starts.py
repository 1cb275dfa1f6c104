"""Starts this project's programs without loading torch again: each is forked from a process that has loaded it.

Loading torch, SciPy and gRPC takes two to four seconds of a processor, and the tests start hundreds of processes.
While `in_force`, `subprocess` hands a start of one of this project's programs to a *nursery*: a process with one
thread, which has imported what the programs import, has run none of it, and forks. What begins is a process like any
other: its own arguments, environment, directory, files and session, a child of whoever asked (which may wait for it
and kill it), and a nursery of its own for what it starts in turn. What a fork could not do as well begins the usual
way: another program or ``-c``, a `preexec_fn`, a shell, a variable that is read when torch is loaded. So do
the installed entry points, the containers, and a test that asks for the fixture `true_starts`.
Without ``OMP_NUM_THREADS=1``, which make sets, NumPy has threads as soon as it is loaded and nothing is forked;
``DPSWD_TESTS_TRUE_STARTS=1`` turns it off as well.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import ctypes
import faulthandler
import fcntl
import gc
import importlib
import inspect
import io
import json
import os
import re
import resource
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent
LOADED = (
    "torch._dynamo", "torch.distributed.run", "scipy.stats", "scipy.optimize", "scipy.signal",
    "sklearn.datasets", "grpc", "prometheus_client", "autodp.rdp_acct",
    "dpswd.private_curator.cli.main", "dpswd.private_curator.serving.server", "dpswd.private_curator.sandbox.loop",
    "dpswd.public_client.cli.main", "dpswd.public_client.adaptation.domain_adaptation",
    "dpswd.public_client.experiments.run",
)  # fmt: skip
"""What a nursery imports."""

PROGRAMS = ("dpswd.", "benchmarks.", "torch.distributed.run")
"""Modules that are forked when they are started by ``-m``; so are the tests' own scripts."""

LEAVES = ("dpswd.private_curator.sandbox", "dpswd.private_curator.serving.second_accountant")
"""Programs that start no others, and need no nursery."""

AT_START = ("PYTHON", "OMP_", "MKL_", "OPENBLAS_", "LD_", "MALLOC_", "CUDA_")
"""How variables begin that an interpreter or a library reads when it is loaded."""

MALLOPT = {"MALLOC_TRIM_THRESHOLD_": -1, "MALLOC_MMAP_THRESHOLD_": -3}
"""Such variables that glibc takes from a running program as well: malloc.h, M_TRIM_THRESHOLD and M_MMAP_THRESHOLD."""

APPLIED = {"PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED", "PYTHONFAULTHANDLER", *MALLOPT}
LIMITS = sorted({value for name, value in vars(resource).items() if name.startswith("RLIMIT_")})
REPORT_BYTES = 4000
"""Bytes of a command line that /proc tells of a forked program."""

_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of linux/prctl.h
_libc = ctypes.CDLL(None)


@dataclass(frozen=True)
class _ProgramStart:
    """What to run; only starts that a fork does as well can be described.

    Attributes:
        module: as after ``-m``, or empty.
        words: `sys.argv`; the first is the script, if there is no module.
        safe_path: ``-P``.
        unbuffered: ``-u``.
        cwd: an absolute path.
        environment: the whole of it.
        files: the numbers that the inherited files get, in the order in which they are sent.
        session: whether it is the first of a session.
        deaf: whether it begins with SIGINT ignored.
        umask: of new files.
        limits: soft and hard, by `resource`'s numbers.
    """

    module: str
    words: list[str]
    safe_path: bool
    unbuffered: bool
    cwd: str
    environment: dict[str, str]
    files: list[int]
    session: bool
    deaf: bool
    umask: int
    limits: list[tuple[int, int, int]]


class _Nursery:
    """A process that forks on request, seen from the one that asks: its parent."""

    def __init__(self, connection: socket.socket, environment: Mapping[str, str]) -> None:
        self.environment = environment
        self._connection = connection
        self._lock = threading.Lock()
        self._owner = os.getpid()

    def begun(self, start: _ProgramStart, files: list[int]) -> int | None:
        """The number of the new process, a child of this one; None where there is none."""
        if os.getpid() != self._owner:
            return None
        body = json.dumps(asdict(start)).encode()
        with self._lock:
            _libc.prctl(_SUBREAPER, 1, 0, 0, 0)  # whose parent in between ends becomes this process's child
            try:
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))]
                self._connection.sendmsg([len(body).to_bytes(8, "big")], rights)
                self._connection.sendall(body)
                number = self._connection.recv(32)
            except OSError:
                return None
            finally:
                _libc.prctl(_SUBREAPER, 0, 0, 0, 0)
        return int(number) if number else None

    def move(self, lowest: int) -> None:
        """Gives the connection a number of at least this, out of the way of inherited files."""
        moved = fcntl.fcntl(self._connection, fcntl.F_DUPFD_CLOEXEC, lowest)
        self._connection.close()
        self._connection = socket.socket(fileno=moved)

    def close(self) -> None:
        self._connection.close()


_nursery: _Nursery | None = None
_usual = subprocess.Popen._execute_child  # type: ignore[attr-defined]
_asked = inspect.signature(_usual)


def _execute_child(popen: subprocess.Popen[Any], *given: Any) -> None:
    """What `subprocess.Popen` calls to make a process: a start that a fork does as well is forked."""
    asked = _asked.bind(popen, *given).arguments
    nursery = _nursery
    start = None if nursery is None else _described(asked, nursery.environment)
    pid = None
    if nursery is not None and start is not None:
        ends = [asked["p2cread"], asked["c2pwrite"], asked["errwrite"]]
        standard = [number if end == -1 else end for number, end in enumerate(ends)]
        pid = nursery.begun(start, [*standard, *start.files[3:]])
    if pid is None:
        _usual(popen, *given)
        return
    popen.pid = pid
    popen._child_created = True  # type: ignore[attr-defined]
    pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
    popen._close_pipe_fds(*(asked[name] for name in pipes))  # type: ignore[attr-defined]


def _described(asked: Mapping[str, Any], loaded_with: Mapping[str, str]) -> _ProgramStart | None:
    """What `subprocess` was asked for, if a fork does it as well."""
    if isinstance(asked["args"], (str, bytes, os.PathLike)) or not asked["close_fds"] or asked["umask"] >= 0:
        return None
    if asked["process_group"] not in (-1, None) or asked["executable"] not in (None, sys.executable):
        return None
    if asked["shell"] or any(asked[name] is not None for name in ("preexec_fn", "gid", "gids", "uid")):
        return None
    program, *words = map(os.fspath, asked["args"])
    flags = set()
    while words and words[0] in ("-P", "-u"):
        flags.add(words.pop(0))
    module = ""
    if program != sys.executable or not words:
        return None
    if words[0] == "-m":
        module, words = words[1], words[1:]
        if not f"{module}.".startswith(PROGRAMS):
            return None
    elif not (words[0].endswith(".py") and Path(words[0]).is_relative_to(TESTS)):
        return None
    environment = dict(os.environ if asked["env"] is None else asked["env"])
    if _read_at_start(environment) != _read_at_start(loaded_with):
        return None
    return _ProgramStart(
        module=module,
        words=words,
        safe_path="-P" in flags,
        unbuffered="-u" in flags,
        cwd=str(Path(asked["cwd"] or ".").absolute()),
        environment=environment,
        files=[0, 1, 2, *sorted(asked["pass_fds"])],
        session=bool(asked["start_new_session"]),
        deaf=signal.getsignal(signal.SIGINT) == signal.SIG_IGN,
        umask=int(re.findall(r"^Umask:\s*(\d+)", Path("/proc/self/status").read_text(), re.MULTILINE)[0], 8),
        limits=[(number, *resource.getrlimit(number)) for number in LIMITS],
    )


def _read_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {n: value for n, value in environment.items() if n.startswith(AT_START) and n not in APPLIED}


def possible() -> bool:
    """Whether programs are forked in this environment."""
    alone = sys.platform == "linux" and os.environ.get("OMP_NUM_THREADS") == "1"
    return alone and not os.environ.get("DPSWD_TESTS_TRUE_STARTS")


@contextlib.contextmanager
def in_force() -> Iterator[None]:
    """While the block runs, what this process starts is forked from a nursery, which begins with the first start."""
    if not possible():
        yield
        return
    waiting = _Waiting(dict(os.environ))
    _use(waiting)
    try:
        yield
    finally:
        _use(None)
        waiting.close()


@contextlib.contextmanager
def suspended() -> Iterator[None]:
    """While the block runs, what this process starts loads all that it needs."""
    given = _nursery
    _use(None)
    try:
        yield
    finally:
        _use(given)


class _Waiting(_Nursery):
    """A nursery that is not there before it is needed."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        here, self._theirs = socket.socketpair()
        super().__init__(here, environment)
        self._process: subprocess.Popen[bytes] | None = None
        self._once = threading.Lock()

    def begun(self, start: _ProgramStart, files: list[int]) -> int | None:
        with self._once:
            if self._process is None:
                number = self._theirs.fileno()
                program = (
                    f"import sys; sys.path.insert(0, {str(TESTS)!r}); import forked_starts as it; it.main({number})"
                )
                self._process = subprocess.Popen(
                    (sys.executable, "-P", "-c", program, " " * REPORT_BYTES),
                    env=self.environment,
                    pass_fds=(number,),
                    cwd=TESTS.parent,
                )
                self._theirs.close()
        return super().begun(start, files)

    def close(self) -> None:
        super().close()
        if self._process is not None:
            self._process.wait(timeout=60)


def _use(nursery: _Nursery | None) -> None:
    global _nursery
    _nursery = nursery
    subprocess.Popen._execute_child = _usual if nursery is None else _execute_child  # type: ignore[attr-defined]


def main(number: int) -> None:
    """A nursery: returns in what it forks, when that ends."""
    sys.path.remove(str(TESTS))
    before = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    usual = sys.path[len([entry for entry in before if entry]) :]
    environment = dict(os.environ)
    gc.disable()  # what is loaded stays: a search for garbage in it takes a quarter of the time
    for name in LOADED:
        importlib.import_module(name)
    from dpswd.shared.core.noise.grid_gaussian import grid_gaussian_table

    grid_gaussian_table()  # the same in every process that draws noise: a third of a second
    gc.collect()
    gc.freeze()  # what is never looked at by a child's collector stays the same page for all of them
    gc.enable()
    if len(list(Path("/proc/self/task").iterdir())) > 1:  # a thread that a library started would be missing in a fork
        return
    connection = socket.socket(fileno=number)
    while True:
        start, files = _awaited(connection)
        connection.close()
        if start.session:
            os.setsid()
        if start.module in LEAVES:
            nursery = None
            break
        connection, theirs = socket.socketpair()
        if os.fork():
            nursery = _Nursery(connection, environment)
            theirs.close()
            break
        connection.close()
        connection = theirs
        for file in files:
            os.close(file)
    _run(start, files, usual, nursery)


def _awaited(connection: socket.socket) -> tuple[_ProgramStart, list[int]]:
    """Forks for every request; returns in the new process, what it is to run and the files it was given."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nowhere, standard)
    os.close(nowhere)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a terminal's or a group's: this process ends with its parent
    while True:
        header, files, _, _ = socket.recv_fds(connection, 8, 64)
        if not header:
            os._exit(0)
        body, size = b"", int.from_bytes(header, "big")
        while len(body) < size:
            body += connection.recv(size - len(body))
        numbers, report = os.pipe()
        go, held = os.pipe()
        between = os.fork()
        if between == 0:
            if pid := os.fork():
                os.write(report, str(pid).encode())
                os._exit(0)
            for end in (numbers, report, held):
                os.close(end)
            os.read(go, 1)  # until it is its parent's child
            os.close(go)
            return _ProgramStart(**json.loads(body)), files
        os.waitpid(between, 0)
        pid = os.read(numbers, 32)
        for end in (numbers, report, go, held, *files):
            os.close(end)
        connection.sendall(pid)


def _run(start: _ProgramStart, files: list[int], usual: list[str], nursery: _Nursery | None) -> None:
    """Becomes the program."""
    signal.signal(signal.SIGINT, signal.SIG_IGN if start.deaf else signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    _place(files, start.files, nursery)
    os.chdir(start.cwd)
    os.umask(start.umask)
    for number, *limit in start.limits:
        resource.setrlimit(number, tuple(limit))
    os.environ.clear()
    os.environ.update(start.environment)
    for name in MALLOPT.keys() & start.environment.keys():
        _libc.mallopt(MALLOPT[name], int(start.environment[name]))
    time.tzset()
    if start.environment.get("PYTHONFAULTHANDLER"):
        faulthandler.enable()
    sys.dont_write_bytecode = bool(start.environment.get("PYTHONDONTWRITEBYTECODE"))
    through = start.unbuffered or bool(start.environment.get("PYTHONUNBUFFERED"))
    errors = sys.stdin.errors  # by the locale
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", errors=errors, closefd=False)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = _written(1, errors, through=through)
    sys.stderr = sys.__stderr__ = _written(2, "backslashreplace", through=through)
    added = [entry for entry in start.environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    first = start.cwd if start.module else str(Path(start.words[0]).resolve().parent)
    sys.path[:] = [*([] if start.safe_path else [first]), *added, *usual]
    importlib.invalidate_caches()
    sys.argv = start.words
    _use(nursery)
    _tell_command(start)
    sys.modules.pop(start.module, None)  # it is what runs now, under another name
    try:
        if start.module:
            runpy.run_module(start.module, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(start.words[0], run_name="__main__")
        status: object = 0
    except SystemExit as end:
        status = end.code
    except KeyboardInterrupt:
        sys.excepthook(*sys.exc_info())
        status = -signal.SIGINT
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    _end(status)


def _tell_command(start: _ProgramStart) -> None:
    """Lets /proc and ps tell this program's command line, where the nursery's own stood: proc(5), arg_start."""
    flags = [*(["-P"] if start.safe_path else []), *(["-u"] if start.unbuffered else [])]
    words = [
        sys.executable,
        *flags,
        *(["-m", start.module] if start.module else []),
        *start.words[bool(start.module) :],
    ]
    first, end = map(int, Path("/proc/self/stat").read_text().rpartition(")")[2].split()[45:47])
    line = "\0".join(words).encode()[: end - first - 1]
    ctypes.memmove(first, line.ljust(end - first, b"\0"), end - first)


def _end(status: object) -> None:
    """As an interpreter ends, but that memory is left to the kernel: freeing torch takes a third of a second."""
    if status is not None and not isinstance(status, int):
        print(status, file=sys.stderr)
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with contextlib.suppress(ValueError, BrokenPipeError):  # closed by the program, or by whoever read
        sys.stdout.flush()
        sys.stderr.flush()
    if status == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit((status or 0) & 0xFF)


def _place(files: list[int], numbers: list[int], nursery: _Nursery | None) -> None:
    """Gives the inherited files their numbers, and closes whatever else they were known by."""
    high = 1 + max(100, *numbers)
    if nursery is not None:
        nursery.move(high)
    held = [fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, high) for file in files]
    for file in files:
        os.close(file)
    for file, number in zip(held, numbers, strict=True):
        os.dup2(file, number)
        os.close(file)


def _written(number: int, errors: str, *, through: bool) -> io.TextIOWrapper:
    raw = open(number, "wb", closefd=False)  # noqa: SIM115
    lines = not through and (number == 2 or raw.isatty())
    return io.TextIOWrapper(raw, encoding="utf-8", errors=errors, line_buffering=lines, write_through=through)
