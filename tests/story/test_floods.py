"""A client that behaves keeps its rate beside floods: those who may not ask, silent connections, slow clients."""

from __future__ import annotations

import contextlib
import re
import socket
import statistics
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from curator_process import CuratorProcess
from declarations import quantiles
from made_home import made_home
from raw_client import RawClient
from serving_here import serving
from slow_client import SlowClient
from torch import nn

from dpswd.shared.core import errors
from dpswd.shared.core.wire.messages import RunParameters

QUANTUM_S = 0.5
SECONDS = 4.0
LEAST = 0.8
"""Share of its rate that a client keeps beside a flood."""


@pytest.fixture
def site(tmp_path):
    """A curator with a client that behaves, one that does not, and one that was revoked."""
    records = np.random.default_rng(4).normal(size=(60, 5)).astype(np.float32)
    made = made_home(tmp_path, records, epsilon=1000.0, clients={"good": "good", "slow": "slow", "revoked": "revoked"})
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


@pytest.mark.long
def test_a_client_keeps_its_rate_beside_floods(site, tmp_path):
    """Attacks: steps of a revoked client held a thread for a quantum each; connections that say nothing.

    And clients, registered or not, whose requests held a thread until they were complete: half-open ones, bytes that
    trickle in, replies that nobody reads.
    """
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

            def slow():
                for client in ("slow", "revoked"):
                    with (
                        SlowClient(address, credentials=tmp_path / client) as asking,
                        SlowClient(address, credentials=tmp_path / client, window=0) as deaf,
                    ):
                        asking.begin("DrawStep")
                        trickling = [asking.begin("UploadExtractor", message_bytes=1 << 20) for _ in range(3)]
                        for _ in range(4):
                            deaf.end(deaf.begin("Describe", message_bytes=0))
                        for _ in range(10):
                            time.sleep(0.1)
                            for stream in trickling:
                                asking.send(stream, b"x")

            with flooding(6, slow) as slowly:
                beside_slow = rate()
    rates = f"alone {alone:.2f}, beside {sum(refused)} refused {beside_refused:.2f}, "
    rates += f"beside {sum(connected)} silent connections {beside_silent:.2f}, "
    print(f"\nsteps a second: {rates}beside {sum(slowly)} rounds of slow clients {beside_slow:.2f}")
    assert sum(refused) > 8 * SECONDS  # more than a thread for a quantum each would let through
    assert sum(connected) > 16
    assert beside_refused >= LEAST * alone
    assert sum(slowly) >= 6
    assert beside_silent >= LEAST * alone
    assert beside_slow >= LEAST * alone


MEBIBYTE = 1 << 20


@pytest.mark.long
def test_requests_that_are_received_have_bounded_memory(tmp_path, monkeypatch):
    """Attack: each thread received a request, as large as one may be, before it was asked who sent it.

    Of two clients' twenty requests at once, 15 MiB each, the curator takes what is allowed and, for moments, copies of
    it; of a revoked client's it takes nothing.
    """
    allowed = 32
    for name, mebibytes in (("MAX_MESSAGE_BYTES", 16), ("CLIENT_MESSAGE_BYTES", 16), ("MESSAGE_BYTES", allowed)):
        monkeypatch.setenv(f"DPSWD_CURATOR_LIMITS__{name}", str(mebibytes * MEBIBYTE))
    records = np.random.default_rng(4).normal(size=(60, 5)).astype(np.float32)
    curator = CuratorProcess(tmp_path, records, epsilon=1.0, isolation="in-process")
    names = ("one", "two", "revoked")
    for name in names:
        curator.command("add", name, "--out", curator.credentials(name))
    curator.command("clients", "--revoke", "revoked", "--reason", "test")
    curator.start()
    try:
        clients = {name: RawClient(curator.address, credentials=curator.credentials(name)) for name in names}
        status = Path(f"/proc/{curator.process.pid}")

        def most_beside(*asking):
            """MiB that the curator takes while these clients send, and how they are refused."""
            refused = []

            def send(client):
                try:
                    client.send_bytes("Describe", bytes(15 * MEBIBYTE))
                except errors.DpswdError as error:
                    refused.append(type(error))

            (status / "clear_refs").write_text("5")  # the peak is now what it takes now
            before = int(re.search(r"VmRSS:\s+(\d+)", (status / "status").read_text())[1])
            threads = [threading.Thread(target=send, args=(clients[name],)) for name in asking * 10]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(timeout=120)
            peak = int(re.search(r"VmHWM:\s+(\d+)", (status / "status").read_text())[1])
            return (peak - before) / 1024, set(refused), len(refused)

        unknown, refusals, count = most_beside("revoked", "revoked")
        assert (refusals, count) == ({errors.CredentialsInvalid}, 20)
        registered, refusals, count = most_beside("one", "two")
        assert refusals <= {errors.RequestInvalid, errors.TooManyRequests}
        assert errors.RequestInvalid in refusals
        assert count == 20
        for client in clients.values():
            client.close()
    finally:
        curator.stop()
    print(f"\nMiB beside 300 of a revoked client: {unknown:.0f}; of two registered clients: {registered:.0f}")
    assert unknown < 15
    assert registered < 4 * allowed
