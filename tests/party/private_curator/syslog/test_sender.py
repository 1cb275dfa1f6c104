"""Whoever listens is told every entry and every refusal, whatever ends in between: the listener, or the curator."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import ssl
import threading
import time

import numpy as np
import pytest
import torch
from declarations import quantiles
from made_home import made_home
from raw_client import RawClient
from serving_here import serving
from torch import nn

from dpswd.private_curator.settings.groups import SyslogSettings
from dpswd.private_curator.storage.certificates import CA_CERTIFICATE, SERVER_CERTIFICATE, SERVER_KEY
from dpswd.private_curator.storage.home_directory import HomeDirectory
from dpswd.private_curator.syslog import sender
from dpswd.private_curator.syslog.sender import CURSOR, Sender
from dpswd.shared.core import errors
from dpswd.shared.core.errors import SettingsError
from dpswd.shared.core.wire.messages import RunParameters

CANARY = 7.734375  # in every record, and in no message
RECORDS = np.random.default_rng(4).normal(size=(60, 5)).astype(np.float32)
RECORDS[:, 0] = CANARY
RFC_5424 = re.compile(
    r"<(\d{1,3})>1 (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,6})?Z) [!-~]{1,255} dpswd \d+ ([!-~]{1,32}) - (\{.*\})"
)


class Listener:
    """A receiver of RFC 5425, with the curator's own certificate.

    Args:
        home: whose certificates it shows.
        acknowledges: whether it answers the end of a connection.
        port: to listen on; 0 takes a free one.
    """

    def __init__(self, home: HomeDirectory, *, acknowledges: bool = True, port: int = 0) -> None:
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(home.certificates / SERVER_CERTIFICATE, home.certificates / SERVER_KEY)
        self._acknowledges = acknowledges
        self.received: list[tuple[int, str, dict]] = []
        self.raw = b""
        self._socket = socket.create_server(("127.0.0.1", port))
        self.port = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()

    def wait_for(self, what) -> None:
        deadline = time.monotonic() + 60
        while not what(self.received):
            assert time.monotonic() < deadline, self.received
            time.sleep(0.05)

    def entries(self) -> list[int]:
        return [message["entry"] for _, _, message in self.received if "entry" in message]

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                raw, _ = self._socket.accept()
                raw.settimeout(30)
                with contextlib.suppress(OSError), self._tls.wrap_socket(raw, server_side=True) as channel:
                    self._read(channel)

    def _read(self, channel: ssl.SSLSocket) -> None:
        data = b""
        while part := channel.recv(65536):
            data += part
        self.raw += data
        while data:
            length, _, rest = data.partition(b" ")
            message, data = rest[: int(length)].decode("ascii"), rest[int(length) :]
            priority, _, kind, text = RFC_5424.fullmatch(message).groups()
            self.received.append((int(priority), kind, json.loads(text)))
        if self._acknowledges:
            channel.unwrap()


@pytest.fixture
def home(tmp_path):
    return made_home(tmp_path, RECORDS, epsilon=5.0, clients={"ml-team": "team"})


def collector(port):
    return {"syslog.address": f"localhost:{port}", "syslog.ca_file": f"certificates/{CA_CERTIFICATE}"}


def kinds(listener):
    return [kind for _, kind, _ in listener.received]


def release(address, credentials):
    """One run of one step, and a run that is refused."""
    torch.manual_seed(1)
    with RawClient(address, credentials=credentials) as client:
        uploaded = client.upload(nn.Linear(5, 4))

        def declared(sigma):
            name, own = quantiles(2, sigma, directions=10)
            return RunParameters(**uploaded, mechanism=name, declaration=own.to_bytes(), batch_size=60, steps=1)

        client.step(client.open_run(declared(40.0)).run_id)
        with pytest.raises(errors.BudgetExhausted):
            client.open_run(declared(0.01))


def test_nothing_is_lost_while_the_listener_or_the_curator_is_away(home, tmp_path):
    listener = Listener(home)
    with serving(home, **collector(listener.port)) as address:
        release(address, tmp_path / "team")
        listener.wait_for(lambda _: {"step-answered", "refused"} <= set(kinds(listener)))
        listener.close()
        release(address, tmp_path / "team")  # nobody hears
        with HomeDirectory(home.path, operator="anna").open_ledger() as ledger:
            ledger.freeze(reason="an inquiry")
        again = Listener(home, port=listener.port)
        again.wait_for(lambda _: "frozen" in kinds(again))
        again.close()
    with HomeDirectory(home.path, operator="anna").open_ledger() as ledger:
        ledger.unfreeze(reason="it is over")  # while the curator is away
        last = ledger.head().seq
    third = Listener(home, port=listener.port)
    with serving(home, **collector(listener.port)):
        third.wait_for(lambda _: last in third.entries())
    third.close()
    every = listener.received + again.received + third.received
    entries = [message["entry"] for _, _, message in every if "entry" in message]
    assert set(entries) == set(range(1, last + 1))
    assert third.entries()[0] > again.entries()[0] > listener.entries()[0]  # what was acknowledged is not told again
    refused = [message for _, kind, message in every if kind == "refused"]
    assert max(message["count"] for message in refused) == 2
    assert refused[0]["reason"] == "BUDGET_EXHAUSTED"
    assert refused[0]["client"] == "ml-team"
    (frozen,) = [message for _, kind, message in again.received if kind == "frozen"]
    assert (frozen["by"], frozen["reason"], frozen["data_set"]) == ("anna", "an inquiry", "records")
    severities = {kind: priority - 13 * 8 for priority, kind, _ in every}
    assert (severities["refused"], severities["frozen"], severities["step-answered"]) == (4, 5, 6)
    raw = listener.raw + again.raw + third.raw
    assert str(CANARY).encode() not in raw
    names = {name for _, _, message in every for name in message}
    assert {"digest", "reply", "audit"} <= names  # SHA-256 of each


def test_what_is_not_acknowledged_is_sent_again(home, monkeypatch):
    """A listener that ends connections without a word may have read nothing."""
    monkeypatch.setattr(sender, "EVERY_S", 0.05)
    deaf = Listener(home, acknowledges=False)
    with serving(home, **collector(deaf.port)):
        deaf.wait_for(lambda _: deaf.entries().count(1) > 1)
        assert not (home.path / CURSOR).exists()
        deaf.close()
        good = Listener(home, port=deaf.port)
        good.wait_for(lambda _: good.entries())
    good.close()
    assert good.entries()[0] == 1
    assert json.loads((home.path / CURSOR).read_bytes())["entry"] == good.entries()[-1]
    assert (home.path / CURSOR).stat().st_mode & 0o777 == 0o600


def test_whoever_cannot_show_the_right_certificate_gets_nothing(home, tmp_path, caplog):
    (tmp_path / "other").mkdir()
    foreign = Listener(made_home(tmp_path / "other", RECORDS))
    with serving(home, **collector(foreign.port)):
        deadline = time.monotonic() + 60
        while "takes no audit messages" not in caplog.text:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    foreign.close()
    assert not foreign.received
    assert "SSLCertVerificationError" in caplog.text


def test_a_certificate_that_is_none_is_refused_at_the_start(home):
    settings = SyslogSettings(address="localhost:6514", ca_file="nowhere.pem")
    with home.open_ledger() as ledger, pytest.raises(SettingsError, match=r"syslog\.ca_file"):
        Sender(settings, home.path, ledger, home.asks, data_set="records")
