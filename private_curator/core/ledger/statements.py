"""What an entry of the ledger can state, and the frozen values that the ledger hands out.

What must never change: the meaning of a kind and of its payload's fields. A new statement is a new kind.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.ledger.keys import KEY_CHANGED
from dpswd.shared.core.ledger.receipts import HEX_256, RUN_OPENED, STEP_ANSWERED, Receipt
from dpswd.shared.core.privacy.budget import PrivacyBudget
from dpswd.shared.core.privacy.events import RunEvent

MAX_REQUEST_ID_LENGTH = 128  # a client makes its ids; long ones would only fill the ledger


def hex_256(digest: str, what: str) -> str:
    """Checks a SHA-256 in lower-case hexadecimal.

    Raises:
        InvalidValue: it is none.
    """
    if not isinstance(digest, str) or not HEX_256.fullmatch(digest):
        raise InvalidValue(f"{what} is 64 lower-case hexadecimal digits (SHA-256), not {digest!r}")
    return digest


class Kind(enum.StrEnum):
    """The kinds of entries. docs/reference/ledger.md lists the fields of each payload."""

    DATA_SET_OPENED = "data-set-opened"
    FILTER_FIXED = "filter-fixed"
    QUANTUM_FIXED = "quantum-fixed"
    CLIENT_ADDED = "client-added"
    CLIENT_CERTIFIED = "client-certified"
    CERTIFICATE_ADDED = "certificate-added"
    CERTIFICATE_REVOKED = "certificate-revoked"
    CLIENT_REVOKED = "client-revoked"
    SHARE_SET = "share-set"
    BUDGET_LOWERED = "budget-lowered"
    BUDGET_EXTENDED = "budget-extended"
    FROZEN = "frozen"
    UNFROZEN = "unfrozen"
    ENDED = "ended"
    EXTRACTOR_APPROVED = "extractor-approved"
    EXTRACTOR_REVOKED = "extractor-revoked"
    RUN_OPENED = RUN_OPENED
    STEP_CONSUMED = "step-consumed"
    STEP_RESUMED = "step-resumed"
    STEP_ANSWERED = STEP_ANSWERED
    REPLIES_PRUNED = "replies-pruned"
    RESTORED = "restored"
    STATE_ACCEPTED = "state-accepted"
    COPIES_COUNTED = "copies-counted"
    CLIENT_PAUSED = "client-paused"
    CLIENT_RESUMED = "client-resumed"
    CAP_SET = "cap-set"
    YEAR_CAP_SET = "year-cap-set"
    RECORDS_UPDATED = "records-updated"
    BUDGET_REQUESTED = "budget-requested"
    REQUEST_DECIDED = "request-decided"
    OPERATOR_ADDED = "operator-added"
    OPERATOR_REMOVED = "operator-removed"
    STATED = "stated"
    KEY_CHANGED = KEY_CHANGED


class DataSetState(enum.StrEnum):
    """Whether the data set may be spent on."""

    OPEN = "open"
    FROZEN = "frozen"  # nothing new is released until the operator unfreezes it
    ENDED = "ended"  # nothing new is released ever again


@dataclass(frozen=True, kw_only=True)
class Client:
    """A client as the operator registered it.

    Attributes:
        name: unique and for ever: a revoked name is not given away again.
        fingerprint: SHA-256 of the client's newest certificate, hexadecimal; empty when it was withdrawn.
        share: the client's own `PrivacyBudget`; None when only the data set's budget limits it.
        revoked: whether the operator has shut the client out.
        others: fingerprints of older certificates that still count, the oldest first.
        paused: whether nothing new is released to it until the operator resumes it.
    """

    name: str
    fingerprint: str
    share: PrivacyBudget | None
    revoked: bool
    others: tuple[str, ...] = ()
    paused: bool = False

    @property
    def fingerprints(self) -> tuple[str, ...]:
        """Every certificate that counts, the newest last."""
        return (*self.others, *((self.fingerprint,) if self.fingerprint else ()))


@dataclass(frozen=True, kw_only=True)
class Request:
    """One request of one client; the same id with other content is another request.

    Attributes:
        client: the authenticated principal.
        request_id: the client's id for it: 1 to 128 printable characters.
        digest: SHA-256 of its content, hexadecimal.

    Raises:
        InvalidValue: the id or the digest is none.
    """

    client: str
    request_id: str
    digest: str

    def __post_init__(self) -> None:
        fits = isinstance(self.request_id, str) and 1 <= len(self.request_id) <= MAX_REQUEST_ID_LENGTH
        if not fits or not self.request_id.isprintable():  # a NUL cannot be stored everywhere
            raise InvalidValue(f"a request id has 1 to {MAX_REQUEST_ID_LENGTH} printable characters")
        hex_256(self.digest, "a request's digest")

    @property
    def mark(self) -> tuple[str, str]:
        """Client and request id: what a step that is being computed is known by."""
        return self.client, self.request_id

    @property
    def fields(self) -> dict[str, str]:
        """The request as entries state it."""
        return {"client": self.client, "request_id": self.request_id, "digest": self.digest}


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run that was charged as a whole.

    Attributes:
        run_id: 32 hexadecimal digits.
        client: who opened it.
        request_id: the id of the request that opened it.
        digest: SHA-256 of that request, hexadecimal.
        event: the `RunEvent` that was priced.
        parameters: the declared parameters, as given to `open_run`.
        steps: how many steps were charged.
        steps_used: how many steps were begun.
        pruned: whether the operator has closed the run and discarded its replies.
        receipt: the signed charge.
        purpose: why, in the client's words; may be empty.
        epsilon: of this run alone, in the data set's filter at its delta, when it was charged.
    """

    run_id: str
    client: str
    request_id: str
    digest: str
    event: RunEvent
    parameters: bytes
    steps: int
    steps_used: int
    pruned: bool
    receipt: Receipt
    purpose: str
    epsilon: float


@dataclass(frozen=True, kw_only=True)
class StepGranted:
    """The right to compute one step once; end it with ``finish_step`` or ``abandon_step``.

    Attributes:
        run: the run, with this step counted as used.
        step_number: 1 for the first step of the run.
        request: the step's request.
        attempt: 1 for the first computation; higher after a crash or a failed computation. No earlier attempt
            has released anything, but how often a client sees a step fail is information that the price does
            not cover: the caller decides how many attempts it bears.
    """

    run: Run
    step_number: int
    request: Request
    attempt: int


@dataclass(frozen=True, kw_only=True)
class StoredReply:
    """What was released for a step, and only ever will be.

    Attributes:
        reply: the bytes whose SHA-256 the receipt states.
        receipt: the signed answer; its ``statement`` and ``signature`` go to the client.
    """

    reply: bytes
    receipt: Receipt
