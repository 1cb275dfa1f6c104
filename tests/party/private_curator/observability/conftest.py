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
from declarations import quantiles
from raw_client import RawClient
from torch import nn

from dpswd.private_curator.observability import logs
from dpswd.private_curator.serving import server
from dpswd.private_curator.settings import tree as settings
from dpswd.private_curator.settings.groups import LogSettings, RecordsSettings
from dpswd.private_curator.storage import home_directory as home
from dpswd.shared.core import errors
from dpswd.shared.core.wire.messages import RunParameters

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
        with RawClient(self.address, credentials=directory / "credentials") as client:
            self._session(client)

    def _checkpoint(self, name: str) -> None:
        if self.failing and name == "extracted":
            raise ValueError(f"cannot use {CANARY}")

    def _session(self, client: RawClient) -> None:
        torch.manual_seed(1)
        uploaded = client.upload(nn.Linear(5, 4))

        def declared(*, batch_size=20, steps=3, sigma=4.0):
            name, declaration = quantiles(2, sigma, directions=10)
            return RunParameters(
                **uploaded, mechanism=name, declaration=declaration.to_bytes(), batch_size=batch_size, steps=steps
            )

        run = client.open_run(declared()).run_id
        client.step(run)
        for refused in (declared(batch_size=61), declared(steps=3000, sigma=0.01)):
            with pytest.raises(errors.DpswdError):
                client.open_run(refused)
        pending = client.prepare_step(run)
        self.failing = True
        with pytest.raises(errors.CuratorFault):
            client.send(pending)
        self.failing = False
        client.send(pending)
        self._kill_worker()
        client.step(run)

    def _kill_worker(self) -> None:
        """The extraction worker dies between two steps; the next one finds a fresh one."""
        engine = self.server._engine
        os.kill(engine.pids[0], signal.SIGKILL)
        while engine._for_steps[0].worker.alive:
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
