"""Arithmetic whose time does not depend on how small a number is.

A denormal number (below 1e-38 in float32) takes 16 to 80 times as long as others. A client chooses the extractor, so it
could make such numbers for some records and read them off the time of a reply.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def flushed_denormals() -> Iterator[None]:
    """Within, torch takes denormal numbers as zero, in this thread and in the helpers that it starts here.

    The setting belongs to a thread and is inherited by those it starts, so every use of an extractor stands inside,
    from the first. It ends with the block: the accountant, in other threads and in this one, needs denormals.
    """
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
