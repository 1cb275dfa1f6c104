"""The ledger that charges: one transaction, one order of events."""
