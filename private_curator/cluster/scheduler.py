"""The scheduler: one process that gives shards to nodes. Sees sums on their way; holds no key and no record."""

from __future__ import annotations

import asyncio
from pathlib import Path

from dpswd.private_curator.cluster import engine
from dpswd.private_curator.storage.certificates import SCHEDULER


def serve(address: str, certificates: Path) -> None:
    """Schedules until SIGTERM or SIGINT; prints one line once it listens."""
    engine.configure(SCHEDULER, certificates)
    asyncio.run(_serve(address, certificates))


async def _serve(address: str, certificates: Path) -> None:
    async with engine.scheduler(address, certificates) as scheduler:
        print(f"scheduling on {scheduler.address}", flush=True)
        await engine.stopped()
