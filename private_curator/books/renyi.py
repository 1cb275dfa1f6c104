"""The accountant of every ledger: the core's filter, with the prices of `dpswd.shared.accounting`."""

from dpswd.private_curator.core.ledger.accounting import Accounting
from dpswd.shared.accounting.pricing import PRICING

RENYI = Accounting(PRICING)
