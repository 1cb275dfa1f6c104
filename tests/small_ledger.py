"""A small ledger with an accountant that a reader can follow."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from in_memory import memory_directory
from toy_accounting import ToyAccounting, ToyBudget, toy_run

from dpswd.private_curator.books.ledger import Ledger
from dpswd.private_curator.books.location import LedgerLocation
from dpswd.private_curator.books.sqlite_file import SqliteFile
from dpswd.private_curator.core.ledger.statements import Request, Run, StepGranted, StoredReply

DIGEST = "d" * 64
FINGERPRINT = "f" * 64
_SCHEMAS = itertools.count()


@pytest.fixture(scope="session")
def key() -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(b"k" * 32)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite"


@pytest.fixture
def new_schema(postgres) -> LedgerLocation:
    """A schema of PostgreSQL in which nothing stands yet."""
    from dpswd.private_curator.postgres.schema import PostgresSchema

    return PostgresSchema(postgres.url(), schema=f"test_{next(_SCHEMAS)}")


@pytest.fixture
def location(request: pytest.FixtureRequest, path: Path) -> LedgerLocation:
    """Where `ledger` stands: the file at `path`; for tests that are parametrised so, a schema of PostgreSQL.

    Tests of both say ``@pytest.mark.parametrize("location", ["sqlite", "postgres"], indirect=True)``.
    """
    if getattr(request, "param", "sqlite") == "sqlite":
        return SqliteFile(path)
    return request.getfixturevalue("new_schema")


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory where there is one: a killed process loses nothing there, and syncing costs nothing."""
    shared = memory_directory()
    if shared is None:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=shared) as directory:
        yield Path(directory)


@pytest.fixture
def reopen(location: LedgerLocation, key: Ed25519PrivateKey) -> Iterator[Callable[..., Ledger]]:
    """Opens the ledger at `location`; what is still open at the end is closed."""
    opened: list[Ledger] = []

    def open_ledger(**options: object) -> Ledger:
        ledger = Ledger.open(location, key=key, accounting=ToyAccounting(), **options)
        opened.append(ledger)
        return ledger

    yield open_ledger
    for ledger in opened:
        ledger.close()


@pytest.fixture
def ledger(location: LedgerLocation, key: Ed25519PrivateKey) -> Iterator[Ledger]:
    """A data set of 100 records with epsilon 1 and the client "alice" without a share."""
    with Ledger.create(location, key=key, records=100, budget=ToyBudget(1.0), accounting=ToyAccounting()) as ledger:
        ledger.add_client("alice", FINGERPRINT)
        yield ledger


@pytest.fixture
def open_run() -> Callable[..., Run]:
    def open_run(
        ledger: Ledger, *, client: str = "alice", request_id: str = "open", digest: str = DIGEST, **event: int
    ) -> Run:
        return ledger.open_run(
            Request(client=client, request_id=request_id, digest=digest),
            event=toy_run(**event),
            parameters=b"parameters",
        )

    return open_run


@pytest.fixture
def answer() -> Callable[..., StoredReply]:
    """One whole step."""

    def answer(ledger: Ledger, run: Run, request_id: str, reply: bytes = b"noise") -> StoredReply:
        grant = ledger.begin_step(Request(client=run.client, request_id=request_id, digest=DIGEST), run_id=run.run_id)
        assert isinstance(grant, StepGranted)
        return ledger.finish_step(grant, reply=reply, audit={"duration_s": 0.25})

    return answer
