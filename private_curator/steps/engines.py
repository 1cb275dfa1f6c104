"""Which engine a curator's settings ask for, and whether its confinement holds on this machine."""

from __future__ import annotations

import logging
import socket
from pathlib import Path

import torch

from dpswd.private_curator.sandbox.pool import WorkerPool
from dpswd.private_curator.sandbox.process import WorkerSettings, list_layers
from dpswd.private_curator.settings.groups import ComputeSettings
from dpswd.private_curator.steps.engine import Engine
from dpswd.private_curator.steps.local import LocalEngine
from dpswd.shared.core.errors import SettingsError

TOLERATED = frozenset({"read the curator's files"})
"""What a worker may turn out to be able to do without the curator being unfit to serve."""

_log = logging.getLogger(__name__)


def make_engine(settings: ComputeSettings, device: torch.device) -> Engine:
    """The engine that the settings ask for; its workers are starting and not ready yet.

    Raises:
        SettingsError: a worker cannot be started.
    """
    if settings.isolation == "in-process":
        return LocalEngine(device=device)
    each = WorkerSettings(
        device=device.type,
        threads=settings.torch_threads,
        memory_bytes=settings.worker_memory_bytes,
        seconds=settings.worker_seconds,
    )
    return WorkerPool(each, workers=settings.parallel_steps)


def report(engine: Engine) -> None:
    """Waits until the engine is ready and tells the operator's log how extractors are confined.

    Raises:
        SettingsError: a worker did not start.
    """
    if not isinstance(engine, WorkerPool):
        _log.warning(
            "extractors are evaluated in the curator's own process (compute.isolation is in-process): nothing stops "
            "one that is slow, and nothing stands between its arithmetic and the curator's keys"
        )
        return
    confinement = engine.ready()
    _log.info("extraction worker: %s", list_layers(confinement))
    if not (confinement.get("namespace") or confinement.get("system calls")):
        _log.warning("the extraction worker has a network: this machine allows neither namespaces nor seccomp filters")
    if not confinement.get("landlock"):
        _log.warning("the extraction worker can read this user's files: this kernel has no Landlock, or forbids it")


def examine(engine: Engine, *, secret: Path) -> str:
    """Lets a worker try what it must not be able to do, and ends the engine.

    Args:
        engine: as `make_engine` makes it.
        secret: a file of the curator's that a worker must not read.

    Raises:
        SettingsError: a worker does not start, or could do something that it must not.
    """
    if not isinstance(engine, WorkerPool):
        raise SettingsError(
            "extractors run in the curator's own process, which nothing confines; set compute.isolation to process "
            "unless every client is trusted"
        )
    try:
        confined = list_layers(engine.ready())
        with socket.create_server(("127.0.0.1", 0)) as listener:
            could = engine.probe(port=listener.getsockname()[1], secret=str(secret))
    finally:
        engine.close()
    # Without Landlock (an old kernel, an old container engine) a worker reads what its user may; it cannot send it.
    broken = [name for name, worked in could.items() if worked and name not in TOLERATED]
    if broken:
        raise SettingsError(
            f"the extraction worker can {', '.join(broken)} ({confined}); run the curator on Linux 5.13 or later, "
            "in a container whose policy allows seccomp filters and Landlock (Docker's and Podman's own do)"
        )
    cannot = f"starts and cannot {', '.join(name for name, worked in could.items() if not worked)}: {confined}"
    if any(could.values()):
        cannot += "; it can read the curator's files, run on Linux 5.13 or later with an engine that allows Landlock"
    return cannot
