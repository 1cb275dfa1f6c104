"""One serving curator with everything that watches it, and a client that uses it."""

from __future__ import annotations

import io
import logging
import os
import signal
import time

import numpy as np
import pytest
import torch
from torch import nn

from private_curator.observability import logs
from private_curator.operator import home_directory as home
from private_curator.serving import server
from private_curator.settings.tree import LogSettings, RecordsSettings
from private_curator.settings import tree as settings
from public_client.curator.stub import Curator
from shared import errors
from shared.extractor.tracing import trace
from shared.extractor.weights import module_weights, weights_to_bytes
from shared.protocol.messages import Quantiles, RunParameters

CANARY = 987654.25  # stands in every record; must stand in no log, metric or span


class Watched:
    """A curator in this process after a session: a run, two refusals, an incident, and a worker that died."""

    def __init__(self, directory) -> None:
        records = np.random.default_rng(4).normal(size=(60, 5)).astype(np.float32)
        records[:, 2] = CANARY
        np.save(directory / "records.npy", records)
        self.home = home.create(
            directory / "home",
            records=RecordsSettings(file=directory / "records.npy"),
            epsilon=5.0,
            delta=1e-5,
            names=["localhost"],
        )
        issued, key = self.home.authority.make_client(name="ml-team")
        self.home.authority.write_credentials(issued, directory / "credentials", key_pem=key)
        with self.home.open_ledger() as ledger:
            share = ledger.accounting.budget(epsilon=4.0, delta=1e-5, relation="replace-one")
            ledger.add_client("ml-team", issued.fingerprint, share)
        self.failing = False
        self.log = io.StringIO()
        logs.configure(LogSettings(format="json"), stream=self.log)
        chosen = settings.load(
            self.home.path,
            {
                "listen.host": "localhost", "listen.port": "0", "compute.device": "cpu",
                "metrics.enabled": "true", "metrics.port": "0",
            },
        )  # fmt: skip
        self.server = server.CuratorServer(self.home, chosen, checkpoint=self._checkpoint)
        self.address = self.server.start()
        with Curator.connect(self.address, credentials=directory / "credentials", patience_s=0.2) as client:
            self._session(client)

    def _checkpoint(self, name: str) -> None:
        if self.failing and name == "extracted":
            raise ValueError(f"cannot use {CANARY}")

    def _session(self, client: Curator) -> None:
        torch.manual_seed(1)
        module = nn.Linear(5, 4)
        graph = trace(module, (5,))
        uploaded = client.upload_extractor(graph.to_bytes(), weights_to_bytes(module_weights(module, graph)))
        common = {
            "graph_digest": uploaded.graph_digest,
            "weights_digest": uploaded.weights_digest,
            "directions": 10,
            "batch_size": 20,
        }
        run = client.open_run(RunParameters(**common, steps=3, release=Quantiles(2, 4.0)))
        client.release_quantiles(run)
        for refused in (
            RunParameters(**{**common, "batch_size": 61}, steps=3, release=Quantiles(2, 4.0)),
            RunParameters(**common, steps=3000, release=Quantiles(2, 0.01)),
        ):
            with pytest.raises(errors.DpswdError):
                client.open_run(refused)
        pending = client.prepare_step(run)
        self.failing = True
        with pytest.raises(errors.CuratorFault):
            client.send(pending)
        self.failing = False
        client.send(pending)
        self._kill_worker()
        client.release_quantiles(run)

    def _kill_worker(self) -> None:
        """The extraction worker dies between two steps; the next one finds a fresh one."""
        engine = self.server._engine
        os.kill(engine.pids[0], signal.SIGKILL)
        while engine._places[0].worker.alive:
            time.sleep(0.01)


@pytest.fixture(scope="session")
def watched(tmp_path_factory):
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    try:
        made = Watched(tmp_path_factory.mktemp("watched"))
    finally:
        root.handlers[:] = before
        root.setLevel(level)
    yield made
    made.server.stop()
