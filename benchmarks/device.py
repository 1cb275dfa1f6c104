"""Steps and their noise on a CUDA device beside the CPU of the same machine; without a device it says so.

    python -m benchmarks.device [--seconds 8] [--page docs/reference/device-cost.md] [--results FILE]

* The noise alone: OpenSSL's keystream and the table on the CPU; the same integers by one Triton kernel on the device.
  Both end with the integers where the step needs them.
* Whole steps as function calls: sample, features, clip, directions, projection, sort, coefficients or sums, noise, and
  the copy of the released integers; on the device also with the extractor in a confined worker process. They take
  turns.
* Where all records are read, the two releases of one key are compared integer by integer.
* Steps on the device over sizes of data: time, memory and bytes.

Without a CUDA device the device's columns are the CPU's: a check that they run. Takes no
seeds: what is drawn moves no figure.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import os
import platform
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.device_cases import CLASSES, CPU, Case, Ready, features, in_turn, name_of
from benchmarks.device_sizes import sizes
from benchmarks.records import Row, Rows, options, table, written
from benchmarks.worker import lenet
from dpswd.private_curator.core.steps.randomness import SystemNoise
from dpswd.private_curator.sandbox.pool import WorkerPool
from dpswd.private_curator.sandbox.process import WorkerSettings
from dpswd.private_curator.steps.device_noise import DeviceNoise
from dpswd.private_curator.steps.local import LocalEngine
from dpswd.shared.core.mechanisms.class_statistics.mechanism import StatisticsDeclaration
from dpswd.shared.core.mechanisms.sliced import SlicedDeclaration
from dpswd.shared.core.noise.grid_gaussian import grid_gaussian_table
from dpswd.shared.core.noise.keystream import KEY_BYTES, Keystream
from dpswd.shared.core.noise.noise import GridArray
from dpswd.shared.device_noise.noise import DeviceSampler, draw_on
from dpswd.shared.devices import resolve_device
from dpswd.shared.published_mechanisms.clipped_sum import ClippedSum
from dpswd.shared.published_mechanisms.gradient.mechanism import GradientDeclaration
from dpswd.shared.sandbox.building import compute_in_full_float32

RESULTS = Path(__file__).parent / "results" / "device.json"
NOISE_VALUES = (1 << 14, 1 << 18, 1 << 22, 1 << 24)
_WORKER_BYTES = 16 << 30
_ADAPTED = ClippedSum(("3.weight", "3.bias"), clip_norm=0.1, sigma=1.0)
CASES = (
    Case("quantiles L = 3 of all 60,000, LeNet d = 320, k = 200", lenet, (1, 28, 28), 60_000, 60_000,
         "quantiles", SlicedDeclaration(200, 1.0, 3)),
    Case("quantiles L = 4 of all 55,387, d = 100, k = 500 (VisDA)", features, (100,), 55_387, 55_387,
         "quantiles", SlicedDeclaration(500, 1.0, 4)),
    Case("class statistics with second moments of all 60,000, d = 784", features, (784,), 60_000, 60_000,
         "class_statistics", StatisticsDeclaration(CLASSES, 1.0, 1.0, 0.0, 4.0)),
    Case("rows, LeNet d = 320, k = 200, b = 128", lenet, (1, 28, 28), 60_000, 128,
         "rows", SlicedDeclaration(200, 1.0)),
    Case("rows, LeNet d = 320, k = 1000, b = 4096", lenet, (1, 28, 28), 60_000, 4096,
         "rows", SlicedDeclaration(1000, 1.0)),
    Case("rows, d = 8192, k = 2000, b = 256 (CelebA)", features, (8192,), 4096, 256,
         "rows", SlicedDeclaration(2000, 1.0)),
    Case("rows and a gradient of 25,050 parameters, LeNet, b = 128", lenet, (1, 28, 28), 60_000, 128,
         "gradient", GradientDeclaration("rows", SlicedDeclaration(200, 1.0), _ADAPTED, 128)),
)  # fmt: skip


def _keys() -> Callable[[int], bytes]:
    """Public keys, the same for every source: only to compare two releases."""
    numbers = itertools.count(1)
    return lambda size: bytes([next(numbers)]) * size


def noise(rows: Rows, device: torch.device, seconds: float) -> str:
    """The noise alone."""
    kinds = {"one kernel": DeviceSampler(device)}
    grid = grid_gaussian_table()

    def on(sampler: DeviceSampler, count: int) -> Callable[[], object]:
        def call() -> None:
            sampler.sample(os.urandom(KEY_BYTES), count)
            _wait(device)

        return call

    def measured(count: int) -> Row:
        calls: dict[str, Callable[[], object]] = {"CPU": lambda: grid.sample(Keystream(os.urandom(KEY_BYTES)), count)}
        calls |= {kind: on(sampler, count) for kind, sampler in kinds.items()}
        times = in_turn(calls, seconds / 4)
        figures = {f"{name} ns": 1e9 * spent / count for name, spent in times.items()}
        return figures | {f"CPU over {kind}": times["CPU"] / times[kind] for kind in kinds}

    measurements = rows.run(
        [
            ({"measure": "noise", "device": name_of(device), "values": count}, functools.partial(measured, count))
            for count in NOISE_VALUES
        ],
        again=True,
    )
    columns = {"values": "{values:,}", "CPU, ns a value": "{CPU ns:.2f}"}
    for kind in kinds:
        columns |= {f"{kind}, ns": f"{{{kind} ns:.3f}}", f"CPU / {kind}": f"{{CPU over {kind}:.1f}}"}
    return table(measurements, columns)


def steps(rows: Rows, device: torch.device, seconds: float) -> str:
    """Whole steps."""
    here, there = LocalEngine(device=CPU), LocalEngine(device=device)
    settings = WorkerSettings(device=device.type, threads=0, memory_bytes=_WORKER_BYTES, seconds=300.0)
    pool = WorkerPool(settings, workers=1)

    def measured(case: Case) -> Row:
        ready = Ready.of(case)
        lab = replace(ready.lab, noise=DeviceNoise(device), device=device, draw=draw_on(device))
        times = in_turn(
            {
                "cpu_ms": lambda: ready.step(here, ready.lab),
                "device_ms": lambda: ready.step(there, lab),
                "worker_ms": lambda: ready.step(pool, lab),
            },
            seconds,
        )
        differ, most = _differences(ready, here, there, device)
        here.close()
        there.close()
        return {
            **{name: 1e3 * spent for name, spent in times.items()},
            "ratio": times["cpu_ms"] / times["device_ms"],
            "differ": differ,
            "at_most": most,
        }

    named = {"measure": "step", "device": name_of(device)}
    jobs = [({**named, "step": case.name}, functools.partial(measured, case)) for case in CASES]
    measurements = rows.run(jobs, again=True)
    pool.close()
    return table(measurements, _STEP_COLUMNS)


_STEP_COLUMNS = {
    "step": "{step}",
    "CPU": "{cpu_ms:.1f} ms",
    "device": "{device_ms:.1f} ms",
    "CPU / device": "{ratio:.1f}",
    "with a worker process": "{worker_ms:.1f} ms",
    "integers that differ": "{differ}",
    "by at most": "{at_most}",
}


def _differences(ready: Ready, here: LocalEngine, there: LocalEngine, device: torch.device) -> tuple[str, str]:
    """How many integers of one key's two releases differ, and by how many steps; samples are drawn anew, so only
    where all records are read in whatever order."""
    if ready.case.batch != ready.case.records:
        return "", ""
    seed = {"fresh_seed": lambda: bytes(KEY_BYTES)}
    one = ready.step(here, replace(ready.lab, noise=SystemNoise(entropy=_keys()), **seed))
    lab = replace(ready.lab, noise=DeviceNoise(device, entropy=_keys()), device=device, **seed)
    first, second = (_integers(ready.run.mechanism.reply.from_bytes(reply)) for reply in (one, ready.step(there, lab)))
    moved = np.abs(first - second)
    return f"{int((moved > 0).sum()):,} of {moved.size:,}", str(int(moved.max()))


def _integers(reply: Any) -> np.ndarray:
    arrays = [value for value in vars(reply).values() if isinstance(value, GridArray)]
    return np.concatenate([array.values.astype(np.int64).ravel() for array in arrays])


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


_PAGE = """# What a GPU saves

With `compute.device = "cuda"` a step is computed on the device, and one copy brings the released integers back. The
noise has the CPU's bits for the same key ([noise](../privacy/noise.md#on-a-device)). Measured on {machine}.

## The noise alone

{noise}
Without Triton the CPU draws, and the integers are copied.

## Whole steps

Medians; the CPU's column has {threads} torch threads. The first two columns are one process (`compute.isolation =
"in-process"`). With a worker process, the default, records, features and gradients go through the host's memory.

{steps}
The last two columns compare the two releases of the same key and directions.

## By size

Steps on the device, in one process; records are features already. Memory is the largest that torch had allocated. Class
sums take the time of reading and copying the records. `{command}` prints smaller sizes too.

{sizes}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=8.0, help="for each line, at least")
    parser.add_argument("--page", type=Path, help="a Markdown file for the page")
    options(parser, RESULTS)
    arguments = parser.parse_args()
    compute_in_full_float32()
    device = resolve_device("auto")
    machine = f"{name_of(device)}; {platform.machine()} with {os.cpu_count()} cores, torch {torch.__version__}"
    print(machine, flush=True)
    rows, seconds = Rows(RESULTS, arguments.results), arguments.seconds
    page = _PAGE.format(
        command=f"python -m benchmarks.device --seconds {seconds:g}",
        machine=machine,
        noise=noise(rows, device, seconds),
        steps=steps(rows, device, seconds),
        sizes=sizes(rows, device, seconds / 4),
        threads=torch.get_num_threads(),
    )
    written(page, arguments.page)


if __name__ == "__main__":
    main()
