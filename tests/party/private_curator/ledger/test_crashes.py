"""SIGKILL at every named point of charging and answering, and at random moments; real processes, files and server."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from exploring import seeded
from toy_accounting import ToyAccounting, ToyBudget

from dpswd.private_curator.books.ledger import Ledger
from dpswd.private_curator.books.location import LedgerLocation
from dpswd.private_curator.books.sqlite_file import SqliteFile
from dpswd.private_curator.core.ledger.statements import Request
from dpswd.shared.core.ledger.receipts import sha256

STEPS = 4
POINTS = [
    "open_run:begun",
    "open_run:filter-fixed",
    "open_run:run-opened",
    "open_run:written",
    "open_run:durable",
    "begin_step:begun",
    "begin_step:step-consumed",
    "begin_step:step-resumed",
    "begin_step:written",
    "begin_step:durable",
    "compute",
    "finish_step:begun",
    "finish_step:step-answered",
    "finish_step:written",
    "finish_step:durable",
    "answer",
]

MUCH = {"rounds": [("sqlite", 30), ("postgres", 10)], "lives": [("sqlite", 300), ("postgres", 100)]}
"""In `make test-exhaustive`."""
TEN_THOUSAND = 10_000


class World:
    """The driver, the log of what was seen outside, and the ledger after a death."""

    def __init__(self, location: LedgerLocation, directory: Path, key: Ed25519PrivateKey) -> None:
        self.directory, self.key = directory, key
        self.begin(location)
        driver = Path(__file__).with_name("crash_driver.py")
        self.process = subprocess.Popen(
            [sys.executable, driver], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def begin(self, location: LedgerLocation) -> None:
        """A new ledger, of which nothing has been seen."""
        self.location, self.log_path = location, self.directory / "log"
        with Ledger.create(
            location, key=self.key, records=100, budget=ToyBudget(10.0), accounting=ToyAccounting()
        ) as ledger:
            ledger.add_client("alice", "f" * 64)
        self.log_path.write_text("")

    def begin_anew(self) -> None:
        """The same in the place of the present file, so that a life does not grow longer with the world's age."""
        assert isinstance(self.location, SqliteFile)
        for file in self.location.path.parent.glob(f"{self.location.path.name}*"):
            file.unlink()
        self.begin(self.location)

    def live(self, **order: object) -> int:
        """One life; returns its exit code, negative for a signal."""
        place = self.location
        where = str(place) if isinstance(place, SqliteFile) else f"{place.url}#{place.schema}"
        self.process.stdin.write(json.dumps({"ledger": where, "log": str(self.log_path), **order}) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def kill(self, point: str, kills: dict[str, int], generator: random.Random, *, runs: int) -> None:
        """A life that ends at a point, if it gets there; what it leaves is checked."""
        # A filter is fixed once in a ledger's life, a resumption follows a death: the others come by themselves.
        occurrence = 1 if point.endswith(("filter-fixed", "step-resumed")) else generator.randint(1, 3)
        code = self.live(point=point, occurrence=occurrence, runs=runs)
        assert code in (0, -signal.SIGKILL)
        kills[point] += code == -signal.SIGKILL
        self.check()
        if point in ("begin_step:durable", "compute") and code:
            # The step was consumed and not answered: the next life resumes it, and dies while it does.
            assert self.live(point="begin_step:step-resumed", runs=runs) == -signal.SIGKILL
            kills["begin_step:step-resumed"] += 1
            self.check()

    def seen(self, kind: str) -> list[list[str]]:
        lines = self.log_path.read_text().splitlines()
        return [words[1:] for words in map(str.split, lines) if words[0] == kind]

    def check(self) -> None:
        """What must hold after every death."""
        with Ledger.open(self.location, key=self.key, accounting=ToyAccounting()) as ledger:
            while True:  # PostgreSQL may still commit for a process that was killed in its COMMIT
                entries, status = list(ledger.history()), ledger.status()
                if status.entries == len(entries):
                    break
        opened = {e.payload["request_id"]: e.payload["run"] for e in entries if e.kind == "run-opened"}
        consumed = {
            (e.payload["run"], e.payload["step"], e.payload["request_id"]) for e in entries if e.kind == "step-consumed"
        }
        replies = {e.payload["request_id"]: e.payload["reply"] for e in entries if e.kind == "step-answered"}
        # Never a double charge: one run for each request, one step for each request, and their prices.
        assert sum(e.kind == "run-opened" for e in entries) == len(opened) == status.runs
        assert sum(e.kind == "step-consumed" for e in entries) == len(consumed) == status.steps_used
        assert len({request for _, _, request in consumed}) == len(consumed)
        assert status.data_set.epsilon_spent == pytest.approx(0.001 * STEPS * len(opened))
        # Never an uncharged release: whatever was computed was consumed, whatever was sent is stored.
        for run_id, step, request in self.seen("computing"):
            assert (run_id, int(step), request) in consumed
        for run_id, request in self.seen("opened"):
            assert opened[request] == run_id
        for _, request, digest in self.seen("received"):
            assert replies[request] == digest

    def finish(self, runs: int) -> None:
        """The client gets everything in the end, and the books agree with every byte it has."""
        assert self.live(runs=runs) == 0
        self.check()
        assert len(self.seen("received")) == runs * STEPS  # one release each, none twice
        with Ledger.open(self.location, key=self.key, accounting=ToyAccounting()) as ledger:
            report = ledger.verify()
            assert report.ok, report.findings
            assert (ledger.status().runs, ledger.status().steps_used) == (runs, runs * STEPS)
            for run_id, request, digest in self.seen("received"):
                stored = ledger.begin_step(Request(client="alice", request_id=request, digest="d" * 64), run_id=run_id)
                assert sha256(stored.reply) == digest


@pytest.fixture
def world(request, location, memory, key):
    in_memory = SqliteFile(memory / "ledger.sqlite") if isinstance(location, SqliteFile) else location
    world = World(in_memory, memory, key)
    yield world
    world.process.stdin.close()
    assert world.process.wait(timeout=60) == 0
    world.process.stdout.close()


@pytest.mark.parametrize(
    ("location", "rounds"),
    [("sqlite", 3), ("postgres", 1), *(pytest.param(*much, marks=pytest.mark.exhaustive) for much in MUCH["rounds"])],
    indirect=["location"],
)
@pytest.mark.long
def test_killed_at_every_point(world, rounds):
    generator = seeded(1)
    kills = dict.fromkeys(POINTS, 0)
    runs = 1
    for _ in range(rounds):
        for point in POINTS:
            runs += 1
            world.kill(point, kills, generator, runs=runs)
    print(f"{sum(kills.values())} kills: {kills}")
    assert all(kills[point] for point in POINTS), kills
    assert sum(kills.values()) >= 14 * rounds, kills
    world.finish(runs)


@pytest.mark.exhaustive
@pytest.mark.timeout(7200)
def test_killed_ten_thousand_times(world):
    """A ledger for each round: everything is killed at every point, comes back, and is complete in the end."""
    generator = seeded(3)
    kills, ledgers, begun = dict.fromkeys(POINTS, 0), 0, time.monotonic()
    while sum(kills.values()) < TEN_THOUSAND:
        # The filter is fixed by the first run alone.
        points = sorted(generator.sample(POINTS, len(POINTS)), key=lambda point: point != "open_run:filter-fixed")
        for runs, point in enumerate(points, start=1):
            world.kill(point, kills, generator, runs=runs)
        world.finish(len(points))
        world.begin_anew()
        ledgers += 1
        seconds = time.monotonic() - begun
        print(f"{sum(kills.values())} kills of {ledgers} ledgers in {seconds:.0f} s: {kills}", flush=True)
    assert all(kills.values()), kills


@pytest.mark.parametrize(
    ("location", "lives"),
    [("sqlite", 20), ("postgres", 10), *(pytest.param(*much, marks=pytest.mark.exhaustive) for much in MUCH["lives"])],
    indirect=["location"],
)
@pytest.mark.long
def test_killed_at_random_moments(world, lives):
    generator = seeded(2)
    killed, runs, reach_s = 0, 0, 0.08
    for _ in range(lives):
        runs += 2
        hit = world.live(runs=runs, delay_s=generator.uniform(0.0, reach_s)) == -signal.SIGKILL
        killed += hit
        reach_s *= 1.1 if hit else 0.8  # a life takes as long as the machine is busy: the moments follow it
        world.check()
    assert killed >= lives // 3
    world.finish(runs)


@pytest.mark.parametrize("point", ["create:data-set-opened"])
@pytest.mark.long
def test_killed_while_being_created(tmp_path, point):
    """A ledger exists complete or not at all: after the death of its maker it can be made again."""
    code = f"""
import os, signal, sys
from pathlib import Path
sys.path[:0] = [{str(Path(__file__).parents[3])!r}, {str(Path(__file__).parents[4])!r}]
from toy_accounting import *
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from dpswd.private_curator.books.ledger import Ledger
from dpswd.private_curator.books.sqlite_file import SqliteFile
die = lambda name: name == {point!r} and os.kill(os.getpid(), signal.SIGKILL)
Ledger.create(Path({str(tmp_path / "ledger.sqlite")!r}), key=Ed25519PrivateKey.generate(), records=1,
              budget=ToyBudget(1.0), accounting=ToyAccounting(), checkpoint=die)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    assert not (tmp_path / "ledger.sqlite").exists()
    again = code.replace(repr(point), repr("never"))
    assert subprocess.run([sys.executable, "-c", again], check=False).returncode == 0
