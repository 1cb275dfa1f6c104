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
from dpswd.private_curator.sandbox.loop import Refused, built
from dpswd.private_curator.sandbox.pool import MAX_LOADED
from dpswd.shared.core.mechanisms.interface import Session
from dpswd.shared.core.wire.checks import invalid
from dpswd.shared.sandbox.building import Extractor, check_row_independence
from dpswd.shared.sandbox.session import DirectSession


class LocalEngine:
    """See `engine.Engine`.

    Args:
        device: where extractors are evaluated.
    """

    restarts = 0  # there is nothing that could be restarted

    def __init__(self, *, device: torch.device) -> None:
        self._device = device
        self._built = functools.lru_cache(maxsize=MAX_LOADED)(lambda source: self._make(*source.read()))

    @contextmanager
    def session(self, source: ExtractorSource) -> Iterator[Session]:
        """See `engine.Engine`."""
        yield DirectSession(self._built(source))

    def check(self, graph: bytes, weights: bytes) -> None:
        """See `engine.Engine`."""
        with flushed_denormals():
            check_row_independence(self._make(graph, weights))

    def close(self) -> None:
        """See `engine.Engine`."""
        self._built.cache_clear()

    def _make(self, graph: bytes, weights: bytes) -> Extractor:
        try:
            return built(graph, weights, device=self._device)
        except Refused as refusal:
            raise invalid(**refusal.answer["refused"]) from refusal
