"""The signed ledger as both parties read it: entries, receipts, chains, views."""
