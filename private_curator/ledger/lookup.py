"""What the tables say about runs and requests. Reads only."""

from __future__ import annotations

import functools
from typing import Any

from private_curator.ledger.accounting import Accounting
from private_curator.ledger.database import Session
from private_curator.ledger.statements import Run, StoredReply
from private_curator.ledger.store import entry_at, entry_row, parsed_entry
from shared.errors import GrantNotHeld, RequestIdReused, RunFinished
from shared.ledger.receipts import Receipt


def load_run(connection: Session, accounting: Accounting, run_id: str) -> Run:
    """A run, whoever owns it.

    Raises:
        GrantNotHeld: there is no such run.
    """
    row: tuple[Any, ...] | None = connection.execute(
        "SELECT client, request_id, digest, event, parameters, steps, steps_used, pruned, seq "
        "FROM runs WHERE run_id = ?",
        (run_id,),
    ).fetchone()
    if row is None:
        raise _no_such_run()
    client, request_id, digest, event, parameters, steps, steps_used, pruned, seq = row
    return Run(
        run_id=run_id,
        client=client,
        request_id=request_id,
        digest=digest,
        event=accounting.event_from_json(event),
        parameters=parameters,
        steps=steps,
        steps_used=steps_used,
        pruned=bool(pruned),
        receipt=_opening(entry_row(connection, seq)),
    )


@functools.lru_cache(maxsize=128)
def _opening(row: tuple[str, bytes, bytes]) -> Receipt:
    """The receipt of a run's opening, which every step reads: with prices at all orders the ledger's longest entry."""
    return Receipt.of(parsed_entry(*row))


def held_run(connection: Session, accounting: Accounting, client: str, run_id: str) -> Run:
    """A client's own run.

    Raises:
        GrantNotHeld: it does not exist or is another client's; the two are not distinguished.
    """
    run = load_run(connection, accounting, run_id)
    if run.client != client:
        raise _no_such_run()
    return run


def opened_before(connection: Session, accounting: Accounting, client: str, request_id: str, digest: str) -> Run | None:
    """The run that this very request has opened; None when the id is new.

    Raises:
        RequestIdReused: the id stands for another request.
    """
    row = connection.execute(
        "SELECT digest, run_id, step FROM requests WHERE client = ? AND request_id = ?", (client, request_id)
    ).fetchone()
    if row is None:
        return None
    if row[0] != digest or row[2] != 0:
        raise _reused()
    return load_run(connection, accounting, row[1])


def answered(connection: Session, client: str, run_id: str, request_id: str, digest: str) -> StoredReply | None:
    """The stored reply to this very request; None when there is none yet.

    Raises:
        RequestIdReused: the id stands for another request.
        RunFinished: the reply was discarded.
    """
    row = connection.execute(
        "SELECT r.digest, r.run_id, r.step, a.seq, a.reply FROM requests r "
        "LEFT JOIN replies a ON a.run_id = r.run_id AND a.step = r.step "
        "WHERE r.client = ? AND r.request_id = ?",
        (client, request_id),
    ).fetchone()
    if row is None:
        return None
    known_digest, known_run, step, seq, reply = row
    if (known_digest, known_run) != (digest, run_id) or step == 0:
        raise _reused()
    if seq is None:
        return None
    if reply is None:
        raise RunFinished("the operator has closed this run and discarded its replies; open another run")
    return StoredReply(reply=reply, receipt=Receipt.of(entry_at(connection, seq)))


def _no_such_run() -> GrantNotHeld:
    return GrantNotHeld("no such run of this client")


def _reused() -> RequestIdReused:
    return RequestIdReused("this request id was used with other content; make a new id for a new request")
