"""Draws every step of a run whose steps need nothing but their turn, and keeps what came."""

from __future__ import annotations

from typing import Any

import torch

from dpswd.public_client.data.progress import Reporter
from dpswd.public_client.training.checkpoint import Checkpoint
from dpswd.public_client.training.run import ChargedRun


def draw_all(run: ChargedRun, store: Checkpoint | None, bar: Reporter) -> list[Any]:
    """The mechanism's replies to all steps of a run without gradients; a resumed run keeps what it has.

    Args:
        run: open.
        store: its directory, or None.
        bar: told of every step.
    """
    state = (store.read("state") if store is not None else None) or {"releases": []}
    releases = [run.mechanism.reply.from_bytes(bytes(stored.numpy())) for stored in state["releases"]]
    for _ in releases:
        bar.advance(run.plan.charged)
    while len(releases) + run.steps_lost < run.plan.steps:
        drawn = run.draw()
        releases.append(drawn.reply)
        if store is not None:
            stored = [torch.frombuffer(bytearray(reply.to_bytes()), dtype=torch.uint8) for reply in releases]
            store.write("state", {"step": len(releases), "request_ids": [drawn.request_id], "releases": stored})
        bar.advance(run.plan.charged)
    return releases
