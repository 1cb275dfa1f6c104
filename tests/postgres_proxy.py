"""A network between a curator and its PostgreSQL, which a test cuts and mends."""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path


class Network:
    """A socket like PostgreSQL's own, in a directory of the test's; ends with `close`.

    Args:
        directory: where the socket is made; short, as sockets' paths are.
        server: the socket of a server; may be another one from any moment on.
    """

    def __init__(self, directory: Path, server: Path) -> None:
        self.directory, self.server = directory, server
        self._near = socket.socket(socket.AF_UNIX)
        self._near.bind(str(directory / server.name))
        self._near.listen()
        self._whole = threading.Event()
        self._whole.set()
        self._open: set[socket.socket] = set()
        self._guard = threading.Lock()
        threading.Thread(target=self._serve, daemon=True).start()

    def cut(self) -> None:
        """Every connection breaks, and no new one comes about."""
        self._whole.clear()
        with self._guard:
            broken, self._open = self._open, set()
        for one in broken:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def hold(self) -> None:
        """Nothing arrives any more, and nobody is told: what is sent waits until `mend`."""
        self._whole.clear()

    def mend(self) -> None:
        self._whole.set()

    def close(self) -> None:
        self.cut()
        self._whole.set()
        with contextlib.suppress(OSError):
            self._near.shutdown(socket.SHUT_RDWR)
        self._near.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._near.accept()
                threading.Thread(target=self._connected, args=(client,), daemon=True).start()

    def _connected(self, client: socket.socket) -> None:
        self._whole.wait()
        server = socket.socket(socket.AF_UNIX)
        try:
            server.connect(str(self.server))
        except OSError:
            client.close()
            return
        with self._guard:
            self._open |= {client, server}
        for pair in ((client, server), (server, client)):
            threading.Thread(target=self._pump, args=pair, daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                while not self._whole.wait(timeout=0.05):
                    with self._guard:
                        if source not in self._open:  # cut meanwhile: what was under way is lost
                            return
                target.sendall(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
