"""Checkpoints of an alignment, and the write-ahead of its next request.

A step is charged at the curator before its answer arrives. So the request, id included, is on the client's disk before
it is sent: a client that dies at any moment sends the same bytes again after it comes back, gets the stored answer and
goes on, with no step spent twice and none lost. The directory holds

    start.pt        the source-trained weights, and the source features where they stay fixed
    critic.pt       the first weights of a critic, which its run is declared with, and the public clip
    run.json        the plan and the request id of OpenRun (written before the run is charged)
    state.pt        weights, optimiser and averages after the last applied step
    batch.pt        the public batch that the request under way was made with, where each step has its own
    pending.json    the request that is under way; one that `state.pt` names is done
    receipts.jsonl  the curator's receipts (`receipts`)

Against several curators each has a directory of this kind under ``sites/NAME``; ``start.pt`` stays above them.

Files are replaced atomically. The .pt files are the client's own and are read with ``weights_only=True``.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from public_client.curator.values import PendingStep, StepKind
from shared.errors import SettingsError

_KINDS = ("align_target", "release_projections", "release_quantiles", "release_critic_gradient")


class Checkpoint:
    """The state of one training run in one directory.

    Args:
        directory: made when it is missing.

    Attributes:
        writes: whether this process writes files here.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.writes = True
        self._batch = "batch.pt"
        directory.mkdir(parents=True, exist_ok=True)

    @property
    def begun(self) -> bool:
        """Whether a run was declared here."""
        return (self.directory / "run.json").exists()

    def write_run(self, run: Mapping[str, Any]) -> None:
        """Stores what OpenRun is about to be asked, before it is asked."""
        _replace(self.directory / "run.json", json.dumps(run, sort_keys=True, indent=1).encode("utf-8"))

    def read_run(self) -> dict[str, Any]:
        """What `write_run` stored.

        Raises:
            SettingsError: nothing was, or the file is damaged.
        """
        return _read_json(self.directory / "run.json")

    def write_pending(self, pending: PendingStep) -> None:
        """Stores a request before it is sent."""
        value = {
            "kind": pending.kind,
            "run_id": pending.run_id,
            "request_id": pending.request_id,
            "message": base64.b64encode(pending.message).decode("ascii"),
        }
        _replace(self.directory / "pending.json", json.dumps(value).encode("ascii"))

    def read_pending(self) -> PendingStep | None:
        """The request that was under way, or None."""
        path = self.directory / "pending.json"
        if not path.exists():
            return None
        value = _read_json(path)
        if value["kind"] not in _KINDS:
            raise SettingsError(f"{path} names the request {value['kind']!r}; allowed: {', '.join(_KINDS)}")
        return PendingStep(
            kind=cast(StepKind, value["kind"]),
            run_id=value["run_id"],
            request_id=value["request_id"],
            message=base64.b64decode(value["message"]),
        )

    def write_start(self, start: Mapping[str, Any]) -> None:
        """Stores what the alignment begins with."""
        self._save("start.pt", start)

    def read_start(self) -> dict[str, Any] | None:
        """What `write_start` stored, or None."""
        return self._load("start.pt")

    def write_state(self, state: Mapping[str, Any]) -> None:
        """Stores the state after a step. It names the step, so a pending request of an older step is known as done."""
        self._save("state.pt", state)

    def read_state(self) -> dict[str, Any] | None:
        """The last state, or None before the first."""
        return self._load("state.pt")

    def write_batch(self, images: Tensor, labels: Tensor) -> None:
        """Stores the public batch of the next request, before that request is written."""
        self._save(self._batch, {"images": images, "labels": labels})

    def read_batch(self) -> tuple[Tensor, Tensor] | None:
        """What `write_batch` stored last, or None."""
        batch = self._load(self._batch)
        return None if batch is None else (batch["images"], batch["labels"])

    def write_critic(self, critic: Mapping[str, Any]) -> None:
        """Stores the critic that a run is about to be declared with."""
        self._save("critic.pt", critic)

    def read_critic(self) -> dict[str, Any] | None:
        """What `write_critic` stored, or None."""
        return self._load("critic.pt")

    def applied(self) -> frozenset[str]:
        """Request ids of the last steps whose answers are in the state: a pending one of these is done."""
        state = self.read_state() or {}
        return frozenset(state.get("request_ids", [state["request_id"]] if "request_id" in state else []))

    def site(self, name: str) -> Checkpoint:
        """The directory of one curator of several."""
        return type(self)(self.directory / "sites" / name)

    def _save(self, name: str, value: Mapping[str, Any]) -> None:
        temporary = self.directory / (name + ".new")
        torch.save(dict(value), temporary)
        _sync(temporary)
        temporary.replace(self.directory / name)
        _sync(self.directory)

    def _load(self, name: str) -> dict[str, Any] | None:
        path = self.directory / name
        if not path.exists():
            return None
        value: dict[str, Any] = torch.load(path, weights_only=True, map_location="cpu")
        return value


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path} cannot be read ({error}); choose another checkpoint directory") from error
    if not isinstance(value, dict):
        raise SettingsError(f"{path} does not hold an object; choose another checkpoint directory")
    return value


def _replace(path: Path, data: bytes) -> None:
    temporary = path.with_name(path.name + ".new")
    temporary.write_bytes(data)
    _sync(temporary)
    temporary.replace(path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
