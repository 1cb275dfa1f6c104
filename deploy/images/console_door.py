#!/opt/dpswd/bin/python
"""Carries a browser's connections to the console's Unix socket.

    dpswd-console-door HOST:PORT SOCKET

The console is then on no network at all, and what is on a network has neither the ledger nor a key: bytes go through
unread. Publish the port on the loopback alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
import time

PART_BYTES = 65536
TAKEN_WITHIN_S = 30.0
"""By whoever is sent a part."""
ACCEPTED_WITHIN_S = 10.0
"""By a console that many ask at once."""


async def reach(path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connects, waiting while the console's queue is full: asyncio would take a socket that isn't connected for one."""
    deadline = time.monotonic() + ACCEPTED_WITHIN_S
    while True:
        inner = socket.socket(socket.AF_UNIX)
        inner.setblocking(False)
        try:
            inner.connect(path)
            return await asyncio.open_unix_connection(sock=inner)
        except BlockingIOError:
            inner.close()
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.02)
        except OSError:
            inner.close()
            raise


async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copies one direction until its end."""
    with contextlib.suppress(ConnectionError):
        while part := await reader.read(PART_BYTES):
            writer.write(part)
            try:
                async with asyncio.timeout(TAKEN_WITHIN_S):
                    await writer.drain()
            except TimeoutError:
                writer.transport.abort()
                return
        if writer.can_write_eof():
            writer.write_eof()


async def serve(host: str, port: int, path: str) -> None:
    """Listens until SIGTERM; a connection is closed at once while the console is not there."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            inner_reader, inner_writer = await reach(path)
        except OSError:
            writer.close()
            return
        inwards = asyncio.create_task(carry(reader, inner_writer))
        await carry(inner_reader, writer)  # the console bounds how many there are, and closes those that say nothing
        inwards.cancel()
        for each in (writer, inner_writer):
            each.close()

    server = await asyncio.start_server(connected, host, port)
    loop, stopping = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    await stopping.wait()
    server.close()


if __name__ == "__main__":
    where, _, number = sys.argv[1].rpartition(":")
    asyncio.run(serve(where, int(number), sys.argv[2]))
