"""An older state of the database below running curators: what any of them has seen binds all of them."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from declarations import quantiles
from made_home import made_home
from postgres_proxy import Network
from postgres_server import DATABASE, ROLE, NoServer, PostgresServer
from psycopg.errors import DeadlockDetected
from raw_client import RawClient
from serving_here import serving
from torch import nn

from dpswd.private_curator.books.witness import Witness
from dpswd.private_curator.storage.home_directory import HomeDirectory
from dpswd.public_client.curator.stub import Curator
from dpswd.shared.core import errors
from dpswd.shared.core.wire.messages import RunParameters

ACCEPTED = "The dump of 3 May was put back by mistake; the budget was lowered, minutes of 5 May."


@pytest.fixture
def server():
    try:
        made = PostgresServer()
    except NoServer as error:
        pytest.skip(f"no PostgreSQL server: {error}")
    yield made
    made.close()


@pytest.fixture
def network(server):
    """Between the second curator and the database."""
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        made = Network(Path(directory), server.directory / f".s.PGSQL.{server.port}")
        yield made
        made.close()


def two_homes(directory, url, second_url):
    """One curator's home, and a replica's as docs/operator/replicas.md has it copied; with a client's credentials."""
    records = np.random.default_rng(4).normal(size=(60, 5)).astype(np.float32)
    first = made_home(directory, records, epsilon=1000.0, groups={"ledger": {"url": url}})
    second = HomeDirectory(directory / "second")
    shutil.copytree(first.path, second.path, ignore=shutil.ignore_patterns("uploads", "address", "incidents.jsonl"))
    second.settings.write_text(second.settings.read_text().replace(url, second_url))
    first.uploads.mkdir(exist_ok=True)
    second.uploads.symlink_to(first.uploads)
    return first, second


class Team:
    """A client of one curator, which repeats nothing by itself but what says that it may be repeated."""

    def __init__(self, address: str, credentials: Path) -> None:
        self.curator = Curator.connect(address, credentials=credentials, patience_s=30.0)
        name, declaration = quantiles(2, 5.0, directions=10)
        torch.manual_seed(1)
        with RawClient(address, credentials=credentials) as raw:
            uploaded = raw.upload(nn.Linear(5, 4))
        self.parameters = RunParameters(
            **uploaded, mechanism=name, declaration=declaration.to_bytes(), batch_size=20, steps=1
        )

    def charge(self, times: int = 1) -> None:
        for _ in range(times):
            self.curator.open_run(self.parameters)

    def refused(self) -> None:
        with pytest.raises(errors.LedgerCorrupt, match=r"put back to an older state.*call the operator"):
            self.charge()


@contextlib.contextmanager
def teams(homes, credentials):
    with contextlib.ExitStack() as opened:
        made = [Team(opened.enter_context(serving(home)), credentials) for home in homes]
        for team in made:
            opened.callback(team.curator.close)
        yield made


def dumped(server, file):
    server.run("pg_dump", "--schema", "dpswd", "--file", str(file))


def put_back(server, file):
    until(lambda: dropped(server))
    server.run("psql", "--quiet", "--set", "ON_ERROR_STOP=1", "--file", str(file))


def dropped(server):
    """Whether nobody who read the ledger just then stood in the way, as a database's administrator would try again."""
    try:
        with server.administer() as administrator:
            administrator.execute("DROP SCHEMA dpswd CASCADE")
    except DeadlockDetected:
        return False
    return True


def until(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def runs_of(home):
    with home.open_ledger(witnessed=False) as ledger:
        return ledger.status().runs


def seen_by(home):
    return Witness(home.ledger_witness()).entry().seq


def test_an_idle_replica_refuses_an_older_dump_as_the_busy_one_does(server, tmp_path, caplog):
    """Attack: the idle one, whose note was older than the dump, charged five more runs while 60 were forgotten."""
    first, second = two_homes(tmp_path, server.url(), server.url())
    with teams((first, second), tmp_path / "credentials") as (busy, idle):
        busy.charge(2)
        dumped(server, tmp_path / "dump")
        busy.charge(3)
        until(lambda: seen_by(second) == seen_by(first))
        put_back(server, tmp_path / "dump")
        idle.refused()
        busy.refused()
        assert "lacks entry" in caplog.text
    assert runs_of(second) == 2
    assert not first.incidents.exists()
    assert not second.incidents.exists()
    for home in (second, first):  # neither after a restart
        with pytest.raises(errors.LedgerCorrupt, match="lacks entry"):
            home.open_ledger()
    second.accept_ledger(reason=ACCEPTED)
    with teams((first, second), tmp_path / "credentials") as both:
        for team in both:
            team.charge()
    assert runs_of(first) == 4


@pytest.mark.long
def test_a_replica_that_was_cut_off_is_stopped_by_the_one_that_was_not(server, network, tmp_path):
    """What was charged behind its back it cannot know; the other one says so before it charges anything."""
    away_url = f"postgresql://{ROLE}@/{DATABASE}?host={network.directory}&port={server.port}"
    first, second = two_homes(tmp_path, server.url(), away_url)
    with teams((first, second), tmp_path / "credentials") as (busy, away):
        away.charge()
        until(lambda: seen_by(second) == seen_by(first))
        network.cut()
        busy.charge(2)
        dumped(server, tmp_path / "dump")
        busy.charge(3)
        put_back(server, tmp_path / "dump")
        assert seen_by(second) < seen_by(first) - 3
        network.mend()
        away.refused()  # although its own note is older than the dump
        busy.refused()
    assert runs_of(first) == 3
    with pytest.raises(errors.LedgerCorrupt, match="lacks entry"):
        second.open_ledger()


@pytest.mark.long
def test_a_standby_that_was_promoted_late_is_refused_by_the_idle_replica_too(server, tmp_path):
    """It did not follow for a while, and was promoted all the same: what it lacks would be charged again."""
    standby = PostgresServer(of=server)
    try:
        hosts, ports = (f"{server.directory},{standby.directory}", f"{server.port},{standby.port}")
        url = f"postgresql://{ROLE}@/{DATABASE}?host={hosts}&port={ports}"
        first, second = two_homes(tmp_path, url, url)
        with teams((first, second), tmp_path / "credentials") as (busy, idle):
            busy.charge()
            stop_following(server, standby)
            busy.charge(2)
            until(lambda: seen_by(second) == seen_by(first))
            server.kill()
            standby.promote()
            idle.refused()
            busy.refused()
        assert runs_of(second) == 1
    finally:
        standby.close()


def stop_following(primary, standby):
    """The standby has everything until now, and gets nothing more."""
    with standby.administer() as administrator, primary.administer() as source:
        (end,) = source.execute("SELECT pg_current_wal_lsn()::text").fetchone()
        until(lambda: administrator.execute("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", (end,)).fetchone()[0])
        administrator.execute("ALTER SYSTEM SET primary_conninfo = ''")
        administrator.execute("SELECT pg_reload_conf()")
        until(lambda: administrator.execute("SELECT FROM pg_stat_wal_receiver").fetchone() is None)
