"""As many workers as steps are computed at the same time, and one more for each client whose upload is checked.

The workers that check uploads never see a record, and a slow upload holds up no step and no other client's upload. A
worker that was ended is replaced at once, so that the next request finds a fresh one that has already loaded torch.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from dpswd.private_curator.core.steps.evaluating import ExtractorSource
from dpswd.private_curator.sandbox.arena import Arena, Slot, blob, lay_out
from dpswd.private_curator.sandbox.process import Confinement, WorkerProcess, WorkerSettings
from dpswd.shared.core.errors import DpswdError, ExtractionStopped
from dpswd.shared.core.mechanisms.interface import FloatArray, Session

MAX_LOADED = 4  # extractors that a worker holds: one for each of a few concurrent runs, at most 80 MB each
_RETAINED_BYTES = 256 << 20  # an arena of at most this size is kept for the next step


class _PooledWorker:
    """One worker and the memory that it shares with the curator."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._closed = False
        self.worker = WorkerProcess(settings)
        self.arena: Arena | None = None
        self.attached = False  # whether the worker has mapped the arena
        self.restarts = 0

    def ensure(self) -> WorkerProcess:
        """A worker that lives and is ready."""
        if not self.worker.alive:
            self.replace()
        self.worker.ready()
        return self.worker

    def replace(self) -> None:
        """Starts another worker and does not wait for it."""
        self.worker.kill()
        self.drop_arena()
        self.worker = WorkerProcess(self._settings)
        self.restarts += 1
        if self._closed:  # by another thread, which may have seen the one before
            self.worker.kill()

    def room(self, size: int) -> Arena:
        """Shared memory of at least this many bytes."""
        if self.arena is None or self.arena.size < size:
            self.drop_arena()
            self.arena = Arena.create(size)
        return self.arena

    def drop_arena(self) -> None:
        arena, self.arena, self.attached = self.arena, None, False
        if arena is not None:
            arena.close()

    def close(self) -> None:
        self._closed = True
        self.worker.close()
        self.drop_arena()


class WorkerPool:
    """Evaluates extractors in workers; see `dpswd.private_curator.steps.engine.Engine`.

    Args:
        settings: of every worker.
        workers: how many for steps.
    """

    def __init__(self, settings: WorkerSettings, *, workers: int) -> None:
        self._settings = settings
        # Four synthetic records take a small part of a step.
        self._for_uploads = replace(
            settings, seconds=settings.seconds / 5, time_limit="a fifth of compute.worker_seconds"
        )
        self._idle: queue.LifoQueue[_PooledWorker] = queue.LifoQueue()
        self._for_steps = [_PooledWorker(settings) for _ in range(workers)]
        for pooled in self._for_steps:
            self._idle.put(pooled)
        self._uploads: list[_PooledWorker] = []
        self._spare: queue.Queue[_PooledWorker] = queue.Queue(maxsize=1)  # one of them is kept for the next upload
        self._uploading: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._past_restarts = 0

    def ready(self) -> Confinement:
        """Waits until every worker for steps has started; what holds for the last of them.

        Raises:
            SettingsError: one did not start.
        """
        return [pooled.worker.ready() for pooled in self._for_steps][-1]

    def probe(self, *, port: int, secret: str) -> dict[str, bool]:
        """Lets a worker try what it must not be able to do; see `confinement.probe`."""
        with self._taken() as pooled:
            message = {"op": "probe", "port": port, "secret": secret}
            answer = pooled.ensure().ask(message, deadline=self._deadline())
        return {str(name): bool(could) for name, could in answer.items()}

    @contextmanager
    def session(self, source: ExtractorSource) -> Iterator[Session]:
        """See `Engine`."""
        with self._taken() as pooled:
            self._load(worker := pooled.ensure(), source)
            session = _WorkerSession(pooled, source, self._deadline)
            try:
                yield session
                session.end()
            except BaseException:
                if worker.alive:
                    with suppress(DpswdError):
                        session.end()
                raise
            finally:
                if pooled.arena is not None and pooled.arena.size > _RETAINED_BYTES:
                    pooled.drop_arena()

    def check(self, graph: bytes, weights: bytes, *, client: str) -> None:
        """See `Engine`."""
        with self._uploading[client]:
            try:
                pooled = self._spare.get_nowait()
            except queue.Empty:
                pooled = _PooledWorker(self._for_uploads)
                self._uploads.append(pooled)
            try:
                deadline = time.monotonic() + self._for_uploads.seconds
                _send_extractor(pooled.ensure(), {"op": "check"}, graph, weights, deadline=deadline)
            finally:
                if not pooled.worker.alive:
                    pooled.replace()
                try:
                    self._spare.put_nowait(pooled)
                except queue.Full:
                    self._uploads.remove(pooled)
                    self._past_restarts += pooled.restarts
                    pooled.close()

    def close(self) -> None:
        """See `Engine`."""
        for pooled in (*self._for_steps, *self._uploads):
            pooled.close()

    @property
    def restarts(self) -> int:
        """See `Engine`."""
        return self._past_restarts + sum(pooled.restarts for pooled in (*self._for_steps, *self._uploads))

    @property
    def pids(self) -> list[int]:
        """The workers' process numbers, those for steps first."""
        return [pooled.worker.process.pid for pooled in (*self._for_steps, *self._uploads)]

    @contextmanager
    def _taken(self) -> Iterator[_PooledWorker]:
        pooled = self._idle.get()
        try:
            yield pooled
        finally:
            try:
                if not pooled.worker.alive:
                    pooled.replace()
            finally:
                self._idle.put(pooled)

    def _deadline(self) -> float:
        return time.monotonic() + self._settings.seconds

    def _load(self, worker: WorkerProcess, source: ExtractorSource) -> None:
        """Sends an extractor that the worker does not hold."""
        if source.key in worker.loaded:
            worker.loaded[source.key] = worker.loaded.pop(source.key)  # used most recently
            return
        drop, (graph, weights) = list(worker.loaded)[: max(0, len(worker.loaded) + 1 - MAX_LOADED)], source.read()
        load: dict[str, object] = {"op": "load", "key": source.key, "drop": drop}
        _send_extractor(worker, load, graph, weights, deadline=self._deadline())
        for key in drop:
            worker.loaded.pop(key)
        worker.loaded[source.key] = None


class _WorkerSession:
    """See `dpswd.shared.core.mechanisms.interface.Session`."""

    def __init__(self, pooled: _PooledWorker, source: ExtractorSource, deadline: Callable[[], float]) -> None:
        self._pooled = pooled
        self._source = source
        self._deadline = deadline
        self._slots: list[Slot] = []
        self._arena: Arena | None = None  # while the worker keeps a forward pass for gradients

    def features(
        self,
        records: FloatArray,
        *,
        adapted: FloatArray | None = None,
        names: tuple[str, ...] = (),
        differentiable: bool = True,
        meanwhile: Callable[[], None] | None = None,
    ) -> Tensor:
        """See `dpswd.shared.core.mechanisms.interface.Session`."""
        count, p = len(records), self._source.facts.size(names)
        shape = (count, self._source.facts.feature_dimension)
        # records, adapted values, features, cotangents, gradients
        later = [shape, (count, p)] if differentiable else []
        self._slots, size = lay_out([records.shape, (p,), shape, *later])
        pooled = self._pooled
        arena = pooled.room(size)
        arena.array(self._slots[0])[...] = records
        if adapted is not None:
            arena.array(self._slots[1])[...] = adapted
        message = {
            "op": "begin", "key": self._source.key, "names": names, "differentiable": differentiable,
            "records": self._slots[0], "adapted": None if adapted is None else self._slots[1],
            "features": self._slots[2],
        }  # fmt: skip
        files = () if pooled.attached else (arena.descriptor,)
        pooled.worker.ask(message, files, deadline=self._deadline(), meanwhile=meanwhile)
        pooled.attached, self._arena = True, arena if names and differentiable else None
        # A copy: a worker that was taken over must not change features that were already measured and clipped.
        return torch.from_numpy(arena.array(self._slots[2]).copy())

    def gradients(self, cotangents: Tensor) -> Tensor:
        """See `dpswd.shared.core.mechanisms.interface.Session`."""
        arena, self._arena = self._arena, None
        if arena is None:
            raise RuntimeError("gradients were asked for before their features")
        arena.array(self._slots[3])[...] = cotangents.detach().cpu().numpy().astype(np.float32, copy=False)
        message = {"op": "gradients", "cotangents": self._slots[3], "gradients": self._slots[4]}
        self._pooled.worker.ask(message, deadline=self._deadline())
        return torch.from_numpy(arena.array(self._slots[4]))

    def processor_seconds(self) -> float:
        """See `dpswd.private_curator.steps.engine.HasWorker`."""
        return time.clock_gettime((~self._pooled.worker.process.pid << 3) | 2)  # Linux: another process's clock

    def end(self) -> None:
        """Lets the worker forget a forward pass whose gradients nobody wants."""
        if self._arena is not None:
            self._arena = None
            with suppress(ExtractionStopped):  # the step is over; the next one gets a fresh worker
                self._pooled.worker.ask({"op": "forget"}, deadline=self._deadline())


def _send_extractor(
    worker: WorkerProcess, message: dict[str, object], graph: bytes, weights: bytes, *, deadline: float
) -> None:
    descriptor = blob(graph, weights)
    try:
        worker.ask({**message, "graph": len(graph), "weights": len(weights)}, (descriptor,), deadline=deadline)
    finally:
        os.close(descriptor)
