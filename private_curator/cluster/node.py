"""A node: one process on a machine where the records lie. Computes shards in its own confined workers.

It has the records and the settings that say how they are read (a folder with a copy of ``curator.toml``), and a
member's certificate of the cluster. It has no ledger, no key of the curator's, no client, and draws no noise.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import tempfile
from pathlib import Path

import torch

from dpswd.private_curator.cluster import engine, task
from dpswd.private_curator.core.steps.evaluating import ExtractorSource
from dpswd.private_curator.records import target
from dpswd.private_curator.records.labels import load_labels
from dpswd.private_curator.sandbox.process import LimitReached
from dpswd.private_curator.settings.tree import CuratorSettings
from dpswd.private_curator.steps.engines import make_engine, report
from dpswd.private_curator.steps.shards import LocalShards, ShardLost
from dpswd.private_curator.storage.certificates import NODE
from dpswd.shared.core.mechanisms.interface import ModelFacts
from dpswd.shared.devices import resolve_device
from dpswd.shared.mechanisms import every_mechanism
from dpswd.shared.sandbox.graph import ExtractorGraph

_log = logging.getLogger(__name__)


class Node:
    """Answers tasks from the records of this machine.

    Args:
        home: a folder with ``curator.toml``; paths in it that are not absolute start there.
        settings: read from it.
    """

    def __init__(self, home: Path, settings: CuratorSettings) -> None:
        compute = settings.compute
        if compute.torch_threads:
            torch.set_num_threads(compute.torch_threads)
        device = resolve_device(compute.device)
        data, fingerprint = target.load_for_the_first_time(settings.records, home=home)
        labels = load_labels(settings.records, home=home, records=data.count)
        self._here = task.Meant.here(data, digest=fingerprint.digest, labels=labels)
        self.engine = make_engine(compute, device)
        report(self.engine)
        self._shards = LocalShards(
            self.engine, records=data, labels=labels, device=device, parallel=compute.parallel_steps
        )

    def answer(self, request: bytes, graph: bytes, weights: bytes) -> bytes:
        """The sum of one shard, or why there is none; never an exception, whose words might quote a record."""
        try:
            run, shard, meant = task.from_bytes(request, every_mechanism())
            if different := meant.differs(self._here):
                return task.FAILED + f"this node is not the curator's: {different}".encode()
            key = hashlib.sha256(graph).hexdigest() + hashlib.sha256(weights).hexdigest()
            source = ExtractorSource(key, ModelFacts.of(ExtractorGraph.from_bytes(graph)), lambda: (graph, weights))
            return task.SUM + task.sum_to_bytes(self._shards.sum(run, source, shard))
        except LimitReached as error:  # its words are made of settings
            return task.STOPPED + str(error).encode()
        except ShardLost:
            return task.LOST
        except Exception as error:  # noqa: BLE001 - the boundary: no text of an error leaves the node
            _log.error("a shard failed with %s", type(error).__name__)
            return task.FAILED + type(error).__name__.encode()


def serve(home: Path, settings: CuratorSettings, *, scheduler: str, certificates: Path, host: str | None) -> None:
    """Computes shards until SIGTERM or SIGINT."""
    engine.configure(NODE, certificates, scheduler=scheduler)
    node = Node(home, settings)
    engine.answer = node.answer
    try:
        asyncio.run(_member(settings, scheduler, certificates, host))
    finally:
        node.engine.close()


async def _member(settings: CuratorSettings, scheduler: str, certificates: Path, host: str | None) -> None:
    from distributed import Worker

    asked = engine.stop_asked()
    with tempfile.TemporaryDirectory(prefix="dpswd-node-") as directory:
        with engine.refusing_address(scheduler):
            made = Worker(
                scheduler,
                nthreads=settings.compute.parallel_steps,
                security=engine.security(certificates),
                local_directory=directory,
                memory_limit=0,
                dashboard=False,
                host=host,
            )
        async with made as member:
            print(f"node of {scheduler}", flush=True)
            ended = asyncio.create_task(member.finished())
            await asyncio.wait([ended, asyncio.create_task(asked.wait())], return_when=asyncio.FIRST_COMPLETED)
