"""A small ledger, for both tiers."""

from small_ledger import answer, key, ledger, location, memory, new_schema, open_run, path, reopen

__all__ = ["answer", "key", "ledger", "location", "memory", "new_schema", "open_run", "path", "reopen"]
