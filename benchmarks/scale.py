"""Time, memory and bytes of one step of each mechanism: ``python -m benchmarks.scale run``, and `write`.

Steps are computed as a curator computes them, on made records, without the network, the ledger and the worker process
(docs/reference/step-cost.md and worker-cost.md have those). Records have d values and the extractor is the identity, or
one linear layer where a mechanism needs scores: what is timed is the release. Each measurement is a process of its own,
forked from one that has loaded everything; memory is its peak above what it began with, records of the sample included.

A cell is measured where its work is small enough; what is larger is extrapolated from the largest cell of its row that
was measured (in proportion to the records of a step) and printed in italics. Bytes are those of the reply, exactly.
A run goes on where the last one stopped. Takes no seeds: what is drawn moves no figure.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import platform
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.records import Rows, options, read
from dpswd.private_curator.core.steps.denormals import flushed_denormals
from dpswd.private_curator.core.steps.evaluating import ExtractorSource
from dpswd.private_curator.core.steps.randomness import SystemNoise
from dpswd.private_curator.steps.local import LocalEngine
from dpswd.private_curator.steps.trial_run import MadeRecords
from dpswd.public_client.extractor.tracing import module_weights, trace, weights_to_bytes
from dpswd.shared.core.mechanisms.class_statistics.mechanism import StatisticsDeclaration
from dpswd.shared.core.mechanisms.declared import AdmittedRun, Declared
from dpswd.shared.core.mechanisms.evaluation.mechanism import EvaluationDeclaration
from dpswd.shared.core.mechanisms.interface import DataSetFacts, Facts, Limits, ModelFacts, RunSize
from dpswd.shared.core.mechanisms.sliced import SlicedDeclaration
from dpswd.shared.core.steps.computing import Laboratory, computed
from dpswd.shared.core.wire.limits import MAX_RELEASE_VALUES
from dpswd.shared.published_mechanisms import ALL_MECHANISMS
from dpswd.shared.published_mechanisms.clipped_sum import ClippedSum
from dpswd.shared.published_mechanisms.gradient.mechanism import GradientDeclaration
from dpswd.shared.published_mechanisms.labelled_gradient.mechanism import LabelledGradientDeclaration
from dpswd.shared.published_mechanisms.sinkhorn.mechanism import SinkhornDeclaration

RESULTS = Path(__file__).parent / "results" / "scale.jsonl"
MARK = ("<!-- written by python -m benchmarks.scale -->", "<!-- end -->")
CLASSES, DIRECTIONS, COEFFICIENTS = 10, 200, 3
MEASURED_VALUES = 1 << 23  # records of a step times the wider of d and k: what is measured
PRINTED, LARGEST = 10**6, 10**8
DIMENSIONS, ON_THE_PAGE = (64, 512, 2048, 8192), (64, 2048)
LIMITS = Limits()


@dataclass(frozen=True)
class Row:
    """One mechanism with what it declares.

    Attributes:
        mechanism: its name.
        title: for the table.
        declare: the declaration for d features.
        scores: outputs of the linear layer; 0 for the identity.
        batch: most records of a step; 0 for all.
    """

    mechanism: str
    title: str
    declare: Callable[[int], Any]
    scores: int = 0
    batch: int = 0


SUM = ClippedSum(("weight", "bias"), 1.0, 50.0)


def _sliced(directions: int, coefficients: int = 0) -> Callable[[int], SlicedDeclaration]:
    return lambda _: SlicedDeclaration(directions, 50.0, coefficients)


MOST = LIMITS.max_batch_size
ROWS = (
    Row("evaluation", "evaluation, 10 classes, 15 bins",
        lambda _: EvaluationDeclaration(CLASSES, 30.0, 30.0, 15, 30.0), CLASSES),
    Row("class_statistics", "class sums", lambda _: StatisticsDeclaration(CLASSES, 0.7, 0.0, 0.0, 60.0)),
    Row("class_statistics", "class sums and second moments",
        lambda _: StatisticsDeclaration(CLASSES, 0.7, 0.7, 0.0, 60.0)),
    Row("quantiles", "quantile coefficients, k = 200, L = 3", _sliced(DIRECTIONS, COEFFICIENTS), 0, MOST),
    Row("rows", "rows, k = 200, b = 128", _sliced(DIRECTIONS), 0, 128),
    Row("gradient", "gradient of a linear layer, through rows, b = 128",
        lambda _: GradientDeclaration("rows", SlicedDeclaration(DIRECTIONS, 50.0), SUM, 128), CLASSES, 128),
    Row("labelled_gradient", "labelled gradient, linear, b = 128",
        lambda _: LabelledGradientDeclaration(CLASSES, SUM), CLASSES, 128),
    Row("sinkhorn", "sinkhorn, 100 + 100 points, 50 iterations, b = 128",
        lambda _: SinkhornDeclaration(CLASSES, 100, 100, 15.0, 0.0, 0.05, 50, 0.5, 5.0), 0, 128),
)  # fmt: skip
PAPER = (
    ("CelebA: d = 8192, k = 2000, b = 256, n = 162,770", Row("rows", "rows", _sliced(2000), 0, 256), 162_770, 8192),
    ("the same as one release of coefficients, L = 3, b = 16,000",
     Row("quantiles", "quantiles", _sliced(2000, 3), 0, MOST), 162_770, 8192),
    ("VisDA: d = 100, k = 1000, b = 128, n = 55,387", Row("rows", "rows", _sliced(1000), 0, 128), 55_387, 100),
    ("the same as one release of coefficients, L = 3, b = 32,000",
     Row("quantiles", "quantiles", _sliced(1000, 3), 0, MOST), 55_387, 100),
    ("VisDA's class sums and second moments", ROWS[2], 55_387, 100),
)  # fmt: skip


def sampled(row: Row, records: int, dimension: int) -> int:
    """Records of one step: all of them, or as many as the limits allow in a sample."""
    if not row.batch:
        return records
    sorted_values = MAX_RELEASE_VALUES // getattr(row.declare(dimension), "directions", 1)
    return min(records, row.batch, LIMITS.max_sample_values // dimension, sorted_values)


def prepared(row: Row, records: int, dimension: int) -> tuple[AdmittedRun, ExtractorSource]:
    """A run of n records, checked by the mechanism's own rules.

    Raises:
        SystemExit: what the rules refuse.
    """
    module = nn.Linear(dimension, row.scores) if row.scores else nn.Identity()
    graph = trace(module, (dimension,))
    sent = graph.to_bytes(), weights_to_bytes(module_weights(module, graph))
    facts = Facts(DataSetFacts(records, (dimension,), CLASSES), ModelFacts.of(graph))
    mechanism, declared = ALL_MECHANISMS[row.mechanism], row.declare(dimension)
    run: AdmittedRun = Declared(mechanism, declared, RunSize(sampled(row, records, dimension)), facts)
    if broken := run.violations(LIMITS):
        raise Refused(broken[0][1])
    return run, ExtractorSource("key", facts.model, lambda: sent)


class Refused(Exception):
    """The mechanism's own rules do not allow this cell."""


def measured(row: Row, records: int, dimension: int) -> dict[str, float]:
    """Seconds, peak bytes above the beginning's, and bytes of the reply, in a process of its own."""
    run, source = prepared(row, records, dimension)
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        cpu = torch.device("cpu")
        made = MadeRecords(records, (dimension,))
        labels = np.arange(records) % CLASSES
        lab = Laboratory(made, labels, SystemNoise(), cpu, lambda: bytes(32), lambda _: None)
        step = run.asked(run.synthetic())
        seconds, size = float("inf"), 0
        with flushed_denormals(), LocalEngine(device=cpu).session(source) as session:
            for _ in range(3):
                begun = time.perf_counter()
                size = len(computed(step, session, lab))
                seconds = min(seconds, time.perf_counter() - begun)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        os.write(writing, json.dumps({"seconds": seconds, "memory": peak * 1024, "bytes": size}).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        text = answer.read()
    _, status = os.waitpid(pid, 0)
    if status or not text:
        raise SystemExit(f"{row.title}, {records} records of {dimension}: the measurement ended with status {status}")
    figures: dict[str, float] = json.loads(text)
    return figures


def width(row: Row, dimension: int) -> int:
    declared = row.declare(dimension)
    return max(dimension, getattr(declared, "directions", 0)) * (
        dimension // 64 if row.title.endswith("moments") else 1
    )


def measurable(row: Row, dimension: int) -> int:
    """The largest data set of this row whose step is measured."""
    most = MEASURED_VALUES // width(row, dimension)
    return max(256, 1 << (most.bit_length() - 1))


def cells() -> list[tuple[Row, int, int]]:
    """What is measured."""
    chosen = []
    for row in ROWS:
        for dimension in DIMENSIONS:
            largest = min(measurable(row, dimension), row.batch or LARGEST)
            chosen += [(row, records, dimension) for records in sorted({min(1000, largest), largest})]
    for _, row, records, dimension in PAPER:
        small = 0 < row.batch <= 256  # the paper's own batch is measured as it is
        chosen.append((row, records if small else min(records, measurable(row, dimension)), dimension))
    return chosen


def key(row: Row, records: int, dimension: int) -> str:
    return f"{row.mechanism} {row.declare(dimension)!r} {sampled(row, records, dimension)} {dimension}"


def read_figures(path: Path) -> dict[str, dict[str, float]]:
    return {row["key"]: row for row in read(path)}


def cell(row: Row, records: int, dimension: int, figures: dict[str, dict[str, float]]) -> str:
    """The table's text: seconds, memory."""
    try:
        prepared(row, records, dimension)
    except Refused:
        return "refused"
    count = sampled(row, records, dimension)
    if (own := figures.get(key(row, records, dimension))) is not None:
        return f"{_seconds(own['seconds'])}, {_bytes(own['memory'])}"
    points = [
        (r, figures[key(row, r, d)])
        for kind, r, d in cells()
        if kind is row and d == dimension and key(row, r, d) in figures
    ]
    size, own = max(points, key=lambda point: point[0])
    factor = count / sampled(row, size, dimension)
    memory = own["memory"] * (1.0 if ALL_MECHANISMS[row.mechanism].whole else factor)
    return f"*{_seconds(own['seconds'] * factor)}, {_bytes(memory)}*"


def page(figures: dict[str, dict[str, float]], dimensions: Sequence[int] = DIMENSIONS) -> str:
    """The table for these numbers of features; for all of them, the papers' steps too."""
    machine = f"{platform.machine()}, {os.cpu_count()} cores, one torch thread, torch {torch.__version__}"
    lines = [f"Machine: {machine}; other work ran beside. One step at n = 10^6: seconds, memory and bytes of"]
    lines += ["the reply, shortest of three; *in italics: extrapolated* from a smaller n, in proportion.", ""]
    lines += ["| | " + " | ".join(f"d = {dimension}" for dimension in dimensions) + " |"]
    lines += ["|---|" + "---|" * len(dimensions)]
    for row in ROWS:
        texts = [f"{cell(row, PRINTED, d, figures)}, {reply_bytes(row, PRINTED, d)}" for d in dimensions]
        lines.append(f"| {row.title} | " + " | ".join(text.removesuffix(", refused") for text in texts) + " |")
    if dimensions != DIMENSIONS:
        return "\n".join(lines)
    lines += ["", "**The paper's**: one step, and bytes of its reply", "", "| | step | bytes |", "|---|---|---|"]
    for title, row, records, dimension in PAPER:
        lines.append(f"| {title} | {cell(row, records, dimension, figures)} | {reply_bytes(row, records, dimension)} |")
    return "\n".join(lines)


def reply_bytes(row: Row, records: int, dimension: int) -> str:
    """Of the values of a reply; its framing is some hundred bytes more."""
    try:
        run, _ = prepared(row, records, dimension)
    except Refused:
        return "refused"
    declared, count = row.declare(dimension), run.size.batch
    match row.mechanism:
        case "class_statistics":
            width = 4 if declared.grid(records)[1] == "int32" else 8
            return _bytes(width * declared.values(dimension))
        case "evaluation":
            return _bytes(4 * (1 + CLASSES**2 + 3 * declared.bins))
        case "quantiles":
            return _bytes(3 * declared.directions * declared.coefficients)
        case "rows":
            return _bytes(2 * count * declared.directions)
        case "sinkhorn":
            return _bytes(4 * declared.points * dimension)
    values = run.facts.model.size(declared.sum.parameters)
    return _bytes(4 * values + (2 * count * DIRECTIONS if row.mechanism == "gradient" else 0))


def _seconds(value: float) -> str:
    for unit, size in (("h", 3600.0), ("min", 60.0), ("s", 1.0)):
        if value >= size:
            return f"{value / size:.2g} {unit}" if value / size < 10 else f"{value / size:.0f} {unit}"
    return f"{1000 * value:.2g} ms" if value < 0.01 else f"{1000 * value:.0f} ms"


def _bytes(value: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:.2g} {unit}" if value / size < 10 else f"{value / size:.0f} {unit}"
    return f"{value:.0f} B"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=("run", "write"))
    parser.add_argument("--page", type=Path, default=None, help="a page whose marked part is replaced")
    options(parser, RESULTS)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    SystemNoise().grid_gaussian((1,), sigma=1.0, step=2.0**-11)  # the table, once for all processes
    if chosen.command == "run":
        Rows(RESULTS, chosen.results).run(({"key": key(*cell)}, functools.partial(_figures, *cell)) for cell in cells())
        return
    figures = read_figures(chosen.results or RESULTS)
    if chosen.page is None:
        print(page(figures))
    else:
        text = page(figures, ON_THE_PAGE)
        before, rest = chosen.page.read_text().split(MARK[0])
        chosen.page.write_text(f"{before}{MARK[0]}\n{text}\n{MARK[1]}{rest.split(MARK[1])[1]}")


def _figures(row: Row, count: int, dimension: int) -> dict[str, Any] | None:
    try:
        return {"title": row.title, "records": count, "d": dimension, **measured(row, count, dimension)}
    except Refused:
        return None


if __name__ == "__main__":
    main()
