"""Where an unexpected error happened: types and frames, never its text or its variables, which may quote a record."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MAX_ERRORS = 8
"""Exceptions of one chain that are kept."""
MAX_FRAMES = 40
"""Frames of one exception that are kept, the last ones."""


def error_chain(error: BaseException | None) -> Iterator[tuple[BaseException, dict[str, Any]]]:
    """Each exception of a chain, the newest first, with its type and the frames that it passed."""
    for _ in range(MAX_ERRORS):
        if error is None:
            return
        passed = traceback.extract_tb(error.__traceback__)[-MAX_FRAMES:]
        frames = [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in passed]
        yield error, {"type": f"{type(error).__module__}.{type(error).__qualname__}", "frames": frames}
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
