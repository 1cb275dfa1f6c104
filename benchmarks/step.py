"""What the service costs around a step: time, bytes, clients at once, memory.

    python -m benchmarks.step --steps 60 --page docs/reference/step-cost.md

* A remote step (gRPC over mutual TLS on loopback, ledger, worker process, no padding of reply times) beside the same
  computation as a function call in this process, in turn, so that whatever else the machine does meets both.
* Bytes that cross the socket, counted by a proxy between client and curator, beside the information of a step: what is
  released at 16 bits a value, and the adapted parameters at 32 bits.
* Eight clients against one, with the padding that a curator has by default; clients that ask again at once, and clients
  that do something of their own between two steps, as those do that train.
* The curator's resident memory after a tenth of many steps and after all of them.

A quarter of an hour. Takes no seeds: what is drawn moves no figure.
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from benchmarks.records import Row, Rows, machine, options, table, written
from benchmarks.wire import CountingProxy
from benchmarks.worker import DIRECTIONS, Case, Running, lenet, prepared
from dpswd.private_curator.core.steps.denormals import flushed_denormals
from dpswd.private_curator.core.steps.evaluating import ExtractorSource
from dpswd.private_curator.core.steps.randomness import SystemNoise
from dpswd.private_curator.steps.local import LocalEngine
from dpswd.private_curator.steps.trial_run import MadeRecords
from dpswd.public_client.curator.stub import Curator
from dpswd.public_client.curator.values import Run
from dpswd.public_client.extractor.tracing import module_weights, trace, weights_to_bytes
from dpswd.public_client.testing.local_hospital import LocalHospital
from dpswd.shared.core.mechanisms.declared import AdmittedRun
from dpswd.shared.core.mechanisms.interface import DataSetFacts, Limits, ModelFacts
from dpswd.shared.core.steps.admission import admit_run
from dpswd.shared.core.steps.computing import Laboratory, computed
from dpswd.shared.core.wire.messages import StepRelease
from dpswd.shared.published_mechanisms import ALL_MECHANISMS

RESULTS = Path(__file__).parent / "results" / "step.json"
_SHAPE = (1, 28, 28)
_RECORDS = 2048
_WARM_UP = 5
_OWN_WORK_S = (0.0, 0.1, 0.25)  # what a client does between two steps, on a machine of its own: here it sleeps


def million() -> nn.Module:
    """Two convolutions and a wide layer: 1,007,396 parameters."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(1024, 932), nn.ReLU(),
    )  # fmt: skip


@dataclass(frozen=True)
class Timed(Case):
    """One kind of step; the adapted parameters' values travel with every one.

    Attributes:
        module: the extractor.
        limit: the largest ratio that was asked for.
    """

    module: Callable[[], nn.Module] = lenet
    limit: float = 1.3


CASES = (
    Timed("quantiles, all 2,048 records (as the default plan's)", _RECORDS, 3),
    Timed("quantiles, batch 128", 128, 8),
    Timed("rows, gradient of 25,050 parameters, batch 128", 128, 0, ("3.weight", "3.bias")),
    Timed("a million parameters, frozen, rows, batch 128", 128, 0, (), million, 2.0),
    Timed("a million parameters, all adapted, rows, batch 32", 32, 0,
          ("0.weight", "0.bias", "3.weight", "3.bias", "7.weight", "7.bias"), million, 2.0),
)  # fmt: skip


_SMALL = CASES[1]


@dataclass
class Prepared:
    """A case, opened at a curator and ready to be computed here."""

    case: Timed
    run: Run
    source: np.ndarray | None
    flat: np.ndarray | None
    extractor: ExtractorSource
    admitted: AdmittedRun

    @classmethod
    def of(cls, curator: Curator, case: Timed, steps: int) -> Prepared:
        module = case.module()
        graph = trace(module, _SHAPE)
        weights = module_weights(module, graph)
        stored = weights_to_bytes(weights)
        parameters = case.declared(curator.upload_extractor(graph.to_bytes(), stored), steps)
        width = graph.feature_dimension
        source = np.random.default_rng(4).random((case.batch, width), dtype=np.float32) if case.adapted else None
        flat = [np.asarray(weights[name], dtype=np.float32).ravel() for name in case.adapted]
        facts = ModelFacts(graph.input_shape, width, graph.parameter_shapes)
        return cls(
            case=case,
            run=curator.open_run(parameters),
            source=source,
            flat=np.concatenate(flat) if flat else None,
            extractor=ExtractorSource(key=graph.digest, facts=facts, read=lambda: (graph.to_bytes(), stored)),
            admitted=admit_run(
                parameters,
                mechanisms=ALL_MECHANISMS,
                data=DataSetFacts(_RECORDS, _SHAPE),
                model=facts,
                limits=Limits(),
            ),
        )

    def remote(self, curator: Curator) -> float:
        """Seconds of one remote step, its request's writing and its reply's reading included."""
        begun = time.perf_counter()
        curator.send(prepared(self.run, self.source, self.flat))
        return time.perf_counter() - begun

    def local(self, lab: Laboratory, engine: LocalEngine) -> float:
        """Seconds of the same computation as a function call: sample, extract, clip, project, noise, gradient."""
        payload = prepared(self.run, self.source, self.flat).payload
        request = self.admitted.admit_step(payload, limits=Limits())
        begun = time.perf_counter()
        with flushed_denormals(), engine.session(self.extractor) as session:
            computed(request, session, lab)
        return time.perf_counter() - begun

    def information(self, release: StepRelease) -> int:
        """Bytes of one step: 16 bits for each released value, 32 for each number that the step brings, nothing else."""
        reply = self.admitted.mechanism.reply.from_bytes(release.payload)
        if self.flat is None or self.source is None:
            return 2 * int(reply.values.values.size)
        brought = self.flat.nbytes + self.source.nbytes
        return 2 * int(reply.sliced.values.values.size + reply.gradient.values.size) + brought


@contextmanager
def hospital(quantum: str) -> Iterator[tuple[LocalHospital, Running]]:
    """A curator of its own with a confined worker, and a client of it."""
    os.environ["DPSWD_CURATOR_LIMITS__REPLY_QUANTUM_MS"] = quantum
    records = np.random.default_rng(3).random((_RECORDS, *_SHAPE), dtype=np.float32)
    with LocalHospital(records, epsilon=1e4, delta=1e-5, device="cpu") as running, running.connect() as connected:
        pid = int((running.home.parent / "curator.pid").read_text(encoding="ascii"))
        yield running, Running(connected.curator, pid)


def times(rows: Rows, steps: int) -> list[Row]:
    """Remote steps beside function calls."""
    device = torch.device("cpu")
    engine = LocalEngine(device=device)
    lab = Laboratory(
        records=MadeRecords(_RECORDS, _SHAPE),
        labels=None,
        noise=SystemNoise(),
        device=device,
        fresh_seed=lambda: os.urandom(32),
        reached=lambda _: None,
    )

    def measured(case: Timed, curator: Curator) -> Row:
        ready = Prepared.of(curator, case, steps + _WARM_UP)
        pairs = [(ready.local(lab, engine), ready.remote(curator)) for _ in range(steps + _WARM_UP)]
        here, there = (1e3 * statistics.median(column) for column in zip(*pairs[_WARM_UP:], strict=True))
        return {"call_ms": here, "remote_ms": there, "ratio": there / here, "wanted": case.limit}

    with hospital("0") as (_, running):
        return rows.run(
            [
                ({"measure": "time", "step": case.name}, functools.partial(measured, case, running.curator))
                for case in CASES
            ],
            again=True,
        )


def bytes_on_the_wire(rows: Rows, steps: int) -> list[Row]:
    """Counted bytes beside the information."""

    def measured(case: Timed, proxy: CountingProxy, curator: Curator) -> Row:
        ready = Prepared.of(curator, case, steps + 1)

        def step() -> StepRelease:
            return curator.send(prepared(ready.run, ready.source, ready.flat))

        information = ready.information(step())
        before = proxy.counted
        for _ in range(steps):
            step()
        each = (proxy.counted - before) / steps
        return {"information": information, "on_the_wire": each, "ratio": each / information, "wanted": 1.2}

    with hospital("0") as (running, _):
        host, port = running.address.rsplit(":", 1)
        with (
            CountingProxy((host, int(port))) as proxy,
            Curator.connect(proxy.address, credentials=running.credentials) as curator,
        ):
            return rows.run(
                [
                    ({"measure": "bytes", "step": case.name}, functools.partial(measured, case, proxy, curator))
                    for case in CASES
                ],
                again=True,
            )


def clients_at_once(rows: Rows, steps: int) -> list[Row]:
    """Throughput of one client and of eight, with the default padding."""

    def measured(own_work: float) -> Row:
        with hospital("auto") as (running, _):
            one, eight = (_throughput(running, count, steps, own_work) for count in (1, 8))
        return {"one": one, "eight": eight, "ratio": eight / one, "wanted": 6}

    return rows.run(
        [
            ({"measure": "clients", "own_work_ms": 1e3 * own_work}, functools.partial(measured, own_work))
            for own_work in _OWN_WORK_S
        ],
        again=True,
    )


def _throughput(running: LocalHospital, count: int, steps: int, own_work: float) -> float:
    """Steps a second of so many clients together."""
    curators = [running.connect().curator for _ in range(count)]
    every = [Prepared.of(curator, _SMALL, steps + _WARM_UP) for curator in curators]
    for curator, ready in zip(curators, every, strict=True):
        for _ in range(_WARM_UP):
            ready.remote(curator)
    barrier = threading.Barrier(count + 1)

    def work(curator: Curator, ready: Prepared) -> None:
        barrier.wait()
        for _ in range(steps):
            ready.remote(curator)
            time.sleep(own_work)

    threads = [threading.Thread(target=work, args=pair) for pair in zip(curators, every, strict=True)]
    for thread in threads:
        thread.start()
    barrier.wait()
    begun = time.perf_counter()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - begun
    for curator in curators:
        curator.close()
    return count * steps / seconds


def memory(rows: Rows, steps: int) -> list[Row]:
    """Resident memory of the curator over many steps."""

    def measured() -> Row:
        with hospital("0") as (_, running):
            ready = Prepared.of(running.curator, _SMALL, steps)
            sizes = []
            for number in range(steps):
                ready.remote(running.curator)
                if number + 1 in (steps // 10, steps):
                    pages = int(Path(f"/proc/{running.pid}/statm").read_text().split()[1])
                    sizes.append(pages * os.sysconf("SC_PAGE_SIZE") / 2**20)
        return {"tenth_mib": sizes[0], "mib": sizes[1]}

    return rows.run([({"measure": "memory", "steps": steps}, measured)], again=True)


_HEAD = """# What the service costs around a step

The papers' LeNet-like extractor (d = 320) and one of a million parameters (d = 932), random records of 28 x 28,
{directions} directions, loopback, mutual TLS, worker process, SQLite ledger on disk, one torch thread;
{machine}.
"""

_SAID = {
    "Time": """\
Medians, in turn, reply times not padded.""",
    "Bytes": """\
TCP payload in both directions, TLS and HTTP/2 included. Information is 16 bits for each released value.""",
    "Eight clients": """\
Quantiles of batches of 128, padded (`auto`). A client's own work between two steps is a sleep; without any, eight
clients ask for more than two cores can compute.""",
}

_LIMIT = {"wanted": "{wanted:g}", "met": "{met}"}
_COLUMNS = {
    "Time": {"step": "{step}", "function call": "{call_ms:.1f} ms", "remote": "{remote_ms:.1f} ms",
             "ratio": "{ratio:.2f}", **_LIMIT},
    "Bytes": {"step": "{step}", "information": "{information:,} B", "on the wire": "{on_the_wire:,.0f} B",
              "ratio": "{ratio:.3f}", **_LIMIT},
    "Eight clients": {"own work between steps": "{own_work_ms:.0f} ms", "one client, steps/s": "{one:.1f}",
                      "eight": "{eight:.1f}", "ratio": "{ratio:.2f}", **_LIMIT},
}  # fmt: skip


def _met(title: str, row: Row) -> str:
    met = row["ratio"] >= row["wanted"] if title == "Eight clients" else row["ratio"] <= row["wanted"]
    return "yes" if met else "**no**"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--memory-steps", type=int, default=5000)
    parser.add_argument("--page", type=Path, help="a Markdown file for the page")
    options(parser, RESULTS)
    arguments = parser.parse_args()
    rows, at, steps = Rows(RESULTS, arguments.results), machine(), arguments.steps
    page = _HEAD.format(directions=DIRECTIONS, machine=at)
    for title, measured, count in (
        ("Time", times, steps),
        ("Bytes", bytes_on_the_wire, max(10, steps // 3)),
        ("Eight clients", clients_at_once, steps),
    ):
        lines = [{**row, "met": _met(title, row)} for row in measured(rows, count)]
        page += f"\n## {title}\n\n{_SAID[title]}\n\n{table(lines, _COLUMNS[title])}"
    (held,) = memory(rows, arguments.memory_steps)
    page += f"\n## Memory\n\nAfter {held['steps'] // 10:,} steps the curator holds {held['tenth_mib']:.1f} MiB, "
    page += f"after {held['steps']:,} {held['mib']:.1f} MiB.\n\n"
    page += f"`python -m benchmarks.step --steps {steps} --memory-steps {arguments.memory_steps}`\n"
    written(page, arguments.page)


if __name__ == "__main__":
    main()
