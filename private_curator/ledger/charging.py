"""The two writing acts of a client: charging a run, and binding a charged step to a request.

Both run inside the caller's transaction, after it has made sure that the request is new, and is its own to compute.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from typing import Any

from private_curator.ledger.accounting import Accounting
from private_curator.ledger.budget import CLIENT, DATA_SET, Charge
from private_curator.ledger.lookup import held_run, load_run
from private_curator.ledger.statements import DataSetState, Kind, Run, StepGranted
from private_curator.ledger.store import Transaction
from shared.errors import GrantNotHeld, RunFinished, StepGivenUp
from shared.ledger.receipts import sha256


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is written of a request.

    Attributes:
        client: the authenticated principal.
        request_id: the client's id for it.
        digest: SHA-256 of its content, hexadecimal.
    """

    client: str
    request_id: str
    digest: str


def charge(
    transaction: Transaction,
    accounting: Accounting,
    *,
    request: Request,
    event: Any,
    parameters: bytes,
    charges: tuple[Charge, ...],
) -> Run:
    """Charges a run that every account admits."""
    client, request_id, digest = request.client, request.request_id, request.digest
    event_json = accounting.event_to_json(event)
    for each in charges:
        if each.fresh:
            holder = client if each.scope == CLIENT else None
            payload = {
                "scope": each.scope,
                "client": holder,
                "filter": each.filter.to_json(),
                "plan": event_json,
            }
            transaction.append(Kind.FILTER_FIXED, payload)
    prices = {each.scope: each.price.to_json() for each in charges}
    run_id = secrets.token_hex(16)
    entry = transaction.append(
        Kind.RUN_OPENED,
        {
            "run": run_id,
            "client": client,
            "request_id": request_id,
            "digest": digest,
            "event": event_json,
            "steps": event.steps,
            "parameters": sha256(parameters),
            "prices": {DATA_SET: prices[DATA_SET], CLIENT: prices.get(CLIENT)},
        },
    )
    transaction.connection.execute(
        "INSERT INTO runs (run_id, client, request_id, digest, event, parameters, steps, steps_used, pruned, seq) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, 0, 0, ?)",
        (run_id, client, request_id, digest, event_json, bytes(parameters), event.steps, entry.seq),
    )
    transaction.connection.execute(
        "INSERT INTO requests (client, request_id, digest, run_id, step, attempts, seq) VALUES (?, ?, ?, ?, 0, 0, ?)",
        (client, request_id, digest, run_id, entry.seq),
    )
    return load_run(transaction.connection, accounting, run_id)


def bind(
    transaction: Transaction,
    accounting: Accounting,
    *,
    run_id: str,
    request: Request,
    max_attempts: int | None,
    unstored: int | None,
) -> StepGranted:
    """Consumes a step for a new request, or grants the step of an old one again.

    Args:
        transaction: is open.
        accounting: reads the run's event.
        run_id: the run.
        request: the step's request.
        max_attempts: how often a step may be begun; None for no bound.
        unstored: the attempt that this process computed and could not store; it is taken up again.

    Raises:
        GrantNotHeld, RunFinished, StepGivenUp: see `RunActs.begin_step`.
    """
    client, request_id, digest = request.client, request.request_id, request.digest
    connection = transaction.connection
    run = held_run(connection, accounting, client, run_id)
    if transaction.books.state is not DataSetState.OPEN:
        raise GrantNotHeld(f"the operator has {transaction.books.state.value} this data set: nothing is released")
    if run.pruned:
        raise RunFinished("the operator has closed this run; open another run")
    row = connection.execute(
        "SELECT step, attempts FROM requests WHERE client = ? AND request_id = ?", (client, request_id)
    ).fetchone()
    if row is not None and unstored == row[1]:  # nobody took it over since
        step, attempt = row
    elif row is not None:
        step, attempt = row[0], row[1] + 1
        if max_attempts is not None and attempt > max_attempts:
            raise StepGivenUp(
                f"step {step} of this run failed {row[1]} times and is not computed again; it stays charged: go on "
                "with the run's next step under a new request id"
            )
        transaction.append(Kind.STEP_RESUMED, {"run": run_id, "step": step, "attempt": attempt})
        connection.execute(
            "UPDATE requests SET attempts = ? WHERE client = ? AND request_id = ?", (attempt, client, request_id)
        )
    else:
        if run.steps_used >= run.steps:
            raise RunFinished(f"all {run.steps} steps of this run are used; open another run")
        step, attempt = run.steps_used + 1, 1
        entry = transaction.append(
            Kind.STEP_CONSUMED,
            {"run": run_id, "step": step, "client": client, "request_id": request_id, "digest": digest},
        )
        connection.execute("UPDATE runs SET steps_used = ? WHERE run_id = ?", (step, run_id))
        connection.execute(
            "INSERT INTO requests (client, request_id, digest, run_id, step, attempts, seq) "
            "VALUES (?, ?, ?, ?, ?, 1, ?)",
            (client, request_id, digest, run_id, step, entry.seq),
        )
        run = replace(run, steps_used=step)
    return StepGranted(run=run, step_number=step, request_id=request_id, digest=digest, attempt=attempt)
