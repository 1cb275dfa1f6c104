"""A client that behaves keeps its rate beside floods of those who may not ask, and of connections that say nothing."""

from __future__ import annotations

import contextlib
import socket
import statistics
import threading
import time

import numpy as np
import pytest
import torch
from declarations import quantiles
from made_home import made_home
from raw_client import RawClient
from serving_here import serving
from torch import nn

from shared import errors
from shared.protocol.messages import RunParameters

QUANTUM_S = 0.5
SECONDS = 6.0
LEAST = 0.8
"""Share of its rate that a client keeps beside a flood."""


@pytest.fixture
def site(tmp_path):
    """A curator with a client that behaves, and one that was revoked."""
    records = np.random.default_rng(4).normal(size=(60, 5)).astype(np.float32)
    made = made_home(tmp_path, records, epsilon=1000.0, clients={"good": "good", "revoked": "revoked"})
    with made.open_ledger() as ledger:
        ledger.revoke_client("revoked", reason="test")
    return made


@contextlib.contextmanager
def flooding(threads, one):
    """So many threads do the same over and over; counts how often."""
    stop, counts = threading.Event(), [0] * threads

    def run(number):
        while not stop.is_set():
            with contextlib.suppress(OSError, errors.DpswdError):
                one()
            counts[number] += 1

    workers = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(threads)]
    for worker in workers:
        worker.start()
    try:
        yield counts
    finally:
        stop.set()
        for worker in workers:
            worker.join(timeout=60)


def test_a_client_keeps_its_rate_beside_floods(site, tmp_path):
    """Attacks: steps of a revoked client held a thread for a quantum each; connections that say nothing."""
    with serving(site, **{"limits.reply_quantum_ms": str(1000 * QUANTUM_S), "compute.request_threads": "4"}) as address:
        name, declaration = quantiles(2, 50.0, directions=10)
        with RawClient(address, credentials=tmp_path / "good") as good:
            torch.manual_seed(1)
            parameters = RunParameters(
                **good.upload(nn.Linear(5, 4)),
                mechanism=name,
                declaration=declaration.to_bytes(),
                batch_size=20,
                steps=500,
            )
            run = good.open_run(parameters).run_id

            def rate():
                """Median of a step's time, as steps a second."""
                taken, ends = [], time.monotonic() + SECONDS
                while time.monotonic() < ends:
                    begun = time.monotonic()
                    good.step(run)
                    taken.append(time.monotonic() - begun)
                return 1.0 / statistics.median(taken)

            rate()
            alone = rate()
            revoked = RawClient(address, credentials=tmp_path / "revoked")
            with flooding(8, lambda: (time.sleep(0.02), revoked.step(run))) as refused:
                beside_refused = rate()
            revoked.close()
            host, _, port = address.rpartition(":")

            def silent():
                with socket.create_connection((host, int(port)), timeout=5) as connection:
                    connection.sendall(b"\x16\x03\x01")  # the beginning of a handshake
                    time.sleep(0.2)

            with flooding(16, silent) as connected:
                beside_silent = rate()
    told = f"alone {alone:.2f}, beside {sum(refused)} refused {beside_refused:.2f}, "
    print(f"\nsteps a second: {told}beside {sum(connected)} silent connections {beside_silent:.2f}")
    assert sum(refused) > 8 * SECONDS  # more than a thread for a quantum each would let through
    assert sum(connected) > 16
    assert beside_refused >= LEAST * alone
    assert beside_silent >= LEAST * alone
