"""What the confined worker process costs: the same remote steps with it and without it, alternating.

    python -m benchmarks.worker --steps 60 --page docs/reference/worker-cost.md

starts two real curators on this machine, one with ``compute.isolation = process`` and one with ``in-process``, both
without padding of reply times, and draws steps from them in turn, so that whatever else the machine does meets both.
A minute. Takes no seeds: what is drawn moves no figure.
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from benchmarks.records import Row, Rows, machine, options, table, written
from dpswd.public_client.curator.stub import Curator
from dpswd.public_client.curator.values import PendingStep, Run, UploadedExtractor, new_request_id
from dpswd.public_client.extractor.tracing import module_weights, trace, weights_to_bytes
from dpswd.public_client.testing.local_hospital import LocalHospital
from dpswd.shared.core.mechanisms.interface import FloatArray, Payload
from dpswd.shared.core.mechanisms.sliced import SlicedDeclaration, SlicedRequest
from dpswd.shared.core.wire.messages import RunParameters
from dpswd.shared.published_mechanisms.clipped_sum import ClippedSum
from dpswd.shared.published_mechanisms.gradient.mechanism import GradientDeclaration, GradientRequest

RESULTS = Path(__file__).parent / "results" / "worker.json"
DIRECTIONS = 200
_SHAPE = (1, 28, 28)
_RECORDS = 2048
_WARM_UP = 5  # steps that are not counted


@dataclass(frozen=True)
class Case:
    """One kind of step.

    Attributes:
        name: for the table.
        batch: b.
        coefficients: L of the released quantiles; 0 for rows.
        adapted: names of the adapted parameters; none for no gradient.
    """

    name: str
    batch: int
    coefficients: int
    adapted: tuple[str, ...] = ()

    def declared(self, uploaded: UploadedExtractor, steps: int) -> RunParameters:
        """A run of so many steps of this kind."""
        release = "quantiles" if self.coefficients else "rows"
        sliced = SlicedDeclaration(DIRECTIONS, 1.0, self.coefficients)
        declared: Payload = sliced
        if self.adapted:
            clipped = ClippedSum(self.adapted, clip_norm=0.1, sigma=1.0)
            declared = GradientDeclaration(release, sliced, clipped, source_features=self.batch)
        return RunParameters(
            graph_digest=uploaded.graph_digest,
            weights_digest=uploaded.weights_digest,
            mechanism="gradient" if self.adapted else release,
            declaration=declared.to_bytes(),
            batch_size=self.batch,
            steps=steps,
        )


CASES = (
    Case("quantiles, batch 128", 128, 8),
    Case("quantiles, batch 1,024", 1024, 8),
    Case("rows, gradient of 25,050 parameters, batch 128", 128, 0, ("3.weight", "3.bias")),
    Case("rows, gradient of 256,320 parameters, batch 128", 128, 0, ("7.weight", "7.bias")),
)


def prepared(run: Run, source: FloatArray | str | None, adapted: FloatArray | None = None) -> PendingStep:
    """A step's request; only a gradient's brings a source."""
    request = SlicedRequest() if source is None else GradientRequest(source, adapted)
    return PendingStep(run.run_id, new_request_id(), request.to_bytes())


def lenet() -> nn.Module:
    """The papers' digits extractor, with random weights: their values do not change the time."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 20, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(20, 50, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(800, 320), nn.ReLU(),
    )  # fmt: skip


@dataclass(frozen=True)
class Running:
    """A curator process, and a client of it.

    Attributes:
        curator: the client's connection.
        pid: of the curator; its workers are its children.
    """

    curator: Curator
    pid: int

    def cpu_seconds(self) -> float:
        """Of the curator and its workers together, so far."""
        ticks = 0
        for status in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = status.read_text(encoding="utf-8").rpartition(")")[2].split()
            except OSError:  # it has just ended
                continue
            if int(status.parent.name) == self.pid or int(fields[1]) == self.pid:
                ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")


@contextmanager
def hospital(isolation: str) -> Iterator[Running]:
    """A curator of its own, and a client of it."""
    os.environ["DPSWD_CURATOR_COMPUTE__ISOLATION"] = isolation
    os.environ["DPSWD_CURATOR_LIMITS__REPLY_QUANTUM_MS"] = "0"
    records = np.random.default_rng(3).random((_RECORDS, *_SHAPE), dtype=np.float32)
    with LocalHospital(records, epsilon=1e4, delta=1e-5, device="cpu") as running, running.connect() as connected:
        pid = int((running.home.parent / "curator.pid").read_text(encoding="ascii"))
        yield Running(connected.curator, pid)


def opened(curator: Curator, case: Case, steps: int) -> Run:
    """A run of this case's steps."""
    module = lenet()
    graph = trace(module, _SHAPE)
    uploaded = curator.upload_extractor(graph.to_bytes(), weights_to_bytes(module_weights(module, graph)))
    return curator.open_run(case.declared(uploaded, steps))


def measured(sites: dict[str, Running], case: Case, steps: int) -> Row:
    """Median ms of a step and mean CPU ms of a step, by isolation, and the ratios."""
    runs = {name: opened(site.curator, case, steps + _WARM_UP) for name, site in sites.items()}
    source = np.random.default_rng(4).random((case.batch, 320), dtype=np.float32) if case.adapted else None
    seconds: dict[str, list[float]] = {name: [] for name in sites}
    before = dict.fromkeys(sites, 0.0)
    for number in range(-_WARM_UP, steps):
        if number == 0:
            before = {name: site.cpu_seconds() for name, site in sites.items()}
        for name, site in sites.items():
            pending = prepared(runs[name], source)
            begun = time.perf_counter()
            site.curator.send(pending)
            if number >= 0:
                seconds[name].append(time.perf_counter() - begun)
    clock = {f"{name}_ms": 1000 * statistics.median(each) for name, each in seconds.items()}
    cpu = {f"{name}_cpu_ms": 1000 * (site.cpu_seconds() - before[name]) / steps for name, site in sites.items()}
    ratios = {"ratio": clock["worker_ms"] / clock["plain_ms"], "cpu_ratio": cpu["worker_cpu_ms"] / cpu["plain_cpu_ms"]}
    return {"machine": machine(), **clock, **cpu, **ratios}


COLUMNS = {
    "remote step": "{step}",
    "in-process, ms": "{plain_ms:.1f}",
    "worker, ms": "{worker_ms:.1f}",
    "ratio": "{ratio:.2f}",
    "CPU in-process, ms": "{plain_cpu_ms:.1f}",
    "CPU worker, ms": "{worker_cpu_ms:.1f}",
    "CPU ratio": "{cpu_ratio:.2f}",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--page", type=Path, help="a Markdown file for the page")
    options(parser, RESULTS)
    arguments = parser.parse_args()
    steps = arguments.steps
    with hospital("process") as confined, hospital("in-process") as plain:
        sites = {"plain": plain, "worker": confined}
        jobs = [
            ({"step": case.name, "steps": steps}, functools.partial(measured, sites, case, steps)) for case in CASES
        ]
        rows = Rows(RESULTS, arguments.results).run(jobs, again=True)
    text = (
        "# What the worker process costs\n\n"
        f"Medians of the wall clock, and means of CPU time (curator and worker together), over {steps} "
        "steps, asked in turn from two curators that differ in `compute.isolation` alone. The papers' LeNet-like "
        "extractor, random records of 28 x 28, 200 directions, no padding, loopback; "
        f"torch {torch.__version__}, {rows[0]['machine']}.\n\n"
    )
    written(f"{text}{table(rows, COLUMNS)}\n`python -m benchmarks.worker`\n", arguments.page)


if __name__ == "__main__":
    main()
