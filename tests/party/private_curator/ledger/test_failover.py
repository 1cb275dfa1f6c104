"""PostgreSQL's primary is killed in the middle of a run, and its standby promoted: no overspend, no double charge."""

from __future__ import annotations

import dataclasses
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pytest
from declarations import quantiles
from drawn_steps import new_step, parameters
from postgres_server import DATABASE, ROLE, NoServer, PostgresServer
from serving_here import serving
from torch import nn
from toy_accounting import ToyAccounting, ToyBudget

from dpswd.private_curator.books.ledger import Ledger
from dpswd.private_curator.books.witness import Witness
from dpswd.private_curator.core.ledger.statements import Request, StepGranted
from dpswd.private_curator.postgres.schema import PostgresSchema
from dpswd.private_curator.settings.groups import RecordsSettings
from dpswd.private_curator.storage import home_directory
from dpswd.private_curator.storage.home_directory import HomeDirectory
from dpswd.public_client.curator.stub import Curator
from dpswd.public_client.extractor.tracing import module_weights, trace, weights_to_bytes
from dpswd.shared.books.chain_checks import read_export
from dpswd.shared.core.errors import BudgetExhausted, LedgerCorrupt, LedgerUnavailable
from dpswd.shared.core.ledger.receipts import sha256

STEPS = 10
DIGEST = "d" * 64


@pytest.fixture
def pair():
    """A primary and its standby."""
    opened = []
    try:
        opened.append(PostgresServer())
        opened.append(PostgresServer(of=opened[0]))
    except NoServer as error:
        pytest.skip(f"no PostgreSQL server: {error}")
    else:
        yield opened
    finally:
        for server in reversed(opened):
            server.close()


@pytest.fixture
def location(pair):
    """The ledger at whichever of the two takes writes."""
    hosts = ",".join(str(server.directory) for server in pair)
    ports = ",".join(str(server.port) for server in pair)
    return PostgresSchema(f"postgresql://{ROLE}@/{DATABASE}?host={hosts}&port={ports}")


def fail_over(pair):
    primary, standby = pair
    primary.kill()
    standby.promote()


def wait_for_standby(pair):
    """From now on a commit is acknowledged when the standby has it."""
    with pair[0].administer() as administrator:
        administrator.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        administrator.execute("SELECT pg_reload_conf()")
        while administrator.execute("SELECT sync_state FROM pg_stat_replication").fetchone() != ("sync",):
            time.sleep(0.01)


class TeamOfOne:
    """A client: asks until it is answered, and keeps what it got."""

    def __init__(self, curator):
        self.curator = curator
        self.replies, self.receipts, self.attempts = {}, [], 0

    def persist(self, act):
        deadline = time.monotonic() + 60
        while True:
            try:
                return act()
            except LedgerUnavailable:
                assert time.monotonic() < deadline
                time.sleep(0.02)

    def open(self, open_run, request_id):
        return self.persist(lambda: open_run(self.curator, request_id=request_id, steps=STEPS))

    def step(self, run, request_id):
        def once():
            self.attempts += 1
            request = Request(client="alice", request_id=request_id, digest=DIGEST)
            stored = self.curator.begin_step(request, run_id=run.run_id)
            if isinstance(stored, StepGranted):
                reply = f"{request_id}, computed {self.attempts}th".encode()
                stored = self.curator.finish_step(stored, reply=reply, audit={})
            return stored

        stored = self.persist(once)
        assert self.replies.setdefault(request_id, stored.reply) == stored.reply
        self.receipts.append(stored.receipt.entry)


POINTS = ("open_run:written", "begin_step:written", "begin_step:durable", "finish_step:written", "finish_step:durable")


@pytest.mark.parametrize(
    "point",
    [
        point if point == "finish_step:written" else pytest.param(point, marks=pytest.mark.exhaustive)
        for point in POINTS
    ],
)
@pytest.mark.long
def test_a_run_goes_on_at_a_synchronous_standby(pair, location, key, open_run, tmp_path, point, caplog):
    """Whatever was acknowledged is there; what was under way is repeated with its id, and charged once."""
    wait_for_standby(pair)
    reached = []

    def checkpoint(name):
        reached.append(name)
        if name == point and reached.count(name) == (1 if point.startswith("open_run") else 4):
            fail_over(pair)

    options = {"key": key, "accounting": ToyAccounting(), "witness": tmp_path / "witness", "lock_timeout_s": 5.0}
    with Ledger.create(location, records=100, budget=ToyBudget(0.025), checkpoint=checkpoint, **options) as curator:
        assert "commits wait for no standby" not in caplog.text
        curator.add_client("alice", "f" * 64)
        team = TeamOfOne(curator)
        run = team.open(open_run, "first")
        for number in range(STEPS):
            team.step(run, f"first-{number}")
        assert pair[0].process is None  # it was killed
        team.open(open_run, "second")
        with pytest.raises(BudgetExhausted):  # 0.01 each of 0.025
            team.open(open_run, "third")
        status = curator.status()
        assert (status.runs, status.steps_used, len(team.replies)) == (2, STEPS, STEPS)
        assert status.data_set.epsilon_spent == pytest.approx(0.02)
        report = curator.verify(receipts=team.receipts)
        assert report.ok, report.findings
        stored = {entry.payload["reply"] for entry in curator.history() if entry.kind == "step-answered"}
        assert stored == {sha256(reply) for reply in team.replies.values()}
    with Ledger.open(location, **options) as again:
        assert again.status().steps_used == STEPS


def _cancel_the_wait(primary) -> None:
    """`pg_cancel_backend` on the one commit that waits for the standby, as an impatient administrator would."""
    with primary.administer() as administrator:
        deadline = time.monotonic() + 60
        while True:
            waiting = administrator.execute("SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'").fetchall()
            if waiting:
                break
            assert time.monotonic() < deadline, "no commit waits"
            time.sleep(0.01)
        assert administrator.execute("SELECT pg_cancel_backend(%s)", waiting[0]).fetchone() == (True,)


def _cancelled(pair, act, then="repeat the request with its id") -> None:
    """An act whose commit waits for a standby that is away, until the wait is cancelled: nobody may rely on it."""
    with ThreadPoolExecutor(1) as other:
        cancelling = other.submit(_cancel_the_wait, pair[0])
        with pytest.raises(LedgerUnavailable, match=f"stopped waiting for its standby; {then}"):
            act()
        cancelling.result()


@pytest.mark.long
def test_a_commit_whose_wait_was_cancelled_is_relied_on_by_nobody(pair, location, key, open_run, tmp_path):
    """The server says COMMIT, and the standby has nothing. A charge is repeated, once; a reply that a failover would
    forget is given to nobody, not to a repeat either, so that the step's second computation is its one release."""
    primary, standby = pair
    wait_for_standby(pair)
    options = {"key": key, "accounting": ToyAccounting(), "witness": tmp_path / "witness", "lock_timeout_s": 5.0}
    away = {"point": "open_run:written"}

    def checkpoint(name):
        if name == away.get("point"):
            away.clear()
            standby.stop()

    with Ledger.create(location, records=100, budget=ToyBudget(1.0), checkpoint=checkpoint, **options) as curator:
        curator.add_client("alice", "f" * 64)

        def opened():
            return open_run(curator, request_id="first", steps=STEPS)

        _cancelled(pair, opened)
        assert curator.status().runs == 1  # seen by all, held by one
        _cancelled(pair, opened)  # nor is the repeat told that it is charged
        standby.start()
        run = opened()
        status = curator.status()
        assert (status.runs, status.data_set.epsilon_spent) == (1, pytest.approx(0.01))

        request = Request(client="alice", request_id="first-0", digest=DIGEST)
        away["point"] = "begin_step:written"
        _cancelled(pair, lambda: curator.begin_step(request, run_id=run.run_id))
        standby.start()
        grant = curator.begin_step(request, run_id=run.run_id)
        away["point"] = "finish_step:written"
        _cancelled(pair, lambda: curator.finish_step(grant, reply=b"one noise", audit={}))
        # The primary has the reply. Whoever asks for it waits with the primary for the standby.
        _cancelled(pair, lambda: curator.begin_step(request, run_id=run.run_id))
        # Nor does an operator rely on a ledger that only the primary has, new or restored.
        backup, other = tmp_path / "backup.db", dataclasses.replace(location, schema="another")
        curator.backup(backup)
        _cancelled(pair, lambda: other.create(lambda _: None), "the ledger may be there all the same")
        _cancelled(pair, lambda: other.replace(backup, lambda _: None), "the restored ledger may be there all the same")
        primary.kill()
        standby.start()
        standby.promote()
        curator.watch()  # as every curator that serves from PostgreSQL does
        assert curator.status().steps_used == 1  # what it has seen and nobody relied on may be missing
    witness = Witness(tmp_path / "witness")
    assert witness.entry().kind == "step-resumed"  # what was not waited for is noted by nobody
    with Ledger.open(location, **options) as curator:
        grant = curator.begin_step(request, run_id=run.run_id)
        assert isinstance(grant, StepGranted)  # the standby never had the first reply, and nobody was given it
        only = curator.finish_step(grant, reply=b"another noise", audit={})
        assert curator.begin_step(request, run_id=run.run_id).reply == only.reply == b"another noise"
        status = curator.status()
        assert (status.runs, status.steps_used, status.data_set.epsilon_spent) == (1, 1, pytest.approx(0.01))
        assert curator.verify(receipts=[run.receipt.entry, only.receipt.entry]).ok


@pytest.mark.long
@pytest.mark.parametrize("watches", [False, True], ids=["command", "replica"])
def test_an_asynchronous_standby_that_lacks_charges_is_not_served(
    pair, location, key, open_run, tmp_path, caplog, watches
):
    """What it lacks would be spent again: the replica that saw it stops; its note, or a client's receipt, others."""
    _, standby = pair
    options = {"key": key, "accounting": ToyAccounting(), "lock_timeout_s": 5.0}
    witness = tmp_path / "witness"
    with Ledger.create(location, records=100, budget=ToyBudget(1.0), witness=witness, **options) as curator:
        assert "commits wait for no standby" in caplog.text
        if watches:
            curator.watch()
        curator.add_client("alice", "f" * 64)
        team = TeamOfOne(curator)
        run = team.open(open_run, "first")
        team.step(run, "first-0")
        with standby.administer() as administrator, pair[0].administer() as primary:
            (end,) = primary.execute("SELECT pg_current_wal_lsn()::text").fetchone()
            while administrator.execute("SELECT pg_last_wal_replay_lsn() < %s::pg_lsn", (end,)).fetchone() == (True,):
                time.sleep(0.01)
            administrator.execute("ALTER SYSTEM SET primary_conninfo = ''")
            administrator.execute("SELECT pg_reload_conf()")
            while administrator.execute("SELECT FROM pg_stat_wal_receiver").fetchone() is not None:
                time.sleep(0.01)
        team.step(run, "first-1")
        fail_over(pair)
        for _ in range(2):
            with pytest.raises(
                LedgerCorrupt, match="put back to an older state" if watches else "which this process has seen"
            ):
                team.persist(curator.status)
    with pytest.raises(LedgerCorrupt, match="lacks entry"):
        Ledger.open(location, witness=witness, **options)
    with Ledger.open(location, **options) as elsewhere:  # a replica that has seen nothing
        assert elsewhere.status().steps_used == 1
        with pytest.raises(LedgerCorrupt, match="Nothing is charged or released"):
            elsewhere.hold_to(team.receipts[-1])
        with pytest.raises(LedgerCorrupt, match="lacks entry"):
            open_run(elsewhere, request_id="second")


@pytest.fixture
def replicas(location, tmp_path):
    """Two homes of one curator, the second as docs/operator/replicas.md has it copied from the first."""
    np.save(tmp_path / "records.npy", np.random.default_rng(3).normal(size=(200, 5)).astype(np.float32))
    first = home_directory.create(
        tmp_path / "first", records=RecordsSettings(file=tmp_path / "records.npy"), epsilon=2.0, delta=1e-5,
        names=["localhost"], groups={"ledger": {"url": location.url}},
    )  # fmt: skip
    issued, private = first.authority.make_client(name="team")
    first.authority.write_credentials(issued, tmp_path / "credentials", key_pem=private)
    with first.open_ledger() as ledger:
        ledger.add_client("team", issued.fingerprint)
    second = HomeDirectory(tmp_path / "second")
    shutil.copytree(first.path, second.path, ignore=shutil.ignore_patterns("uploads", "address", "incidents.jsonl"))
    first.uploads.mkdir(exist_ok=True)
    second.uploads.symlink_to(first.uploads)
    return first, second


def test_two_curators_draw_runs_while_their_database_fails_over(pair, replicas, tmp_path):
    """Each replica is in the middle of a run of its own; both go on, nothing is charged twice, nothing overspent."""
    wait_for_standby(pair)
    replies = [{}, {}]
    with ExitStack() as opened:
        ports = [opened.enter_context(serving(home)).rpartition(":")[2] for home in replicas]
        teams = [
            opened.enter_context(
                Curator.connect(
                    f"localhost:{port}", credentials=tmp_path / "credentials", patience_s=60.0,
                    run_directory=tmp_path / f"run-{port}",
                )
            )
            for port in ports
        ]  # fmt: skip
        extractor = nn.Linear(5, 4)
        graph = trace(extractor, (5,))
        weights = weights_to_bytes(module_weights(extractor, graph))
        uploaded = [team.upload_extractor(graph.to_bytes(), weights) for team in teams]
        terms = parameters(uploaded[0], quantiles(2, 4.0), batch_size=32, steps=STEPS)
        runs = [team.open_run(terms) for team in teams]
        begun, spent = threading.Barrier(3), teams[0].describe().data_set_budget.spent

        def train(number):
            for step in range(STEPS):
                if step == STEPS // 2:
                    begun.wait(timeout=60)
                pending = new_step(runs[number])
                replies[number][pending] = teams[number].send(pending).payload

        with ThreadPoolExecutor(2) as pool:
            trained = [pool.submit(train, number) for number in range(2)]
            begun.wait(timeout=60)
            fail_over(pair)
            for each in trained:
                each.result(timeout=120)
        for number, stored in enumerate(replies):  # the other replica has the same bytes, and nothing was paid for them
            for pending, payload in stored.items():
                assert teams[1 - number].send(pending).payload == payload
        assert teams[0].describe().data_set_budget.spent == teams[1].describe().data_set_budget.spent == spent
        fitting = teams[0].price_run(dataclasses.replace(terms, steps=10_000_000)).steps_that_fit
        teams[0].open_run(dataclasses.replace(terms, steps=fitting))
        with pytest.raises(BudgetExhausted):
            teams[1].open_run(dataclasses.replace(terms, steps=fitting))
        receipts = [line for file in tmp_path.glob("run-*/receipts.jsonl") for line in file.read_text().splitlines()]
    with replicas[1].open_ledger() as ledger:
        kinds = [entry.kind for entry in ledger.history()]
        report = ledger.verify(receipts=read_export(receipts)[0])
    assert report.ok, report.findings
    assert report.epsilon_spent <= 2.0
    assert (kinds.count("run-opened"), kinds.count("step-consumed"), kinds.count("step-answered")) == (
        3, 2 * STEPS, 2 * STEPS
    )  # fmt: skip
