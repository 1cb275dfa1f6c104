"""The ledger: what was spent on a data set, durable, signed and checkable. See docs/reference/ledger.md."""
