"""Who may spend what, computed from the ledger's entries alone. Opens no file.

Two levels: the data set's account bounds the privacy loss of the records towards all clients together (they may
collude); a client's account bounds what that client can use up. A charge is made to both or to none.

A filter is fixed before an account's first charge, from that charge's public parameters, and its orders and weights
never change after that (docs/privacy, 4). So the sum of the accepted charges is all that an account has to remember.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from dpswd.private_curator.core.ledger.accounting import Accounting
from dpswd.private_curator.core.ledger.accounts import CLIENT, DATA_SET, Account, Charge
from dpswd.private_curator.core.ledger.statements import Client, DataSetState, Kind
from dpswd.shared.core.errors import (
    BudgetExhausted,
    DpswdError,
    GrantNotHeld,
    InvalidEvent,
    LedgerCorrupt,
    RelationMismatch,
)
from dpswd.shared.core.ledger.keys import LedgerKeys, is_key_change
from dpswd.shared.core.ledger.receipts import SignedEntry
from dpswd.shared.core.privacy.budget import Price, PrivacyBudget
from dpswd.shared.core.privacy.events import RunEvent
from dpswd.shared.core.privacy.filter import PrivacyFilter


@dataclass
class Books:
    """The state that the administrative entries and the charges of a ledger add up to.

    Entries are applied in order, each once; nothing else changes the books.
    """

    handlers: ClassVar[Mapping[Kind, Callable[[Any, Mapping[str, Any]], None]]]

    accounting: Accounting
    seq: int = 0
    time: str = ""
    ledger_id: str = ""
    records: int = 0
    updated: int = 0  # the last entry before the records became what they are
    records_per_person: int = 1
    public_key: str = ""
    key_changes: tuple[SignedEntry, ...] = ()
    state: DataSetState = DataSetState.OPEN
    data_set: Account | None = None
    shares: dict[str, Account] = field(default_factory=dict)
    clients: dict[str, Client] = field(default_factory=dict)
    charged: Counter[str] = field(default_factory=Counter)  # runs, by client
    spending: dict[str, Any] = field(default_factory=dict)  # sums of each client's prices in the data set's filter
    day: str = ""  # UTC, the latest that an entry states

    def apply(self, entry: SignedEntry) -> None:
        """Takes one entry into the books.

        Raises:
            LedgerCorrupt: the entry cannot stand here, or a charge exceeds its budget.
        """
        self.time, self.day = entry.time, max(self.day, entry.time[:10])
        try:
            handler = self.handlers.get(Kind(entry.kind))
            if handler is not None:
                handler(self, entry.payload)
            if entry.kind == Kind.KEY_CHANGED:
                self._key_changed(entry)
        except (KeyError, ValueError, TypeError, AttributeError, DpswdError) as error:
            raise LedgerCorrupt(f"entry {entry.seq} ({entry.kind}) cannot stand where it stands: {error!r}") from error
        self.seq = entry.seq

    @property
    def keys(self) -> LedgerKeys:
        """The keys that sign this ledger's entries, each from its place on."""
        return LedgerKeys(bytes.fromhex(self.public_key), self.key_changes)

    @property
    def account(self) -> Account:
        """The data set's account."""
        if self.data_set is None:
            raise LedgerCorrupt("the ledger does not begin with the opening of a data set")
        return self.data_set

    @property
    def closed(self) -> bool:
        """Whether nothing new is released: the data set is frozen or has ended."""
        return self.state is not DataSetState.OPEN

    def accounts(self, client: str) -> dict[str, Account]:
        """Every account that a client's run is charged to, by its scope."""
        share = self.shares.get(client)
        return {DATA_SET: self.account} if share is None else {DATA_SET: self.account, CLIENT: share}

    def snapshot(self) -> Self:
        """These books as they are now, for work outside of the ledger's lock."""
        changing = ("shares", "clients", "charged", "spending")
        copies: dict[str, Any] = {name: copy.copy(getattr(self, name)) for name in changing}
        return replace(self, **copies)

    def holder(self, name: str) -> Client:
        """A registered client that is not shut out.

        Raises:
            GrantNotHeld: there is none of this name.
        """
        client = self.clients.get(name)
        if client is None or client.revoked:
            raise GrantNotHeld(f"no client named {name!r} may use this data set")
        return client

    def active(self, name: str) -> Client:
        """A registered client to which something new may be released.

        Raises:
            GrantNotHeld: there is none of this name, or the operator has paused it.
        """
        client = self.holder(name)
        if client.paused:
            raise GrantNotHeld(
                f"the operator has paused the client {name!r}: nothing new is released to it until it is resumed; ask "
                "the operator"
            )
        return client

    def charges(self, client: str, event: RunEvent) -> tuple[Charge, ...]:
        """Prices a run for the data set's account and, if there is one, the client's.

        Raises:
            InvalidEvent: the event is about another number of records.
            RelationMismatch: the event is priced under another neighbouring relation than the data set's.
            GrantNotHeld: the client is not registered, shut out, or paused.
        """
        self.active(client)
        if event.step.records != self.records:
            raise InvalidEvent(f"the data set has {self.records} records, the run was priced for {event.step.records}")
        relation = self.account.budget.relation
        if event.step.relation != relation:
            raise RelationMismatch(f"this data set's budget holds under {relation.value!r} neighbours only")
        return tuple(self._charge(scope, account, event) for scope, account in self.accounts(client).items())

    def admits(self, client: str, event: RunEvent, charges: tuple[Charge, ...], *, day: str) -> bool:
        """Whether prices made earlier belong to the records and filters of now, and every account bears them."""
        accounts = self.accounts(client)
        alike = event.step.records == self.records and accounts.keys() == {charge.scope for charge in charges}
        if self.closed or not alike:
            return False
        for charge in charges:
            account = accounts[charge.scope]
            if _text(account.filter) != (None if charge.fresh else _text(charge.filter)):
                return False
            if charge.fresh and account.budget != charge.filter.budget:
                return False
        try:
            return all(account.admit(price) for _, account, price in self.bearing(client, charges, day))
        except BudgetExhausted:
            return False

    def admit(self, client: str, event: RunEvent, charges: tuple[Charge, ...], *, day: str) -> None:
        """Checks that every account bears its charge; changes nothing.

        Raises:
            BudgetExhausted: the account named by its ``scope`` does not, with the number of steps that still fit.
        """
        if self.closed:  # said first: what it would cost and what would fit is beside the point
            charge = charges[0]
            requested = charge.filter.alone(charge.price)
            spent = charge.filter.epsilon(self._ready(client, charge).spent)
            raise BudgetExhausted(requested, spent, 0.0, scope=f"{self.state.value} {DATA_SET}")
        accounts = self.bearing(client, charges, day)
        for scope, account, price in accounts:
            try:
                account.admit(price)
            except BudgetExhausted as error:
                fits = min(account.fixed_filter.fits(account.spent, event) for _, account, _ in accounts)
                raise BudgetExhausted(
                    error.requested, error.spent, error.remaining, steps_that_fit=fits, scope=scope
                ) from error

    def _charge(self, scope: str, account: Account, event: RunEvent) -> Charge:
        fresh = account.filter is None
        filter_ = self.accounting.filter_for(account.budget, event) if account.filter is None else account.filter
        return Charge(scope=scope, filter=filter_, fresh=fresh, price=self.accounting.price(filter_, event))

    def _ready(self, client: str, charge: Charge) -> Account:
        """The charge's account, with the filter that the charge would fix."""
        account = self.accounts(client)[charge.scope]
        if account.filter is not None:
            return account
        return replace(account, filter=charge.filter, spent=charge.filter.zero())

    def bearing(self, client: str, charges: tuple[Charge, ...], day: str) -> list[tuple[str, Account, Price]]:  # noqa: ARG002
        """Every account that must bear a run on that day, and its price; more of them where caps are kept."""
        return [(charge.scope, self._ready(client, charge), charge.price) for charge in charges]

    def _rebudgeted(self, account: Account, budget: PrivacyBudget, text: str | None) -> Account:
        require((account.filter is None) == (text is None), "a fixed filter changes with its budget")
        return replace(account, budget=budget, filter=None if text is None else self.accounting.filter_from_json(text))

    def read_budget(self, value: Mapping[str, Any]) -> PrivacyBudget:
        """A budget as an entry states it."""
        return self.accounting.budget(epsilon=value["epsilon"], delta=value["delta"], relation=value["relation"])

    def _opened(self, payload: Mapping[str, Any]) -> None:
        require(self.data_set is None, "a ledger has one data set")
        self.ledger_id, self.public_key = payload["ledger"], payload["public_key"]
        self.records, self.records_per_person = payload["records"], payload["records_per_person"]
        self.data_set = Account(self.read_budget(payload["budget"]))

    def _key_changed(self, entry: SignedEntry) -> None:
        stated = entry.payload["ledger"], entry.payload["replaces"]
        require(stated == (self.ledger_id, self.public_key), "a change of the key replaces the ledger's own")
        require(is_key_change(entry), "both keys sign a change of the ledger's key")
        require(bytes.fromhex(entry.payload["public_key"]) not in self.keys.every, "a key that was changed stays so")
        self.public_key, self.key_changes = entry.payload["public_key"], (*self.key_changes, entry)

    def _filter_fixed(self, payload: Mapping[str, Any]) -> None:
        filter_ = self.accounting.filter_from_json(payload["filter"])
        account = self.account if payload["scope"] == DATA_SET else self.shares[payload["client"]]
        require(account.filter is None, "an account's filter is fixed once")
        fixed = replace(account, filter=filter_, spent=filter_.zero())
        if payload["scope"] == DATA_SET:
            self.data_set = fixed
        else:
            self.shares[payload["client"]] = fixed

    def _client_added(self, payload: Mapping[str, Any]) -> None:
        name, share = payload["client"], payload["share"]
        require(name not in self.clients, "a client's name is given once")
        budget = None if share is None else self.read_budget(share)
        if budget is not None:
            self.shares[name] = Account(budget)
        self.clients[name] = Client(name=name, fingerprint=payload["fingerprint"], share=budget, revoked=False)

    def _client_revoked(self, payload: Mapping[str, Any]) -> None:
        name = payload["client"]
        self.clients[name] = replace(self.clients[name], revoked=True)

    def _share_set(self, payload: Mapping[str, Any]) -> None:
        name = payload["client"]
        budget = self.read_budget(payload["share"])
        account = self.shares.get(name)
        if account is None:
            self.shares[name] = self.first_share(name, budget)
            require(_text(self.shares[name].filter) == payload["filter"], "a first share has the data set's filter")
        else:
            self.shares[name] = self._rebudgeted(account, budget, payload["filter"])
        self.clients[name] = replace(self.clients[name], share=budget)

    def first_share(self, name: str, budget: PrivacyBudget) -> Account:
        """The account of a client's first share.

        What it spent before was priced in the data set's filter: that filter's orders and shares under the new budget,
        and the sum of these prices, are its account.
        """
        spent = self.spending.get(name)
        if spent is None:
            return Account(budget)
        filter_ = self.account.fixed_filter.with_budget(budget)
        return Account(budget, filter_, spent, self.charged[name])

    def _client_paused(self, payload: Mapping[str, Any], *, paused: bool) -> None:
        client = self.clients[payload["client"]]
        require(client.paused is not paused, "a client is paused once, and resumed once")
        self.clients[client.name] = replace(client, paused=paused)

    def _records_updated(self, payload: Mapping[str, Any]) -> None:
        """A person who stays is charged in the same accounts as before."""
        require(type(payload["records"]) is int and payload["records"] > 0, "a data set has at least one record")
        self.records, self.updated = payload["records"], self.seq

    def _budget_set(self, payload: Mapping[str, Any]) -> None:
        self.data_set = self._rebudgeted(self.account, self.read_budget(payload["budget"]), payload["filter"])

    def _state_set(self, state: DataSetState) -> None:
        require(self.state is not DataSetState.ENDED, "a data set that has ended stays so")
        self.state = state

    def _charged(self, payload: Mapping[str, Any]) -> None:
        require(self.state is DataSetState.OPEN, "only an open data set is charged")
        client, prices = payload["client"], payload["prices"]
        require(not self.clients[client].paused, "a paused client is not charged")
        price = self.accounting.price_from_json(prices[DATA_SET])
        self.data_set = self.account.admit(price)
        filter_ = self.account.fixed_filter
        self.spending[client] = filter_.add(self.spending.get(client, filter_.zero()), price)
        if client in self.shares:
            self.shares[client] = self.shares[client].admit(self.accounting.price_from_json(prices[CLIENT]))
        self.charged[client] += 1


def require(condition: bool, rule: str) -> None:
    """Holds an entry to a rule of the ledger.

    Raises:
        LedgerCorrupt: the entry breaks it.
    """
    if not condition:
        raise LedgerCorrupt(rule)


def _text(filter_: PrivacyFilter | None) -> str | None:
    return None if filter_ is None else filter_.to_json()


Books.handlers = {
    Kind.DATA_SET_OPENED: Books._opened,
    Kind.FILTER_FIXED: Books._filter_fixed,
    Kind.CLIENT_ADDED: Books._client_added,
    Kind.CLIENT_REVOKED: Books._client_revoked,
    Kind.SHARE_SET: Books._share_set,
    Kind.BUDGET_LOWERED: Books._budget_set,
    Kind.BUDGET_EXTENDED: Books._budget_set,
    Kind.FROZEN: lambda books, _: books._state_set(DataSetState.FROZEN),
    Kind.UNFROZEN: lambda books, _: books._state_set(DataSetState.OPEN),
    Kind.ENDED: lambda books, _: books._state_set(DataSetState.ENDED),
    Kind.CLIENT_PAUSED: lambda books, payload: books._client_paused(payload, paused=True),
    Kind.CLIENT_RESUMED: lambda books, payload: books._client_paused(payload, paused=False),
    Kind.RECORDS_UPDATED: Books._records_updated,
    Kind.RUN_OPENED: Books._charged,
}
