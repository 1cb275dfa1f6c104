"""What only the operator does: budgets, clients, approvals. Nothing here is reachable over the network.

Every act is an entry with its reason. Raising a budget is an act of its own (`extend_budget`), so that it cannot
happen by the wrong sign of a change.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from dpswd.private_curator.books.copies import counting
from dpswd.private_curator.books.figures import MIN_ACCEPTANCE_LENGTH, BudgetRequest, Decision, budget_payload
from dpswd.private_curator.books.operators import Operator
from dpswd.private_curator.books.register import Register
from dpswd.private_curator.core.ledger.requests import load_run
from dpswd.private_curator.core.ledger.statements import Client, DataSetState, Kind, hex_256
from dpswd.private_curator.core.ledger.store import Store, Transaction
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.ledger.keys import SigningKey, key_change
from dpswd.shared.core.ledger.receipts import SignedEntry
from dpswd.shared.core.privacy.budget import PrivacyBudget
from dpswd.shared.core.privacy.filter import PrivacyFilter
from dpswd.shared.words import one_line

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,127}")


class OperatorActs(Store[Register]):
    """The operator's side of the ledger. Use `dpswd.private_curator.books.ledger.Ledger`."""

    def add_client(self, name: str, certificate_fingerprint: str, share: PrivacyBudget | None = None) -> Client:
        """Registers a client; a name is given away once.

        Args:
            name: the principal of the client's certificate: letters, digits and ``._@-``, at most 128.
            certificate_fingerprint: SHA-256 of the certificate, hexadecimal; no two clients have the same.
            share: the client's own `PrivacyBudget`; without one only the data set's budget limits it.

        Raises:
            InvalidValue: the name or the fingerprint is taken or malformed, or the share's relation differs.
            LedgerUnavailable: nothing happened.
        """
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise InvalidValue(f"a client's name has 1 to 128 letters, digits and ._@- and not {name!r}")
        with self._transaction("add_client") as transaction:
            books = transaction.books
            if name in books.clients:
                raise InvalidValue(f"a client named {name!r} exists already; names are never given away again")
            self._fresh_fingerprint(transaction, certificate_fingerprint)
            if share is not None:
                self._within_the_whole(transaction, share)
            stated = None if share is None else budget_payload(share)
            payload = {"client": name, "fingerprint": certificate_fingerprint, "share": stated}
            self._act(transaction, Kind.CLIENT_ADDED, payload)
        return Client(name=name, fingerprint=certificate_fingerprint, share=share, revoked=False)

    def renew_client(self, name: str, certificate_fingerprint: str) -> None:
        """Binds a client to its new certificate alone; the old ones no longer count from this moment.

        Raises:
            GrantNotHeld: no such client, or it is revoked.
            InvalidValue: the fingerprint is taken or malformed.
        """
        self._certify(Kind.CLIENT_CERTIFIED, name, certificate_fingerprint)

    def add_certificate(self, name: str, certificate_fingerprint: str) -> None:
        """Gives a client a further certificate; the old ones count until they expire or are withdrawn.

        Raises:
            GrantNotHeld: no such client, or it is revoked.
            InvalidValue: the fingerprint is taken or malformed.
        """
        self._certify(Kind.CERTIFICATE_ADDED, name, certificate_fingerprint)

    def accept_state(self, *, reason: str) -> None:
        """Takes the ledger as it is: whatever was written before, and is not there, is forgotten.

        Args:
            reason: a sentence of at least `MIN_ACCEPTANCE_LENGTH` characters; it stands in the ledger for good.

        Raises:
            InvalidValue: the reason is too short to be one.
        """
        if len(reason.strip()) < MIN_ACCEPTANCE_LENGTH:
            raise InvalidValue(f"accepting a state takes a sentence of at least {MIN_ACCEPTANCE_LENGTH} characters")
        with self._transaction("accept_state") as transaction:
            self._act(transaction, Kind.STATE_ACCEPTED, {"reason": reason.strip()})

    def count_copies(self, receipts: Iterable[SignedEntry], *, reason: str) -> int:
        """Charges what receipts prove and the ledger lacks, whatever the budget is; they stop it no more.

        Returns:
            How many runs were charged.

        Raises:
            InvalidValue: see `dpswd.private_curator.books.copies.counting`.
        """
        with self._transaction("count_copies") as transaction:
            payload = counting(transaction, receipts)
            self._act(transaction, Kind.COPIES_COUNTED, {**payload, "reason": checked_reason(reason)})
        return sum(run["times"] for run in payload["runs"])

    def revoke_certificate(self, name: str, certificate_fingerprint: str, *, reason: str) -> None:
        """Withdraws one certificate of a client; its others go on.

        Raises:
            GrantNotHeld: no such client, or it is revoked.
            InvalidValue: the client has no such certificate.
        """
        with self._transaction("revoke_certificate") as transaction:
            if certificate_fingerprint not in transaction.books.holder(name).fingerprints:
                raise InvalidValue(f"{name!r} has no certificate {certificate_fingerprint} that counts")
            payload = {"client": name, "fingerprint": certificate_fingerprint, "reason": checked_reason(reason)}
            self._act(transaction, Kind.CERTIFICATE_REVOKED, payload)

    def revoke_client(self, name: str, *, reason: str) -> None:
        """Shuts a client out for good: nothing new is released to it. What it spent stays spent.

        Raises:
            GrantNotHeld: no such client, or it is revoked already.
        """
        with self._transaction("revoke_client") as transaction:
            transaction.books.holder(name)
            self._act(transaction, Kind.CLIENT_REVOKED, {"client": name, "reason": checked_reason(reason)})

    def set_share(self, name: str, share: PrivacyBudget, *, reason: str) -> None:
        """Sets, raises or lowers what one client may use up of the data set's budget.

        A client that has spent without a share is charged for that too: what its runs cost counts in its first share.

        Raises:
            GrantNotHeld: no such client, or it is revoked.
            InvalidValue: the relation differs, or the share is larger than the data set's budget.
        """
        with self._transaction("set_share") as transaction:
            transaction.books.holder(name)
            self._share(transaction, name, share, reason=reason)

    def pause_client(self, name: str, *, reason: str) -> None:
        """Releases nothing new to a client until `resume_client`; its stored replies are still given out. Idempotent.

        Raises:
            GrantNotHeld: no such client, or it is revoked.
        """
        self._pause(Kind.CLIENT_PAUSED, name, reason=reason, paused=True)

    def resume_client(self, name: str, *, reason: str) -> None:
        """Releases to a paused client again. Idempotent; raises GrantNotHeld: no such client, or it is revoked."""
        self._pause(Kind.CLIENT_RESUMED, name, reason=reason, paused=False)

    def set_cap(self, name: str, epsilon: float | None, *, reason: str, year: bool = False) -> None:
        """Sets the most epsilon that a client's runs of one day (UTC) may cost together; None takes the cap away.

        A brake and no promise: it rests on the curator's clock. Whoever has stolen a client's key cannot spend all at
        once. With `year` it is of a year, that begins with the first such cap: for whoever only watches a model.

        Raises:
            GrantNotHeld: no such client, or it is revoked.
            InvalidValue: epsilon is no budget.
        """
        with self._transaction("set_cap") as transaction:
            transaction.books.holder(name)
            if epsilon is not None:
                replace(transaction.books.account.budget, epsilon=epsilon)  # checks the range
            payload = {"client": name, "epsilon": epsilon, "reason": checked_reason(reason)}
            self._act(transaction, Kind.YEAR_CAP_SET if year else Kind.CAP_SET, payload)

    def update_records(self, records: int, *, reason: str) -> None:
        """States another number of records, or other persons: from now on runs are of them, earlier ones are over.

        A person who stays is charged in sum, a new one from now on. Whoever serves has to be started again.

        Raises:
            InvalidValue: the number is not positive, or the data set has ended.
        """
        with self._transaction("update_records") as transaction:
            if type(records) is not int or records < 1 or transaction.books.state is DataSetState.ENDED:
                raise InvalidValue(f"{records!r} records cannot become those of this data set, or it has ended")
            self._act(transaction, Kind.RECORDS_UPDATED, {"records": records, "reason": checked_reason(reason)})

    def decide_request(self, number: int, *, granted: float, reason: str) -> BudgetRequest:
        """Answers a client's request for budget: grants what it asks, less (a cut), or nothing (denied).

        What is granted is added to the client's share. A client without a share is limited by the data set's budget
        alone: granting gives it a share of what it has spent and what is granted.

        Args:
            number: the request's.
            granted: epsilon, from 0 to what was asked.
            reason: the client hears it.

        Returns:
            The request as decided.

        Raises:
            InvalidValue: no such request, it is decided, or the new share would be larger than the data set's budget.
            GrantNotHeld: the client is revoked.
        """
        with self._transaction("decide_request") as transaction:
            books = transaction.books
            asked = books.requests.get(number)
            if asked is None or asked.decision is not None:
                state = "is decided already" if asked else "does not exist"
                raise InvalidValue(f"request {number} {state}; `dpswd-curator requests` shows those that wait")
            if not 0.0 <= granted <= asked.epsilon:
                raise InvalidValue(f"request {number} asks for epsilon {asked.epsilon:g}; grant from 0 to that")
            if granted > 0.0:
                books.holder(asked.client)
                own = books.shares.get(asked.client)
                has = books.spent_by(asked.client) if own is None else own.budget.epsilon
                share = replace((own or books.account).budget, epsilon=has + granted)
                self._share(transaction, asked.client, share, reason=f"request {number}: {checked_reason(reason)}")
            decision = Decision.DENIED if granted == 0.0 else Decision.CUT
            payload = {
                "number": number,
                "client": asked.client,
                "decision": (Decision.APPROVED if granted == asked.epsilon else decision).value,
                "granted": granted,
                "reason": checked_reason(reason),
            }
            self._act(transaction, Kind.REQUEST_DECIDED, payload)
        with self._reading():
            return self._books.requests[number]

    def clients(self) -> tuple[Client, ...]:
        """Every client that was ever registered, in the order of registration."""
        with self._reading():
            return tuple(self._books.clients.values())

    def client_by_fingerprint(self, certificate_fingerprint: str) -> Client | None:
        """The client that a certificate counts for; a revoked one is returned as such."""
        with self._reading():
            return self._books.certified(certificate_fingerprint)

    def lower_budget(self, budget: PrivacyBudget, *, reason: str) -> None:
        """Sets a smaller budget. It may be below what is spent: then nothing is admitted any more.

        Raises:
            InvalidValue: it is larger in epsilon or delta, or changes the relation.
        """
        with self._transaction("lower_budget") as transaction:
            old = transaction.books.account.budget
            if budget.epsilon > old.epsilon or budget.delta > old.delta:
                raise InvalidValue(
                    f"({budget.epsilon}, {budget.delta}) is no lower than ({old.epsilon}, {old.delta}); "
                    "raising a budget is `extend`"
                )
            self._set_budget(transaction, Kind.BUDGET_LOWERED, budget, reason)

    def extend_budget(self, budget: PrivacyBudget, *, reason: str) -> None:
        """Raises the budget: an explicit weakening of the promise to the persons in the data set.

        The charges of the past keep their prices, the filter its orders and weights; docs/reference/ledger.md says what
        is promised afterwards.

        Raises:
            InvalidValue: it is smaller in epsilon or delta, changes the relation, or the data set has ended.
        """
        with self._transaction("extend_budget") as transaction:
            check_extends(transaction.books.account.budget, budget)
            self._set_budget(transaction, Kind.BUDGET_EXTENDED, budget, reason)

    def enrol(self, name: str, key: str, *, second: Iterable[str] = (), issuer: str | None = None) -> None:
        """Enrols an operator: from the first one on, acts are signed.

        Args:
            name: of the operator.
            key: the public key, 64 hexadecimal digits.
            second: the acts that take two operators, see `dpswd.private_curator.books.operators.Enrolled`.
            issuer: whose subjects the holder of the key speaks for, as a console does; None for a person.

        Raises:
            InvalidValue: the name or the key is taken, or none.
        """
        with self._transaction("enrol") as transaction:
            payload = {"operator": name, "key": key, "second": sorted(second), "issuer": issuer}
            copy.deepcopy(transaction.books.operators).add(payload)
            self._act(transaction, Kind.OPERATOR_ADDED, payload)

    def remove_operator(self, name: str, *, reason: str, second: Iterable[str] = ()) -> None:
        """Takes an operator out: the credential counts no more.

        Raises:
            InvalidValue: no operator of this name is enrolled.
        """
        with self._transaction("remove_operator") as transaction:
            payload = {"operator": name, "reason": checked_reason(reason), "second": sorted(second)}
            copy.deepcopy(transaction.books.operators).remove(payload)
            self._act(transaction, Kind.OPERATOR_REMOVED, payload)

    def freeze(self, *, reason: str) -> None:
        """Stops every new release until `unfreeze`; replies that are stored are still given out. Idempotent."""
        self._set_state(Kind.FROZEN, DataSetState.FROZEN, reason)

    def unfreeze(self, *, reason: str) -> None:
        """Allows releases again. Idempotent."""
        self._set_state(Kind.UNFROZEN, DataSetState.OPEN, reason)

    def end(self, *, reason: str) -> None:
        """Stops every new release for ever. Idempotent."""
        self._set_state(Kind.ENDED, DataSetState.ENDED, reason)

    def change_key(self, new: SigningKey, *, reason: str) -> None:
        """Lets another key sign from the next entry on; both keys sign this one, which every client may read.

        Raises:
            InvalidValue: the ledger had it before.
            LedgerUnavailable: one of the keys does not sign.
        """
        with self._transaction("change_key") as transaction:
            books, last = transaction.books, self._seen
            assert last is not None  # the books were read up to it
            if new.public_key().public_bytes_raw() in books.keys.every:
                raise InvalidValue("the ledger has, or had, this key already; choose a new one")
            change = key_change(last, ledger=books.ledger_id, old=transaction.key, new=new)
            self._act(transaction, Kind.KEY_CHANGED, {**change, "reason": checked_reason(reason)})
        self._key = new

    def record_statement(self, item: str, words: str) -> None:
        """States something that the report of the data set prints; it replaces what was stated of the item before.

        Args:
            item: what it is about, see `dpswd.private_curator.operator.officer.STATEMENTS`.
            words: a line.

        Raises:
            InvalidValue: the words are no line of 1 to 200 printable characters.
        """
        for _, text in one_line("words", words, least=1):
            raise InvalidValue(f"a statement {text}")
        with self._transaction("record_statement") as transaction:
            self._act(transaction, Kind.STATED, {"item": item, "words": words})

    def approve_extractor(self, digest: str) -> None:
        """Lets an extractor's graph run. Idempotent.

        Args:
            digest: SHA-256 of the graph's canonical bytes, hexadecimal.
        """
        self._set_approval(Kind.EXTRACTOR_APPROVED, digest)

    def revoke_extractor(self, digest: str) -> None:
        """Withdraws an approval. Idempotent."""
        self._set_approval(Kind.EXTRACTOR_REVOKED, digest)

    def approved_extractors(self) -> frozenset[str]:
        """The digests of the graphs that the operator approved."""
        with self._reading():
            return frozenset(self._books.extractors)

    def prune_replies(self, run_id: str, *, reason: str) -> int:
        """Closes a run and discards its replies; the charges and the receipts stay.

        A repeated request of this run is refused from now on: its bytes are gone, and new noise would be a
        second release.

        Returns:
            The number of replies discarded.

        Raises:
            GrantNotHeld: there is no such run.
        """
        with self._transaction("prune_replies") as transaction:
            load_run(transaction.connection, self.accounting, run_id)
            self._act(transaction, Kind.REPLIES_PRUNED, {"run": run_id, "reason": checked_reason(reason)})
            transaction.connection.execute("UPDATE runs SET pruned = 1 WHERE run_id = ?", (run_id,))
            discarded: int = transaction.connection.execute(
                "UPDATE replies SET reply = NULL WHERE run_id = ? AND reply IS NOT NULL", (run_id,)
            ).rowcount
            return discarded

    def _act(self, transaction: Transaction[Register], kind: Kind, payload: Mapping[str, Any]) -> None:
        """Writes an act under the name, and the signature, of whoever acts."""
        by = Operator.of(self._by)
        transaction.append(kind, by.acting(transaction.connection, kind, payload, transaction.books.operators))

    def _share(self, transaction: Transaction[Register], name: str, share: PrivacyBudget, *, reason: str) -> None:
        self._within_the_whole(transaction, share)
        books = transaction.books
        account = books.shares.get(name)
        if account is None:
            fixed = books.first_share(name, share).filter
            stated = None if fixed is None else fixed.to_json()
        else:
            stated = self._refiltered(account.filter, share)
        payload = {"client": name, "share": budget_payload(share), "filter": stated, "reason": checked_reason(reason)}
        self._act(transaction, Kind.SHARE_SET, payload)

    def _pause(self, kind: Kind, name: str, *, reason: str, paused: bool) -> None:
        with self._transaction(kind.value) as transaction:
            if transaction.books.holder(name).paused is not paused:
                self._act(transaction, kind, {"client": name, "reason": checked_reason(reason)})

    def _certify(self, kind: Kind, name: str, certificate_fingerprint: str) -> None:
        with self._transaction(kind.value) as transaction:
            transaction.books.holder(name)
            self._fresh_fingerprint(transaction, certificate_fingerprint)
            self._act(transaction, kind, {"client": name, "fingerprint": certificate_fingerprint})

    def _set_budget(self, transaction: Transaction[Register], kind: Kind, budget: PrivacyBudget, reason: str) -> None:
        books = transaction.books
        if books.state is DataSetState.ENDED:
            raise InvalidValue("the operator has ended this data set; its budget is final")
        self._same_relation(transaction, budget)
        payload = {
            "budget": budget_payload(budget),
            "filter": self._refiltered(books.account.filter, budget),
            "reason": checked_reason(reason),
        }
        self._act(transaction, kind, payload)

    @staticmethod
    def _refiltered(old: PrivacyFilter | None, budget: PrivacyBudget) -> str | None:
        return None if old is None else old.with_budget(budget).to_json()

    def _set_state(self, kind: Kind, state: DataSetState, reason: str) -> None:
        with self._transaction(kind.value) as transaction:
            current = transaction.books.state
            if current is state:
                return
            if current is DataSetState.ENDED:
                raise InvalidValue("the operator has ended this data set; that cannot be undone")
            self._act(transaction, kind, {"reason": checked_reason(reason)})

    def _set_approval(self, kind: Kind, digest: str) -> None:
        hex_256(digest, "an extractor's digest")
        with self._transaction(kind.value) as transaction:
            if (digest in transaction.books.extractors) != (kind is Kind.EXTRACTOR_APPROVED):
                self._act(transaction, kind, {"digest": digest})

    @classmethod
    def _within_the_whole(cls, transaction: Transaction[Register], share: PrivacyBudget) -> None:
        """A share larger than the data set's budget would only seem to allow something."""
        cls._same_relation(transaction, share)
        whole = transaction.books.account.budget
        if share.epsilon > whole.epsilon or share.delta > whole.delta:
            raise InvalidValue(
                f"a share of epsilon {share.epsilon:g} at delta {share.delta:g} is larger than the data set's budget "
                f"({whole.epsilon:g}, {whole.delta:g}): it would allow nothing more; give at most that, or extend the "
                "budget first"
            )

    @staticmethod
    def _same_relation(transaction: Transaction[Register], budget: PrivacyBudget) -> None:
        relation = transaction.books.account.budget.relation
        if budget.relation != relation:
            raise InvalidValue(f"every budget of this data set is under {relation.value!r} neighbours")

    @staticmethod
    def _fresh_fingerprint(transaction: Transaction[Register], fingerprint: str) -> None:
        hex_256(fingerprint, "a certificate's fingerprint")
        bound = transaction.books.certified(fingerprint)
        if bound is not None:
            raise InvalidValue(f"this certificate is already bound to the client {bound.name!r}")


def check_extends(old: PrivacyBudget, new: PrivacyBudget) -> None:
    """Holds an extension to be none of the opposite; raises InvalidValue: epsilon or delta would shrink."""
    if new.epsilon < old.epsilon or new.delta < old.delta:
        raise InvalidValue(
            f"({new.epsilon}, {new.delta}) does not extend ({old.epsilon}, {old.delta}); neither epsilon nor delta may "
            "shrink"
        )


def checked_reason(reason: str) -> str:
    """An act's reason as the ledger states it; raises InvalidValue: it has not 1 to 2000 characters."""
    if not isinstance(reason, str) or not 1 <= len(reason.strip()) <= 2000:
        raise InvalidValue("an operator's act needs a reason of 1 to 2000 characters for the log")
    return reason.strip()
