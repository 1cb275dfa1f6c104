"""What only the operator does: budgets, clients, approvals. Nothing here is reachable over the network.

Every act is an entry with its reason. Raising a budget is an act of its own (`extend_budget`), so that it cannot
happen by the wrong sign of a change.
"""

from __future__ import annotations

import re

from private_curator.ledger.requests import load_run
from private_curator.ledger.statements import (
    MIN_ACCEPTANCE_LENGTH,
    Client,
    DataSetState,
    Kind,
    budget_payload,
    hex_256,
)
from private_curator.ledger.store import Store, Transaction
from shared.errors import InvalidValue
from shared.privacy.budget import PrivacyBudget
from shared.privacy.filter import PrivacyFilter

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,127}")


class OperatorActs(Store):
    """The operator's side of the ledger. Use `private_curator.ledger.ledger.Ledger`."""

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
                self._same_relation(transaction, share)
            stated = None if share is None else budget_payload(share)
            payload = {"client": name, "fingerprint": certificate_fingerprint, "share": stated}
            transaction.append(Kind.CLIENT_ADDED, payload)
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
            transaction.append(Kind.STATE_ACCEPTED, {"reason": reason.strip()})

    def revoke_certificate(self, name: str, certificate_fingerprint: str, *, reason: str) -> None:
        """Withdraws one certificate of a client; its others go on.

        Raises:
            GrantNotHeld: no such client, or it is revoked.
            InvalidValue: the client has no such certificate.
        """
        with self._transaction("revoke_certificate") as transaction:
            if certificate_fingerprint not in transaction.books.holder(name).fingerprints:
                raise InvalidValue(f"{name!r} has no certificate {certificate_fingerprint} that counts")
            transaction.append(
                Kind.CERTIFICATE_REVOKED,
                {"client": name, "fingerprint": certificate_fingerprint, "reason": _reason(reason)},
            )

    def revoke_client(self, name: str, *, reason: str) -> None:
        """Shuts a client out for good: nothing new is released to it. What it spent stays spent.

        Raises:
            GrantNotHeld: no such client, or it is revoked already.
        """
        with self._transaction("revoke_client") as transaction:
            transaction.books.holder(name)
            transaction.append(Kind.CLIENT_REVOKED, {"client": name, "reason": _reason(reason)})

    def set_share(self, name: str, share: PrivacyBudget, *, reason: str) -> None:
        """Raises or lowers what one client may use up of the data set's budget.

        A client without a share can be given one only before its first run: what it spent before was charged to
        no account of its own.

        Raises:
            GrantNotHeld: no such client, or it is revoked.
            InvalidValue: the relation differs, or the client has spent without a share.
        """
        with self._transaction("set_share") as transaction:
            books = transaction.books
            books.holder(name)
            self._same_relation(transaction, share)
            account = books.shares.get(name)
            if account is None and name in books.charged:
                raise InvalidValue(f"{name!r} has opened runs without a share: revoke it and add it under another name")
            transaction.append(
                Kind.SHARE_SET,
                {
                    "client": name,
                    "share": budget_payload(share),
                    "filter": self._refiltered(None if account is None else account.filter, share),
                    "reason": _reason(reason),
                },
            )

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
            old = transaction.books.account.budget
            if budget.epsilon < old.epsilon or budget.delta < old.delta:
                raise InvalidValue(
                    f"({budget.epsilon}, {budget.delta}) does not extend ({old.epsilon}, {old.delta}); "
                    "neither epsilon nor delta may shrink"
                )
            self._set_budget(transaction, Kind.BUDGET_EXTENDED, budget, reason)

    def freeze(self, *, reason: str) -> None:
        """Stops every new release until `unfreeze`; replies that are stored are still given out. Idempotent."""
        self._set_state(Kind.FROZEN, DataSetState.FROZEN, reason)

    def unfreeze(self, *, reason: str) -> None:
        """Allows releases again. Idempotent."""
        self._set_state(Kind.UNFROZEN, DataSetState.OPEN, reason)

    def end(self, *, reason: str) -> None:
        """Stops every new release for ever. Idempotent."""
        self._set_state(Kind.ENDED, DataSetState.ENDED, reason)

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
            transaction.append(Kind.REPLIES_PRUNED, {"run": run_id, "reason": _reason(reason)})
            transaction.connection.execute("UPDATE runs SET pruned = 1 WHERE run_id = ?", (run_id,))
            discarded: int = transaction.connection.execute(
                "UPDATE replies SET reply = NULL WHERE run_id = ? AND reply IS NOT NULL", (run_id,)
            ).rowcount
            return discarded

    def _certify(self, kind: Kind, name: str, certificate_fingerprint: str) -> None:
        with self._transaction(kind.value) as transaction:
            transaction.books.holder(name)
            self._fresh_fingerprint(transaction, certificate_fingerprint)
            transaction.append(kind, {"client": name, "fingerprint": certificate_fingerprint})

    def _set_budget(self, transaction: Transaction, kind: Kind, budget: PrivacyBudget, reason: str) -> None:
        books = transaction.books
        if books.state is DataSetState.ENDED:
            raise InvalidValue("the operator has ended this data set; its budget is final")
        self._same_relation(transaction, budget)
        payload = {
            "budget": budget_payload(budget),
            "filter": self._refiltered(books.account.filter, budget),
            "reason": _reason(reason),
        }
        transaction.append(kind, payload)

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
            transaction.append(kind, {"reason": _reason(reason)})

    def _set_approval(self, kind: Kind, digest: str) -> None:
        hex_256(digest, "an extractor's digest")
        with self._transaction(kind.value) as transaction:
            if (digest in transaction.books.extractors) != (kind is Kind.EXTRACTOR_APPROVED):
                transaction.append(kind, {"digest": digest})

    @staticmethod
    def _same_relation(transaction: Transaction, budget: PrivacyBudget) -> None:
        relation = transaction.books.account.budget.relation
        if budget.relation != relation:
            raise InvalidValue(f"every budget of this data set is under {relation.value!r} neighbours")

    @staticmethod
    def _fresh_fingerprint(transaction: Transaction, fingerprint: str) -> None:
        hex_256(fingerprint, "a certificate's fingerprint")
        bound = transaction.books.certified(fingerprint)
        if bound is not None:
            raise InvalidValue(f"this certificate is already bound to the client {bound.name!r}")


def _reason(reason: str) -> str:
    if not isinstance(reason, str) or not 1 <= len(reason.strip()) <= 2000:
        raise InvalidValue("an operator's act needs a reason of 1 to 2000 characters for the log")
    return reason.strip()
