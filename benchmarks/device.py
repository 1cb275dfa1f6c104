"""Steps and their noise on a CUDA device beside the CPU of the same machine; without a device it says so.

    python -m benchmarks.device [--seconds 8] [--page docs/reference/device-cost.md]

* The noise alone: OpenSSL's keystream and the table on the CPU; the same integers by tensor operations and by one
  Triton kernel on the device. Both end with the integers where the step needs them.
* Whole steps as function calls: sample, features, clip, directions, projection, sort, coefficients or sums, noise, and
  the copy of the released integers; on the device also with the extractor in a confined worker process. They take
  turns.
* Where all records are read, the two releases of one key are compared integer by integer.
* Steps on the device over sizes of data: time, memory and bytes.

Without a CUDA device the device's columns are the integer tensor operations on the CPU: slow, and a check that they
run.
"""

from __future__ import annotations

import argparse
import itertools
import os
import platform
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.device_cases import CLASSES, CPU, Case, Ready, features, in_turn
from benchmarks.device_sizes import size_lines
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


def noise_lines(device: torch.device, seconds: float) -> list[str]:
    """Table of the noise alone."""
    kinds = {"tensor operations": DeviceSampler(device, fused=False)}
    own = DeviceSampler(device)
    if own.fused:
        kinds["one kernel"] = own
    table = grid_gaussian_table()

    def on(sampler: DeviceSampler, count: int) -> Callable[[], object]:
        def call() -> None:
            sampler.sample(os.urandom(KEY_BYTES), count)
            _wait(device)

        return call

    lines = [
        f"| values | CPU, ns a value | {' | '.join(f'{kind}, ns | CPU / it' for kind in kinds)} |",
        "| --- |" + " --- |" * (1 + 2 * len(kinds)),
    ]
    for count in NOISE_VALUES:
        calls: dict[str, Callable[[], object]] = {
            "CPU": lambda count=count: table.sample(Keystream(os.urandom(KEY_BYTES)), count)
        }
        calls |= {kind: on(sampler, count) for kind, sampler in kinds.items()}
        times = in_turn(calls, seconds / 4)
        cells = [f"{count:,}", f"{1e9 * times['CPU'] / count:.2f}"]
        for kind in kinds:
            cells += [f"{1e9 * times[kind] / count:.3f}", f"{times['CPU'] / times[kind]:.1f}"]
        lines.append(f"| {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    return lines


def step_lines(device: torch.device, seconds: float) -> list[str]:
    """Table of whole steps."""
    lines = [
        "| step | CPU | device | CPU / device | with a worker process | integers that differ | by at most |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    here, there = LocalEngine(device=CPU), LocalEngine(device=device)
    settings = WorkerSettings(device=device.type, threads=0, memory_bytes=_WORKER_BYTES, seconds=300.0)
    pool = WorkerPool(settings, workers=1)
    for case in CASES:
        ready = Ready.of(case)
        lab = replace(ready.lab, noise=DeviceNoise(device), device=device, draw=draw_on(device))
        calls: dict[str, Callable[[], object]] = {
            "CPU": lambda ready=ready: ready.step(here, ready.lab),
            "device": lambda ready=ready, lab=lab: ready.step(there, lab),
            "worker": lambda ready=ready, lab=lab: ready.step(pool, lab),
        }
        times = in_turn(calls, seconds)
        cells = [case.name, f"{1e3 * times['CPU']:.1f} ms", f"{1e3 * times['device']:.1f} ms"]
        cells += [f"{times['CPU'] / times['device']:.1f}", f"{1e3 * times['worker']:.1f} ms"]
        cells += _differences(ready, here, there, device)
        lines.append(f"| {' | '.join(cells)} |")
        print(lines[-1], flush=True)
        here.close()
        there.close()
    pool.close()
    return lines


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

Without Triton (tensor operations) noise on the device takes longer than on the CPU.

## Whole steps

Medians; the CPU's column has {threads} torch threads. The first two columns are one process (`compute.isolation =
"in-process"`). With a worker process, the default, records, features and gradients go through the host's memory.

{steps}

The last two columns compare the two releases of the same key and directions.

## By size

Steps on the device, in one process; records are features already. Memory is the largest that torch had allocated. Class
sums take the time of reading and copying the records. `{command}` prints smaller sizes too.

{sizes}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=8.0, help="for each line, at least")
    parser.add_argument("--page", type=Path, help="a Markdown file for the page")
    arguments = parser.parse_args()
    compute_in_full_float32()
    device = resolve_device("auto")
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else "NO CUDA DEVICE, its path on the CPU"
    machine = f"{where}; {platform.machine()} with {os.cpu_count()} cores, torch {torch.__version__}"
    print(machine, flush=True)
    page = _PAGE.format(
        command=f"python -m benchmarks.device --seconds {arguments.seconds:g}",
        machine=machine,
        noise="\n".join(noise_lines(device, arguments.seconds)),
        steps="\n".join(step_lines(device, arguments.seconds)),
        sizes="\n".join(size_lines(device, arguments.seconds / 4)),
        threads=torch.get_num_threads(),
    )
    if arguments.page is not None:
        arguments.page.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
