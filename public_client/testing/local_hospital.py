"""A hospital on this machine, made from public data: the same curator process, certificates and sockets as a real one.

It serves demonstrations, benchmarks and tests. The curator is started as a separate process through its command line;
nothing of it is imported here.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from public_client.curator.stub import Curator
from shared.errors import CuratorUnavailable, SettingsError

_START_S = 60.0  # a loaded machine imports torch within this
_STOP_S = 25.0  # the curator lets running steps finish for 20 seconds
_COMMAND = (sys.executable, "-m", "private_curator.cli")


class RehearsalHospital:
    """A curator process with its own home directory; use as a context manager.

    Args:
        records: (n, ...) float32, what the hospital holds.
        epsilon: the data set's whole budget.
        delta: of that budget.
        name: the data set's public name.
        device: where the curator computes: "cpu", "cuda" or "auto".
        directory: keeps the hospital's home here; a temporary directory, removed at the end, by default.
        client: the client's name.
        labels: (n,) classes of the records, 0 to C - 1; the hospital then evaluates models.
        classes: C, declared as the public fact that it is; needed with labels.
    """

    def __init__(
        self,
        records: npt.NDArray[np.float32],
        *,
        epsilon: float,
        delta: float,
        name: str = "rehearsal",
        device: str = "auto",
        directory: Path | None = None,
        client: str = "ml-team",
        labels: npt.NDArray[np.int64] | None = None,
        classes: int | None = None,
    ) -> None:
        if (labels is None) != (classes is None):
            raise SettingsError("labels and classes belong together; give both, or neither")
        self._labels = labels
        self._classes = classes
        self._records = np.ascontiguousarray(records, dtype=np.float32)
        self._budget = (epsilon, delta)
        self._name = name
        self._device = device
        self._client = client
        self._temporary = tempfile.TemporaryDirectory(prefix="dpswd-rehearsal-") if directory is None else None
        self._root = Path(self._temporary.name) if self._temporary is not None else Path(directory or "")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def home(self) -> Path:
        """The curator's home directory."""
        return self._root / "home"

    @property
    def credentials(self) -> Path:
        """The client's credentials directory."""
        return self._root / "credentials"

    @property
    def address(self) -> str:
        """host:port of the running curator."""
        return (self.home / "address").read_text(encoding="ascii").strip()

    def __enter__(self) -> RehearsalHospital:
        try:
            if not (self.home / "curator.toml").exists():
                self._set_up()
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def connect(self, *, run_directory: Path | None = None) -> Curator:
        """A client's connection, with the credentials that the operator handed out."""
        return Curator.connect(self.address, credentials=self.credentials, run_directory=run_directory)

    def start(self) -> None:
        """Starts (or, after `stop`, restarts) the curator and waits until it listens.

        Raises:
            CuratorUnavailable: it ended or did not listen in time; the message holds its last words.
        """
        self._end_orphan()
        (self.home / "address").unlink(missing_ok=True)
        log = (self._root / "curator.log").open("ab")
        environment = dict(os.environ, DPSWD_CURATOR_COMPUTE__DEVICE=self._device)
        with log:
            self._process = subprocess.Popen(  # noqa: S603 - our own command line, no shell
                [*_COMMAND, "serve", "--home", str(self.home), "--address", "localhost:0"],
                stdout=log,
                stderr=log,
                env=environment,
            )
        self._pid_file.write_text(str(self._process.pid), encoding="ascii")
        deadline = time.monotonic() + _START_S
        while not (self.home / "address").exists() or not self.address:
            if self._process.poll() is not None or time.monotonic() > deadline:
                words = (self._root / "curator.log").read_text(encoding="utf-8", errors="replace")[-2000:]
                raise CuratorUnavailable(f"the rehearsal curator did not start; it said: {words.strip()}")
            time.sleep(0.05)

    def stop(self) -> None:
        """Ends the curator process; its ledger stays, `start` goes on from there."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(timeout=_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None
        self._pid_file.unlink(missing_ok=True)

    @property
    def _pid_file(self) -> Path:
        return self._root / "curator.pid"

    def _end_orphan(self) -> None:
        """Ends the curator of this directory that a killed client left behind; it would hold the ledger."""
        if not self._pid_file.exists():
            return
        pid = int(self._pid_file.read_text(encoding="ascii"))
        command = Path(f"/proc/{pid}/cmdline")
        # The number may belong to another process by now: only one that serves this very home is ended.
        if command.exists() and str(self.home).encode() in command.read_bytes():
            os.kill(pid, signal.SIGTERM)
            deadline = time.monotonic() + _STOP_S
            while command.exists() and command.read_bytes() and time.monotonic() < deadline:
                time.sleep(0.05)
        self._pid_file.unlink(missing_ok=True)

    def close(self) -> None:
        """Ends the process and removes what was temporary."""
        self.stop()
        if self._temporary is not None:
            self._temporary.cleanup()

    def budget(self) -> dict[str, Any]:
        """What the operator sees: ``dpswd-curator budget show --format json``."""
        shown: dict[str, Any] = json.loads(
            self._command("budget", "show", "--home", str(self.home), "--format", "json")
        )
        return shown

    def _set_up(self) -> None:
        self._root.mkdir(parents=True, exist_ok=True)
        records = self._root / "records.npz"
        labelled = {} if self._labels is None else {"labels": self._labels}
        np.savez(records, allow_pickle=False, records=self._records, **labelled)
        epsilon, delta = self._budget
        self._command(
            "init", "--home", str(self.home), "--records", str(records),
            "--epsilon", repr(epsilon), "--delta", repr(delta), "--name", self._name, "--array", "records",
            *(() if self._classes is None else ("--labels-array", "labels", "--classes", str(self._classes))),
        )  # fmt: skip
        self._command("client", "add", self._client, "--home", str(self.home), "--out", str(self.credentials))

    def _command(self, *arguments: str) -> str:
        done = subprocess.run([*_COMMAND, *arguments], capture_output=True, text=True, check=False)  # noqa: S603
        if done.returncode != 0:
            words: Sequence[str] = (done.stderr.strip() or done.stdout.strip()).splitlines()
            raise SettingsError(f"dpswd-curator {arguments[0]} failed: {words[-1] if words else 'no message'}")
        return done.stdout
