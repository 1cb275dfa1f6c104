"""What the ledger knows, as it travels, and what a client presents, as the ledger knows it."""

from __future__ import annotations

import functools
import re
import uuid

from dpswd.private_curator.books.figures import AccountStatus, BudgetRequest
from dpswd.private_curator.core.ledger.statements import Run, StoredReply
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.ledger.receipts import MAX_STATEMENT_BYTES, SignedEntry
from dpswd.shared.core.wire.checks import invalid
from dpswd.shared.core.wire.messages import RunParameters
from dpswd.shared.core.wire.v1 import curator_pb2 as pb
from dpswd.shared.protocol.receipts import encode_receipt

_PATH = re.compile(r"(?<![\w.])/[^\s;,()]+")


@functools.lru_cache(maxsize=64)
def declared(parameters: bytes) -> RunParameters:
    """A run's declaration as the ledger keeps it; each of its steps reads it."""
    return RunParameters.from_bytes(parameters)


def budget(account: AccountStatus, *, closed: bool) -> pb.BudgetStatus:
    """An account as it stands."""
    names = ("epsilon", "delta", "epsilon_spent", "epsilon_remaining")
    return pb.BudgetStatus(**{name: getattr(account, name) for name in names}, closed=closed)


def without_places(text: str, location: object) -> str:
    """An error's words without files and hosts of this site."""
    named = text.replace(f"ledger {location}", "ledger of the curator")
    named = re.sub(re.escape(str(location)) + r"[\w.-]*", "the curator's database", named)  # and the locks beside it
    return _PATH.sub("a file of the curator's", named)


def presented(message: pb.SignedStatement) -> SignedEntry:
    """A receipt that a client presents.

    Raises:
        RequestInvalid: it is no statement of a ledger.
    """
    if len(message.statement) > MAX_STATEMENT_BYTES:
        raise invalid("newest_receipt", f"has more than {MAX_STATEMENT_BYTES} bytes")
    try:
        return SignedEntry.parse(message.statement, message.signature)
    except InvalidValue as error:
        raise invalid("newest_receipt", str(error)) from error


def receipt(stored: StoredReply | Run) -> pb.Receipt:
    """The signed charge or answer."""
    return encode_receipt(stored.receipt)


def budget_requests(asked: tuple[BudgetRequest, ...]) -> pb.RequestBudgetResponse:
    """A client's requests for budget, and what became of them."""
    names = ("number", "time", "epsilon", "purpose", "granted", "reason")
    return pb.RequestBudgetResponse(
        requests=[
            pb.BudgetRequest(**{name: getattr(one, name) for name in names}, decision=one.decision or "")
            for one in asked
        ]
    )


def check_request_id(value: str) -> None:
    """Accepts a UUID in its canonical form.

    Raises:
        RequestInvalid: anything else.
    """
    try:
        canonical = len(value) == 36 and str(uuid.UUID(value)) == value
    except ValueError:
        canonical = False
    if not canonical:
        raise invalid("request_id", "must be a UUID in canonical form, such as str(uuid.uuid4()) makes")
