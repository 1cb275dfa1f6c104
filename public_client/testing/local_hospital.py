"""A hospital on this machine, made from public data: the same curator process, certificates and sockets as a real one.

It serves demonstrations, benchmarks and tests. The curator is started as a separate process through its command line;
nothing of it is imported here.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpswd.public_client.adaptation.hospital import Hospital
from dpswd.shared.core.errors import CuratorUnavailable, SettingsError

_START_S = 180.0  # a loaded machine imports torch within this
_STOP_S = 25.0  # the curator lets running steps finish for 20 seconds
_COMMAND = (sys.executable, "-P", "-m", "dpswd.private_curator.cli")
_CLIENT = "ml-team"
_SWITCHED_ON = {"DPSWD_CURATOR_CLIENTS__PUBLISHED_MECHANISMS": "true"}  # a rehearsal is of any method


class LocalHospital:
    """A curator process with its own home directory; use as a context manager.

    Args:
        records: (n, ...) float32, what the hospital holds.
        epsilon: the data set's whole budget.
        delta: of that budget.
        name: the data set's public name.
        device: where the curator computes: "cpu", "cuda" or "auto".
        directory: keeps the hospital here, and goes on with one that is kept here; by default a temporary directory,
            removed at the end.
        labels: (n,) classes of the records, 0 to C - 1; the hospital then evaluates models.
        classes: C, declared as the public fact that it is; needed with labels.
        value_range: that the records' values may have, declared likewise.

    Attributes:
        home: the curator's home directory.
        credentials: the client's credentials directory.
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
        labels: npt.NDArray[np.int64] | None = None,
        classes: int | None = None,
        value_range: tuple[float, float] | None = None,
    ) -> None:
        if importlib.util.find_spec("grpc_health") is None:
            raise SettingsError("a hospital on this machine is a real curator: pip install 'dpswd[client,curator]'")
        if (labels is None) != (classes is None):
            raise SettingsError("labels and classes belong together; give both, or neither")
        self._arrays: dict[str, npt.NDArray[Any]] = {"records": np.ascontiguousarray(records, dtype=np.float32)}
        self._options = ["--epsilon", repr(epsilon), "--delta", repr(delta), "--name", name, "--array", "records"]
        self._options += ["--confirm", f"epsilon {epsilon:g}, delta {delta:g}"]  # nobody's records: any budget will do
        if labels is not None:
            self._arrays["labels"] = labels
            self._options += ["--labels-array", "labels", "--classes", str(classes)]
        if value_range is not None:
            self._options.append(f"--value-range={','.join(map(repr, value_range))}")
        self._device = device
        self._temporary = directory is None
        self._root = directory or Path(tempfile.mkdtemp(prefix="dpswd-hospital-"))
        self.home = self._root / "home"
        self.credentials = self._root / "credentials"
        self._log = self._root / "curator.log"
        self._pid_file = self._root / "curator.pid"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """host:port of the running curator."""
        return (self.home / "address").read_text(encoding="ascii").strip()

    def __enter__(self) -> LocalHospital:
        try:
            self._set_up()
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def connect(self, *, run_directory: Path | None = None, purpose: str = "") -> Hospital:
        """Connects with the credentials that the operator handed out.

        Args:
            run_directory: where receipts.jsonl is written; nowhere by default.
            purpose: why runs are opened, for the hospital's ledger.

        Returns:
            A client's hospital; close it.
        """
        return Hospital.connect(
            self.address, credentials=self.credentials, run_directory=run_directory, purpose=purpose
        )

    def start(self) -> None:
        """Starts (or, after `stop`, restarts) the curator and waits until it listens.

        Raises:
            CuratorUnavailable: it ended or did not listen in time; the message holds its last words.
        """
        self._end_orphan()
        (self.home / "address").unlink(missing_ok=True)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own command line, no shell
                [*_COMMAND, "serve", "--home", str(self.home), "--address", "localhost:0"],
                stdout=log,
                stderr=log,
                env=dict(os.environ, DPSWD_CURATOR_COMPUTE__DEVICE=self._device, **_SWITCHED_ON),
            )
        self._pid_file.write_text(str(self._process.pid), encoding="ascii")
        deadline = time.monotonic() + _START_S
        while not (self.home / "address").exists() or not self.address:
            if self._process.poll() is not None or time.monotonic() > deadline:
                words = self._log.read_text(encoding="utf-8", errors="replace")[-2000:]
                raise CuratorUnavailable(f"the local hospital's curator did not start; it said: {words.strip()}")
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

    def close(self) -> None:
        """Ends the process and removes what was temporary."""
        self.stop()
        if self._temporary:
            shutil.rmtree(self._root, ignore_errors=True)

    def budget(self) -> dict[str, Any]:
        """What the operator sees: ``dpswd-curator budget --format json``.

        Returns:
            Its fields by name; budgets in epsilon.
        """
        shown: dict[str, Any] = json.loads(self._command("budget", "--format", "json"))
        return shown

    def _set_up(self) -> None:
        """Does what the operator does once, unless it was done in this directory before."""
        finished = self._root / "set-up"  # written last: without it nothing was served here yet
        if finished.exists():
            return
        for begun in (self.home, self.credentials):  # an interrupted set-up
            shutil.rmtree(begun, ignore_errors=True)
        self._root.mkdir(parents=True, exist_ok=True)
        records = self._root / "records.npz"
        np.savez(records, allow_pickle=False, **self._arrays)
        self._command("init", "--records", str(records), *self._options)
        self._command("add", _CLIENT, "--out", str(self.credentials))
        finished.touch()

    def _end_orphan(self) -> None:
        """Ends the curator of this directory that a killed client left behind; it would hold the ledger."""
        if not self._pid_file.exists():
            return
        pid = int(self._pid_file.read_text(encoding="ascii") or 0)
        command = Path(f"/proc/{pid}/cmdline")
        # The number may belong to another process by now: only one that serves this very home is ended.
        if command.exists() and str(self.home).encode() in command.read_bytes():
            os.kill(pid, signal.SIGTERM)
            deadline = time.monotonic() + _STOP_S
            while command.exists() and command.read_bytes() and time.monotonic() < deadline:
                time.sleep(0.05)
        self._pid_file.unlink(missing_ok=True)

    def _command(self, *arguments: str) -> str:
        done = subprocess.run(  # noqa: S603 - our own command line, no shell
            [*_COMMAND, *arguments, "--home", str(self.home)], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            words = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()
            raise SettingsError(f"dpswd-curator {arguments[0]} failed: {words[-1]}")
        return done.stdout


@contextlib.contextmanager
def console_of(home: Path) -> Iterator[str]:
    """The operator's console of a local hospital, while the block runs, on a free port of the loopback.

    Args:
        home: of the hospital; whether its curator serves does not matter.

    Yields:
        The address that signs in once; empty where the console did not start (`console.log` beside the home says why).
    """
    command = [*_COMMAND, "console", "--home", str(home), "--address", "127.0.0.1:0"]
    with (home.parent / "console.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)  # noqa: S603 - as above
    assert process.stdout is not None
    try:
        link = next((line for line in process.stdout if "/sign-in?token=" in line), "")
        yield link.split()[-1] if link else ""
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()
