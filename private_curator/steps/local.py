"""Extraction inside the curator's own process: what a worker is compared with, and what quick tests use.

Nothing here can be stopped: a graph that takes long holds its step's place until it is done.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from dpswd.private_curator.core.steps.denormals import flushed_denormals
from dpswd.private_curator.core.steps.evaluating import ExtractorSource
from dpswd.private_curator.sandbox.loop import Refused, built, proven
from dpswd.private_curator.sandbox.pool import MAX_LOADED
from dpswd.shared.core.mechanisms.interface import Session
from dpswd.shared.core.wire.checks import invalid
from dpswd.shared.sandbox.session import DirectSession


class LocalEngine:
    """See `engine.Engine`.

    Args:
        device: where extractors are evaluated.
    """

    restarts = 0  # there is nothing that could be restarted

    def __init__(self, *, device: torch.device) -> None:
        self._device = device
        make = _in_words()(functools.partial(built, device=device))
        self._built = functools.lru_cache(maxsize=MAX_LOADED)(lambda source: make(*source.read()))

    @contextmanager
    def session(self, source: ExtractorSource) -> Iterator[Session]:
        """See `engine.Engine`."""
        yield DirectSession(self._built(source))

    def check(self, graph: bytes, weights: bytes, *, client: str) -> None:  # noqa: ARG002 - nothing is shared
        """See `engine.Engine`."""
        with flushed_denormals(), _in_words():
            proven(graph, weights, device=self._device)

    def close(self) -> None:
        """See `engine.Engine`."""
        self._built.cache_clear()


@contextmanager
def _in_words() -> Iterator[None]:
    try:
        yield
    except Refused as refusal:
        raise invalid(**refusal.answer["refused"]) from refusal
