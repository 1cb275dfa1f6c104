"""The books with what is kept beside budgets: certificates, extractors, reply quanta, clients' requests for more."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from dpswd.private_curator.books.figures import AccountStatus, BudgetRequest, Decision, Quote, Statement
from dpswd.private_curator.books.operators import Enrolled, who
from dpswd.private_curator.books.place import Place
from dpswd.private_curator.caps.books import CappedBooks
from dpswd.private_curator.core.ledger.accounts import CLIENT, DATA_SET, Account, Charge
from dpswd.private_curator.core.ledger.budget import require
from dpswd.private_curator.core.ledger.statements import Client, Kind
from dpswd.shared.core.errors import BudgetExhausted, InvalidValue, LedgerCorrupt
from dpswd.shared.core.ledger.receipts import SignedEntry
from dpswd.shared.core.privacy.budget import Price
from dpswd.shared.core.privacy.events import RunEvent


def account_status(account: Account, *, closed: bool) -> AccountStatus:
    """What is used of the budget; nothing remains of a closed account."""
    spent = 0.0 if account.filter is None else account.filter.epsilon(account.spent)
    return AccountStatus(
        epsilon=account.budget.epsilon,
        delta=account.budget.delta,
        relation=account.budget.relation.value,
        epsilon_spent=spent,
        epsilon_remaining=0.0 if closed else max(0.0, account.budget.epsilon - spent),
        runs=account.runs,
    )


def share_status(share: Account | None, *, closed: bool) -> AccountStatus | None:
    """The same of a client's own account; None where there is none."""
    return None if share is None else account_status(share, closed=closed)


@dataclass
class Register(CappedBooks):
    """Books that follow every kind of entry."""

    extractors: set[str] = field(default_factory=set)
    requests: dict[int, BudgetRequest] = field(default_factory=dict)
    operators: Enrolled = field(default_factory=Enrolled)
    place: Place = field(default_factory=dict)  # where the ledger says that it stands
    placed: int = 0  # the entry that says so
    copied: dict[str, list[Any]] = field(default_factory=dict)  # receipts of a copy, by hash: run and step, 0 to open
    copied_runs: Counter[str] = field(default_factory=Counter)  # how often each was charged for that
    stated: dict[str, Statement] = field(default_factory=dict)  # the last of each item
    quanta: dict[str, int] = field(default_factory=dict)  # milliseconds, by what a step's work depends on

    def apply(self, entry: SignedEntry) -> None:
        """See `Books`; who acted is held to what the entries before say of operators."""
        if "by" in entry.payload:
            try:
                self.operators.take(entry.kind, entry.payload, "" if entry.seq == 1 else entry.previous)
            except (InvalidValue, KeyError, TypeError, AttributeError) as error:
                raise LedgerCorrupt(
                    f"entry {entry.seq} ({entry.kind}) was not acted by who it says: {error}"
                ) from error
        super().apply(entry)
        if "place" in entry.payload:
            self.place, self.placed = entry.payload["place"], entry.seq
        self.operators.ledger = self.ledger_id

    def snapshot(self) -> Self:
        """See `Books`."""
        beside: dict[str, Any] = {"extractors": copy.copy(self.extractors), "requests": copy.copy(self.requests)}
        return replace(super().snapshot(), operators=copy.deepcopy(self.operators), **beside)

    def spent_by(self, name: str) -> float:
        """What a client's own runs cost together, in the data set's filter at its delta."""
        spent = self.spending.get(name)
        return 0.0 if spent is None else self.account.fixed_filter.epsilon(spent)

    def owed(self, receipts: Mapping[str, list[Any]]) -> dict[str, int]:
        """How often runs are to be charged for further receipts of a copy: see `dpswd.private_curator.books.copies`."""
        held = Counter((run, step) for run, step in {**self.copied, **receipts}.values())
        most: Counter[str] = Counter()
        for (run, _), copies in held.items():
            most[run] = max(most[run], copies)
        return dict(most - self.copied_runs)

    def open_request(self, name: str) -> BudgetRequest | None:
        """The request for budget of a client that nobody has decided yet."""
        asked = (request for request in self.requests.values() if request.client == name)
        return next((request for request in asked if request.decision is None), None)

    def certified(self, fingerprint: str) -> Client | None:
        """The client that a certificate counts for."""
        return next((client for client in self.clients.values() if fingerprint in client.fingerprints), None)

    def quote(self, client: str, event: RunEvent, charges: tuple[Charge, ...], *, day: str) -> Quote:
        """What `admit` would say, as figures."""
        refusal = None
        try:
            self.admit(client, event, charges, day=day)
        except BudgetExhausted as error:
            refusal = error
        adds = []
        for each in charges:
            before = self._ready(client, each).spent
            after = each.filter.add(before, each.price)
            adds.append(max(0.0, each.filter.epsilon(after) - each.filter.epsilon(before)))
        return Quote(
            epsilon=charges[0].filter.alone(charges[0].price),
            adds_to_data_set=adds[0],
            adds_to_share=adds[1] if len(adds) > 1 else None,
            data_set=account_status(self.account, closed=self.closed),
            client=share_status(self.shares.get(client), closed=self.closed),
            refusal=refusal,
            steps_that_fit=event.steps if refusal is None else min(refusal.steps_that_fit, event.steps),
        )

    def _counted(self, payload: Mapping[str, Any]) -> None:
        """Whatever the budget is: it was released."""
        runs = payload["runs"]
        owed = self.owed(payload["receipts"])
        require({run["run"]: run["times"] for run in runs} == owed, "each copy of a run is charged once")
        self.copied |= payload["receipts"]
        self.copied_runs += Counter(owed)
        for run in runs:
            client, prices = run["client"], run["prices"]
            price = self.accounting.price_from_json(prices[DATA_SET])
            filter_ = self.account.fixed_filter
            for _ in range(run["times"]):
                self.data_set = _counted(self.account, price)
                self.spending[client] = filter_.add(self.spending.get(client, filter_.zero()), price)
                if client in self.shares:
                    its = self.accounting.price_from_json(prices[CLIENT])
                    self.shares[client] = _counted(self.shares[client], its)
                self.charged[client] += 1

    def _client_certified(self, payload: Mapping[str, Any]) -> None:
        name = payload["client"]
        self.clients[name] = replace(self.clients[name], fingerprint=payload["fingerprint"], others=())

    def _certificate_added(self, payload: Mapping[str, Any]) -> None:
        client, added = self.clients[payload["client"]], payload["fingerprint"]
        require(added not in client.fingerprints, "a certificate is added once")
        self.clients[client.name] = replace(client, fingerprint=added, others=client.fingerprints)

    def _certificate_revoked(self, payload: Mapping[str, Any]) -> None:
        client, gone = self.clients[payload["client"]], payload["fingerprint"]
        require(gone in client.fingerprints, "only a certificate that counts is withdrawn")
        left = tuple(each for each in client.fingerprints if each != gone)
        self.clients[client.name] = replace(client, fingerprint=left[-1] if left else "", others=left[:-1])

    def _quantum_fixed(self, payload: Mapping[str, Any]) -> None:
        require(payload["work"] not in self.quanta, "a quantum is fixed once")
        self.quanta[payload["work"]] = payload["milliseconds"]

    def _budget_requested(self, payload: Mapping[str, Any]) -> None:
        number, name = payload["number"], payload["client"]
        require(number == len(self.requests) + 1, "requests are counted")
        require(self.open_request(name) is None, "a client has one request that waits")
        self.requests[number] = BudgetRequest(
            number=number, time=self.time, client=name, epsilon=payload["epsilon"], purpose=payload["purpose"]
        )

    def _request_decided(self, payload: Mapping[str, Any]) -> None:
        asked = self.requests[payload["number"]]
        require(asked.decision is None, "a request is decided once")
        decision, by = Decision(payload["decision"]), who(payload["by"])
        said = {"granted": payload["granted"], "reason": payload["reason"]}
        self.requests[asked.number] = replace(asked, decision=decision, decided_by=by, **said)


def _stated(books: Register, payload: Mapping[str, Any]) -> None:
    books.stated[payload["item"]] = Statement(words=payload["words"], time=books.time, by=who(payload["by"]))


def _counted(account: Account, price: Price) -> Account:
    return replace(account, spent=account.fixed_filter.add(account.spent, price), runs=account.runs + 1)


Register.handlers = {
    **CappedBooks.handlers,
    Kind.COPIES_COUNTED: Register._counted,
    Kind.CLIENT_CERTIFIED: Register._client_certified,
    Kind.CERTIFICATE_ADDED: Register._certificate_added,
    Kind.CERTIFICATE_REVOKED: Register._certificate_revoked,
    Kind.QUANTUM_FIXED: Register._quantum_fixed,
    Kind.BUDGET_REQUESTED: Register._budget_requested,
    Kind.REQUEST_DECIDED: Register._request_decided,
    Kind.OPERATOR_ADDED: lambda books, payload: books.operators.add(payload),
    Kind.OPERATOR_REMOVED: lambda books, payload: books.operators.remove(payload),
    Kind.STATED: _stated,
    Kind.EXTRACTOR_APPROVED: lambda books, payload: books.extractors.add(payload["digest"]),
    Kind.EXTRACTOR_REVOKED: lambda books, payload: books.extractors.discard(payload["digest"]),
}
