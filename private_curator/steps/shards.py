"""A sum over every record, shard by shard: on this machine, or wherever an executor computes shards.

Sums are exact integers, so it does not matter who computes a shard, how often it was begun or which of two copies came
first: exactly one sum of each shard enters the total, and `dpswd.shared.core.mechanisms.linear.added` refuses anything
    else.
"""

from __future__ import annotations

import itertools
import logging
import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TypeVar

import torch

from dpswd.private_curator.core.steps.denormals import flushed_denormals
from dpswd.private_curator.core.steps.evaluating import ExtractorSource
from dpswd.private_curator.sandbox.process import LimitReached
from dpswd.private_curator.steps.engine import Engine
from dpswd.shared.core.errors import ExtractionStopped
from dpswd.shared.core.mechanisms.interface import Facts
from dpswd.shared.core.mechanisms.linear import AnyLinearRun, Shard, ShardSum, block_records
from dpswd.shared.core.steps.computing import Labels, Records, summed

T = TypeVar("T")
MAX_ATTEMPTS = 4
"""How often one shard is computed before the step fails: what ends that many processes ends the next one too."""
_STRAGGLES = 3.0  # times the usual time of a shard: then another copy of it is begun
_LEAST_STRAGGLING_S = 2.0
_PAUSE_S = 0.2
_SHARD_BYTES = 1 << 28  # of a shard's records in float32: seconds of work, so that little is lost with it
_SHARDS_FOR_EACH = 4  # at least, of those that compute: so that the slowest holds up the others little
_MOST_SHARDS = 4096
_BUSY = 2.0  # a machine may take twice as long as the time by which a pass was allowed

_log = logging.getLogger(__name__)


class ShardLost(ExtractionStopped):
    """Whoever computed a shard has ended, and not because of a limit: the shard may be computed again."""


def shards(facts: Facts, count: int) -> tuple[Shard, ...]:
    """All records in at most `count` shards of nearly equal length, none of them empty."""
    size, records = block_records(facts), facts.data.records
    number = -(-records // size)
    parts = min(max(1, count), number)
    edges = [min(records, size * (number * part // parts)) for part in range(parts + 1)]
    return tuple(Shard(start, stop) for start, stop in itertools.pairwise(edges))


def divided(run: AnyLinearRun, *, parallel: int) -> tuple[Shard, ...]:
    """All records in shards, for so many that compute side by side; from public numbers alone."""
    data = run.facts.data
    size = 4 * math.prod(data.record_shape) * data.records
    return shards(run.facts, min(_MOST_SHARDS, max(_SHARDS_FOR_EACH * parallel, size // _SHARD_BYTES)))


def gathered(
    parts: Sequence[Shard],
    submit: Callable[[Shard], Future[T]],
    *,
    at_once: Callable[[], int],
    attempts: int = MAX_ATTEMPTS,
    copies: bool = True,
    least_straggling_s: float = _LEAST_STRAGGLING_S,
    pass_seconds: float = math.inf,
) -> Iterator[T]:
    """One sum of each shard, as they come; lost ones are begun again, and slow ones a second time beside the first.

    Ends with the first sum of the last shard: nobody waits for the slower of two copies.

    Args:
        parts: the shards.
        submit: begins to compute one.
        at_once: how many can be computed side by side now; raises where nobody computes for too long.
        attempts: how often one shard may be lost before the step fails.
        copies: whether slow ones are begun a second time; of use where another machine takes the copy.
        least_straggling_s: no shard is slow before.
        pass_seconds: what all shards may take on a quiet machine; it ends after twice as long.

    Raises:
        ExtractionStopped: a limit was reached, a shard was lost too often, or the time is over.
    """
    deadline = time.monotonic() + _BUSY * pass_seconds
    waiting, open_shards = deque(parts), set(parts)
    lost = dict.fromkeys(parts, 0)
    usual: list[float] = []
    running: dict[Future[T], tuple[Shard, float]] = {}
    try:
        while open_shards:
            if time.monotonic() > deadline:
                _log.error(
                    "a sum over every record took longer than %g seconds; a step was ended", _BUSY * pass_seconds
                )
                raise ExtractionStopped(
                    f"a sum over every record took longer than {_BUSY * pass_seconds:g} seconds; nothing was released, "
                    "repeat the request with its id"
                )
            room = at_once() - len(running)
            if copies and not waiting and room > 0 and usual:
                slow = max(least_straggling_s, _STRAGGLES * statistics.median(usual))
                waiting.extend(_stragglers(running, open_shards, slow)[:room])
            while waiting and room > 0:
                shard = waiting.popleft()
                running[submit(shard)] = shard, time.monotonic()
                room -= 1
            if not running:  # nobody computes now; `at_once` decides how long that may last
                time.sleep(_PAUSE_S)
            patience = min(least_straggling_s / 2.0, max(0.0, deadline - time.monotonic()))
            done, _ = wait(running, timeout=patience, return_when=FIRST_COMPLETED)
            for future in done:
                shard, begun = running.pop(future)
                if shard not in open_shards:  # another copy came first
                    continue
                try:
                    part = future.result()
                except ShardLost:
                    lost[shard] += 1
                    _log.warning("a shard was lost, for the %d. time", lost[shard])
                    if lost[shard] >= attempts:
                        raise
                    waiting.append(shard)
                    continue
                usual.append(time.monotonic() - begun)
                open_shards.remove(shard)
                yield part
    finally:
        for future in running:
            future.cancel()


def _stragglers(running: dict[Future[T], tuple[Shard, float]], open_shards: set[Shard], slow: float) -> list[Shard]:
    """Shards that take longer than this and of which one copy runs."""
    now, copies = time.monotonic(), [shard for shard, _ in running.values()]
    late = [
        shard
        for shard, begun in running.values()
        if shard in open_shards and now - begun > slow and copies.count(shard) == 1
    ]
    if late:
        _log.info("%d shards are slow; a second copy of each is begun", len(late))
    return late


class LocalShards:
    """Shards on this machine, as many side by side as the engine has workers; see `Shards`.

    Args:
        engine: evaluates extractors.
        records: the data set's.
        labels: of them.
        device: where the arithmetic runs.
        parallel: shards at the same time.
        pass_seconds: see `gathered`.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        records: Records,
        labels: Labels | None,
        device: torch.device,
        parallel: int,
        pass_seconds: float = math.inf,
    ) -> None:
        self._engine = engine
        self._records = records
        self._labels = labels
        self._device = device
        self._parallel = parallel
        self._pass_seconds = pass_seconds

    def ready(self) -> None:
        """See `Shards`: this machine is there."""

    def sums(self, run: AnyLinearRun, extractor: ExtractorSource) -> Iterable[ShardSum]:
        """See `Shards`."""
        threads = ThreadPoolExecutor(self._parallel, thread_name_prefix="shard")
        try:
            yield from gathered(
                divided(run, parallel=self._parallel),
                lambda shard: threads.submit(self.sum, run, extractor, shard),
                at_once=lambda: self._parallel,
                copies=False,  # what slows a shard down here slows its copy down as well
                pass_seconds=self._pass_seconds,
            )
        finally:  # without waiting: a thread that never comes back would hold the step for good
            threads.shutdown(wait=False, cancel_futures=True)

    def sum(self, run: AnyLinearRun, extractor: ExtractorSource, shard: Shard) -> ShardSum:
        """The sum of one shard.

        Raises:
            ShardLost: the worker has ended.
            LimitReached: it exceeded a limit.
        """
        try:
            with self._engine.session(extractor) as session, flushed_denormals():
                return summed(run, shard, session, records=self._records, labels=self._labels, device=self._device)
        except LimitReached:
            raise
        except ExtractionStopped as error:
            raise ShardLost(str(error)) from error

    def close(self) -> None:
        """See `Shards`."""
