"""What is refused before any page sees it: other people's pages in the operator's browser, and strangers."""

from __future__ import annotations

import pytest
from set_clock import SetClock
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from dpswd.private_curator.console.door import COOKIE, HEADERS, MAX_FORM_BYTES, SIGN_IN, Door, origins_of
from dpswd.private_curator.console.sessions import IDLE_S, MAX_SESSIONS, SESSION_S, Sessions
from dpswd.shared.core.errors import SettingsError

ORIGIN = "http://127.0.0.1:8466"


@pytest.fixture
def clock():
    return SetClock(0.0)


@pytest.fixture
def tokens():
    return []


@pytest.fixture
def sessions(tokens, clock):
    return Sessions(tokens.append, clock=clock)


@pytest.fixture
def client(sessions):
    async def page(request: Request):
        return PlainTextResponse(f"seen {len(await request.body())}")

    door = Door(
        pages=Starlette(routes=[Route("/{path:path}", page, methods=["GET", "POST", "PUT"])]),
        sessions=sessions,
        origins=origins_of("127.0.0.1:8466"),
        unlocked=frozenset({SIGN_IN}),
        room={"/large": 10 * MAX_FORM_BYTES},
    )
    return TestClient(door, base_url=ORIGIN, follow_redirects=False)


@pytest.fixture
def signed_in(client, sessions, tokens):
    client.cookies.set(COOKIE, sessions.sign_in(tokens[-1]))
    return client


def test_without_a_session_nothing_is_seen_and_nothing_is_done(client):
    for path in ("/", "/runs/1", "/no/such/page", "/%2e%2e/etc/passwd"):
        looked = client.get(path)
        assert (looked.status_code, looked.headers["location"]) == (303, SIGN_IN)
    assert client.post("/freeze", headers={"Origin": ORIGIN}).status_code == 403
    client.cookies.set(COOKIE, "guessed")
    assert client.get("/").status_code == 303
    assert client.get(SIGN_IN).text == "seen 0"


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8466", "127.0.0.1", "127.0.0.1:80", "127.0.0.1.evil.example:8466", ""]
)
def test_a_name_that_was_made_to_lead_here_is_refused(signed_in, host):
    """DNS rebinding: the browser sends the attacker's name, and its cookies would count as the attacker's own."""
    for path in ("/", SIGN_IN):
        refused = signed_in.get(path, headers={"Host": host})
        assert refused.status_code == 421, host
        assert "seen" not in refused.text


@pytest.mark.parametrize("host", ["127.0.0.1:8466", "localhost:8466", "[::1]:8466"])
def test_each_spelling_of_the_loopback_is_accepted(signed_in, host):
    assert signed_in.get("/", headers={"Host": host}).status_code in (200, 303)  # a cookie belongs to one spelling
    assert signed_in.get(SIGN_IN, headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "null"},
        {"Origin": "http://evil.example"},
        {"Origin": "http://127.0.0.1:9999"},
        {"Origin": "https://127.0.0.1:8466"},
        {"Origin": ORIGIN, "Sec-Fetch-Site": "cross-site"},
        {"Origin": ORIGIN, "Sec-Fetch-Site": "same-site"},
    ],
)
def test_a_form_from_elsewhere_does_nothing(signed_in, headers):
    assert signed_in.post("/", headers=headers).status_code == 403


def test_a_form_of_its_own_is_taken(signed_in):
    assert signed_in.post("/", headers={"Origin": ORIGIN}).text == "seen 0"
    assert signed_in.post("/", headers={"Origin": ORIGIN, "Sec-Fetch-Site": "same-origin"}).text == "seen 0"


def test_a_foreign_page_can_neither_fetch_nor_embed(signed_in):
    assert signed_in.get("/", headers={"Origin": "http://evil.example"}).status_code == 403
    embedded = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}
    assert signed_in.get("/", headers=embedded).status_code == 403
    # A link from a mail opens the page; the cookie, SameSite=Strict, does not come with it.
    assert signed_in.get("/", headers={"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}).status_code == 200


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "GET\x00"])
def test_methods_that_no_form_has_are_refused(signed_in, method):
    assert signed_in.request(method, "/", headers={"Origin": ORIGIN}).status_code == 405


def test_a_request_is_no_larger_than_it_may_be(signed_in):
    headers = {"Origin": ORIGIN}
    assert signed_in.post("/", content=b"x" * MAX_FORM_BYTES, headers=headers).text == f"seen {MAX_FORM_BYTES}"
    assert signed_in.post("/", content=b"x" * (MAX_FORM_BYTES + 1), headers=headers).status_code == 413
    assert signed_in.post("/large", content=b"x" * (MAX_FORM_BYTES + 1), headers=headers).status_code == 200
    assert signed_in.post("/", headers=headers | {"Content-Length": "-1"}).status_code == 413

    def without_a_length():
        for _ in range(MAX_FORM_BYTES // 1024 + 2):
            yield b"x" * 1024

    with pytest.raises(Exception, match=r"^$"):  # ClientDisconnect: the page never sees a whole body
        signed_in.post("/", content=without_a_length(), headers=headers)


def test_every_reply_forbids_scripts_frames_and_copies(client, signed_in):
    replies = [client.get("/"), client.get("/", headers={"Host": "evil.example"}), client.request("PUT", "/")]
    client.cookies.clear()
    replies += [client.get("/"), client.get(SIGN_IN)]
    for reply in replies:
        assert {name: reply.headers[name] for name in HEADERS} == HEADERS
    policy = HEADERS["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "unsafe" not in policy
    assert "*" not in policy


def test_a_token_is_good_once_and_the_next_one_is_shown(sessions, tokens):
    first = tokens[-1]
    assert sessions.sign_in("") is None
    assert sessions.sign_in(first[:-1]) is None
    assert sessions.sign_in("naïve") is None
    assert len(tokens) == 1
    cookie = sessions.sign_in(first)
    assert sessions.of(cookie) is not None
    assert sessions.sign_in(first) is None
    assert len(tokens) == 2
    assert tokens[1] != first
    assert sessions.of(cookie).csrf not in (cookie, first)
    sessions.sign_out(cookie)
    assert sessions.of(cookie) is None


def test_a_session_ends_by_itself(sessions, tokens, clock):
    idle = sessions.sign_in(tokens[-1])
    clock.now = IDLE_S - 1
    assert sessions.of(idle) is not None
    clock.now += IDLE_S
    assert sessions.of(idle) is None
    busy, began = sessions.sign_in(tokens[-1]), clock.now
    while clock.now < began + SESSION_S - IDLE_S:
        clock.now += IDLE_S / 2
        assert sessions.of(busy) is not None
    clock.now = began + SESSION_S
    assert sessions.of(busy) is None


def test_what_a_page_asks_by_itself_keeps_no_session(signed_in, clock):
    clock.now = IDLE_S - 1
    assert signed_in.get("/changes?live=1").status_code == 200
    clock.now += 2
    assert signed_in.get("/changes?live=1").headers["location"] == SIGN_IN


def test_only_so_many_browsers_are_signed_in(sessions, tokens):
    cookies = [sessions.sign_in(tokens[-1]) for _ in range(MAX_SESSIONS + 1)]
    assert [sessions.of(cookie) is None for cookie in cookies] == [True] + [False] * MAX_SESSIONS


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example:80",
        "https://127.0.0.1:80",
        "http://127.0.0.1",
        "http://127.0.0.1:80/",
        "http://a@localhost:80",
        "localhost:80",
    ],
)
def test_no_origin_off_the_loopback_is_taken(origin):
    with pytest.raises(SettingsError, match="--origin is"):
        origins_of("127.0.0.1:8466", [origin])
    assert "http://localhost:9000" in origins_of("", ["http://localhost:9000"])
