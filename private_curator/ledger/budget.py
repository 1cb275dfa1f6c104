"""The books: who may spend what, computed from the ledger's entries alone. Opens no file.

Two levels: the data set's account bounds the privacy loss of the records towards all clients together (they may
collude); a client's account bounds what that client can use up. A charge is made to both or to none.

A filter is fixed before an account's first charge, from that charge's public parameters, and its orders and weights
never change after that (docs/privacy, 4). So the sum of the accepted charges is all that an account has to remember.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from private_curator.ledger.accounting import Accounting
from private_curator.ledger.statements import AccountStatus, Client, DataSetState, Kind, Quote
from shared.errors import BudgetExhausted, DpswdError, GrantNotHeld, InvalidEvent, LedgerCorrupt, RelationMismatch
from shared.ledger.receipts import SignedEntry
from shared.privacy.budget import Price, PrivacyBudget
from shared.privacy.events import RunEvent
from shared.privacy.filter import PrivacyFilter

DATA_SET = "data set"
CLIENT = "client"


@dataclass(frozen=True)
class Account:
    """A budget, its filter once it is fixed, and the sum of the accepted charges.

    Attributes:
        budget: the `PrivacyBudget` in force.
        filter: fixed before the first charge; None until then.
        spent: the filter's own value; None exactly while ``filter`` is.
        runs: how many runs were charged.
    """

    budget: PrivacyBudget
    filter: PrivacyFilter | None = None
    spent: Any = None
    runs: int = 0

    def status(self, *, closed: bool) -> AccountStatus:
        """What is used of the budget; nothing remains of a closed account."""
        spent = 0.0 if self.filter is None else self.filter.epsilon(self.spent)
        return AccountStatus(
            epsilon=self.budget.epsilon,
            delta=self.budget.delta,
            relation=self.budget.relation.value,
            epsilon_spent=spent,
            epsilon_remaining=0.0 if closed else max(0.0, self.budget.epsilon - spent),
            runs=self.runs,
        )

    def admit(self, price: Price) -> Account:
        """This account after a charge.

        Raises:
            BudgetExhausted: the charge does not fit; the account is as it was.
        """
        return replace(self, spent=self.fixed_filter.admit(self.spent, price), runs=self.runs + 1)

    @property
    def fixed_filter(self) -> PrivacyFilter:
        """The filter of an account that was charged, or is about to be.

        Raises:
            LedgerCorrupt: it was never fixed.
        """
        if self.filter is None:
            raise LedgerCorrupt("a filter is fixed before the first charge")
        return self.filter


@dataclass(frozen=True)
class Charge:
    """The price of one run for one account.

    Attributes:
        scope: `DATA_SET` or `CLIENT`.
        filter: the account's filter, or the one to be fixed with this charge.
        fresh: whether the filter still has to be fixed.
        price: under that filter.
    """

    scope: str
    filter: PrivacyFilter
    fresh: bool
    price: Price


@dataclass
class Books:
    """The state that the administrative entries and the charges of a ledger add up to.

    Entries are applied in order, each once; nothing else changes the books.
    """

    accounting: Accounting
    seq: int = 0
    ledger_id: str = ""
    records: int = 0
    public_key: str = ""
    state: DataSetState = DataSetState.OPEN
    data_set: Account | None = None
    shares: dict[str, Account] = field(default_factory=dict)
    clients: dict[str, Client] = field(default_factory=dict)
    charged: set[str] = field(default_factory=set)
    extractors: set[str] = field(default_factory=set)

    def apply(self, entry: SignedEntry) -> None:
        """Takes one entry into the books.

        Raises:
            LedgerCorrupt: the entry cannot stand here, or a charge exceeds its budget.
        """
        try:
            handler = _HANDLERS.get(Kind(entry.kind))
            if handler is not None:
                handler(self, entry.payload)
        except (KeyError, ValueError, TypeError, AttributeError, DpswdError) as error:
            raise LedgerCorrupt(f"entry {entry.seq} ({entry.kind}) cannot stand where it stands: {error!r}") from error
        self.seq = entry.seq

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

    def snapshot(self) -> Books:
        """These books as they are now, for work outside of the ledger's lock."""
        copies: dict[str, Any] = {"shares": dict(self.shares), "clients": dict(self.clients)}
        return replace(self, **copies, charged=set(self.charged), extractors=set(self.extractors))

    def holder(self, name: str) -> Client:
        """A registered client that is not shut out.

        Raises:
            GrantNotHeld: there is none of this name.
        """
        client = self.clients.get(name)
        if client is None or client.revoked:
            raise GrantNotHeld(f"no client named {name!r} may use this data set")
        return client

    def certified(self, fingerprint: str) -> Client | None:
        """The client that a certificate counts for."""
        return next((client for client in self.clients.values() if fingerprint in client.fingerprints), None)

    def charges(self, client: str, event: RunEvent) -> tuple[Charge, ...]:
        """Prices a run for the data set's account and, if there is one, the client's.

        Raises:
            InvalidEvent: the event is about another number of records.
            RelationMismatch: the event is priced under another neighbouring relation than the data set's.
            GrantNotHeld: the client is not registered, or shut out.
        """
        self.holder(client)
        if event.step.records != self.records:
            raise InvalidEvent(f"the data set has {self.records} records, the run was priced for {event.step.records}")
        relation = self.account.budget.relation
        if event.step.relation != relation:
            raise RelationMismatch(f"this data set's budget holds under {relation.value!r} neighbours only")
        return tuple(self._charge(scope, account, event) for scope, account in self.accounts(client).items())

    def admits(self, client: str, charges: tuple[Charge, ...]) -> bool:
        """Whether prices made earlier belong to the filters in force now, and every account bears them."""
        accounts = self.accounts(client)
        if self.closed or accounts.keys() != {charge.scope for charge in charges}:
            return False
        for charge in charges:
            account = accounts[charge.scope]
            if _text(account.filter) != (None if charge.fresh else _text(charge.filter)):
                return False
            if charge.fresh and account.budget != charge.filter.budget:
                return False
            try:
                self._ready(client, charge).admit(charge.price)
            except BudgetExhausted:
                return False
        return True

    def admit(self, client: str, event: RunEvent, charges: tuple[Charge, ...]) -> None:
        """Checks that every account bears its charge; changes nothing.

        Raises:
            BudgetExhausted: the account named by its ``scope`` does not, with the number of steps that still fit.
        """
        if self.closed:  # said first: what it would cost and what would fit is beside the point
            charge = charges[0]
            requested = charge.filter.alone(charge.price)
            spent = charge.filter.epsilon(self._ready(client, charge).spent)
            raise BudgetExhausted(requested, spent, 0.0, scope=f"{self.state.value} {DATA_SET}")
        for charge in charges:
            account = self._ready(client, charge)
            try:
                account.admit(charge.price)
            except BudgetExhausted as error:
                fits = self._steps_that_fit(client, event, charges)
                raise BudgetExhausted(
                    error.requested, error.spent, error.remaining, steps_that_fit=fits, scope=charge.scope
                ) from error

    def quote(self, client: str, event: RunEvent, charges: tuple[Charge, ...]) -> Quote:
        """What `admit` would say, as figures."""
        try:
            self.admit(client, event, charges)
            fits = True
        except BudgetExhausted:
            fits = False
        share = self.shares.get(client)
        steps = event.steps if fits else 0 if self.closed else self._steps_that_fit(client, event, charges)
        return Quote(
            epsilon=charges[0].filter.alone(charges[0].price),
            data_set=self.account.status(closed=self.closed),
            client=None if share is None else share.status(closed=self.closed),
            fits=fits,
            steps_that_fit=min(steps, event.steps),
        )

    def _charge(self, scope: str, account: Account, event: RunEvent) -> Charge:
        fresh = account.filter is None
        filter_ = self.accounting.filter_for(account.budget, event) if account.filter is None else account.filter
        return Charge(scope=scope, filter=filter_, fresh=fresh, price=filter_.price(event))

    def _ready(self, client: str, charge: Charge) -> Account:
        """The charge's account, with the filter that the charge would fix."""
        account = self.accounts(client)[charge.scope]
        if account.filter is not None:
            return account
        return replace(account, filter=charge.filter, spent=charge.filter.zero())

    def _steps_that_fit(self, client: str, event: RunEvent, charges: tuple[Charge, ...]) -> int:
        return min(charge.filter.fits(self._ready(client, charge).spent, event) for charge in charges)

    def _rebudgeted(self, account: Account, budget: PrivacyBudget, text: str | None) -> Account:
        require((account.filter is None) == (text is None), "a fixed filter changes with its budget")
        return replace(account, budget=budget, filter=None if text is None else self.accounting.filter_from_json(text))

    def read_budget(self, value: Mapping[str, Any]) -> PrivacyBudget:
        """A budget as an entry states it."""
        return self.accounting.budget(epsilon=value["epsilon"], delta=value["delta"], relation=value["relation"])

    def _opened(self, payload: Mapping[str, Any]) -> None:
        require(self.data_set is None, "a ledger has one data set")
        self.ledger_id, self.public_key = payload["ledger"], payload["public_key"]
        self.records = payload["records"]
        self.data_set = Account(self.read_budget(payload["budget"]))

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
        left = tuple(known for known in client.fingerprints if known != gone)
        self.clients[client.name] = replace(client, fingerprint=left[-1] if left else "", others=left[:-1])

    def _client_revoked(self, payload: Mapping[str, Any]) -> None:
        name = payload["client"]
        self.clients[name] = replace(self.clients[name], revoked=True)

    def _share_set(self, payload: Mapping[str, Any]) -> None:
        name = payload["client"]
        budget = self.read_budget(payload["share"])
        account = self.shares.get(name)
        if account is None:
            # What the client spent before it had a share was charged to no filter of its own.
            require(name not in self.charged, "a first share comes before the first run")
            self.shares[name] = Account(budget)
        else:
            self.shares[name] = self._rebudgeted(account, budget, payload["filter"])
        self.clients[name] = replace(self.clients[name], share=budget)

    def _budget_set(self, payload: Mapping[str, Any]) -> None:
        self.data_set = self._rebudgeted(self.account, self.read_budget(payload["budget"]), payload["filter"])

    def _state_set(self, state: DataSetState) -> None:
        require(self.state is not DataSetState.ENDED, "a data set that has ended stays so")
        self.state = state

    def _charged(self, payload: Mapping[str, Any]) -> None:
        require(self.state is DataSetState.OPEN, "only an open data set is charged")
        client, prices = payload["client"], payload["prices"]
        self.data_set = self.account.admit(self.accounting.price_from_json(prices[DATA_SET]))
        if client in self.shares:
            self.shares[client] = self.shares[client].admit(self.accounting.price_from_json(prices[CLIENT]))
        self.charged.add(client)


def require(condition: bool, rule: str) -> None:
    """Holds an entry to a rule of the ledger.

    Raises:
        LedgerCorrupt: the entry breaks it.
    """
    if not condition:
        raise LedgerCorrupt(rule)


def _text(filter_: PrivacyFilter | None) -> str | None:
    return None if filter_ is None else filter_.to_json()


_HANDLERS: dict[Kind, Callable[[Books, Mapping[str, Any]], None]] = {
    Kind.DATA_SET_OPENED: Books._opened,
    Kind.FILTER_FIXED: Books._filter_fixed,
    Kind.CLIENT_ADDED: Books._client_added,
    Kind.CLIENT_CERTIFIED: Books._client_certified,
    Kind.CERTIFICATE_ADDED: Books._certificate_added,
    Kind.CERTIFICATE_REVOKED: Books._certificate_revoked,
    Kind.CLIENT_REVOKED: Books._client_revoked,
    Kind.SHARE_SET: Books._share_set,
    Kind.BUDGET_LOWERED: Books._budget_set,
    Kind.BUDGET_EXTENDED: Books._budget_set,
    Kind.FROZEN: lambda books, _: books._state_set(DataSetState.FROZEN),
    Kind.UNFROZEN: lambda books, _: books._state_set(DataSetState.OPEN),
    Kind.ENDED: lambda books, _: books._state_set(DataSetState.ENDED),
    Kind.EXTRACTOR_APPROVED: lambda books, payload: books.extractors.add(payload["digest"]),
    Kind.EXTRACTOR_REVOKED: lambda books, payload: books.extractors.discard(payload["digest"]),
    Kind.RUN_OPENED: Books._charged,
}
