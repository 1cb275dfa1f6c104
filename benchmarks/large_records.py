"""Resident memory of a curator that serves a file far larger than memory: ``python -m benchmarks.large_records``.

Makes a sparse npy file (10 million records of 2048 floats, 82 GB, of which the disk holds a few), makes a curator for
it with the operator's own commands, which reads all of it once, serves it, and takes steps over gRPC. Prints the peak
resident memory of the largest process and of all of them, and the time of each part. Takes no seeds: what is drawn
moves no figure.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import nn

from benchmarks.records import Row, Rows, machine, options
from dpswd.public_client.curator.stub import Curator
from dpswd.public_client.curator.values import PendingStep, new_request_id
from dpswd.public_client.extractor.tracing import module_weights, trace, weights_to_bytes
from dpswd.shared.core.mechanisms.sliced import SlicedDeclaration, SlicedRequest
from dpswd.shared.core.wire.messages import RunParameters
from dpswd.shared.published_mechanisms.clipped_sum import ClippedSum
from dpswd.shared.published_mechanisms.gradient.mechanism import GradientDeclaration, GradientRequest

RESULTS = Path(__file__).parent / "results" / "large-records.json"
COMMAND = (sys.executable, "-m", "dpswd.private_curator.cli")
WRITTEN = 64  # records with values of their own, spread over the file


class Peak(threading.Thread):
    """Samples the memory of a process and its children while it lives.

    The largest process is known exactly: the kernel keeps each one's peak (VmHWM). Of all together the largest sample
    counts: what each has for itself, and of each file or shared memory that they map (libraries, above all) the most
    that one of them holds of it. Other programs on the machine that map the same libraries make no difference.
    """

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._pid = pid
        self._ended = threading.Event()
        self._largest: dict[int, int] = {}
        self._together = 0
        self._processes = 0

    def run(self) -> None:
        while not self._ended.wait(0.5):
            family = _family(self._pid)
            for pid in family:
                self._largest[pid] = max(_peak(pid), self._largest.get(pid, 0))
            self._together = max(self._together, _together(family))
            self._processes = max(self._processes, len(family))

    def end(self) -> dict[str, float]:
        """Megabytes, and the number of processes."""
        self._ended.set()
        self.join()
        return {
            "processes": self._processes,
            "largest_process_mb": max(self._largest.values()) / 1e6,
            "all_together_mb": self._together / 1e6,
        }


def _family(pid: int) -> list[int]:
    family = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            family += [inner for child in task.read_text().split() for inner in _family(int(child))]
        except OSError:
            continue
    return family


def _peak(pid: int) -> int:
    return next((size for name, size in _sizes(pid, "status") if name == "VmHWM"), 0)


def _together(family: list[int]) -> int:
    private, shared = 0, {}
    for pid in family:
        mapped: dict[str, int] = {}
        path, resident = "", 0
        for name, size in _sizes(pid, "smaps"):
            if size < 0:
                path = name
            elif name == "Rss":
                resident = size
            elif name == "Anonymous":
                private += size
                mapped[path] = mapped.get(path, 0) + resident - size
        for path, size in mapped.items():
            shared[path] = max(size, shared.get(path, 0))
    return private + sum(shared.values())


def _sizes(pid: int, file: str) -> Iterator[tuple[str, int]]:
    """(name, bytes) of each line; (what is mapped, -1) for the head of a mapping. Nothing of a process that ended."""
    try:
        text = Path(f"/proc/{pid}/{file}").read_text()
    except OSError:
        return
    for line in text.splitlines():
        words = line.split()
        if len(words) == 3 and words[2] == "kB":
            yield words[0].rstrip(":"), int(words[1]) * 1024
        elif file == "smaps" and len(words) >= 5 and "-" in words[0]:
            yield (words[5] if len(words) > 5 else f"{pid} {words[0]}"), -1


def make_sparse(path: Path, *, records: int, values: int) -> None:
    """Zeros that take no room, and a few records of noise."""
    made = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(records, values))
    generator = np.random.default_rng(0)
    for row in np.linspace(0, records - 1, WRITTEN).astype(int):
        made[row] = generator.normal(size=values)
    made.flush()


def measured(*arguments: str) -> dict[str, float]:
    begun = time.monotonic()
    process = subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.DEVNULL)
    peak = Peak(process.pid)
    peak.start()
    if process.wait() != 0:
        raise SystemExit(f"dpswd-curator {arguments[0]} failed")
    return {**peak.end(), "seconds": time.monotonic() - begun}


def serve(home: Path, credentials: Path, *, values: int, batch: int, steps: int) -> dict[str, float]:
    begun = time.monotonic()
    (home / "address").unlink(missing_ok=True)
    process = subprocess.Popen(
        [
            *COMMAND,
            "serve",
            "--home",
            str(home),
            "--address",
            "localhost:0",
            "--device",
            "cpu",
            "--log-level",
            "warning",
        ]
    )
    peak = Peak(process.pid)
    peak.start()
    try:
        while not (home / "address").exists() or not (home / "address").read_text().strip():
            if process.poll() is not None:
                raise SystemExit("the curator did not start")
            time.sleep(0.05)
        started = time.monotonic() - begun
        each = _steps((home / "address").read_text().strip(), credentials, values=values, batch=batch, steps=steps)
    finally:
        figures = peak.end()
        process.send_signal(signal.SIGTERM)
        process.wait()
    return {**figures, "start_seconds": started, "median_step_seconds": each}


def _steps(address: str, credentials: Path, *, values: int, batch: int, steps: int) -> float:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(values, 64), nn.ReLU(), nn.Linear(64, 32))
    graph = trace(module, (values,))
    times = []
    with Curator.connect(address, credentials=credentials) as curator:
        uploaded = curator.upload_extractor(graph.to_bytes(), weights_to_bytes(module_weights(module, graph)))
        common = {
            "graph_digest": uploaded.graph_digest,
            "weights_digest": uploaded.weights_digest,
            "batch_size": batch,
            "steps": steps // 2,
        }
        sliced = SlicedDeclaration(100, 1.0, coefficients=2)
        adapted = GradientDeclaration("quantiles", sliced, ClippedSum(("0.bias",), 1.0, 10.0), source_features=256)
        source = np.random.default_rng(1).normal(size=(256, 32)).astype(np.float32)
        opened = [
            (curator.open_run(RunParameters(**common, mechanism=name, declaration=declared.to_bytes())), request)
            for name, declared, request in (
                ("quantiles", sliced, SlicedRequest()),
                ("gradient", adapted, GradientRequest(source)),
            )
        ]
        for _ in range(steps // 2):
            for run, request in opened:
                begun = time.monotonic()
                curator.send(PendingStep(run.run_id, new_request_id(), request.to_bytes()))
                times.append(time.monotonic() - begun)
    return float(np.median(times))


def served(folder: Path, *, records: int, values: int, batch: int, steps: int) -> Row:
    """All figures of one file."""
    path, home, credentials = folder / "records.npy", folder / "home", folder / "credentials"
    make_sparse(path, records=records, values=values)
    stat = path.stat()
    made = ("init", "--home", str(home), "--records", str(path), "--epsilon", "1", "--delta", "1e-9")
    figures = {
        "machine": machine(),
        "file_gb": stat.st_size / 1e9,
        "on_disk_mb": stat.st_blocks * 512 / 1e6,
        "init": measured(*made),
    }
    subprocess.run(
        [*COMMAND, "add", "ml-team", "--home", str(home), "--out", str(credentials)],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return figures | {"serve": serve(home, credentials, values=values, batch=batch, steps=steps)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--values", type=int, default=2048, help="floats of one record")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--directory", type=Path, default=None, help="where the sparse file goes; removed at the end")
    options(parser, RESULTS)
    chosen = vars(parser.parse_args())
    rows, directory = Rows(RESULTS, chosen.pop("results")), chosen.pop("directory")
    with tempfile.TemporaryDirectory(prefix="dpswd-large-", dir=directory) as name:
        rows.run([(chosen, lambda: served(Path(name), **chosen))], again=True)


if __name__ == "__main__":
    main()
