"""The curator's part of the core: the charging ledger, the secret sample, the release."""
