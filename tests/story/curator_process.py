"""A curator as a real process, for the tests of this directory.

The operator's other commands run in the test's own process, by click's runner: `test_operator_pages` types them all at
a shell, and starting an interpreter for each would be most of their time.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from click.testing import CliRunner
from torch import nn

from dpswd.private_curator.cli.main import main
from dpswd.private_curator.storage.home_directory import HomeDirectory
from dpswd.public_client.extractor.tracing import module_weights, trace, weights_to_bytes

if TYPE_CHECKING:
    from dpswd.public_client.curator.stub import Curator
    from dpswd.public_client.curator.values import UploadedExtractor

COMMAND = (sys.executable, "-m", "dpswd.private_curator.cli")
ROOT = Path(__file__).resolve().parents[2]
STOPS = Path(__file__).with_name("serve_with_stops.py")
START_S = 90.0
CLIENT = "ml-team"


class CuratorProcess:
    """One curator's home and, between `start` and `stop`, its process.

    Args:
        directory: where both are made.
        records: the data set's.
        epsilon: the budget.
        delta: the budget's.
        init: further arguments of `init`.
        program: what serves in the place of the product's command; called with the home and what `stop_at` says.
        isolation: where extractors are computed. A worker's process takes longer to start than all else together; tests
            of the ledger and of what is sent do without it.

    Attributes:
        environment: further variables of its process.
    """

    environment: Mapping[str, str] = MappingProxyType({})

    def __init__(
        self,
        directory: Path,
        records: np.ndarray,
        *,
        epsilon: float,
        delta: float = 1e-5,
        init: Sequence[object] = (),
        program: Path | None = None,
        isolation: Literal["process", "in-process"] = "process",
    ) -> None:
        self.directory = directory
        self.isolation = isolation
        self.program = program
        self.home = HomeDirectory(directory / "home")
        self.log = directory / "curator.log"
        self.process: subprocess.Popen[bytes] | None = None
        np.savez(directory / "records.npz", records=records.astype(np.float32))
        self.command(
            "init", "--records", directory / "records.npz", "--epsilon", epsilon, "--delta", delta, "--device", "cpu",
            "--confirm", f"epsilon {epsilon:g}, delta {delta:g}",
            *init,
        )  # fmt: skip
        self.command("add", CLIENT, "--out", self.credentials(CLIENT))

    def credentials(self, name: str) -> Path:
        return self.directory / f"credentials-{name}"

    def command(self, *arguments: object) -> str:
        """One of the operator's commands, which must succeed; what it printed."""
        done = CliRunner().invoke(main, list(map(str, arguments)), env={"DPSWD_CURATOR_HOME": str(self.home.path)})
        assert done.exit_code == 0, done.output
        return done.stdout

    def json(self, *arguments: object) -> Any:
        return json.loads(self.command(*arguments, "--format", "json"))

    def start(self, *, stop_at: tuple[str, str] | None = None) -> None:
        """Starts the process and waits until it listens; `stop_at` is (point, "kill" or seconds)."""
        assert self.process is None
        self.home.address.unlink(missing_ok=True)
        serve = [*COMMAND, "serve", "--home", str(self.home.path), "--address", "localhost:0"]
        if self.program is not None or stop_at is not None:
            serve = [sys.executable, str(self.program or STOPS), str(self.home.path), *(stop_at or ())]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            "DPSWD_CURATOR_COMPUTE__ISOLATION": self.isolation,
            "PYTHONFAULTHANDLER": "1",
            "DPSWD_CURATOR_CLIENTS__PUBLISHED_MECHANISMS": "true",
            **self.environment,
        }
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(serve, cwd=ROOT, env=environment, stdout=log, stderr=log)
        deadline = time.monotonic() + START_S
        while not self.home.address.exists():
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            assert time.monotonic() < deadline, "the curator did not start in time"
            time.sleep(0.05)

    def stop(self) -> int:
        """SIGTERM, and the exit status."""
        if self.process is None:
            return 0
        self.process.send_signal(signal.SIGTERM)
        return self.ended()

    def ended(self) -> int:
        """Waits for the process to end by itself."""
        assert self.process is not None
        try:
            status = self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGABRT)  # its threads' stacks are in the log
            self.process.wait(timeout=60)
            raise AssertionError(f"the curator did not end:\n{self.log.read_text()[-20000:]}") from None
        self.process = None
        return status

    @property
    def address(self) -> str:
        return self.home.address.read_text().strip()

    def connect(self, *, name: str = CLIENT, patience_s: float = 20.0) -> Curator:
        from dpswd.public_client.curator.stub import Curator  # a test of the curator's side alone needs no client

        return Curator.connect(self.address, credentials=self.credentials(name), patience_s=patience_s)


class Replica(CuratorProcess):
    """A second curator of the same data set: the same home, with the first one's uploads in its place."""

    def __init__(self, first: CuratorProcess, directory: Path) -> None:
        directory.mkdir()
        self.directory = first.directory  # the client's credentials are the same
        self.home = HomeDirectory(directory / "home")
        self.log = directory / "curator.log"
        self.process = None
        self.program, self.isolation = first.program, first.isolation
        leave = shutil.ignore_patterns("uploads", "address", "incidents.jsonl")
        shutil.copytree(first.home.path, self.home.path, ignore=leave)
        self.home.uploads.symlink_to(first.home.uploads)


def upload(curator: Curator, module: nn.Module) -> UploadedExtractor:
    """Traces and uploads a module for this curator's records."""
    graph = trace(module, curator.describe().record_shape)
    return curator.upload_extractor(graph.to_bytes(), weights_to_bytes(module_weights(module, graph)))
