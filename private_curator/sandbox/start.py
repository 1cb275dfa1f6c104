"""How a worker comes up: the order matters, for each step needs what the next one takes away."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from dpswd.private_curator.sandbox import confinement
from dpswd.private_curator.sandbox.channel import send
from dpswd.private_curator.sandbox.system_calls import filter_system_calls

if TYPE_CHECKING:
    from dpswd.private_curator.sandbox.loop import Operation


def main(operations: Callable[[], Mapping[str, Operation]] | None = None) -> None:
    """Confines this process and answers messages until the curator ends.

    Args:
        operations: gives more messages than `loop` lists. Called when the network has been left and files can still be
            read: what it imports may start threads.

    Standard input is one line of JSON: device, threads, memory_bytes, and the numbers of two inherited files: the
    channel, and a pipe that the curator holds open as long as it lives.
    """
    wishes: dict[str, Any] = json.loads(sys.stdin.readline())
    channel = socket.socket(fileno=wishes["channel"])
    namespace = confinement.leave_network()  # before torch starts threads
    threading.Thread(target=_end_with, args=(wishes["lifeline"],), daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the curator's to handle

    import torch

    from dpswd.private_curator.sandbox import loop
    from dpswd.shared.sandbox.building import compute_in_full_float32

    torch.set_flush_denormal(True)  # for good, and inherited by every thread that torch starts from here on
    if wishes["threads"]:
        torch.set_num_threads(wishes["threads"])
    device = torch.device(wishes["device"])
    compute_in_full_float32()
    loop.warm_up(device)
    if device.type == "cuda":
        device = torch.device(device.type, torch.cuda.current_device())  # memory is limited by number
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, wishes["memory_bytes"] / total), device)
    further = operations() if operations is not None else None
    confinement.forbid_privileges()
    confinement.limit_memory(wishes["memory_bytes"])
    gpu = device.type != "cpu"
    held = {
        "namespace": namespace,
        "landlock": confinement.restrict_files(devices=gpu),
        "system calls": filter_system_calls(writing=gpu),
    }
    # Until here errors may be read by the operator; from here on a library's words could quote a record.
    silence()
    send(channel, {"ready": held})
    loop.Loop(channel, device=device, operations=further).run()


def silence() -> None:
    """Points standard output and error to nowhere."""
    nowhere = os.dup(0)
    for descriptor in (1, 2):
        os.dup2(nowhere, descriptor)
    os.close(nowhere)


def _end_with(lifeline: int) -> None:
    """Ends this process, in the middle of whatever it does, when the curator is gone."""
    os.read(lifeline, 1)
    os._exit(0)
