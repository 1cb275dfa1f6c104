"""Messages between the curator and a worker: JSON of a bounded length, with open files beside it.

The curator reads a worker's messages as it reads a client's: a worker that was taken over must not be able to do more
than to answer wrongly.
"""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

MAX_MESSAGE_BYTES = 1 << 20  # names of adapted parameters are the longest content
_LENGTH = struct.Struct("<I")
_MAX_FILES = 2


class ChannelClosed(Exception):
    """The other side has ended, or does not speak this protocol."""


def send(channel: socket.socket, message: dict[str, Any], files: tuple[int, ...] = ()) -> None:
    """Sends one message.

    Raises:
        ChannelClosed: the other side is gone.
        TimeoutError: the channel's time is over.
    """
    data = json.dumps(message, separators=(",", ":")).encode()
    if len(data) > MAX_MESSAGE_BYTES:
        raise ValueError(f"a message of {len(data)} bytes; at most {MAX_MESSAGE_BYTES} are sent")
    try:
        if files:
            socket.send_fds(channel, [_LENGTH.pack(len(data))], files)
        else:
            channel.sendall(_LENGTH.pack(len(data)))
        channel.sendall(data)
    except TimeoutError:
        raise
    except OSError as error:
        raise ChannelClosed(f"the other side is gone: {error.strerror}") from error


def receive(channel: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Waits for one message and returns it with the files that came along; the caller closes them.

    Raises:
        ChannelClosed: the other side is gone, or sent something else than a message.
        TimeoutError: the channel's time is over.
    """
    try:
        head, files, _, _ = socket.recv_fds(channel, _LENGTH.size, _MAX_FILES)
        head += _exactly(channel, _LENGTH.size - len(head)) if head else b""
        if len(head) < _LENGTH.size:
            raise ChannelClosed("the other side has closed the channel")
        (length,) = _LENGTH.unpack(head)
        if length > MAX_MESSAGE_BYTES:
            raise ChannelClosed("the other side sent a message that is too long")
        message = json.loads(_exactly(channel, length))
    except TimeoutError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise ChannelClosed(f"the other side is gone, or sent no message ({type(error).__name__})") from error
    if not isinstance(message, dict):
        raise ChannelClosed("the other side sent something else than a message")
    return message, list(files)


def _exactly(channel: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        part = channel.recv(min(1 << 16, count - len(parts)))
        if not part:
            raise ChannelClosed("the other side has closed the channel")
        parts += part
    return bytes(parts)
