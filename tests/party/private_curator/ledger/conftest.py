"""A small ledger, and this directory's helper modules."""

import sys
from pathlib import Path

from small_ledger import answer, key, ledger, location, memory, new_schema, open_run, path, reopen

__all__ = ["answer", "key", "ledger", "location", "memory", "new_schema", "open_run", "path", "reopen"]

sys.path.insert(0, str(Path(__file__).parent))  # under importlib mode a test directory is no package
