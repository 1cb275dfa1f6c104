"""One worker, seen from the curator: started, given work, ended when it exceeds its time.

A worker is a fresh interpreter (no fork: gRPC's threads and the ledger's locks are not copied). What it answers is
checked for its form and otherwise believed like any other arithmetic; docs/adr/README.md has what a worker that was
taken over could and could not do.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpswd.private_curator.sandbox.channel import ChannelClosed, receive, send
from dpswd.shared.core.errors import ExtractionStopped, RequestInvalid, SettingsError

PROGRAM = (sys.executable, "-P", "-m", "dpswd.private_curator.sandbox")
_START_S = 120.0  # until a worker is ready: loading torch from a cold disk
_END_S = 5.0  # until a worker that was told to end is killed
_NOT_STARTED = (
    "the extraction worker did not start ({}); set compute.isolation to in-process only if every client is trusted"
)
_PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "SYSTEMROOT")

_log = logging.getLogger(__name__)


class LimitReached(ExtractionStopped):
    """The worker exceeded its time or its memory, and not by accident: the same again would do so again."""


class WorkerFailed(Exception):
    """An unexpected error inside a worker.

    Attributes:
        chain: types and places of the exceptions, the newest first, for the operator's incident book.
    """

    def __init__(self, chain: Sequence[Mapping[str, object]]) -> None:
        super().__init__("an unexpected error inside the extraction worker")
        self.chain = chain


@dataclass(frozen=True)
class WorkerSettings:
    """What every worker of a curator is started with.

    Attributes:
        device: "cpu" or "cuda".
        threads: of torch's arithmetic; 0 leaves torch's choice.
        memory_bytes: that a worker may allocate beyond what it needs to start.
        seconds: that one message may take: an extractor's loading, an upload's check, a sample's features or gradients.
        time_limit: the setting that `seconds` come from, for the client's words.
        program: what is started; tests start workers that can do more.
    """

    device: str
    threads: int
    memory_bytes: int
    seconds: float
    time_limit: str = "compute.worker_seconds"
    program: tuple[str, ...] = PROGRAM


Confinement = Mapping[str, bool]
"""For each of "namespace", "landlock" and "system calls", whether the kernel has put it in force."""


def list_layers(confinement: Confinement) -> str:
    """Which layers hold, in words."""
    held = ", ".join(layer for layer, there in confinement.items() if there) or "nothing"
    missing = ", ".join(layer for layer, there in confinement.items() if not there)
    return f"confined by {held}" + (f"; not by {missing}" if missing else "")


class WorkerProcess:
    """A worker; starting it does not wait until it is ready.

    Args:
        settings: limits, device and program.

    Attributes:
        process: its own.
        channel: to it.
    """

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._confinement: Confinement | None = None
        self._speaking = threading.RLock()  # the channel is closed when nobody uses it
        self.loaded: dict[str, None] = {}  # keys of the extractors that it holds, the least recently used first
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        lifeline, self._lifeline = os.pipe()
        environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        environment |= {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONDONTWRITEBYTECODE": "1"}
        environment |= _keep_memory(settings.memory_bytes)
        try:
            self.process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                settings.program, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd="/",
                env=environment, pass_fds=(theirs.fileno(), lifeline), start_new_session=True,
            )  # fmt: skip
            wishes = {name: getattr(settings, name) for name in ("device", "threads", "memory_bytes")}
            wishes |= {"channel": theirs.fileno(), "lifeline": lifeline}
            assert self.process.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # it died at once: `ready` says so
                self.process.stdin.write(json.dumps(wishes).encode() + b"\n")
                self.process.stdin.close()
        except OSError as error:
            self.channel.close()
            os.close(self._lifeline)
            raise SettingsError(f"the extraction worker cannot be started: {error.strerror}") from error
        finally:
            theirs.close()
            os.close(lifeline)

    @property
    def alive(self) -> bool:
        """Whether the process has not ended."""
        return self.process.poll() is None

    def ready(self, *, otherwise: str = _NOT_STARTED) -> Confinement:
        """Waits until the worker has started and confined itself.

        Raises:
            ExtractionStopped: it was closed meanwhile.
            SettingsError: it ended before; `otherwise` says so, with its own words.
        """
        if self._confinement is None:
            assert self.process.stderr is not None
            try:
                with self._speaking:
                    self.channel.settimeout(_START_S)
                    message, _ = receive(self.channel)
            except (ChannelClosed, OSError) as error:
                if self._lifeline < 0:
                    raise self._stopped("closed") from None
                self.kill()
                # Before it is ready a worker has seen neither a graph nor a record: its words may be shown.
                words = self.process.stderr.read().decode(errors="replace").strip().splitlines()
                raise SettingsError(otherwise.format(words[-1][:500] if words else "no message")) from error
            self.process.stderr.close()
            self._confinement = {str(layer): bool(held) for layer, held in dict(message.get("ready") or {}).items()}
        return self._confinement

    def ask(
        self,
        message: dict[str, Any],
        files: tuple[int, ...] = (),
        *,
        deadline: float,
        meanwhile: Callable[[], None] | None = None,
    ) -> dict[str, Any]:
        """Sends one message and waits for its answer. A worker that fails in any way is ended.

        Args:
            message: see `loop`.
            files: that travel with it.
            deadline: on the monotonic clock.
            meanwhile: called once, between the message and its answer.

        Raises:
            LimitReached: the worker exceeded its time or its memory.
            ExtractionStopped: it ended.
            RequestInvalid: the graph or the weights are not valid.
            WorkerFailed: an unexpected error.
        """
        with self._ended_by_failures():
            self.channel.settimeout(max(0.001, deadline - time.monotonic()))
            send(self.channel, message, files)
        if meanwhile is not None:
            try:
                meanwhile()
            except BaseException:  # no fault of the worker's, but nobody will read its answer
                self.kill()
                raise
        with self._ended_by_failures():
            self.channel.settimeout(max(0.001, deadline - time.monotonic()))
            answer, unexpected = receive(self.channel)
            for descriptor in unexpected:
                os.close(descriptor)
        if (refused := answer.get("refused")) is not None:
            raise RequestInvalid(((str(refused["field"]), str(refused["text"])),))
        if "stopped" in answer:
            self.kill()
            raise self._stopped("memory")
        if "failed" in answer:
            self.kill()
            raise WorkerFailed(answer["failed"])
        return answer

    def kill(self) -> None:
        """Ends the process now, whatever it does. Idempotent."""
        self.process.kill()
        self.process.wait()
        self._let_go()

    def close(self) -> None:
        """Asks the process to end, and ends it if it does not. Idempotent."""
        self._let_go()
        try:
            self.process.wait(timeout=_END_S)
        except subprocess.TimeoutExpired:
            self.kill()

    @contextlib.contextmanager
    def _ended_by_failures(self) -> Iterator[None]:
        """Ends a worker that does not speak in time, or not at all."""
        try:
            with self._speaking:
                yield
        except (ChannelClosed, OSError) as error:  # another thread may have closed it, and the channel with it
            cause = "time" if isinstance(error, TimeoutError) else "closed" if self._lifeline < 0 else "ended"
            self.kill()
            raise self._stopped(cause) from None
        except BaseException:  # not what the worker did, but its state is unknown now
            self.kill()
            raise

    def _let_go(self) -> None:
        lifeline, self._lifeline = self._lifeline, -1
        with contextlib.suppress(OSError):  # of one that is closed
            self.channel.shutdown(socket.SHUT_RDWR)  # whoever reads wakes; its number may be another file's once closed
        with self._speaking:
            self.channel.close()
        if lifeline >= 0:
            os.close(lifeline)

    def _stopped(self, cause: str) -> ExtractionStopped:
        """The client's words: made of settings alone."""
        _log.warning("an extraction worker was stopped: %s (status %s)", cause, self.process.returncode)
        own = self._settings
        limit = {
            "time": f"took longer than {own.seconds:g} seconds ({own.time_limit}) and was stopped",
            "memory": f"needed more than {own.memory_bytes} bytes (compute.worker_memory_bytes) and was stopped",
            "ended": "was cut off: its process has ended",
            "closed": "was cut off: the curator has closed its workers",
        }[cause]
        kind = LimitReached if cause in ("time", "memory") else ExtractionStopped
        return kind(f"the extraction {limit}; nothing was released, repeat the request with its id")


def _keep_memory(limit: int) -> dict[str, str]:
    """Tells glibc that a step's memory stays with the worker, for the next step of the same kind (`loop`).

    Given back and taken anew it would cost thousands of page faults a step. Other allocators do not know these names.
    """
    retained = min(1 << 28, limit // 16)
    return {"MALLOC_TRIM_THRESHOLD_": str(retained), "MALLOC_MMAP_THRESHOLD_": str(1 << 25)}
