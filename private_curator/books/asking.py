"""What clients' requests ask of a ledger besides runs: prices, reply quanta, and more budget."""

from __future__ import annotations

from dataclasses import replace

from dpswd.private_curator.books.figures import BudgetRequest, Quote
from dpswd.private_curator.books.register import Register
from dpswd.private_curator.core.ledger.requests import held_run, load_run
from dpswd.private_curator.core.ledger.runs import RunActs
from dpswd.private_curator.core.ledger.statements import Kind, Run
from dpswd.shared.core.errors import GrantNotHeld
from dpswd.shared.core.privacy.events import RunEvent


class ClientActs(RunActs[Register]):
    """The client's side of the ledger. Use `dpswd.private_curator.books.ledger.Ledger`."""

    def price_run(self, *, client: str, event: RunEvent) -> Quote:
        """What a run would cost now. Spends nothing.

        Raises:
            GrantNotHeld: the client is not registered, shut out, or paused.
            InvalidEvent, RelationMismatch: the event is not about this data set.
            LedgerUnavailable: retry later.
        """
        books = self._snapshot()
        return books.quote(client, event, books.charges(client, event), day=self.day(books))

    def quantum(self, work: str, *, milliseconds: int) -> int:
        """The quantum of replies to steps of one work, in milliseconds; the first one given, for ever.

        So a later start, another replica or a busier machine changes nothing that a client sees.

        Args:
            work: SHA-256, hexadecimal, of the public values that such a step's work depends on.
            milliseconds: the quantum, where the ledger has none yet.

        Raises:
            LedgerUnavailable: retry later.
        """
        quantum = self._books.quanta.get(work)  # it never changes, so no step looks into the database for it
        if quantum is None:
            self.serve()
            with self._transaction("quantum") as transaction:
                quantum = transaction.books.quanta.get(work, milliseconds)
                if work not in transaction.books.quanta:
                    transaction.append(Kind.QUANTUM_FIXED, {"work": work, "milliseconds": quantum})
        return quantum

    def request_budget(self, *, client: str, epsilon: float, purpose: str) -> BudgetRequest:
        """Keeps a client's request for more epsilon until the operator decides it.

        A client has one request that waits, so that it cannot fill the ledger. Its repeat is the same request.

        Args:
            client: who asks.
            epsilon: that it wants on top of what it may spend.
            purpose: why, for the operator.

        Raises:
            GrantNotHeld: the client is not registered, or shut out; or another request of its own waits.
            InvalidValue: epsilon is no budget.
        """
        with self._transaction("request_budget") as transaction:
            books = transaction.books
            books.holder(client)
            replace(books.account.budget, epsilon=epsilon)  # checks the range
            waiting = books.open_request(client)
            if waiting is None:
                number = len(books.requests) + 1
                payload = {"number": number, "client": client, "epsilon": epsilon, "purpose": purpose}
                transaction.append(Kind.BUDGET_REQUESTED, payload)
            elif (waiting.epsilon, waiting.purpose) != (epsilon, purpose):
                raise GrantNotHeld(
                    f"request {waiting.number} of {client!r} waits for the operator's decision; one waits at a time"
                )
            else:
                number = waiting.number
        with self._reading():
            return self._books.requests[number]

    def budget_requests(self, *, client: str | None = None) -> tuple[BudgetRequest, ...]:
        """All requests for budget, or one client's, the oldest first."""
        with self._reading():
            return tuple(asked for asked in self._books.requests.values() if client in (None, asked.client))

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
                "SELECT run_id FROM requests WHERE step = 0 AND client = coalesce(?, client) ORDER BY seq", (client,)
            )
            return tuple(load_run(connection, self.accounting, run_id) for (run_id,) in rows.fetchall())
