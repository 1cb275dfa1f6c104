"""One budget and what is used of it, and the price of one run for it. Opens no file."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from dpswd.shared.core.errors import LedgerCorrupt
from dpswd.shared.core.privacy.budget import Price, PrivacyBudget
from dpswd.shared.core.privacy.filter import PrivacyFilter

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
