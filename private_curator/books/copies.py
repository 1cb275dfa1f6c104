"""What a copy of the ledger, or a state of it that was lost, has released: its receipts are charged as well.

A receipt that this ledger's key signed and that it lacks proves a release of the same records, and no more than one for
each step that was charged. So a run whose opening is missing costs its price once, and so does a run of this ledger of
which somebody holds steps that it lacks: the copy may have computed each of its steps with noise of its own. Two such
receipts for one step are of two copies.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from dpswd.private_curator.books.register import Register
from dpswd.private_curator.core.ledger.accounts import CLIENT, DATA_SET
from dpswd.private_curator.core.ledger.requests import load_run
from dpswd.private_curator.core.ledger.statements import Kind
from dpswd.private_curator.core.ledger.store import Transaction
from dpswd.shared.core.errors import GrantNotHeld, InvalidValue
from dpswd.shared.core.ledger.receipts import MAX_STATEMENT_BYTES, SignedEntry, canonical_json
from dpswd.shared.core.privacy.events import RunEvent
from dpswd.shared.core.privacy.filter import PrivacyFilter

_RELEASED = (Kind.RUN_OPENED, Kind.STEP_ANSWERED)


def counting(transaction: Transaction[Register], receipts: Iterable[SignedEntry]) -> dict[str, Any]:
    """What an entry states that counts these receipts; fixes the filters that it needs.

    Raises:
        InvalidValue: nothing of them is missing here, a step's run is not known, or they are too many for one entry.
    """
    books, accounting = transaction.books, transaction.books.accounting
    released = [each for each in receipts if each.kind in _RELEASED and each.signed_by(books.keys)]
    listed = {each.hash: [each.payload["run"], each.payload.get("step", 0)] for each in _missing(transaction, released)}
    if not listed:
        raise InvalidValue("each of these receipts is in the ledger, was counted, or is not of its key: nothing to do")
    opened = {each.payload["run"]: each.payload for each in released if each.kind == Kind.RUN_OPENED}
    filters: dict[str | None, PrivacyFilter] = {}
    runs = []
    for name, times in books.owed(listed).items():
        client, event = _event(transaction, name, opened)
        plan, prices = accounting.event_to_json(event), dict.fromkeys((DATA_SET, CLIENT))
        for scope, account in books.accounts(client).items():
            holder = client if scope == CLIENT else None
            if holder not in filters:
                filters[holder] = account.filter or accounting.filter_for(account.budget, event)
                if account.filter is None:
                    fixed = {"scope": scope, "client": holder, "filter": filters[holder].to_json(), "plan": plan}
                    transaction.append(Kind.FILTER_FIXED, fixed)
            prices[scope] = accounting.price(filters[holder], event).to_json()
        runs.append({"run": name, "client": client, "event": plan, "times": times, "prices": prices})
    payload = {"receipts": listed, "runs": runs}
    if len(canonical_json(payload)) > MAX_STATEMENT_BYTES // 2:
        raise InvalidValue(f"{len(listed)} receipts are too many for one entry; count one team's after the other")
    return payload


def _missing(transaction: Transaction[Register], receipts: Iterable[SignedEntry]) -> Iterator[SignedEntry]:
    """Those that the ledger lacks and has not counted."""
    for receipt in receipts:
        row = transaction.connection.execute("SELECT statement FROM entries WHERE seq = ?", (receipt.seq,)).fetchone()
        if (row is None or row[0] != receipt.statement) and receipt.hash not in transaction.books.copied:
            yield receipt


def _event(
    transaction: Transaction[Register], name: str, opened: Mapping[str, Mapping[str, Any]]
) -> tuple[str, RunEvent]:
    """Whose run it is, and what prices it."""
    if name in opened:
        return opened[name]["client"], transaction.books.accounting.event_from_json(opened[name]["event"])
    try:
        run = load_run(transaction.connection, transaction.books.accounting, name)
    except GrantNotHeld:
        raise InvalidValue(
            f"there is a receipt of a step of run {name}, and none of its opening, which states its price: give all of "
            "that team's receipts.jsonl, or what the copy's `ledger export` writes"
        ) from None
    return run.client, run.event
