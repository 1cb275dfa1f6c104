"""The process around the pages: where it listens, and what a socket gets that speaks no browser's HTTP."""

from __future__ import annotations

import contextlib
import re
import socket
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import uvicorn
from console_home import made_home_without_a_past
from free_ports import own_port

from dpswd.private_curator.console import server
from dpswd.private_curator.console.application import console
from dpswd.private_curator.console.door import origins_of
from dpswd.private_curator.core.ledger.statements import DataSetState
from dpswd.shared.core.errors import SettingsError

DOOR = Path(__file__).resolve().parents[4] / "deploy" / "images" / "console_door.py"


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return made_home_without_a_past(tmp_path_factory.mktemp("home"))


@contextlib.contextmanager
def serving(home, listening, announce=lambda _: None):
    """The console as the command serves it, in a thread."""
    origins = origins_of(listening.address, ["http://localhost:8466"])
    running = uvicorn.Server(server.configuration(console(home, origins=origins, announce=announce)))
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listening.socket]})
    thread.start()
    try:
        yield
    finally:
        running.should_exit = True
        thread.join()


def answered(where: socket.socket, request: str) -> str:
    with where:
        where.settimeout(60)
        where.sendall(request.encode("latin-1"))
        parts = []
        with contextlib.suppress(ConnectionError):
            while part := where.recv(65536):
                parts.append(part)
    return b"".join(parts).decode("latin-1")


def test_what_speaks_no_browsers_http_gets_nothing(home):
    listening = server.listen_on_loopback("127.0.0.1:0")
    host, port = listening.address.split(":")
    with serving(home, listening):

        def ask(line: str, *headers: str) -> str:
            own = headers or (f"Host: {listening.address}",)
            text = "\r\n".join([line, *own, "Connection: close", "", ""])
            return answered(socket.create_connection((host, int(port))), text)

        assert ask("GET /sign-in HTTP/1.1").startswith("HTTP/1.1 200")
        assert "server:" not in ask("GET /sign-in HTTP/1.1").lower()
        for target in (
            "/../../../../etc/passwd",
            "/console.css/../../../ledger.key",
            "//evil.example/clients/",
            "/%2e%2e/x",
        ):
            reply = ask(f"GET {target} HTTP/1.1")
            assert reply.startswith("HTTP/1.1 303"), target
            assert "location: /sign-in\r\n" in reply
        for refused in (
            ask("GET http://evil.example/ HTTP/1.1", "Host: evil.example"),
            ask("GET / HTTP/1.1", "Host: evil.example"),
            ask("GET / HTTP/1.1", f"Host: {listening.address}", "Host: evil.example"),
            ask("GET / HTTP/1.0", "X: y"),
            ask("GET / HTTP/1.1", f"Host: {listening.address}", f"Cookie: {'x' * 200_000}"),
            ask("TRACE / HTTP/1.1"),
            ask("GET / HTTP/1.1\r\nHost : x"),
            ask("nonsense"),
        ):
            assert re.match(r"HTTP/1.1 4\d\d", refused), refused
        upgraded = ask(
            "GET / HTTP/1.1", f"Host: {listening.address}", "Upgrade: websocket", "Connection: Upgrade",
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version: 13",
        )  # fmt: skip
        assert " 101 " not in upgraded


HALF = "GET /sign-in HTTP/1.1\r\nHost: {host}\r\nX-Slow: "
HALF_A_FORM = "POST /sign-in HTTP/1.1\r\nHost: {host}\r\nOrigin: http://{host}\r\nContent-Length: 60000\r\n\r\ntoken="
UNREAD = "GET /sign-in HTTP/1.1\r\nHost: {host}\r\n\r\n" * 50
SILENCE = ""


@contextlib.contextmanager
def besieged(address: str, saying: str, *, by: int, trickle: str = ""):
    """So many connections that say a part and wait; whichever is closed comes again at once."""
    host, port = address.split(":")
    over = threading.Event()
    there: list[int] = []

    def attack() -> None:
        held: list[socket.socket] = []
        while not over.is_set():
            while len(held) < by:
                where = socket.create_connection((host, int(port)))
                where.settimeout(0)
                with contextlib.suppress(OSError):
                    where.send(saying.format(host=address).encode())
                held.append(where)
            there.append(len(held))
            for where in list(held):
                try:
                    if trickle:
                        where.send(trickle.encode())
                    ended = saying != UNREAD and where.recv(65536) == b""
                except BlockingIOError:
                    ended = False
                except OSError:
                    ended = True
                if ended:
                    held.remove(where)
                    where.close()
            time.sleep(0.01)
        for where in held:
            where.close()

    attacker = threading.Thread(target=attack)
    attacker.start()
    try:
        while not there:
            time.sleep(0.01)
        yield
    finally:
        over.set()
        attacker.join()


@pytest.mark.parametrize(
    ("saying", "trickle", "by"),
    [(HALF, "", 40), (HALF, "x", 40), (HALF_A_FORM, "", 40), (UNREAD, "", 40), (SILENCE, "", 40), (HALF, "", 300)],
    ids=[
        "half a head",
        "a head by and by",
        "half a form",
        "answers not read",
        "silence",
        "more than there is room for",
    ],
)
def test_nobody_who_has_not_signed_in_keeps_the_operator_from_freezing(tmp_path, saying, trickle, by):
    home = made_home_without_a_past(tmp_path)
    tokens: list[str] = []
    listening = server.listen_on_loopback("127.0.0.1:0")
    host = listening.address

    def ask(method: str, path: str, *headers: str, form: str = "") -> str:
        lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", f"Origin: http://{host}", "Connection: close", *headers]
        kind = ["Content-Type: application/x-www-form-urlencoded", f"Content-Length: {len(form)}"] if form else []
        name, _, port = host.rpartition(":")
        return answered(socket.create_connection((name, int(port))), "\r\n".join([*lines, *kind, "", form]))

    with serving(home, listening, tokens.append), besieged(host, saying, by=by, trickle=trickle):
        for _ in range(2):
            signed = ask("POST", "/sign-in", form=f"token={tokens[-1]}")
            assert signed.startswith("HTTP/1.1 303"), signed
            cookie = "Cookie: " + re.search(r"set-cookie: ([^;]+)", signed)[1]
            csrf = re.search(r'name="csrf" value="([^"]+)"', ask("GET", "/", cookie))[1]
            act = "unfreeze" if home.read_ledger().books.state is DataSetState.FROZEN else "freeze"
            assert ask("POST", f"/{act}", cookie, form=f"csrf={csrf}&reason=besieged").startswith("HTTP/1.1 303")
            assert home.read_ledger().books.state is (DataSetState.OPEN if act == "unfreeze" else DataSetState.FROZEN)


def test_who_sends_half_a_head_is_not_waited_for(home, monkeypatch):
    monkeypatch.setattr(server, "WAIT_S", 0.2)
    listening = server.listen_on_loopback("127.0.0.1:0")
    host, port = listening.address.split(":")
    whole = f"GET /console.css HTTP/1.1\r\nHost: {listening.address}\r\n\r\n"
    with serving(home, listening):
        for said in (SILENCE, HALF, HALF_A_FORM, whole, whole + HALF):
            assert isinstance(answered(socket.create_connection((host, int(port))), said.format(host=host)), str)


def test_whoever_has_been_silent_longest_makes_room(home, monkeypatch):
    """However long the console would wait for them, and however many there are: each takes one of its descriptors."""
    monkeypatch.setattr(server, "WAIT_S", 600.0)
    monkeypatch.setattr(server, "MOST_CONNECTIONS", 8)
    listening = server.listen_on_loopback("127.0.0.1:0")
    host, port = listening.address.split(":")
    with serving(home, listening), contextlib.ExitStack() as stack:
        silent = []
        for said in (SILENCE, HALF) * 6:
            silent.append(stack.enter_context(socket.create_connection((host, int(port)), timeout=60)))
            silent[-1].sendall(said.format(host=listening.address).encode())
        for oldest in silent[:4]:
            with contextlib.suppress(ConnectionError):
                assert oldest.recv(1) == b""
        asked = answered(socket.create_connection((host, int(port))), whole_of(listening))
        assert asked.startswith("HTTP/1.1 200")
        for newest in silent[-6:]:
            newest.settimeout(0)
            with pytest.raises(BlockingIOError):
                newest.recv(1)


def test_a_request_has_one_length(home):
    listening = server.listen_on_loopback("127.0.0.1:0")
    host, port = listening.address.split(":")
    head = f"POST /sign-in HTTP/1.1\r\nHost: {listening.address}\r\nOrigin: http://{listening.address}\r\n"
    chunks = "7\r\ntoken=x\r\n0\r\n\r\n"
    with serving(home, listening):
        for lengths in (
            "Content-Length: 7\r\nTransfer-Encoding: chunked\r\n\r\n",
            "transfer-encoding: chunked\r\ncontent-length: 22\r\n\r\n",
            f"Content-Length: {'9' * 5000}\r\n\r\n",
        ):
            reply = answered(socket.create_connection((host, int(port))), head + lengths + chunks + whole_of(listening))
            assert re.match(r"HTTP/1.1 4(00|13) ", reply), reply
            assert reply.count("HTTP/1.1") == 1  # what stands behind it is no request


def whole_of(listening) -> str:
    return f"GET /console.css HTTP/1.1\r\nHost: {listening.address}\r\nConnection: close\r\n\r\n"


def answers(path):
    with socket.socket(socket.AF_UNIX) as trying:
        return trying.connect_ex(str(path)) == 0


def test_a_unix_socket_is_its_owners_alone(home, tmp_path):
    path = tmp_path / "console.sock"
    listening = server.listen_on_socket(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    with serving(home, listening):
        asked = socket.socket(socket.AF_UNIX)
        asked.connect(str(path))
        assert "200 OK" in answered(asked, "GET /sign-in HTTP/1.1\r\nHost: localhost:8466\r\nConnection: close\r\n\r\n")
        with pytest.raises(SettingsError, match="stop what listens there"):
            server.listen_on_socket(path)
    while answers(path):  # a program that another thread is starting holds all that is open for a moment
        time.sleep(0.01)
    server.listen_on_socket(path).socket.close()  # a socket that nobody listens on is replaced
    file = tmp_path / "a-file"
    file.write_text("kept")
    with pytest.raises(SettingsError, match="cannot be made"):
        server.listen_on_socket(file)
    assert file.read_text() == "kept"


def test_the_door_of_the_containers_carries_bytes_to_the_socket(home, tmp_path):
    """The program that docker-compose.yml publishes; it waits for a console that is not there yet."""
    path, port = tmp_path / "console.sock", own_port()
    door = subprocess.Popen([sys.executable, str(DOOR), f"127.0.0.1:{port}", str(path)])

    def ask() -> str:
        return answered(reached(port), "GET /sign-in HTTP/1.1\r\nHost: localhost:8466\r\nConnection: close\r\n\r\n")

    try:
        assert ask() == ""
        with serving(home, server.listen_on_socket(path)):
            assert ask().startswith("HTTP/1.1 200 OK")
            with besieged(f"127.0.0.1:{port}", HALF, by=100):
                assert ask().startswith("HTTP/1.1 200 OK")
            # Another port than the console knows itself by: whoever publishes it elsewhere must say so with --origin.
            where = socket.create_connection(("127.0.0.1", port))
            assert " 421 " in answered(where, f"GET / HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close\r\n\r\n")
    finally:
        door.terminate()
        assert door.wait(timeout=60) == 0


def test_the_door_waits_for_a_console_whose_queue_is_full(tmp_path):
    path, port = tmp_path / "console.sock", own_port()
    with socket.socket(socket.AF_UNIX) as busy:
        busy.bind(str(path))
        busy.listen(1)
        busy.settimeout(20)
        door = subprocess.Popen([sys.executable, str(DOOR), f"127.0.0.1:{port}", str(path)])
        try:
            asked = [reached(port) for _ in range(12)]  # the system holds two or three that nobody takes
            for where in asked:
                where.sendall(b"asked")
            time.sleep(0.5)  # the door has met the full queue
            for _ in asked:
                taken, _ = busy.accept()
                with taken:
                    assert taken.recv(5) == b"asked"
                    taken.sendall(b"heard")
            for where in asked:
                with where:
                    assert where.recv(5) == b"heard"
        finally:
            door.terminate()
            assert door.wait(timeout=60) == 0


def reached(port: int) -> socket.socket:
    """A connection to the door, as soon as it listens."""
    deadline = time.monotonic() + 20
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=20)
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.02)


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0:8466",
        "[::]:8466",
        "192.0.2.1:80",
        "hospital.example:80",
        "127.0.0.1",
        "127.0.0.1:x",
        ":80",
        "127.0.0.1:70000",
    ],
)
def test_it_listens_nowhere_but_on_the_loopback(address):
    with pytest.raises(SettingsError, match="loopback alone"):
        server.listen_on_loopback(address)
