"""The ledger: what was spent on a data set, durable, signed and checkable. See docs/ledger.md."""

from private_curator.ledger.audit import VerificationReport, verify_file
from private_curator.ledger.backup import Loss, move, restore
from private_curator.ledger.ledger import Ledger
from private_curator.ledger.statements import (
    AccountStatus,
    Client,
    DataSetState,
    Kind,
    LedgerStatus,
    Quote,
    Run,
    StepGranted,
    StoredReply,
)

__all__ = [
    "AccountStatus",
    "Client",
    "DataSetState",
    "Kind",
    "Ledger",
    "LedgerStatus",
    "Loss",
    "Quote",
    "Run",
    "StepGranted",
    "StoredReply",
    "VerificationReport",
    "move",
    "restore",
    "verify_file",
]
