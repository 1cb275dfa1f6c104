"""The courier, ``python -m dpswd.private_curator.cluster.courier``: the only process of a curator that speaks Dask.

Dask unpickles what it receives, so whoever took over a node could run code in whatever gathers its results. The curator
holds the ledger's key; so it does not gather. The courier does: a fresh interpreter that holds no key of the curator's,
is confined as a worker is (it reads libraries alone and opens no socket; its connections to the scheduler are opened by
the curator and handed over), and passes bytes on, which the curator reads as numbers.

Messages (`dpswd.private_curator.sandbox.channel`)::

    extractor  id, sizes; a file with graph and weights   kept for the tasks that name it
    sum        id, extractor, beside (a node that must not compute it, or ""); a file with the task
               -> id, node; a file with the answer. Or: id, lost. Or: id, alone (there is no other node)
    drop       id                                         nobody waits for this sum: no node begins with it
    nodes      id                                         -> id, nodes: how many shards are computed side by side now
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import threading
from pathlib import Path
from typing import Any

from dpswd.private_curator.cluster import engine
from dpswd.private_curator.sandbox import confinement
from dpswd.private_curator.sandbox.arena import blob, contents
from dpswd.private_curator.sandbox.channel import ChannelClosed, receive, send
from dpswd.private_curator.sandbox.start import silence
from dpswd.private_curator.sandbox.system_calls import filter_system_calls
from dpswd.private_curator.storage.certificates import CURATOR


def main() -> None:
    """Begins as every worker; the channel's first message is scheduler, certificates and connect_s, with the door."""
    channel = socket.socket(fileno=json.loads(sys.stdin.readline())["channel"])
    wishes, (door,) = receive(channel)
    namespace = confinement.leave_network()  # before a library starts threads
    folder = Path(wishes["certificates"])
    engine.configure(CURATOR, folder, scheduler=wishes["scheduler"], channel=socket.socket(fileno=door))
    from distributed import Client
    from tornado.ioloop import IOLoop

    security = engine.security(folder)
    loop = asyncio.new_event_loop()  # has sockets of its own, the last that this process makes
    confinement.forbid_privileges(files=True)
    held = {
        "namespace": namespace,
        "landlock": confinement.restrict_files(devices=False),
        "system calls": filter_system_calls(writing=False),
    }
    threading.Thread(target=loop.run_forever, daemon=True).start()

    async def running() -> Any:
        return IOLoop.current()

    client = Client(  # type: ignore[no-untyped-call]
        wishes["scheduler"],
        security=security,
        set_as_default=False,
        timeout=wishes["connect_s"],
        loop=asyncio.run_coroutine_threadsafe(running(), loop).result(),
    )
    with client:
        silence()  # until here the curator reads errors; from here on words could be a node's
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
                    self._send({"id": message["id"], "nodes": sum(self._client.nthreads().values())})

    def _sum(self, message: dict[str, Any], task: bytes) -> None:
        key = message["extractor"]
        try:
            if key not in self._scattered:
                (self._scattered[key],) = self._client.scatter([self._extractors[key]], broadcast=True, hash=False)
            beside = message["beside"]
            others = [node for node in self._client.nthreads() if node != beside] if beside else None
            if others == []:
                self._send({"id": message["id"], "alone": True})
                return
            future = self._client.submit(engine.sum_shard, task, self._scattered[key], pure=False, workers=others)
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
            (nodes,) = self._client.who_has([future]).values()
            answer: bytes = future.result()
        except Exception:  # noqa: BLE001 - a node that has gone; whatever it was, the shard has no sum
            self._scattered.pop(key, None)  # it may have held the only copy
            self._send({"id": number, "lost": True})
            return
        finally:
            future.release()
        descriptor = blob(answer)
        try:
            self._send({"id": number, "node": min(nodes, default="")}, (descriptor,))
        finally:
            os.close(descriptor)

    def _send(self, message: dict[str, Any], files: tuple[int, ...] = ()) -> None:
        with self._sending:
            send(self._channel, message, files)


if __name__ == "__main__":
    main()
