"""Charges and replies: the order of events that makes the promise hold on a machine that may die at any instruction.

1. `open_run` charges all steps of a run, durably, before anything is computed. Nothing is ever given back.
2. `begin_step` binds one of the charged steps to one request, durably, before a record is read.
3. The caller computes the release.
4. `finish_step` stores the reply, its audit record and the signed receipt in one transaction.
5. The caller sends what `finish_step` returned, and nothing else. A repeat of the request gets these bytes again.

Only what is stored leaves the curator, and one reply is stored for a step (the table's key). So however often a step
is begun, computed and lost to a crash or an error, one computation with fresh noise is released for it: the price of
one release is the right price. A step that was begun and has no reply is therefore granted again to the same request,
and never charged again. How *often* a step failed is not released data, but a hostile client might try to make
failures depend on the records; each renewed attempt is an entry of its own and carries its number to the caller.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from private_curator.ledger.budget import CLIENT, DATA_SET, Books, Charge
from private_curator.ledger.kinds import DataSetState, Kind, Quote, Run, StepGranted, StoredReply, hex_256
from private_curator.ledger.lookup import answered, held_run, load_run, opened_before
from private_curator.ledger.store import Store, Transaction
from shared.errors import (
    GrantNotHeld,
    InvalidValue,
    LedgerUnavailable,
    RequestInProgress,
    RunFinished,
    StepGivenUp,
)
from shared.receipts import Receipt, canonical_json, sha256

# A client makes its ids; long ones would only fill the ledger.
MAX_REQUEST_ID_LENGTH = 128


class RunActs(Store):
    """The client's side of the ledger. Use `private_curator.ledger.Ledger`."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # Requests that this process computes now, and in which attempt. Read and extended under the database's
        # mutex only; entries are removed without it, which is one atomic step.
        self._computing: dict[tuple[str, str], int] = {}
        # The attempt of each request that was computed and could not be stored, by no fault of a record.
        self._unstored: dict[tuple[str, str], int] = {}

    def serve(self) -> None:
        """Claims the right to charge and to compute, until this process closes the ledger or dies.

        A ledger in a file has one such process at a time. A ledger in PostgreSQL has any number of replicas, and each
        step one of them at a time (`begin_step`). `open_run` and `begin_step` claim the right if nobody did; a server
        claims it when it starts. Idempotent.

        Raises:
            LedgerUnavailable: another process has it, or the ledger is being restored.
        """
        self._database.claim()

    def price_run(self, *, client: str, event: Any) -> Quote:
        """What a run would cost now. Spends nothing.

        Raises:
            GrantNotHeld: the client is not registered, or shut out.
            InvalidEvent, RelationMismatch: the event is not about this data set.
            LedgerUnavailable: retry later.
        """
        books = self._snapshot()
        return books.quote(client, event, books.charges(client, event))

    def open_run(self, *, client: str, request_id: str, digest: str, event: Any, parameters: bytes) -> Run:
        """Charges a whole run to the data set's and the client's account, durably and once.

        Args:
            client: the authenticated principal.
            request_id: made by the client, unique among all its requests.
            digest: SHA-256 of the validated request, hexadecimal; made from the run's parameters.
            event: the `RunEvent` that prices the run.
            parameters: what the steps need to know of the declaration; kept as it is.

        Returns:
            The run; the same one for a repeat of the request, free.

        Raises:
            BudgetExhausted: an account does not admit the whole run; ``scope`` names it. Nothing was spent.
            RequestIdReused: the id stands for another request.
            GrantNotHeld: the client is not registered, or shut out.
            InvalidEvent, RelationMismatch: the event is not about this data set.
            LedgerUnavailable: retry later with the same id.
        """
        _check_request(request_id, digest)
        with self._reading() as connection:
            self._books.holder(client)
            run = opened_before(connection, self.accounting, client, request_id, digest)
        if run is None:
            self.serve()
        while run is None:
            # Pricing, and finding out what would still fit, takes milliseconds to seconds: not under the lock.
            books = self._snapshot()
            charges = books.charges(client, event)
            books.admit(client, event, charges)
            with self._transaction("open_run") as transaction:
                transaction.books.holder(client)
                run = opened_before(transaction.connection, self.accounting, client, request_id, digest)
                if run is None and transaction.books.admits(client, charges):
                    run = self._charge(transaction, client, request_id, digest, event, parameters, charges)
        return run

    def opened_run(self, *, client: str, request_id: str, digest: str) -> Run | None:
        """The run that this very request has opened, whatever the operator decided since; None for a new request.

        Raises:
            RequestIdReused: the id stands for another request.
            GrantNotHeld: the client is not registered, or shut out.
        """
        _check_request(request_id, digest)
        with self._reading() as connection:
            self._books.holder(client)
            return opened_before(connection, self.accounting, client, request_id, digest)

    def stored_reply(self, *, client: str, run_id: str, request_id: str, digest: str) -> StoredReply | None:
        """The stored reply of this very request, whatever the operator decided since; None when there is none yet.

        Raises:
            RequestIdReused: the id stands for another request.
            RunFinished: the operator has discarded the run's replies.
            GrantNotHeld: the client is not registered, or shut out.
        """
        _check_request(request_id, digest)
        with self._reading() as connection:
            self._books.holder(client)
            return answered(connection, client, run_id, request_id, digest)

    def run(self, *, client: str, run_id: str) -> Run:
        """A run of this client.

        Raises:
            GrantNotHeld: it does not exist or is another client's.
        """
        with self._reading() as connection:
            return held_run(connection, self.accounting, client, run_id)

    def runs(self, *, client: str | None = None) -> tuple[Run, ...]:
        """All runs, or one client's, in the order in which they were charged."""
        with self._reading() as connection:
            rows = connection.execute(
                "SELECT run_id FROM runs WHERE client = coalesce(?, client) ORDER BY seq", (client,)
            )
            return tuple(load_run(connection, self.accounting, run_id) for (run_id,) in rows.fetchall())

    def begin_step(
        self, *, client: str, run_id: str, request_id: str, digest: str, max_attempts: int | None = None
    ) -> StepGranted | StoredReply:
        """Binds one charged step to a request, durably, before any record is read.

        Args:
            client: the authenticated principal.
            run_id: the run whose steps were charged.
            request_id: made by the client, unique among all its requests.
            digest: SHA-256 of the validated request, hexadecimal; made from the run's id as well.
            max_attempts: how often this step may be begun; no bound by default. An attempt whose computation
                succeeded and whose reply could not be stored is taken up again and does not count twice.

        Returns:
            The stored reply of this very request if there is one, which costs nothing and needs no writing; else
            the grant to compute it.

        Raises:
            GrantNotHeld: no such run of this client, the client is shut out, or the operator has stopped releases.
            RunFinished: all charged steps are used, or the operator has closed the run.
            RequestIdReused: the id stands for another request.
            RequestInProgress: another thread, or another replica, computes this request now.
            StepGivenUp: all attempts are used; nothing is written.
            LedgerUnavailable: retry later with the same id; nothing was consumed.
        """
        _check_request(request_id, digest)
        with self._reading() as connection:
            self._books.holder(client)
            stored = answered(connection, client, run_id, request_id, digest)
        if stored is not None:
            return stored
        self.serve()
        grant: StepGranted | None = None
        held = False
        try:
            with self._transaction("begin_step") as transaction:
                self._books.holder(client)
                stored = answered(transaction.connection, client, run_id, request_id, digest)
                if stored is not None:
                    return stored
                self._not_in_progress(transaction, client, request_id)
                held = True
                grant = self._grant(transaction, client, run_id, request_id, digest, max_attempts)
                # Marked before the commit ends the mutex: no other thread finds the step consumed and unmarked.
                self._computing[client, request_id] = grant.attempt
            self._unstored.pop((client, request_id), None)
        except BaseException:
            if grant is not None:
                self.abandon_step(grant)
            elif held:
                self._database.release((client, request_id))
            raise
        return grant

    def finish_step(self, grant: StepGranted, *, reply: bytes, audit: Mapping[str, Any]) -> StoredReply:
        """Stores what is released for a step; only what this returns may be sent.

        Args:
            grant: from `begin_step`, in this process.
            reply: the released bytes.
            audit: JSON fields for the operator's audit; the chain holds a salted digest of them, since receipts
                go to the client. No value derived from a record belongs here.

        Returns:
            The stored reply with its signed receipt.

        Raises:
            GrantNotHeld: the grant was ended before.
            RequestInProgress: another replica took the step over while this one seemed dead; send nothing.
            InvalidValue: the audit record is not JSON.
            LedgerUnavailable: nothing is stored, send nothing; the grant is ended, a repeat of the request gets a
                new attempt.
        """
        try:
            with self._transaction("finish_step") as transaction:
                if self._computing.get((grant.run.client, grant.request_id)) != grant.attempt:
                    raise GrantNotHeld("this grant has ended: its step is computed once")
                self._not_taken_over(transaction, grant)
                record = canonical_json({"audit": dict(audit), "salt": secrets.token_hex(16)}).decode("ascii")
                entry = transaction.append(
                    Kind.STEP_ANSWERED,
                    {
                        "run": grant.run.run_id,
                        "step": grant.step_number,
                        "client": grant.run.client,
                        "request_id": grant.request_id,
                        "digest": grant.digest,
                        "reply": sha256(reply),
                        "audit": sha256(record.encode("ascii")),
                    },
                )
                transaction.connection.execute(
                    "INSERT INTO replies (run_id, step, seq, reply, audit) VALUES (?, ?, ?, ?, ?)",
                    (grant.run.run_id, grant.step_number, entry.seq, bytes(reply), record),
                )
        except LedgerUnavailable:
            # The disk's or the lock's fault, and no record's: the same attempt may store its reply later.
            self._unstored[grant.run.client, grant.request_id] = grant.attempt
            raise
        finally:
            self.abandon_step(grant)
        return StoredReply(reply=bytes(reply), receipt=Receipt.of(entry))

    def abandon_step(self, grant: StepGranted) -> None:
        """Ends a grant whose computation failed. The charge stays; a repeat of the request may compute the step."""
        mark = (grant.run.client, grant.request_id)
        if self._computing.get(mark) == grant.attempt:
            self._database.release(mark)  # first: once the entry is gone, another thread may mark the step anew
            self._computing.pop(mark, None)

    def _not_in_progress(self, transaction: Transaction, client: str, request_id: str) -> None:
        """Marks the step as this process's."""
        mark = client, request_id
        if mark in self._computing or not self._database.hold(transaction.connection, mark):
            raise RequestInProgress("this request is being computed; repeat it later with the same id")

    @staticmethod
    def _not_taken_over(transaction: Transaction, grant: StepGranted) -> None:
        """Only the last attempt at a step may store a reply, however late an earlier one comes.

        Otherwise two replicas would race for being stored, and which reply is released could depend on how long each
        took. A replica whose connection broke seems dead to the others, and goes on computing.
        """
        (attempts,) = transaction.connection.execute(
            "SELECT attempts FROM requests WHERE client = ? AND request_id = ?", (grant.run.client, grant.request_id)
        ).fetchone()
        if attempts != grant.attempt:
            raise RequestInProgress("another curator has taken this step over; repeat the request later with its id")

    def _snapshot(self) -> Books:
        with self._reading():
            return self._books.snapshot()

    def _charge(
        self,
        transaction: Transaction,
        client: str,
        request_id: str,
        digest: str,
        event: Any,
        parameters: bytes,
        charges: tuple[Charge, ...],
    ) -> Run:
        event_json = self.accounting.event_to_json(event)
        for charge in charges:
            if charge.fresh:
                holder = client if charge.scope == CLIENT else None
                payload = {
                    "scope": charge.scope,
                    "client": holder,
                    "filter": charge.filter.to_json(),
                    "plan": event_json,
                }
                transaction.append(Kind.FILTER_FIXED, payload)
        prices = {charge.scope: charge.price.to_json() for charge in charges}
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
            "INSERT INTO requests (client, request_id, digest, run_id, step, attempts, seq) "
            "VALUES (?, ?, ?, ?, 0, 0, ?)",
            (client, request_id, digest, run_id, entry.seq),
        )
        return load_run(transaction.connection, self.accounting, run_id)

    def _grant(
        self,
        transaction: Transaction,
        client: str,
        run_id: str,
        request_id: str,
        digest: str,
        max_attempts: int | None,
    ) -> StepGranted:
        """Consumes a step for a new request, or grants the step of an old one again."""
        connection = transaction.connection
        run = held_run(connection, self.accounting, client, run_id)
        if transaction.books.state is not DataSetState.OPEN:
            raise GrantNotHeld(f"the operator has {transaction.books.state.value} this data set: nothing is released")
        if run.pruned:
            raise RunFinished("the operator has closed this run; open another run")
        row = connection.execute(
            "SELECT step, attempts FROM requests WHERE client = ? AND request_id = ?", (client, request_id)
        ).fetchone()
        if row is not None and self._unstored.get((client, request_id)) == row[1]:  # nobody took it over since
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
            run = load_run(connection, self.accounting, run_id)
        return StepGranted(run=run, step_number=step, request_id=request_id, digest=digest, attempt=attempt)


def _check_request(request_id: str, digest: str) -> None:
    fits = isinstance(request_id, str) and 1 <= len(request_id) <= MAX_REQUEST_ID_LENGTH
    if not fits or not request_id.isprintable():  # a NUL cannot be stored everywhere
        raise InvalidValue(f"a request id has 1 to {MAX_REQUEST_ID_LENGTH} printable characters")
    hex_256(digest, "a request's digest")
