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
from datetime import UTC
from typing import Any

from dpswd.private_curator.core.ledger.budget import Books
from dpswd.private_curator.core.ledger.requests import answered, bind, charge, opened_before
from dpswd.private_curator.core.ledger.statements import Kind, Request, Run, StepGranted, StoredReply
from dpswd.private_curator.core.ledger.store import B_co, Store, Transaction
from dpswd.shared.core.errors import GrantNotHeld, LedgerUnavailable, RequestInProgress, RunFinished
from dpswd.shared.core.ledger.receipts import Receipt, canonical_json, sha256
from dpswd.shared.core.privacy.events import RunEvent


class RunActs(Store[B_co]):
    """The client's side of the ledger. Use `dpswd.private_curator.books.ledger.Ledger`."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # Requests that this process computes now, and in which attempt. Read and extended under the database's
        # mutex only; entries are removed without it, which is one atomic step.
        self._computing: dict[tuple[str, str], int] = {}
        # The attempt of each request that was computed and could not be stored, by no fault of a record.
        self._unstored: dict[tuple[str, str], int] = {}
        self._loaded = self._books.updated  # of which update this process serves the records

    def serve(self) -> None:
        """Claims the right to charge and to compute, until this process closes the ledger or dies.

        A ledger in a file has one such process at a time. A ledger in PostgreSQL has any number of replicas, and each
        step one of them at a time (`begin_step`). `open_run` and `begin_step` claim the right if nobody did; a server
        claims it when it starts. Idempotent.

        Raises:
            LedgerUnavailable: another process has it, or the ledger is being restored.
        """
        self._database.claim()

    def open_run(self, request: Request, *, event: RunEvent, parameters: bytes, purpose: str = "") -> Run:
        """Charges a whole run to the data set's and the client's account, durably and once.

        Args:
            request: its digest is made from the run's parameters.
            event: the `RunEvent` that prices the run.
            parameters: what the steps need to know of the declaration; kept as it is.
            purpose: why, in the client's words; it stands in the entry and so in the receipt.

        Returns:
            The run; the same one for a repeat of the request, free.

        Raises:
            BudgetExhausted: an account, or the client's day, does not admit the whole run; ``scope`` names it. Nothing
                was spent.
            RequestIdReused: the id stands for another request.
            GrantNotHeld: the client is not registered, shut out, or paused.
            InvalidEvent, RelationMismatch: the event is not about this data set.
            LedgerUnavailable: retry later with the same id.
        """
        run, client = self.opened_run(request), request.client
        if run is None:
            self.serve()
        while run is None:
            # Pricing, and finding out what would still fit, takes milliseconds to seconds: not under the lock.
            books = self._snapshot()
            charges = books.charges(client, event)
            books.admit(client, event, charges, day=self.day(books))
            with self._transaction("open_run") as transaction:
                transaction.books.holder(client)
                run = opened_before(transaction.connection, self.accounting, request)
                books = transaction.books
                if run is None:
                    self._require_loaded(books)
                if run is None and books.admits(client, event, charges, day=self.day(books)):
                    run = charge(
                        transaction,
                        request=request,
                        event=event,
                        parameters=parameters,
                        purpose=purpose,
                        charges=charges,
                    )
        return run

    def opened_run(self, request: Request) -> Run | None:
        """The run that this very request has opened, whatever the operator decided since; None for a new request.

        Raises:
            RequestIdReused: the id stands for another request.
            GrantNotHeld: the client is not registered, or shut out.
            LedgerUnavailable: a database cannot say now that a failover would keep it.
        """
        with self._reading() as connection:
            self._books.holder(request.client)
            run = opened_before(connection, self.accounting, request)
        if run is not None:
            self._settle()
        return run

    def stored_reply(self, request: Request, *, run_id: str) -> StoredReply | None:
        """The stored reply of this very request, whatever the operator decided since; None when there is none yet.

        Raises:
            RequestIdReused: the id stands for another request.
            RunFinished: the operator has discarded the run's replies.
            GrantNotHeld: the client is not registered, or shut out.
            LedgerUnavailable: see `opened_run`.
        """
        with self._reading() as connection:
            self._books.holder(request.client)
            stored = answered(connection, run_id, request)
        if stored is not None:
            self._settle()
        return stored

    def begin_step(
        self, request: Request, *, run_id: str, max_attempts: int | None = None
    ) -> StepGranted | StoredReply:
        """Binds one charged step to a request, durably, before any record is read.

        Args:
            request: its digest is made from the run's id as well.
            run_id: the run whose steps were charged.
            max_attempts: how often this step may be begun; no bound by default. An attempt whose computation
                succeeded and whose reply could not be stored is taken up again and does not count twice.

        Returns:
            The stored reply of this very request if there is one, which costs nothing; else the grant to compute it.

        Raises:
            GrantNotHeld: no such run of this client, the client is shut out, or the operator has stopped releases.
            RunFinished: all charged steps are used, or the operator has closed the run.
            RequestIdReused: the id stands for another request.
            RequestInProgress: another thread, or another replica, computes this request now.
            StepGivenUp: all attempts are used; nothing is written.
            LedgerUnavailable: retry later with the same id; nothing was consumed.
        """
        stored = self.stored_reply(request, run_id=run_id)
        if stored is not None:
            return stored
        self.serve()
        grant: StepGranted | None = None
        held = False
        try:
            with self._transaction("begin_step") as transaction:
                self._books.holder(request.client)
                stored = answered(transaction.connection, run_id, request)
                if stored is not None:
                    return stored
                self._require_loaded(self._books)
                self._not_in_progress(transaction, request)
                held = True
                unstored = self._unstored.get(request.mark)
                grant = bind(transaction, request, run_id=run_id, max_attempts=max_attempts, unstored=unstored)
                # Marked before the commit ends the mutex: no other thread finds the step consumed and unmarked.
                self._computing[request.mark] = grant.attempt
            self._unstored.pop(request.mark, None)
        except BaseException:
            if grant is not None:
                self.abandon_step(grant)
            elif held:
                self._database.release(request.mark)
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
            RunFinished: the operator has closed the run meanwhile; send nothing.
            InvalidValue: the audit record is not JSON.
            LedgerUnavailable: nothing is stored, send nothing; the grant is ended, and a repeat is a new attempt.
        """
        try:
            with self._transaction("finish_step") as transaction:
                if self._computing.get(grant.request.mark) != grant.attempt:
                    raise GrantNotHeld("this grant has ended: its step is computed once")
                self._not_taken_over(transaction, grant)
                record = canonical_json({"audit": dict(audit), "salt": secrets.token_hex(16)}).decode("ascii")
                entry = transaction.append(
                    Kind.STEP_ANSWERED,
                    {
                        "run": grant.run.run_id,
                        "step": grant.step_number,
                        **grant.request.fields,
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
            self._unstored[grant.request.mark] = grant.attempt
            raise
        finally:
            self.abandon_step(grant)
        return StoredReply(reply=bytes(reply), receipt=Receipt.of(entry))

    def abandon_step(self, grant: StepGranted) -> None:
        """Ends a grant whose computation failed. The charge stays; a repeat of the request may compute the step."""
        mark = grant.request.mark
        if self._computing.get(mark) == grant.attempt:
            self._database.release(mark)  # first: once the entry is gone, another thread may mark the step anew
            self._computing.pop(mark, None)

    def _require_loaded(self, books: Books) -> None:
        """Nothing is charged or computed for records that this process was not started on."""
        if books.updated != self._loaded:
            raise LedgerUnavailable("the records were updated since this curator started; the operator restarts it")

    def _not_in_progress(self, transaction: Transaction[Books], request: Request) -> None:
        """Marks the step as this process's."""
        if request.mark in self._computing or not self._database.hold(transaction.connection, request.mark):
            raise RequestInProgress("this request is being computed; repeat it later with the same id")

    @staticmethod
    def _not_taken_over(transaction: Transaction[Books], grant: StepGranted) -> None:
        """Only the last attempt at a step may store a reply, however late an earlier one comes; of a closed run, none.

        Otherwise two replicas would race for being stored, and which reply is released could depend on how long each
        took. A replica whose connection broke seems dead to the others, and goes on computing.
        """
        attempts, closed = transaction.connection.execute(
            "SELECT attempts, pruned FROM requests JOIN runs ON runs.run_id = requests.run_id "
            "WHERE client = ? AND request_id = ?",
            grant.request.mark,
        ).fetchone()
        if closed:
            raise RunFinished("the operator has closed this run while a step of it was computed; open another run")
        if attempts != grant.attempt:
            raise RequestInProgress("another curator has taken this step over; repeat the request later with its id")

    def day(self, books: Books) -> str:
        """Today, UTC, for the caps on a client's day and year; a clock that was put back begins no new one."""
        return max(books.day, self._clock().astimezone(UTC).date().isoformat())

    def _snapshot(self) -> B_co:
        with self._reading():
            return self._books.snapshot()
