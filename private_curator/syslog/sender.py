"""Tells a hospital's security team what stands in the ledger, and what was refused: RFC 5424 over TLS (RFC 5425).

The ledger and the book of refusals are the buffer: a file beside them says how far a receiver has acknowledged, so that
an outage, here or there, loses nothing. Each message arrives once or more. Syslog acknowledges nothing, but TLS does: a
receiver answers the end of a connection with its own (close_notify: RFC 5425, 4.4), once it has read all before.
So each batch has a connection, and counts only when its end was answered.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import ssl
import threading
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

from dpswd.private_curator.books.figures import ASKED_BY_CLIENTS, GO_WITH_A_CHARGE
from dpswd.private_curator.books.ledger import Ledger
from dpswd.private_curator.books.operators import who
from dpswd.private_curator.settings.groups import SyslogSettings
from dpswd.private_curator.settings.tree import CuratorSettings
from dpswd.private_curator.storage.asks import AskBook
from dpswd.private_curator.storage.home_directory import HomeDirectory
from dpswd.shared.core.errors import LedgerUnavailable, SettingsError
from dpswd.shared.core.ledger.receipts import SignedEntry
from dpswd.shared.files import write_private

CURSOR = "syslog.json"  # in the home: how far the receiver has acknowledged
EVERY_S = 1.0
BATCH = 500  # messages of one connection
_FACILITY = 13  # "log audit"
_WARNING, _NOTICE, _INFORMATIONAL = 4, 5, 6
_LONGEST = 500  # characters of a field: a run's parameters have their digest beside them
_PATIENCE_S = 10.0  # for each move of the receiver
_LONGEST_PAUSE_S = 60.0
_log = logging.getLogger(__name__)


class Sender:
    """Sends what is new, in a thread of its own.

    Args:
        settings: where to.
        home: the curator's directory.
        ledger: whose entries are told.
        asks: whose refusals are told.
        data_set: public name.

    Raises:
        SettingsError: a certificate cannot be read.
    """

    def __init__(self, settings: SyslogSettings, home: Path, ledger: Ledger, asks: AskBook, *, data_set: str) -> None:
        host, _, port = str(settings.address).rpartition(":")
        self._receiver = host.strip("[]"), int(port)
        self._tls = _tls(settings, home)
        self._cursor = home / CURSOR
        self._ledger, self._asks, self._data_set = ledger, asks, data_set
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="syslog", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Sends what is left, if the receiver takes it at once. Idempotent."""
        self._closing.set()
        self._thread.join()

    def send(self) -> int:
        """One batch of what was not acknowledged yet.

        Returns:
            How many messages were sent; with fewer than `BATCH` all is told.

        Raises:
            OSError: the receiver cannot be reached, or did not acknowledge; nothing counts as told.
            LedgerUnavailable: the ledger cannot be read now.
        """
        begun = self._cursor.exists()
        before: dict[str, Any] = json.loads(self._cursor.read_bytes()) if begun else {"entry": 0, "refused": {}}
        messages = [self._act(entry) for entry in islice(self._ledger.history(after=before["entry"]), BATCH)]
        entry = before["entry"] + len(messages)
        refused: dict[str, int] = {}
        for row in self._asks.refusals():
            key = "|".join((row.day, row.client, row.fingerprint, row.operation, row.reason, str(row.dry)))
            refused[key] = row.count
            if before["refused"].get(key, 0) < row.count:
                messages.append(self._message(_WARNING, "refused", row.last, vars(row)))
        if messages:
            self._deliver(messages)
            write_private(self._cursor, json.dumps({"entry": entry, "refused": refused}).encode())
        return len(messages)

    def _act(self, entry: SignedEntry) -> bytes:
        by_clients = entry.kind in ASKED_BY_CLIENTS | GO_WITH_A_CHARGE
        fields = dict(entry.payload) | ({"by": who(entry.payload["by"])} if "by" in entry.payload else {})
        fields |= {"entry": entry.seq, "hash": entry.hash}
        return self._message(_INFORMATIONAL if by_clients else _NOTICE, entry.kind, entry.time, fields)

    def _message(self, severity: int, kind: str, time: str, fields: dict[str, Any]) -> bytes:
        """A message of RFC 5424 with JSON as its text; of fields those that are plain and short."""
        plain = {k: v for k, v in fields.items() if isinstance(v, str | int | float) and len(str(v)) <= _LONGEST}
        text = json.dumps({"data_set": self._data_set, "kind": kind, **plain}, sort_keys=True)
        head = f"<{8 * _FACILITY + severity}>1 {time} {socket.gethostname()} dpswd {os.getpid()} {kind} -"
        return f"{head} {text}".encode("ascii")

    def _deliver(self, messages: list[bytes]) -> None:
        """Octet-counted frames, and the end of the connection, which the receiver answers.

        Through memory: `SSLSocket.unwrap` of Python 3.11.2 takes a connection that just ended for an answer.
        """
        frames = b"".join(b"%d %s" % (len(message), message) for message in messages)
        arriving, leaving = ssl.MemoryBIO(), ssl.MemoryBIO()
        channel = self._tls.wrap_bio(arriving, leaving, server_hostname=self._receiver[0])
        acts = [channel.unwrap, lambda: channel.write(frames), channel.do_handshake]
        with socket.create_connection(self._receiver, timeout=_PATIENCE_S) as connection:
            while acts:
                waits = False
                try:
                    acts[-1]()
                    acts.pop()
                except ssl.SSLWantReadError:
                    waits = True
                connection.sendall(leaving.read())
                if waits and not arriving.write(connection.recv(65536)):
                    raise ConnectionResetError("it ended the connection and acknowledged nothing")

    def _run(self) -> None:
        pause, closing = EVERY_S, False
        while not closing:
            closing = self._closing.wait(pause)
            try:
                while self.send() >= BATCH and not closing:
                    pass
            except (OSError, LedgerUnavailable) as error:
                if pause == EVERY_S:  # it has begun
                    _log.warning("%s:%d takes no audit messages: %s; they wait", *self._receiver, type(error).__name__)
                pause = min(2.0 * pause, _LONGEST_PAUSE_S)
            else:
                pause = EVERY_S


def keep_telling(settings: CuratorSettings, home: HomeDirectory, ledger: Ledger, until: ExitStack) -> None:
    """Starts the sender that these settings ask for, if they do; see `Sender`."""
    if settings.syslog.address is not None:
        sender = Sender(settings.syslog, home.path, ledger, home.asks, data_set=settings.records.name)
        until.callback(sender.close)


def _tls(settings: SyslogSettings, home: Path) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=settings.ca_file and home / settings.ca_file)
        if settings.certificate_file is not None:
            context.load_cert_chain(home / settings.certificate_file, settings.key_file and home / settings.key_file)
    except OSError as error:
        raise SettingsError(
            f"a file of syslog.ca_file, certificate_file or key_file is no PEM that can be read ({error.strerror}); "
            "name the authority of the receiver's certificate, and both files of the curator's own or none"
        ) from error
    return context
