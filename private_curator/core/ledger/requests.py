"""What the tables say about runs and requests, and the two acts that write them: charging a run, binding a step.

Both acts run inside the caller's transaction, after it has made sure that the request is new and its own to compute.
"""

from __future__ import annotations

import functools
import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dpswd.private_curator.core.ledger.accounting import Accounting
from dpswd.private_curator.core.ledger.accounts import CLIENT, DATA_SET, Charge
from dpswd.private_curator.core.ledger.budget import Books
from dpswd.private_curator.core.ledger.database import Session
from dpswd.private_curator.core.ledger.statements import DataSetState, Kind, Request, Run, StepGranted, StoredReply
from dpswd.private_curator.core.ledger.store import Transaction, entry_row, parsed_entry
from dpswd.shared.core.errors import GrantNotHeld, RequestIdReused, RunFinished, StepGivenUp
from dpswd.shared.core.ledger.receipts import Receipt, sha256
from dpswd.shared.core.privacy.events import RunEvent

Open = Transaction[Books]


def load_run(connection: Session, accounting: Accounting, run_id: str) -> Run:
    """A run, whoever owns it.

    Raises:
        GrantNotHeld: there is no such run.
    """
    row: tuple[Any, ...] | None = connection.execute(
        "SELECT seq, parameters, steps_used, pruned FROM runs WHERE run_id = ?", (run_id,)
    ).fetchone()
    if row is None:
        raise _no_such_run()
    seq, parameters, steps_used, pruned = row
    opening = _opening(entry_row(connection, seq))
    return Run(
        run_id=run_id,
        client=opening.client,
        request_id=opening.request_id,
        digest=opening.request_digest,
        event=accounting.event_from_json(opening.entry.payload["event"]),
        parameters=parameters,
        steps=opening.entry.payload["steps"],
        steps_used=steps_used,
        pruned=bool(pruned),
        receipt=opening,
        purpose=opening.entry.payload["purpose"],
        epsilon=opening.entry.payload["epsilon"],
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


def opened_before(connection: Session, accounting: Accounting, request: Request) -> Run | None:
    """The run that this very request has opened; None when the id is new.

    Raises:
        RequestIdReused: the id stands for another request.
    """
    bound = _find_binding(connection, request)
    if bound is None:
        return None
    run_id, step, _ = bound
    if step != 0:
        raise _reused()
    return load_run(connection, accounting, run_id)


def answered(connection: Session, run_id: str, request: Request) -> StoredReply | None:
    """The stored reply to this very request; None when there is none yet.

    Raises:
        RequestIdReused: the id stands for another request.
        RunFinished: the reply was discarded.
    """
    bound = _find_binding(connection, request)
    if bound is None:
        return None
    bound_run, step, _ = bound
    if bound_run != run_id or step == 0:
        raise _reused()
    row = connection.execute("SELECT seq, reply FROM replies WHERE run_id = ? AND step = ?", (run_id, step)).fetchone()
    if row is None:
        return None
    seq, reply = row
    if reply is None:
        raise RunFinished("the operator has closed this run and discarded its replies; open another run")
    return StoredReply(reply=reply, receipt=Receipt.of(parsed_entry(*entry_row(connection, seq))))


def charge(
    transaction: Open, *, request: Request, event: RunEvent, parameters: bytes, purpose: str, charges: Sequence[Charge]
) -> Run:
    """Charges a run that every account admits."""
    accounting = transaction.books.accounting
    event_json = accounting.event_to_json(event)
    for each in charges:
        if each.fresh:
            holder = request.client if each.scope == CLIENT else None
            payload = {"scope": each.scope, "client": holder, "filter": each.filter.to_json(), "plan": event_json}
            transaction.append(Kind.FILTER_FIXED, payload)
    prices = {each.scope: each.price.to_json() for each in charges}
    run_id = secrets.token_hex(16)
    entry = transaction.append(
        Kind.RUN_OPENED,
        {
            "run": run_id,
            **request.fields,
            "event": event_json,
            "steps": event.steps,
            "parameters": sha256(parameters),
            "purpose": purpose,
            "epsilon": charges[0].filter.alone(charges[0].price),
            "prices": {DATA_SET: prices[DATA_SET], CLIENT: prices.get(CLIENT)},
        },
    )
    transaction.connection.execute(
        "INSERT INTO runs (seq, run_id, parameters, steps, steps_used, pruned) VALUES (?, ?, ?, ?, 0, 0)",
        (entry.seq, run_id, bytes(parameters), event.steps),
    )
    _bound(transaction, request, run_id=run_id, step=0, attempts=0, seq=entry.seq)
    return load_run(transaction.connection, accounting, run_id)


def bind(
    transaction: Open, request: Request, *, run_id: str, max_attempts: int | None, unstored: int | None
) -> StepGranted:
    """Consumes a step for a new request, or grants the step of an old one again.

    Args:
        transaction: is open.
        request: the step's request.
        run_id: the run.
        max_attempts: how often a step may be begun; None for no bound.
        unstored: the attempt that this process computed and could not store; it is taken up again.

    Raises:
        GrantNotHeld, RunFinished, StepGivenUp: see `RunActs.begin_step`.
    """
    connection = transaction.connection
    run = held_run(connection, transaction.books.accounting, request.client, run_id)
    if transaction.books.state is not DataSetState.OPEN:
        raise GrantNotHeld(f"the operator has {transaction.books.state.value} this data set: nothing is released")
    if run.pruned or run.receipt.entry.seq <= transaction.books.updated:
        why = "closed this run" if run.pruned else "updated the records since this run was opened"
        raise RunFinished(f"the operator has {why}; open another run")
    transaction.books.active(request.client)
    bound = _find_binding(connection, request)
    if bound is not None and unstored == bound[2]:  # nobody took it over since
        _, step, attempt = bound
    elif bound is not None:
        step, attempt = bound[1], bound[2] + 1
        if max_attempts is not None and attempt > max_attempts:
            raise StepGivenUp(
                f"step {step} of this run failed {bound[2]} times and is not computed again; it stays charged: go on "
                "with the run's next step under a new request id"
            )
        transaction.append(Kind.STEP_RESUMED, {"run": run_id, "step": step, "attempt": attempt})
        connection.execute(
            "UPDATE requests SET attempts = ? WHERE client = ? AND request_id = ?", (attempt, *request.mark)
        )
    else:
        if run.steps_used >= run.steps:
            raise RunFinished(f"all {run.steps} steps of this run are used; open another run")
        step, attempt = run.steps_used + 1, 1
        entry = transaction.append(Kind.STEP_CONSUMED, {"run": run_id, "step": step, **request.fields})
        connection.execute("UPDATE runs SET steps_used = ? WHERE run_id = ?", (step, run_id))
        _bound(transaction, request, run_id=run_id, step=step, attempts=1, seq=entry.seq)
        run = replace(run, steps_used=step)
    return StepGranted(run=run, step_number=step, request=request, attempt=attempt)


def _bound(transaction: Open, request: Request, *, run_id: str, step: int, attempts: int, seq: int) -> None:
    transaction.connection.execute(
        "INSERT INTO requests (seq, client, request_id, digest, run_id, step, attempts) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (seq, *request.mark, request.digest, run_id, step, attempts),
    )


def _find_binding(connection: Session, request: Request) -> tuple[str, int, int] | None:
    """The run, the step and the attempts of a request that was made before.

    Raises:
        RequestIdReused: the id stands for another request.
    """
    row = connection.execute(
        "SELECT digest, run_id, step, attempts FROM requests WHERE client = ? AND request_id = ?", request.mark
    ).fetchone()
    if row is None:
        return None
    digest, run_id, step, attempts = row
    if digest != request.digest:
        raise _reused()
    return run_id, step, attempts


def _no_such_run() -> GrantNotHeld:
    return GrantNotHeld("no such run of this client")


def _reused() -> RequestIdReused:
    return RequestIdReused("this request id was used with other content; make a new id for a new request")
