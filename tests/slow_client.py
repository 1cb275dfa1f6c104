"""A client that behaves badly below gRPC: HTTP/2 frames by hand over mutual TLS (RFC 9113, RFC 7541).

No library of gRPC's lets a caller send half a request or leave a reply unread.
"""

from __future__ import annotations

import socket
import ssl
import struct
from pathlib import Path

from dpswd.shared.core.wire.v1 import curator_pb2 as pb

SERVICE = pb.DESCRIPTOR.services_by_name["CuratorService"].full_name
_DATA, _HEADERS, _SETTINGS = 0, 1, 4
_END_STREAM, _END_HEADERS, _ACK = 0x1, 0x4, 0x1
_INITIAL_WINDOW_SIZE = 4


class SlowClient:
    """One connection. A context manager.

    Args:
        address: host:port of a curator.
        credentials: directory with ca.crt, client.crt and client.key.
        window: bytes of a reply that the curator may send unasked.
    """

    def __init__(self, address: str, *, credentials: Path, window: int = 65_535) -> None:
        host, _, port = address.rpartition(":")
        context = ssl.create_default_context(cafile=credentials / "ca.crt")
        context.load_cert_chain(credentials / "client.crt", credentials / "client.key")
        context.set_alpn_protocols(["h2"])
        plain = socket.create_connection((host, int(port)), timeout=20)
        self._socket = context.wrap_socket(plain, server_hostname=host)
        self._authority = address
        self._next = 1
        self._socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        self._frame(_SETTINGS, 0, 0, struct.pack(">HI", _INITIAL_WINDOW_SIZE, window))
        self._frame(_SETTINGS, _ACK, 0)

    def __enter__(self) -> SlowClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def begin(self, operation: str, *, message_bytes: int | None = None) -> int:
        """Calls an RPC, and says how many bytes its request will have, or not even that; returns the stream."""
        stream, self._next = self._next, self._next + 2
        fields = {
            ":method": "POST",
            ":scheme": "https",
            ":path": f"/{SERVICE}/{operation}",
            ":authority": self._authority,
            "te": "trailers",
            "content-type": "application/grpc",
        }
        # RFC 7541, 6.2.2: literals that nobody indexes.
        literal = b"".join(
            b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
            for name, value in fields.items()
        )
        self._frame(_HEADERS, _END_HEADERS, stream, literal)
        if message_bytes is not None:
            self.send(stream, struct.pack(">BI", 0, message_bytes))
        return stream

    def send(self, stream: int, data: bytes) -> None:
        """Some bytes of a request."""
        self._frame(_DATA, 0, stream, data)

    def end(self, stream: int) -> None:
        """The request is complete."""
        self._frame(_DATA, _END_STREAM, stream)

    def _frame(self, kind: int, flags: int, stream: int, payload: bytes = b"") -> None:
        self._socket.sendall(struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload)
