"""Counts what crosses a socket, between a client and a curator that know nothing of it."""

from __future__ import annotations

import socket
import threading
from dataclasses import dataclass, field


@dataclass
class CountingProxy:
    """A TCP proxy to a curator that counts the bytes in both directions."""

    target: tuple[str, int]
    counted: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _listener: socket.socket = field(default_factory=lambda: socket.create_server(("127.0.0.1", 0)))

    def __enter__(self) -> CountingProxy:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    @property
    def address(self) -> str:
        return f"localhost:{self._listener.getsockname()[1]}"

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:  # closed
                return
            far = socket.create_connection(self.target)
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                with self._lock:
                    self.counted += len(data)
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:  # the other side has closed
            sink.close()
