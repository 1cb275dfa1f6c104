"""Files that lie in memory: a killed process loses nothing there, and syncing costs nothing."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

_ROOM = 1 << 30  # bytes, for clusters and ledgers; a container's default of 64 MB is none


def memory_directory() -> Path | None:
    """Where files lie in memory, if there is such a place with room."""
    memory = Path("/dev/shm")
    there = memory.is_dir() and os.access(memory, os.W_OK)
    return memory if there and shutil.disk_usage(memory).free > _ROOM else None
