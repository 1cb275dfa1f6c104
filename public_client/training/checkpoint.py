"""Checkpoints of an alignment, and the write-ahead of its next request.

A step is charged at the curator before its answer arrives. So the request, id included, is on the client's disk before
it is sent: a client that dies at any moment sends the same bytes again after it comes back, gets the stored answer and
goes on, with no step spent twice and none lost. The directory holds

    start.pt        the source-trained weights, and the source features where they stay fixed
    NAME.pt         what a method's run is declared with, such as a head's first weights
    run.json        the plan and the request id of OpenRun (written before the run is charged)
    state.pt        weights, optimiser and averages after the last applied step
    NAME-RANK.pt    what each process keeps of its own, such as the public batch of the request under way
    pending.json    the request that is under way; one that `state.pt` names is done
    receipts.jsonl  the curator's receipts (`receipts`)

Against several curators each has a directory of this kind under ``sites/NAME``; ``start.pt`` stays above them.

Files are replaced atomically. The .pt files are the client's own and are read with ``weights_only=True``.
"""

from __future__ import annotations

import base64
import io
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from dpswd.public_client.curator.values import PendingStep
from dpswd.public_client.data.ranks import Ranks
from dpswd.shared.core.errors import SettingsError


class Checkpoint:
    """The state of one training run in one directory.

    Args:
        directory: made when it is missing; where several processes train, on a file system that all of them see.
        ranks: rank 0 writes and reads for all. By default this process is alone.
        above: of the sites that share a model, where this one is a site's.

    Attributes:
        writes: whether this process writes files here.
    """

    def __init__(self, directory: Path, *, ranks: Ranks | None = None, above: Checkpoint | None = None) -> None:
        self.directory = directory
        self._above = above
        self._ranks = ranks or Ranks()
        self.writes = self._ranks.first
        directory.mkdir(parents=True, exist_ok=True)

    @property
    def begun(self) -> bool:
        """Whether a run was declared here."""
        return self._ranks.share(lambda: (self.directory / "run.json").exists())

    def write_run(self, run: Mapping[str, Any]) -> None:
        """Stores what OpenRun is about to be asked, before it is asked."""
        data = json.dumps(run, sort_keys=True, indent=1).encode("utf-8")
        self._ranks.share(lambda: _replace(self.directory / "run.json", data))

    def read_run(self) -> dict[str, Any]:
        """What `write_run` stored.

        Raises:
            SettingsError: nothing was, or the file is damaged.
        """
        return self._ranks.share(lambda: _read_json(self.directory / "run.json"))

    def write_pending(self, pending: PendingStep) -> None:
        """Stores a request before it is sent."""
        value = asdict(pending) | {"payload": base64.b64encode(pending.payload).decode("ascii")}
        self._ranks.share(lambda: _replace(self.directory / "pending.json", json.dumps(value).encode("ascii")))

    def read_pending(self) -> PendingStep | None:
        """The request that was under way, or None."""
        path = self.directory / "pending.json"
        value = self._ranks.share(lambda: _read_json(path) if path.exists() else None)
        if value is None:
            return None
        return PendingStep(value["run_id"], value["request_id"], base64.b64decode(value["payload"]))

    def write(self, name: str, value: Mapping[str, Any]) -> None:
        """Stores tensors and plain values.

        Args:
            name: "start" for what the alignment begins with, "state" for what it has come to (it names its requests, so
                that a pending one of an older step is known as done), another for what a method's runs declare.
            value: to be stored.
        """
        self._ranks.share(lambda: self.write_own(name, value))

    def read(self, name: str) -> dict[str, Any] | None:
        """What `write` stored under this name, or None."""
        return self._ranks.share(lambda: self.read_own(name))

    def applied(self) -> frozenset[str]:
        """Request ids of the last steps whose answers are in the state: a pending one of these is done."""
        own = (self.read("state") or {}).get("request_ids", [])
        return frozenset(own) | (frozenset() if self._above is None else self._above.applied())

    def site(self, name: str) -> Checkpoint:
        """The directory of one curator of several."""
        return Checkpoint(self.directory / "sites" / name, ranks=self._ranks, above=self)

    def write_own(self, name: str, value: Mapping[str, Any]) -> None:
        """Stores what is this process's alone; see `write`."""
        buffer = io.BytesIO()  # written to a file, torch would hide a full disk behind an error of its own
        torch.save(dict(value), buffer)
        _replace(self.directory / f"{name}.pt", buffer.getvalue())

    def read_own(self, name: str) -> dict[str, Any] | None:
        """What `write_own` stored under this name, or None."""
        path = self.directory / f"{name}.pt"
        if not path.exists():
            return None
        value: dict[str, Any] = torch.load(path, weights_only=True, map_location="cpu")
        return value


def begun_in(directory: Path) -> bool:
    """Whether a run was declared in a checkpoint's directory, at one curator or at one of several."""
    return any(any(directory.glob(where)) for where in ("run.json", "sites/*/run.json", "**/ladder.json"))


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
