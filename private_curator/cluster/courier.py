"""The courier, ``python -m dpswd.private_curator.cluster.courier``: the only process of a curator that speaks Dask.

Dask unpickles what it receives, so whoever took over a node could run code in whatever gathers its results. The curator
holds the ledger's key; so it does not gather. The courier does: a fresh interpreter that can read the libraries and its
own certificate (Landlock), holds no key of the curator's, and passes bytes on, which the curator reads as numbers.

Messages (`dpswd.private_curator.sandbox.channel`)::

    extractor  id, sizes; a file with graph and weights   kept for the tasks that name it
    sum        id, extractor, size; a file with the task  -> id, size; a file with the answer, or id, lost
    drop       id                                         nobody waits for this sum: no node begins with it
    nodes                                                 -> nodes: how many shards are computed side by side now
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from pathlib import Path
from typing import Any

from dpswd.private_curator.sandbox import confinement
from dpswd.private_curator.sandbox.arena import blob, contents
from dpswd.private_curator.sandbox.channel import ChannelClosed, receive, send

_NAMES = ("/etc/hosts", "/etc/resolv.conf", "/etc/nsswitch.conf", "/etc/host.conf")


def main() -> None:
    """Standard input is one line of JSON: channel, scheduler, certificates, connect_s."""
    wishes: dict[str, Any] = json.loads(sys.stdin.readline())
    channel = socket.socket(fileno=wishes["channel"])
    from dpswd.private_curator.cluster import engine

    engine.configured()
    from distributed import Client

    from dpswd.private_curator.cluster import work  # noqa: F401 - loaded while its file can be read

    folder = Path(wishes["certificates"])
    known = engine.security(folder)
    confinement.forbid_privileges(files=True)
    readable = [path for path in (folder, *map(Path, _NAMES)) if path.exists()]
    held = confinement.restrict_files(devices=False, network=True, further=readable)
    client = Client(wishes["scheduler"], security=known, set_as_default=False, timeout=wishes["connect_s"])  # type: ignore[no-untyped-call]
    with client:
        send(channel, {"ready": held})
        Courier(channel, client).run()


class Courier:
    """Carries tasks and answers until the curator closes the channel.

    Args:
        channel: to the curator.
        client: of the cluster.
    """

    def __init__(self, channel: socket.socket, client: Any) -> None:
        self._channel = channel
        self._client = client
        self._sending = threading.Lock()
        self._extractors: dict[str, tuple[bytes, bytes]] = {}
        self._scattered: dict[str, Any] = {}
        self._running: dict[int, Any] = {}

    def run(self) -> None:
        """Returns when the curator has closed the channel."""
        while True:
            try:
                message, files = receive(self._channel)
            except ChannelClosed:
                return
            match message["op"]:
                case "extractor":
                    data = contents(files)
                    self._extractors = {message["id"]: (data[: message["graph"]], data[message["graph"] :])}
                    self._scattered = {}
                case "sum":
                    self._sum(message, contents(files))
                case "drop":
                    future = self._running.pop(message["id"], None)
                    if future is not None:
                        future.cancel()
                case "nodes":
                    threads = self._client.nthreads()
                    self._send({"nodes": sum(threads.values())})

    def _sum(self, message: dict[str, Any], task: bytes) -> None:
        from dpswd.private_curator.cluster.work import sum_shard

        key = message["extractor"]
        try:
            if key not in self._scattered:
                (self._scattered[key],) = self._client.scatter([self._extractors[key]], broadcast=True, hash=False)
            future = self._client.submit(sum_shard, task, self._scattered[key], pure=False)
        except Exception:  # noqa: BLE001 - no node, or none that answers
            self._send({"id": message["id"], "lost": True})
            return
        self._running[message["id"]] = future
        future.add_done_callback(lambda done: self._done(message["id"], key, done))

    def _done(self, number: int, key: str, future: Any) -> None:
        if self._running.pop(number, None) is None:  # dropped
            future.release()
            return
        try:
            answer: bytes = future.result()
        except Exception:  # noqa: BLE001 - a node that has gone; whatever it was, the shard has no sum
            self._scattered.pop(key, None)  # it may have held the only copy
            self._send({"id": number, "lost": True})
            return
        finally:
            future.release()
        descriptor = blob(answer)
        try:
            self._send({"id": number, "size": len(answer)}, (descriptor,))
        finally:
            os.close(descriptor)

    def _send(self, message: dict[str, Any], files: tuple[int, ...] = ()) -> None:
        with self._sending:
            send(self._channel, message, files)


if __name__ == "__main__":
    main()
