"""What the service costs around a step: time, bytes, clients at once, memory.

    python -m benchmarks.step --steps 60 --write docs/step-cost.md

* A remote step (gRPC over mutual TLS on loopback, ledger, worker process, no padding of reply times) beside the same
  computation as a function call in this process, in turn, so that whatever else the machine does meets both.
* Bytes that cross the socket, counted by a proxy between client and curator, beside the information of a step: what is
  released at 16 bits a value, and the adapted parameters at 32 bits.
* Eight clients against one, with the padding that a curator has by default; clients that ask again at once, and clients
  that do something of their own between two steps, as those do that train.
* The curator's resident memory after a tenth of many steps and after all of them.
"""

from __future__ import annotations

import argparse
import os
import platform
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

from benchmarks.wire import CountingProxy
from benchmarks.worker import Running, lenet
from private_curator.steps.admission import AdmittedStep, ExtractorFacts
from private_curator.steps.denormals import flushed_denormals
from private_curator.steps.randomness import SystemNoise
from private_curator.steps.release import ReleasePipeline
from private_curator.steps.trial_run import SyntheticRecords
from private_curator.worker.local import LocalEngine
from private_curator.worker.sessions import ExtractorSource
from public_client.curator.stub import Curator
from public_client.curator.values import Run
from public_client.testing.local_hospital import RehearsalHospital
from shared.extractor.graph import ExtractorGraph
from shared.extractor.tracing import trace
from shared.extractor.weights import module_weights, weights_to_bytes
from shared.protocol.messages import Gradient, Quantiles, Rows, RunParameters, StepRelease

_SHAPE = (1, 28, 28)
_RECORDS = 2048
_WARM_UP = 5
_DIRECTIONS = 200
_OWN_WORK_S = (0.0, 0.1, 0.25)  # what a client does between two steps, on a machine of its own: here it sleeps


def million() -> nn.Module:
    """Two convolutions and a wide layer: 1,007,396 parameters."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(1024, 932), nn.ReLU(),
    )  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One kind of step.

    Attributes:
        name: for the table.
        module: the extractor.
        batch: b.
        release: what is released.
        adapted: names of the adapted parameters, whose values travel with every step; none for no gradient.
        wanted: the largest ratio that was asked for.
    """

    name: str
    module: Callable[[], nn.Module]
    batch: int
    release: Rows | Quantiles
    adapted: tuple[str, ...] = ()
    wanted: float = 1.3


CASES = (
    Case("quantiles, all 2,048 records (as the default plan's)", lenet, _RECORDS, Quantiles(3, 1.0)),
    Case("quantiles, batch 128", lenet, 128, Quantiles(8, 1.0)),
    Case("rows, gradient of 25,050 parameters, batch 128", lenet, 128, Rows(1.0), ("3.weight", "3.bias")),
    Case("a million parameters, frozen, rows, batch 128", million, 128, Rows(1.0), (), 2.0),
    Case("a million parameters, all adapted, rows, batch 32", million, 32, Rows(1.0),
         ("0.weight", "0.bias", "3.weight", "3.bias", "7.weight", "7.bias"), 2.0),
)  # fmt: skip


_SMALL = CASES[1]


@dataclass
class Prepared:
    """A case, opened at a curator and ready to be computed here."""

    case: Case
    run: Run
    source: np.ndarray | None
    flat: np.ndarray | None
    extractor: ExtractorSource
    step: AdmittedStep

    @classmethod
    def of(cls, curator: Curator, case: Case, steps: int) -> Prepared:
        module = case.module()
        graph = trace(module, _SHAPE)
        weights = module_weights(module, graph)
        uploaded = curator.upload_extractor(graph.to_bytes(), weights_to_bytes(weights))
        parameters = RunParameters(
            graph_digest=uploaded.graph_digest,
            weights_digest=uploaded.weights_digest,
            directions=_DIRECTIONS,
            batch_size=case.batch,
            steps=steps,
            release=case.release,
            gradient=Gradient(case.adapted, clip_norm=0.1, sigma=1.0) if case.adapted else None,
        )
        width = graph.feature_dimension
        source = np.random.default_rng(4).random((case.batch, width), dtype=np.float32) if case.adapted else None
        adapted = {name: np.asarray(weights[name], dtype=np.float32) for name in case.adapted}
        return cls(
            case=case,
            run=curator.open_run(parameters),
            source=source,
            flat=np.concatenate([value.ravel() for value in adapted.values()]) if adapted else None,
            extractor=_source_of(graph, weights_to_bytes(weights)),
            step=AdmittedStep(parameters=parameters, adapted=adapted, feature_map=None, source=source, digest=""),
        )

    def remote(self, curator: Curator) -> float:
        """Seconds of one remote step, its request's writing and its reply's reading included."""
        begun = time.perf_counter()
        curator.send(curator.prepare_step(self.run, source=self.source, adapted_parameters=self.flat))
        return time.perf_counter() - begun

    def local(self, pipeline: ReleasePipeline, data: SyntheticRecords, engine: LocalEngine) -> float:
        """Seconds of the same computation as a function call: sample, extract, clip, project, noise, gradient."""
        begun = time.perf_counter()
        with flushed_denormals(), engine.session(self.extractor) as session:
            pipeline._compute(
                self.step, self.extractor, session, data=data, labels=None, checkpoint=lambda _: None
            )  # fmt: skip
        return time.perf_counter() - begun

    def information(self, release: StepRelease) -> int:
        """Bytes of one step: 16 bits for each released value, 32 for each adapted parameter, nothing else."""
        values = release.release.size + (0 if release.gradient is None else release.gradient.size)
        return 2 * values + (0 if self.flat is None else self.flat.nbytes)


def _source_of(graph: ExtractorGraph, weights: bytes) -> ExtractorSource:
    facts = ExtractorFacts(
        input_shape=graph.input_shape,
        feature_dimension=graph.feature_dimension,
        parameter_shapes=graph.parameter_shapes,
    )
    return ExtractorSource(key=graph.digest, facts=facts, read=lambda: (graph.to_bytes(), weights))


@contextmanager
def hospital(quantum: str) -> Iterator[tuple[RehearsalHospital, Running]]:
    """A curator of its own with a confined worker, and a client of it."""
    os.environ["DPSWD_CURATOR_LIMITS__REPLY_QUANTUM_MS"] = quantum
    records = np.random.default_rng(3).random((_RECORDS, *_SHAPE), dtype=np.float32)
    with RehearsalHospital(records, epsilon=1e4, delta=1e-5, device="cpu") as running, running.connect() as curator:
        yield running, Running(curator, int((running.home.parent / "curator.pid").read_text(encoding="ascii")))


def times(steps: int) -> list[str]:
    """Table of remote steps beside function calls."""
    lines = ["| step | function call | remote | ratio | wanted | met |", "| --- | --- | --- | --- | --- | --- |"]
    device = torch.device("cpu")
    engine, data = LocalEngine(device=device), SyntheticRecords(_RECORDS, _SHAPE)
    pipeline = ReleasePipeline(ledger=None, data=data, engine=engine, noise=SystemNoise(), device=device)  # type: ignore[arg-type]
    with hospital("0") as (_, running):
        for case in CASES:
            prepared = Prepared.of(running.curator, case, steps + _WARM_UP)
            pairs = [
                (prepared.local(pipeline, data, engine), prepared.remote(running.curator))
                for _ in range(steps + _WARM_UP)
            ][_WARM_UP:]
            here, there = (statistics.median(column) for column in zip(*pairs, strict=True))
            met = "yes" if there <= case.wanted * here else "**no**"
            cells = [case.name, f"{1e3 * here:.1f} ms", f"{1e3 * there:.1f} ms", f"{there / here:.2f}"]
            lines.append(f"| {' | '.join(cells)} | {case.wanted:g} | {met} |")
            print(lines[-1], flush=True)
    return lines


def bytes_on_the_wire(steps: int) -> list[str]:
    """Table of counted bytes beside the information."""
    lines = ["| step | information | on the wire | ratio | wanted | met |", "| --- | --- | --- | --- | --- | --- |"]
    with hospital("0") as (running, _):
        host, port = running.address.rsplit(":", 1)
        with (
            CountingProxy((host, int(port))) as proxy,
            Curator.connect(proxy.address, credentials=running.credentials) as curator,
        ):
            for case in CASES:
                prepared = Prepared.of(curator, case, steps + 1)
                # Source features are uploaded once, as the client's own training does.
                source = None if prepared.source is None else curator.upload_source(prepared.source)

                def step(prepared: Prepared = prepared, source: str | None = source) -> StepRelease:
                    return curator.send(
                        curator.prepare_step(prepared.run, source=source, adapted_parameters=prepared.flat)
                    )

                information = prepared.information(step())
                before = proxy.counted
                for _ in range(steps):
                    step()
                each = (proxy.counted - before) / steps
                met = "yes" if each <= 1.2 * information else "**no**"
                cells = [case.name, f"{information:,} B", f"{each:,.0f} B", f"{each / information:.3f}"]
                lines.append(f"| {' | '.join(cells)} | 1.2 | {met} |")
                print(lines[-1], flush=True)
    return lines


def clients_at_once(steps: int) -> list[str]:
    """Table of the throughput of one client and of eight, with the default padding."""
    lines = ["| own work between steps | one client, steps/s | eight | ratio | wanted | met |",
             "| --- | --- | --- | --- | --- | --- |"]  # fmt: skip
    for own_work in _OWN_WORK_S:
        with hospital("auto") as (running, _):
            one, eight = (_throughput(running, count, steps, own_work) for count in (1, 8))
        ratio = eight / one
        cells = [f"{1e3 * own_work:.0f} ms", f"{one:.1f}", f"{eight:.1f}", f"{ratio:.2f}", "6"]
        lines.append(f"| {' | '.join(cells)} | {'yes' if ratio >= 6 else '**no**'} |")
        print(lines[-1], flush=True)
    return lines


def _throughput(running: RehearsalHospital, count: int, steps: int, own_work: float) -> float:
    """Steps a second of so many clients together."""
    curators = [running.connect() for _ in range(count)]
    prepared = [Prepared.of(curator, _SMALL, steps + _WARM_UP) for curator in curators]
    for curator, ready in zip(curators, prepared, strict=True):
        for _ in range(_WARM_UP):
            ready.remote(curator)
    barrier = threading.Barrier(count + 1)

    def work(curator: Curator, ready: Prepared) -> None:
        barrier.wait()
        for _ in range(steps):
            ready.remote(curator)
            time.sleep(own_work)

    threads = [threading.Thread(target=work, args=pair) for pair in zip(curators, prepared, strict=True)]
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


def memory(steps: int) -> list[str]:
    """Resident memory of the curator over many steps."""
    with hospital("0") as (_, running):
        prepared = Prepared.of(running.curator, _SMALL, steps)
        sizes = []
        for number in range(steps):
            prepared.remote(running.curator)
            if number + 1 in (steps // 10, steps):
                pages = int(Path(f"/proc/{running.pid}/statm").read_text().split()[1])
                sizes.append(pages * os.sysconf("SC_PAGE_SIZE") / 2**20)
    line = f"After {steps // 10:,} steps the curator holds {sizes[0]:.1f} MiB, after {steps:,} {sizes[1]:.1f} MiB."
    print(line, flush=True)
    return [line]


_HEAD = """# What the service costs around a step

Written by `{command}`.

The papers' LeNet-like extractor (d = 320) and one of a million parameters (d = 932), random records of 28 x 28,
{directions} directions, loopback, mutual TLS, worker process, SQLite ledger on disk. Machine: {machine}
at the start.
"""

_SAID = {
    "Time": """\
Medians, remote steps and function calls in turn. Reply times are not padded (`limits.reply_quantum_ms = 0`): the beat
that a hospital keeps is a choice and no cost of the service. What surrounds a step, and shows in the smallest, are two
durable transactions of the ledger with the witness beside it, gRPC with TLS, the receipt, authentication and admission,
and the way to the worker; the directions are drawn while it extracts.""",
    "Bytes": """\
TCP payload in both directions, TLS and HTTP/2 included; source features were uploaded beforehand. Information is
counted as 16 bits for each released value. A full batch's coefficients travel in 24, since their public bound grows
with sqrt(b): 1,800 B; the rest of that step, one for a whole training, is the signed receipt and headers.""",
    "Eight clients": """\
Quantiles of batches of 128, with the default padding (`auto`). A client's own work between two steps is done on a
machine of its own, so here it is a sleep. Without any, eight clients ask for more than two cores can compute.""",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--memory-steps", type=int, default=5000)
    parser.add_argument("--write", type=Path, help="a Markdown file for the page")
    arguments = parser.parse_args()
    command = f"python -m benchmarks.step --steps {arguments.steps} --memory-steps {arguments.memory_steps}"
    machine = f"{platform.machine()}, {os.cpu_count()} cores, one torch thread, load average {os.getloadavg()[0]:.1f}"
    sections = {
        "Time": times(arguments.steps),
        "Bytes": bytes_on_the_wire(max(10, arguments.steps // 3)),
        "Eight clients": clients_at_once(arguments.steps),
        "Memory": memory(arguments.memory_steps),
    }
    page = [_HEAD.format(command=command, directions=_DIRECTIONS, machine=machine)]
    for title, lines in sections.items():
        page += [f"## {title}", "", *([_SAID[title], ""] if title in _SAID else []), *lines, ""]
    if arguments.write is not None:
        arguments.write.write_text("\n".join(page), encoding="utf-8")


if __name__ == "__main__":
    main()
