"""A sum over every record against a plain loop over the same file: ``python -m benchmarks.population``.

Makes a sparse npy file (100 million records of 64 floats, 25.6 GB, of which the disk holds next to nothing) with labels
beside it, and sums counts, class sums and second moments of features over all of it: as a curator does, in
its own process and with a worker process, and in plain loops that read, multiply and add. The file is cut into pieces,
and each piece is taken by one after the other, so that other work on the machine meets all alike. Peak memory is the
kernel's own (VmHWM) of this process, and what it is above that after loading the libraries.

The plain loops know no clip, no rounding, no NaN and no exact integers; one adds in float64, one in float32. Takes no
seeds: what is drawn moves no figure.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.large_records import Peak, make_sparse
from benchmarks.records import Rows, machine, options
from dpswd.private_curator.core.steps.evaluating import ExtractorSource
from dpswd.private_curator.core.steps.randomness import SystemNoise
from dpswd.private_curator.records.labels import LabelsInFile
from dpswd.private_curator.records.mapped import MappedRecords
from dpswd.private_curator.records.target import Target
from dpswd.private_curator.sandbox.pool import WorkerPool
from dpswd.private_curator.sandbox.process import WorkerSettings
from dpswd.private_curator.steps.local import LocalEngine
from dpswd.private_curator.steps.shards import LocalShards, shards
from dpswd.public_client.extractor.tracing import module_weights, trace, weights_to_bytes
from dpswd.shared.core.mechanisms.class_statistics.mechanism import CLASS_STATISTICS, StatisticsDeclaration
from dpswd.shared.core.mechanisms.class_statistics.sums import feature_bits
from dpswd.shared.core.mechanisms.interface import DataSetFacts, Facts, ModelFacts
from dpswd.shared.core.mechanisms.linear import LinearRun, Shard, ShardSum, block_records
from dpswd.shared.core.mechanisms.rounded_features import rounded_features
from dpswd.shared.core.noise.feature_map import FeatureMap
from dpswd.shared.core.steps.computing import Laboratory, completed

RESULTS = Path(__file__).parent / "results" / "population.json"
CPU = torch.device("cpu")
CLASSES, FEATURES = 10, 64
PLAIN_ROWS = 4096  # at a time in the plain loops: what they read stays in a core's own cache


class Plain:
    """Reads, multiplies and adds.

    Args:
        records: in their file.
        labels: in theirs.
        module: the extractor.
        dtype: of the sums.
    """

    def __init__(self, records: Target, labels: LabelsInFile, module: nn.Linear, dtype: torch.dtype) -> None:
        self._records, self._labels, self._module, self._dtype = records, labels, module, dtype
        self.by_class = torch.zeros((CLASSES, FEATURES), dtype=dtype)
        self.moments = torch.zeros((FEATURES, FEATURES), dtype=dtype)

    def add(self, shard: Shard, rows: int) -> None:
        with torch.no_grad():
            for start in range(shard.start, shard.stop, rows):
                places = np.arange(start, min(start + rows, shard.stop))
                features = self._module(torch.from_numpy(self._records.take(places))).to(self._dtype)
                self.by_class.index_add_(0, torch.from_numpy(self._labels[places].astype(np.int64)), features)
                self.moments += features.T @ features


def measured(path: Path, labels_path: Path, *, records: int, values: int, pieces: int) -> dict[str, object]:
    """Seconds of each way, and what the release of the worker's way and of the curator's own have in common."""
    torch.manual_seed(0)
    module = nn.Linear(values, FEATURES)
    graph = trace(module, (values,))
    sent = graph.to_bytes(), weights_to_bytes(module_weights(module, graph))
    source = ExtractorSource("key", ModelFacts.of(graph), lambda: sent)
    facts = Facts(DataSetFacts(records, (values,), CLASSES), source.facts)
    public = FeatureMap(torch.full((FEATURES,), 0.01), torch.full((FEATURES,), 0.3))
    run = LinearRun(CLASS_STATISTICS, StatisticsDeclaration(CLASSES, 0.7, 0.7, 0.0, 7.5, public), facts)
    offset = path.stat().st_size - 4 * records * values
    target = Target(MappedRecords(path, offset=offset, dtype=np.dtype(np.float32), shape=(records, values)), (values,))
    offset = labels_path.stat().st_size - records
    labels = LabelsInFile(MappedRecords(labels_path, offset=offset, dtype=np.dtype(np.uint8), shape=(records,)))
    threads = torch.get_num_threads()
    pool = WorkerPool(WorkerSettings("cpu", threads, 4 << 30, 300.0), workers=1)
    engines = {"curator": LocalEngine(device=CPU), "curator with worker": pool}
    plain = {
        "plain, float64": Plain(target, labels, module, torch.float64),
        "plain, float32": Plain(target, labels, module, torch.float32),
    }
    try:
        pool.ready()
        sums: dict[str, list[ShardSum]] = {name: [] for name in engines}
        ways: dict[str, Callable[[Shard], object]] = {}
        for name, engine in engines.items():
            local = LocalShards(engine, records=target, labels=labels, device=CPU, parallel=1)
            ways[name] = lambda shard, local=local, name=name: sums[name].append(local.sum(run, source, shard))
        for name, loop in plain.items():
            ways[name] = lambda shard, loop=loop: loop.add(shard, PLAIN_ROWS)
        seconds = dict.fromkeys(ways, 0.0)
        own_cpu = dict.fromkeys(ways, 0.0)
        order = list(ways)
        for turn, shard in enumerate(shards(facts, pieces)):
            print(f"piece {turn + 1} of {pieces}", flush=True)
            for name in order[turn % len(order) :] + order[: turn % len(order)]:
                begun, spent = time.monotonic(), time.process_time()
                ways[name](shard)
                seconds[name] += time.monotonic() - begun
                own_cpu[name] += time.process_time() - spent
        begun = time.monotonic()
        lab = Laboratory(target, None, SystemNoise(), CPU, lambda: bytes(32), lambda _: None)
        reply = completed(run, sums["curator"], lab)
        noise_s = time.monotonic() - begun
    finally:
        pool.close()
    same = all(
        np.array_equal(one, other)
        for parts in zip(*sums.values(), strict=True)
        for one, other in zip(*(part.sums for part in parts), strict=True)
    )
    return {
        "shortest_nanoseconds_a_record": parts(run, source, target, module),
        "seconds": round(sum(seconds.values()), 1),
        "seconds_of": seconds,
        "cpu_seconds_of_this_process": own_cpu,
        "ratio_to_plain_float64": {name: seconds[name] / seconds["plain, float64"] for name in engines},
        "ratio_to_plain_float32": {name: seconds[name] / seconds["plain, float32"] for name in engines},
        "adding_noise_seconds": noise_s,
        "reply_bytes": len(reply),
        "same_bits_with_and_without_worker": same,
        "peak_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def parts(run: LinearRun, source: ExtractorSource, records: Target, module: nn.Linear) -> dict[str, float]:
    """Where a record's time goes, in nanoseconds: of each part the shortest of many blocks, as on a quiet machine."""
    count = min(block_records(run.facts), records.count)  # as the curator takes them
    places = np.arange(count)
    read, plain = torch.from_numpy(records.take(places)), module.requires_grad_(False)
    kinds = places % CLASSES
    with LocalEngine(device=CPU).session(source) as session:
        features = session.features(read.numpy())
        sums = run.accumulator(CPU)
        feature_map, bits = run.declaration.feature_map, feature_bits(run.facts.data.records)
        ways: dict[str, Callable[[], object]] = {
            "reading": lambda: records.take(places),
            "extractor": lambda: session.features(read.numpy()),
            "the layer alone": lambda: plain(read),
            "all of the sums": lambda: sums.add(features, kinds),
            "of these, clip and rounding": lambda: rounded_features(features, feature_map, bits=bits),
            "float32 moments alone": lambda: features.T @ features,
            "a copy": features.clone,
        }
        shortest = dict.fromkeys(ways, float("inf"))
        for _ in range(300):
            for name, way in ways.items():
                begun = time.perf_counter()
                way()
                shortest[name] = min(shortest[name], 1e9 * (time.perf_counter() - begun) / count)
    return shortest


def peaked(folder: Path, *, records: int, values: int, pieces: int) -> dict[str, Any]:
    """All figures: `measured`, and memory before and at most."""
    path, labels = folder / "records.npy", folder / "labels.npy"
    make_sparse(path, records=records, values=values)
    made = np.lib.format.open_memmap(labels, mode="w+", dtype=np.uint8, shape=(records,))
    made[:CLASSES] = np.arange(CLASSES)
    made.flush()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    peak = Peak(os.getpid())
    peak.start()
    return {
        "machine": machine(),
        "file_gb": path.stat().st_size / 1e9,
        "on_disk_mb": path.stat().st_blocks * 512 / 1e6,
        "memory_before_mib": before,
        **measured(path, labels, records=records, values=values, pieces=pieces),
        "memory_of_all_processes_mb": peak.end()["all_together_mb"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=100_000_000)
    parser.add_argument("--values", type=int, default=64, help="floats of one record")
    parser.add_argument("--pieces", type=int, default=100, help="into which the file is cut, for all ways in turn")
    parser.add_argument("--directory", type=Path, default=None, help="where the sparse files go; removed at the end")
    options(parser, RESULTS)
    chosen = vars(parser.parse_args())
    rows, directory = Rows(RESULTS, chosen.pop("results")), chosen.pop("directory")
    with tempfile.TemporaryDirectory(prefix="dpswd-population-", dir=directory) as name:
        rows.run([(chosen, lambda: peaked(Path(name), **chosen))], again=True)


if __name__ == "__main__":
    main()
