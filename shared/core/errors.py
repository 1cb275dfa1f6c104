"""Every error that dpswd raises on purpose; docs/reference/api/errors.md shows the tree."""

from __future__ import annotations

import math
from dataclasses import dataclass


class DpswdError(Exception):
    """Base of every error that dpswd raises on purpose."""


class InvalidValue(DpswdError, ValueError):
    """A value from the caller is outside what is allowed; the message says what is allowed."""


class InvalidEvent(InvalidValue):
    """A privacy event is unknown, malformed or nested, and can therefore not be priced."""


class ExtractorUnsupported(InvalidValue):
    """A module uses something outside the closed vocabulary; the message names the layer's path."""


class DataInvalid(InvalidValue):
    """Records or labels cannot be served; the message names the file and the property, never a value."""


class PrivacyError(DpswdError):
    """Base of the refusals and alarms of the accountant."""


@dataclass
class BudgetExhausted(PrivacyError):
    """A charge would exceed the budget. Nothing was spent.

    Attributes:
        requested: epsilon that the refused charge would cost on its own, at the budget's delta.
        spent: epsilon spent so far, at the budget's delta.
        remaining: epsilon that is left, at the budget's delta.
        steps_that_fit: how many steps of the refused run would still be admitted.
        scope: "data set" or "client", whichever level refused.
    """

    requested: float
    spent: float
    remaining: float
    steps_that_fit: int = 0
    scope: str = "data set"

    def __post_init__(self) -> None:
        super().__init__(str(self))

    def __str__(self) -> str:
        """One sentence a user can act on; figures are rounded up for costs and down for what is left."""
        if self.steps_that_fit > 0:
            advice = f"a run of at most {self.steps_that_fit} such steps still fits"
        else:
            advice = "not one such step fits; ask for less epsilon (more noise), or the operator for a larger budget"
        return (
            f"the {self.scope}'s privacy budget does not allow this run: it would cost epsilon "
            f"{rounded(self.requested, up=True)}, spent so far {rounded(self.spent, up=True)}, left "
            f"{rounded(self.remaining, up=False)}; {advice}"
        )


class RelationMismatch(PrivacyError):
    """A charge under another neighbouring relation than the data set's."""


class AccountantsDisagree(PrivacyError):
    """Two independent accountants differ beyond their known order; the run is refused."""


class ProtocolError(DpswdError):
    """Base of the refusals that travel over the network."""


class CredentialsInvalid(ProtocolError):
    """The certificate is missing, expired, revoked, or not one that this curator issued."""


class GrantNotHeld(ProtocolError):
    """The object does not exist or belongs to another client; the two are not distinguished."""


@dataclass
class RequestInvalid(ProtocolError, ValueError):
    """The request broke a rule. Nothing was spent.

    Attributes:
        violations: (field path, what is wrong and what is allowed) for each broken rule.
    """

    violations: tuple[tuple[str, str], ...]

    def __post_init__(self) -> None:
        super().__init__(str(self))

    def __str__(self) -> str:
        """All violations in one line."""
        return "; ".join(f"{field}: {text}" for field, text in self.violations)


class ExtractorUnknown(ProtocolError):
    """No extractor with this digest was uploaded to this curator."""


class ExtractorNotApproved(ProtocolError):
    """The operator has not approved this extractor's graph."""


class RunFinished(ProtocolError):
    """All declared steps of this run are used; open another run."""


class RequestIdReused(ProtocolError):
    """The request id was used before with other content. Nothing was spent."""


class RequestInProgress(ProtocolError):
    """The same request is still being computed; repeat it later with the same id."""


class CuratorUnavailable(ProtocolError):
    """The curator cannot be reached or cannot write its ledger; repeat later with the same id."""


class ExtractionStopped(CuratorUnavailable):
    """The process that evaluates extractors ended or reached a limit; nothing was released, repeat the step."""


class TooManyRequests(CuratorUnavailable):
    """This client has as many requests under way as one client may have; repeat when one of them is answered."""


class StepGivenUp(ProtocolError):
    """A step's computation failed too often and is not tried again; it stays charged, the run's next step goes on."""


class CuratorFault(ProtocolError):
    """An unexpected error at the curator; the message holds only an incident number for its operator."""


class LedgerError(DpswdError):
    """Base of the ledger's own troubles."""


class LedgerUnavailable(LedgerError):
    """The ledger cannot be written (disk full, locked, read-only); nothing was spent."""


class LedgerCorrupt(LedgerError):
    """The ledger's chain of entries does not verify; the message names the first bad entry."""


class RestoreRefused(LedgerError):
    """Restoring the backup would forget entries, or nobody can tell; the message counts them."""


class SettingsError(DpswdError):
    """A configuration that cannot work; the message names the setting, its value and what is allowed."""


def rounded(value: float, *, up: bool) -> str:
    """Four decimals, so that a reader never believes in more budget than there is: costs up, what is left down."""
    if not math.isfinite(value):
        return str(value)
    return f"{(math.ceil if up else math.floor)(value * 1e4) / 1e4:.4f}"
