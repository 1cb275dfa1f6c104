"""A sum over every record alone and on nodes of a cluster: ``python -m benchmarks.cluster``.

Makes a sparse npy file, starts a scheduler and nodes on this machine by the operator's commands, and computes the same
statistics alone (one worker), on one node and on more, in turn and several times. All nodes share this machine's cores,
whose number is printed beside it; a node is two processes, its own and its worker's, and so is the curator alone.
Takes no seeds: what is drawn moves no figure.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

from benchmarks.large_records import make_sparse
from benchmarks.records import Rows, machine, options
from dpswd.private_curator.cluster.shards import ClusterShards
from dpswd.private_curator.cluster.task import Meant
from dpswd.private_curator.core.steps.evaluating import ExtractorSource, Shards
from dpswd.private_curator.records import target
from dpswd.private_curator.records.labels import load_labels
from dpswd.private_curator.settings import tree as configuration
from dpswd.private_curator.steps.engines import make_engine
from dpswd.private_curator.steps.shards import LocalShards
from dpswd.private_curator.storage.certificates import make_cluster_members
from dpswd.public_client.extractor.tracing import module_weights, trace, weights_to_bytes
from dpswd.shared.core.mechanisms.class_statistics.mechanism import CLASS_STATISTICS, StatisticsDeclaration
from dpswd.shared.core.mechanisms.interface import DataSetFacts, Facts, ModelFacts
from dpswd.shared.core.mechanisms.linear import LinearRun, ShardSum, added
from dpswd.shared.core.noise.feature_map import FeatureMap

RESULTS = Path(__file__).parent / "results" / "cluster.json"
CLASSES, FEATURES = 10, 256


def started(*arguments: str, ready: str) -> tuple[subprocess.Popen[str], str]:
    command = (sys.executable, "-m", "dpswd.private_curator.cli", "cluster", *arguments)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(ready):
            return process, line.strip()
    raise SystemExit(f"{arguments[0]} ended before it was ready")


def timed(shards: Shards, run: LinearRun, source: ExtractorSource) -> tuple[float, ShardSum]:
    begun = time.monotonic()
    total = added(shards.sums(run, source), records=run.facts.data.records)
    return time.monotonic() - begun, total


def measured(folder: Path, *, records: int, values: int, nodes: int, repeats: int) -> dict[str, object]:
    torch.set_num_threads(1)
    make_sparse(folder / "records.npy", records=records, values=values)
    np.save(folder / "labels.npy", (np.arange(records) % CLASSES).astype(np.uint8))
    (folder / "curator.toml").write_text(
        f'[records]\nfile = "records.npy"\nlabels_file = "labels.npy"\nclasses = {CLASSES}\n'
        '[compute]\ndevice = "cpu"\ntorch_threads = 1\n'
    )
    make_cluster_members(folder / "cluster", nodes=("node",), names=("127.0.0.1",))
    settings = configuration.load(folder)
    data, record = target.load_for_the_first_time(settings.records, home=folder)
    labels = load_labels(settings.records, home=folder, records=records)
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(values, FEATURES), nn.ReLU(), nn.Linear(FEATURES, FEATURES))
    graph = trace(module, (values,))
    sent = graph.to_bytes(), weights_to_bytes(module_weights(module, graph))
    source = ExtractorSource("key", ModelFacts.of(graph), lambda: sent)
    declared = StatisticsDeclaration(CLASSES, 0.7, 0.7, 0.0, 7.5, FeatureMap.identity(FEATURES))
    run = LinearRun(CLASS_STATISTICS, declared, Facts(DataSetFacts(records, (values,), CLASSES), source.facts))
    seconds: dict[str, list[float]] = {}
    with contextlib.ExitStack() as ended:
        engine = make_engine(settings.compute, torch.device("cpu"))
        ended.callback(engine.close)
        alone = LocalShards(engine, records=data, labels=labels, device=torch.device("cpu"), parallel=1)
        scheduler, line = started(
            "scheduler",
            "--address",
            "127.0.0.1:0",
            "--certificates",
            str(folder / "cluster/scheduler"),
            ready="scheduling",
        )
        ended.callback(scheduler.kill)
        address = line.rpartition(" ")[2]
        cluster = ClusterShards(
            address, folder / "cluster/curator", meant=Meant.here(data, digest=record.digest, labels=labels)
        )
        ended.callback(cluster.close)
        expected = timed(alone, run, source)[1]  # starts the worker; its time does not count
        same = True
        for there in range(1, nodes + 1):
            node, _ = started(
                "node", "--settings", str(folder / "curator.toml"), "--scheduler", address, "--host", "127.0.0.1",
                "--certificates", str(folder / "cluster/node"), ready="node of",
            )  # fmt: skip
            ended.callback(node.kill)
            timed(cluster, run, source)  # loads the extractor
            for _ in range(repeats):
                for name, shards in (("alone", alone), ("cluster", cluster)):
                    spent, total = timed(shards, run, source)
                    seconds.setdefault(f"{there} nodes: {name}", []).append(spent)
                    print(f"{there} nodes: {name}: {spent:.2f} s", flush=True)
                    same &= all(np.array_equal(a, b) for a, b in zip(total.sums, expected.sums, strict=True))
    medians = {name: statistics.median(each) for name, each in seconds.items()}
    # Each against its own turns alone: what else the machine does changes in between.
    ratios = {f"{n} nodes": medians[f"{n} nodes: alone"] / medians[f"{n} nodes: cluster"] for n in range(1, nodes + 1)}
    return {
        "seconds_of": seconds,
        "median": medians,
        "times_as_fast_as_alone": ratios,
        "times_as_fast_as_one_node": {name: ratio / ratios["1 nodes"] for name, ratio in ratios.items()},
        "same_bits": same,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--values", type=int, default=256)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=7)
    options(parser, RESULTS)
    chosen = vars(parser.parse_args())
    rows = Rows(RESULTS, chosen.pop("results"))
    with tempfile.TemporaryDirectory(prefix="dpswd-cluster-") as name:
        rows.run([(chosen, lambda: {"machine": machine()} | measured(Path(name), **chosen))], again=True)


if __name__ == "__main__":
    main()
