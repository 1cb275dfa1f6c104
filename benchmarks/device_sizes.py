"""Time, memory and bytes of a step on a device, over sizes; a part of `python -m benchmarks.device`.

Records are features already, and random. A linear release's time is extrapolated from its two largest measured sizes,
and told as such; its memory does not grow. A sorted release reads at most 65,536 records whatever the data set holds.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace

import torch

from benchmarks.device_cases import CLASSES, Case, Ready, features, in_turn, name_of
from benchmarks.records import Job, Row, Rows, table
from dpswd.private_curator.steps.device_noise import noise_for
from dpswd.private_curator.steps.local import LocalEngine
from dpswd.shared.core.mechanisms.class_statistics.mechanism import StatisticsDeclaration
from dpswd.shared.core.mechanisms.sliced import SlicedDeclaration
from dpswd.shared.device_noise.noise import draw_on

_FARTHEST = 10**8  # records to which linear releases are extrapolated
_LINEAR = {64: (10**5, 10**6), 784: (10**4, 10**5), 8192: (2000, 10_000)}  # measured n, by d
_ON_THE_PAGE = 784  # features; smaller sizes are printed alone


def _sorted_cases() -> Iterator[Case]:
    for d, k in ((64, 200), (784, 200), (8192, 200), (8192, 2000)):
        n = max(n for n in (10**4, 16_000 if k == 2000 else 65_536) if n * d <= 1 << 28)
        yield Case("quantiles, L = 4", features, (d,), n, n, "quantiles", SlicedDeclaration(k, 1.0, 4))
    for d, k in ((64, 200), (100, 1000), (784, 1000), (8192, 2000)):
        yield Case("rows, b = 256", features, (d,), 10**4, 256, "rows", SlicedDeclaration(k, 1.0))


def _linear_cases(d: int) -> Iterator[Case]:
    for n in _LINEAR[d]:
        declared = StatisticsDeclaration(CLASSES, 1.0, 0.0, 0.0, 300.0)
        yield Case("class sums, C = 10", features, (d,), n, n, "class_statistics", declared)


_COLUMNS = {
    "release": "{release}",
    "d": "{d:,}",
    "k": "{k}",
    "records of the step": "{records:,}",
    "time": "{time}",
    "device memory": "{memory_mib}",
    "reply": "{reply_bytes:,} B",
}


def sizes(rows: Rows, device: torch.device, seconds: float) -> str:
    """Table over sizes for the page; all of them are printed."""
    engine = LocalEngine(device=device)

    def measured(case: Case) -> Row:
        ready = Ready.of(case)
        lab = replace(ready.lab, noise=noise_for(device), device=device, draw=draw_on(device))
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        spent = in_turn({"step": lambda: ready.step(engine, lab)}, seconds)["step"]
        peak = torch.cuda.max_memory_allocated(device) / 2**20 if device.type == "cuda" else None
        size = len(ready.step(engine, lab))
        engine.close()
        return {"step_s": spent, "memory_mib": peak, "reply_bytes": size}

    def job(case: Case) -> Job:
        k = getattr(case.declared, "directions", "")
        sized = {"release": case.name, "d": case.shape[0], "k": k, "records": case.batch}
        return {"measure": "size", "device": name_of(device), **sized}, functools.partial(measured, case)

    lines = [row | {"time": f"{1e3 * row['step_s']:.1f} ms"} for row in rows.run(map(job, _sorted_cases()), again=True)]
    for d in _LINEAR:
        few, many = rows.run(map(job, _linear_cases(d)), again=True)
        slope = (many["step_s"] - few["step_s"]) / (many["records"] - few["records"])
        far = many["step_s"] + (_FARTHEST - many["records"]) * slope
        lines.append(many | {"records": _FARTHEST, "time": f"*{far:,.0f} s, extrapolated*"})
    for row in lines:
        row["memory_mib"] = "" if row["memory_mib"] is None else f"{row['memory_mib']:,.0f} MiB"
    print(table(lines, _COLUMNS))
    return table((row for row in lines if row["d"] >= _ON_THE_PAGE), _COLUMNS)
