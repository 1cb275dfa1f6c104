"""What the ledger signs."""
