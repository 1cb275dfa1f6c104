"""One live curator of one data set: home, ledger, certificates, server; as a process of its own or in this one."""

from __future__ import annotations

import functools
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from unittest import mock

import numpy as np
from torch import nn

from benchmarks.audit.faults import fault
from dpswd.private_curator.serving import server
from dpswd.private_curator.settings import tree as settings
from dpswd.private_curator.settings.groups import RecordsSettings
from dpswd.private_curator.storage import home_directory as homes
from dpswd.private_curator.storage.home_directory import HomeDirectory
from dpswd.public_client.curator.stub import Curator
from dpswd.public_client.curator.values import UploadedExtractor
from dpswd.public_client.extractor.tracing import module_weights, trace, weights_to_bytes
from dpswd.shared.accounting.crosscheck import check_with_autodp

ROOT = Path(__file__).resolve().parents[2]
CLIENT = "auditor"
BUDGET = 1e4  # thousands of trials are charged to one ledger; what is audited is the claim for one of them
_START_S = 120.0
# Releases are audited, not their times or the confinement of extractors: no padding of replies, no worker process.
_OVERRIDES = {
    "clients.published_mechanisms": "true",
    "listen.host": "localhost",
    "listen.port": "0",
    "compute.device": "cpu",
    "compute.torch_threads": "1",
    "compute.isolation": "in-process",
    "limits.reply_quantum_ms": "0",
    "limits.min_batch_size": "1",  # attacks know the sample best where it is one record
}
_crosscheck = functools.cache(lambda event, _ask: check_with_autodp(event))  # once for all curators of this process


class LiveCurator:
    """A context manager: within, the curator serves and `client` is connected to it.

    Args:
        directory: where its home is made.
        records: (n, ...) float32.
        delta: of the ledger's budget, at which it quotes every price.
        fault_name: a key of `faults.FAULTS`.
        process: whether it runs as a process of its own.
        labels: (n,) of the records.
        classes: C of the labels; 0: there are none.
    """

    def __init__(
        self,
        directory: Path,
        records: np.ndarray,
        *,
        delta: float,
        fault_name: str,
        process: bool = True,
        labels: np.ndarray,
        classes: int,
    ) -> None:
        directory.mkdir(parents=True)
        held = directory / "records.npz"
        np.savez(held, records=records.astype(np.float32), labels=labels)
        labelled = {"labels_array": "labels", "classes": classes} if classes else {}
        self._home = homes.create(
            directory / "home",
            records=RecordsSettings.model_validate({"file": held, "array": "records", **labelled}),
            epsilon=BUDGET,
            delta=delta,
            names=["localhost"],
        )
        self._credentials = directory / "credentials"
        issued, key = self._home.authority.make_client(name=CLIENT)
        self._home.authority.write_credentials(issued, self._credentials, key_pem=key)
        with self._home.open_ledger() as ledger:
            ledger.add_client(CLIENT, issued.fingerprint)
        self._fault = fault_name
        self._process = process
        self._log = directory / "curator.log"
        self._stack = ExitStack()
        self.client: Curator

    def __enter__(self) -> LiveCurator:
        try:
            address = self._start_process() if self._process else self._start_here()
            self.client = self._stack.enter_context(Curator.connect(address, credentials=self._credentials))
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def ledger_verifies(self) -> bool:
        """Whether the ledger of all these trials is sound."""
        with self._home.open_ledger() as ledger:
            return ledger.verify().ok

    def _start_here(self) -> str:
        self._stack.enter_context(fault(self._fault))
        self._stack.enter_context(
            mock.patch("dpswd.private_curator.serving.second_accountant.check_with_autodp", _crosscheck)
        )
        running = server.CuratorServer(self._home, settings.load(self._home.path, _OVERRIDES))
        self._stack.enter_context(running)
        return running.start()

    def _start_process(self) -> str:
        command = [sys.executable, "-m", "benchmarks.audit.curators", str(self._home.path), self._fault]
        with self._log.open("ab") as log:
            process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
        self._stack.callback(_end, process)
        deadline = time.monotonic() + _START_S
        while not self._home.address.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the curator did not start: {self._log.read_text()[-2000:]}")
            time.sleep(0.05)
        return self._home.address.read_text().strip()


def upload(client: Curator, module: nn.Module) -> UploadedExtractor:
    """Traces and uploads an extractor."""
    graph = trace(module, client.describe().record_shape)
    return client.upload_extractor(graph.to_bytes(), weights_to_bytes(module_weights(module, graph)))


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def main() -> None:
    """Serves the curator of a home with a fault: ``python -m benchmarks.audit.curators HOME FAULT``."""
    home = HomeDirectory(Path(sys.argv[1]))
    with fault(sys.argv[2]):
        server.run_until_signal(server.CuratorServer(home, settings.load(home.path, _OVERRIDES)))


if __name__ == "__main__":
    main()
