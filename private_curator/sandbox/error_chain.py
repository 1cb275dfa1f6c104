"""Where an unexpected error happened: types and frames, never its text or its variables, which may quote a record."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

MAX_ERRORS = 8
"""Exceptions of one chain that are kept."""
MAX_FRAMES = 40
"""Frames of one exception that are kept, the last ones."""


def error_chain(error: BaseException) -> list[tuple[BaseException, dict[str, Any]]]:
    """Each exception of a chain, the newest first, with its type and the frames that it passed."""
    chain: list[tuple[BaseException, dict[str, Any]]] = []
    current: BaseException | None = error
    while current is not None and len(chain) < MAX_ERRORS:
        passed = traceback.extract_tb(current.__traceback__)[-MAX_FRAMES:]
        frames = [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in passed]
        chain.append((current, {"type": f"{type(current).__module__}.{type(current).__qualname__}", "frames": frames}))
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    return chain
