"""Who signs in by a provider or a proxy, what each role may do, and what a forger does not get."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import ssl
import threading
import time
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
import uvicorn
from click.testing import CliRunner
from console_home import made_home_without_a_past
from real_browser import started

pytest.importorskip("authlib", reason="dpswd[oidc] is not installed")

from forging_provider import CLAIMS, FORGERIES, with_roles, write_settings

from dpswd.private_curator.books.operators import Operator
from dpswd.private_curator.cli.main import main
from dpswd.private_curator.console import server
from dpswd.private_curator.console.application import FLOW, LEAVE, console
from dpswd.private_curator.console.door import COOKIE, origins_of
from dpswd.private_curator.console.people import claimed
from dpswd.private_curator.operator import acts
from dpswd.private_curator.operator.record import Record
from dpswd.private_curator.storage.home_directory import HomeDirectory
from dpswd.shared.core.errors import SettingsError

ROLES = ("viewer", "operator", "second", "auditor")


@contextlib.contextmanager
def running(door, bound: socket.socket):
    serving = uvicorn.Server(server.configuration(door))
    thread = threading.Thread(target=serving.run, kwargs={"sockets": [bound]})
    thread.start()
    try:
        yield
    finally:
        serving.should_exit = True
        thread.join()


@contextlib.contextmanager
def serving_console(home: HomeDirectory):
    """Yields its origin, and the tokens that it shows."""
    listening, tokens = server.listen_on_loopback("127.0.0.1:0"), []
    door = console(home, origins=origins_of(listening.address), announce=tokens.append)
    with running(door, listening.socket):
        yield f"http://{listening.address}", tokens


class Browser(httpx.Client):
    """Keeps cookies and follows nothing by itself."""

    def __init__(self, origin: str, ca: Path) -> None:
        super().__init__(verify=ssl.create_default_context(cafile=ca), timeout=30)
        self.origin = origin

    def leave(self) -> httpx.Response:
        """To the provider, whose redirect back is not followed."""
        away = self.get(f"{self.origin}{LEAVE}")
        return away if away.status_code != 302 else self.get(away.headers["location"])

    def sign_in(self) -> httpx.Response:
        away = self.leave()
        return away if away.status_code != 302 else self.get(away.headers["location"])

    def act(self, path: str, **fields: object) -> httpx.Response:
        csrf = re.search(r'name="csrf" value="([^"]+)"', self.get(f"{self.origin}/history").text)
        data = {"csrf": csrf[1] if csrf else "", **{name: str(value) for name, value in fields.items()}}
        return self.post(f"{self.origin}{path}", data=data, headers={"Origin": self.origin})


@pytest.fixture(scope="module")
def home(tmp_path_factory, provider):
    made = made_home_without_a_past(tmp_path_factory.mktemp("home"))
    write_settings(made, provider.issuer, provider.folder / "ca.pem", 'role_claim = "realm_access.roles"')
    return HomeDirectory(made.path, operator="the console's machine")


@pytest.fixture(scope="module")
def origin(home):
    with serving_console(home) as (where, tokens):
        yield where
        assert tokens == []  # no second way in


@pytest.fixture
def browser(origin, provider):
    provider.forgery, provider.claims = "", dict(CLAIMS)
    with Browser(origin, provider.folder / "ca.pem") as made:
        yield made


def is_in(browser: Browser) -> bool:
    return browser.get(f"{browser.origin}/").status_code == 200


def test_who_signs_in_acts_under_their_own_number(browser, home):
    assert "Sign in with" in browser.get(f"{browser.origin}/sign-in").text
    entered = browser.sign_in()
    assert entered.status_code == 200
    assert 'content="0;url=/"' in entered.text
    cookie = next(each for each in entered.headers.get_list("set-cookie") if each.startswith(f"{COOKIE}="))
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= {part.strip() for part in cookie.split(";")}
    assert "Dr. Anna Weiss" in browser.get(f"{browser.origin}/").text
    assert browser.act("/freeze", reason="a look").status_code == 303
    assert browser.act("/unfreeze", reason="looked").status_code == 303
    last = home.read_ledger().entries[-1].payload["by"]
    assert last["subject"] == {"issuer": str(browser_issuer(home)), "sub": "7f3a", "name": "Dr. Anna Weiss"}
    assert "Dr. Anna Weiss (7f3a at https://localhost" in Record(home).history[-1].who
    assert browser.act("/sign-out").status_code == 303
    assert not is_in(browser)


def browser_issuer(home: HomeDirectory) -> str:
    return re.search(r'issuer = "([^"]+)"', home.settings.read_text())[1]


def test_a_real_browser_that_comes_back_from_another_site_is_in(browser, origin):
    """It keeps the session's strict cookie from whatever another site's page has begun."""
    with started("--ignore-certificate-errors") as chromium:
        chromium.get(f"{origin}/")
        chromium.find_element("partial link text", "Sign in with").click()
        deadline = time.monotonic() + 30
        while chromium.current_url != f"{origin}/" or "Overview" not in chromium.page_source:
            assert time.monotonic() < deadline, chromium.page_source
            time.sleep(0.1)
        assert "Dr. Anna Weiss" in chromium.page_source
        assert {each["name"]: each["sameSite"] for each in chromium.get_cookies()} == {COOKIE: "Strict"}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_what_the_provider_did_not_sign_for_this_sign_in_lets_nobody_in(home, provider, forgery):
    """A console of its own: what a provider publishes is read once."""
    provider.forgery, provider.claims = forgery, dict(CLAIMS)
    with serving_console(home) as (origin, _), Browser(origin, provider.folder / "ca.pem") as browser:
        refused = browser.sign_in()
        assert refused.status_code == 403, forgery
        assert COOKIE not in browser.cookies
        assert not is_in(browser)
        assert "another.example" not in refused.text
        provider.forgery = ""
        if forgery != "another issuer is published":
            browser.sign_in()
            assert is_in(browser)  # nothing but the forgery stood in the way


@pytest.mark.parametrize("roles", [None, [], ["offline_access"], "dpswd-operatorx", {"dpswd-operator": True}, 7])
def test_without_a_role_nobody_is_let_in(browser, provider, roles):
    provider.claims = {"sub": "7f3a", "realm_access": {} if roles is None else {"roles": roles}}
    refused = browser.sign_in()
    assert (refused.status_code, "no role here" in refused.text) == (403, True)
    assert not is_in(browser)


def test_a_state_a_code_and_a_browser_are_good_for_one_answer(browser, origin, provider):
    back = browser.leave().headers["location"]
    wrong = back.replace(parse_qs(urlsplit(back).query)["state"][0], "guessed")
    with Browser(origin, provider.folder / "ca.pem") as other:  # login CSRF: the victim's browser never left
        assert other.get(back).status_code == 403
        assert not is_in(other)
    assert browser.get(wrong).status_code == 403
    assert browser.get(back).status_code == 403  # the flow ended with the wrong answer
    back = browser.leave().headers["location"]
    flow = browser.cookies[FLOW]
    assert browser.get(back).status_code == 200
    first = browser.cookies[COOKIE]
    browser.cookies.set(FLOW, flow, domain="127.0.0.1", path="/sign-in")
    assert browser.get(back).status_code == 403  # replayed
    assert browser.cookies[COOKIE] == first
    assert browser.get(f"{origin}/sign-in/answer?error=access_denied&error_description=<b>").status_code == 403


def test_a_session_that_somebody_chose_before_is_nobodys(browser, origin):
    browser.cookies.set(COOKIE, "chosen-by-another", domain="127.0.0.1", path="/")
    browser.sign_in()
    chosen = [each.value for each in browser.cookies.jar if each.name == COOKIE]
    assert "chosen-by-another" not in [value for value in chosen if value != "chosen-by-another"]
    with httpx.Client(cookies={COOKIE: "chosen-by-another"}) as thief:
        assert thief.get(f"{origin}/").status_code == 303
    before = browser.cookies.get(COOKIE, domain="127.0.0.1")
    browser.sign_in()
    with httpx.Client(cookies={COOKIE: before}) as thief:  # an older session of this browser has ended too
        assert thief.get(f"{origin}/").status_code == 303


def test_nothing_in_an_address_leads_elsewhere(browser, origin, provider):
    for query in ("?next=https://evil.example", "?redirect_uri=https://evil.example", "?back=//evil.example"):
        away = browser.get(f"{origin}{LEAVE}{query}")
        target = urlsplit(away.headers["location"])
        assert f"{target.scheme}://{target.netloc}" == provider.issuer
        assert parse_qs(target.query)["redirect_uri"] == [f"{origin}/sign-in/answer"]
        assert "evil.example" not in away.headers["location"]
    back = browser.leave().headers["location"]
    assert "evil" not in browser.get(f"{back}&next=https://evil.example").text
    assert browser.get(f"{origin}{LEAVE}", headers={"Host": "evil.example"}).status_code == 421


def test_a_token_and_a_proxys_header_let_nobody_in_here(browser, origin):
    for token in ("", "guessed"):
        reply = browser.post(f"{origin}/sign-in", data={"token": token}, headers={"Origin": origin})
        assert reply.status_code == 403
    spoofed = {"X-Forwarded-User": "7f3a", "roles": "dpswd-operator"}
    assert browser.get(f"{origin}/", headers=spoofed).status_code == 303


MAY = {
    "viewer": set(),
    "auditor": {"/ledger/verify", "/report"},
    "second": {"/budget/extend", "/clients/approve", "/report/state"},
}
"""What each role may do; the operator does all of it, and everybody signs out."""


@pytest.mark.parametrize("role", ROLES)
def test_each_route_of_the_console_is_for_the_roles_that_the_page_names(browser, home, provider, role):
    with_roles(provider, role)
    browser.sign_in()
    door = console(home, origins=frozenset({browser.origin}), announce=print)
    posts, looks = set(), set()
    for route in door.pages.routes:
        path = route.path.replace("{number:entry}", "1").replace("{run_id}", "x").replace("{fingerprint}", "x")
        (posts if "POST" in route.methods else looks).add(path)
    assert len(posts) == 16
    assert len(looks) == 19
    for path in sorted(looks - {"/sign-in/leave", "/sign-in/answer"}):
        assert browser.get(f"{browser.origin}{path}").status_code in (200, 303, 404), path
    refused = set()
    for path in sorted(posts - {"/sign-in", "/sign-out"}):
        reply = browser.act(path)
        if reply.status_code == 403:
            assert f"the role {role} does not do this" in reply.text
            refused.add(path)
    assert refused == (set() if role == "operator" else posts - {"/sign-in", "/sign-out"} - MAY[role])
    assert browser.act("/sign-out").status_code == 303


def test_a_claim_is_named_by_its_own_name_or_by_the_way_to_it():
    claims = {"https://x.example/roles": ["a"], "resource_access": {"dpswd": {"roles": ["b"]}}, "roles": "c"}
    assert claimed(claims, "https://x.example/roles") == ["a"]
    assert claimed(claims, "resource_access.dpswd.roles") == ["b"]
    assert claimed(claims, "roles") == "c"
    assert claimed(claims, "resource_access.other.roles") is None
    assert claimed(claims, "roles.inner") is None


@pytest.fixture
def seconded(enrolled):
    """The same, with its console."""
    home, its = enrolled
    with serving_console(HomeDirectory(home.path, operator=its)) as (origin, _):
        yield home, origin


def test_two_different_people_extend_and_the_ledger_says_who_they_were(seconded, provider):
    home, origin = seconded
    ca = provider.folder / "ca.pem"
    extend = {"epsilon": 60, "reason": "a second study", "shown": "yes", "typed": "epsilon 60, delta 1e-05"}
    with Browser(origin, ca) as weiss, Browser(origin, ca) as braun:
        with_roles(provider, "operator", "second")
        weiss.sign_in()
        with_roles(provider, "second", sub="99ab", name="Dr. Braun")
        braun.sign_in()
        # Nobody proposes who only seconds, and nobody seconds themselves.
        assert "what another operator has noted" in braun.act("/budget/extend", **extend).text
        for _ in range(2):
            noted = weiss.act("/budget/extend", **extend)
            assert noted.headers["location"] == "/requests"
        assert "takes two operators" in weiss.get(f"{origin}/requests").text
        assert home.read_ledger().books.account.budget.epsilon == 50.0
        other = {**extend, "epsilon": 61, "typed": "epsilon 61, delta 1e-05"}
        assert "what another operator has noted" in braun.act("/budget/extend", **other).text
        done = braun.act("/budget/extend", **extend)
        assert done.headers.get("location") == "/budget", done.text
    assert home.read_ledger().books.account.budget.epsilon == 60.0
    said = Record(home).history[-1].who
    assert "Dr. Anna Weiss (7f3a at https://localhost" in said
    assert "seconded by Dr. Braun (99ab at https://localhost" in said
    assert acts.verify_ledger(home).ok
    shown = CliRunner().invoke(main, ["history", "--home", str(home.path), "--format", "json"]).output
    assert "99ab at https" in shown


def test_somebody_who_signed_in_and_somebody_with_a_credential_may_be_one_person(seconded, provider):
    home, origin = seconded
    extend = {"epsilon": 60, "reason": "a second study", "shown": "yes", "typed": "epsilon 60, delta 1e-05"}
    with Browser(origin, provider.folder / "ca.pem") as weiss:
        with_roles(provider, "operator")
        weiss.sign_in()
        weiss.act("/budget/extend", **extend)
    command = ["--credential", str(home.path.parent / "anna"), "budget", "--extend", "60", "--reason", "a second study"]
    shown = CliRunner().invoke(main, [*command, "--confirm", "epsilon 60, delta 1e-05", "--home", str(home.path)])
    assert shown.exit_code != 0
    assert home.read_ledger().books.account.budget.epsilon == 50.0


def test_a_console_speaks_for_its_own_issuer_and_not_for_itself(seconded, tmp_path):
    home, _ = seconded
    its = Operator.read(tmp_path / "console")
    elsewhere = {"issuer": "https://another.example", "sub": "1", "name": "x"}
    for acting in (its, replace(its, subject=elsewhere)):
        refused = pytest.raises(SettingsError, match="acts for those whom")
        with HomeDirectory(home.path, operator=acting).open_ledger() as books, refused:
            books.record_statement("person", "x")
    anna = replace(Operator.read(tmp_path / "anna"), subject={**elsewhere, "issuer": its.name})
    refused = pytest.raises(SettingsError, match="acts for those whom nobody")  # a person speaks for no provider
    with HomeDirectory(home.path, operator=anna).open_ledger() as books, refused:
        books.record_statement("person", "x")


# -- the same against a provider of others', in a process of its own ----------------------------------------------


@pytest.mark.parametrize("role", ROLES)
def test_a_provider_of_others_signs_each_role_in(published, tmp_path, role):
    issuer, ca = published
    home = made_home_without_a_past(tmp_path)
    (tmp_path / "secret").write_text("of this client\n")
    write_settings(home, issuer, ca, f'{role} = "ward-7"', f'client_secret_file = "{tmp_path}/secret"')
    with serving_console(home) as (origin, _), Browser(origin, ca) as browser:
        claims = {"name": "Dr. Berg", "roles": ["ward-7"]}
        assert browser.put(f"{issuer}/users/u{role}", json=claims).status_code == 204
        away = browser.get(f"{origin}{LEAVE}").headers["location"]
        back = browser.post(away, data={"sub": f"u{role}"}).headers["location"]
        assert browser.get(back).status_code == 200
        assert is_in(browser)
        assert (browser.act("/freeze", reason="a look").status_code == 303) is (role == "operator")
        browser.act("/sign-out")
        browser.put(f"{issuer}/users/u{role}", json={"name": "Dr. Berg", "roles": []})
        back = browser.post(browser.get(f"{origin}{LEAVE}").headers["location"], data={"sub": f"u{role}"})
        assert browser.get(back.headers["location"]).status_code == 403


# -- a proxy ------------------------------------------------------------------------------------------------------

PROXY = ('issuer = "https://gate.hospital.example"', 'proxy_header = "X-Remote-User"', 'role_claim = "X-Remote-Roles"')
BEHIND = "https://console.hospital.example"
WEISS = {"X-Remote-User": "weiss", "X-Remote-Roles": "staff, dpswd-operator", "Host": "console.hospital.example"}


@pytest.fixture
def behind(tmp_path):
    made = made_home_without_a_past(tmp_path)
    made.settings.write_text("\n".join([made.settings.read_text(), "[console]", *PROXY, ""]))
    path = tmp_path / "console.sock"
    listening = server.listen_on_socket(path)
    door = console(
        HomeDirectory(made.path, operator="gate"),
        origins=origins_of("", [BEHIND], by_tls=True),
        announce=print,
        on_socket=True,
    )
    with running(door, listening.socket):
        yield made, path


def over(path: Path, **more) -> httpx.Client:
    return httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url=BEHIND.replace("https", "http"), **more)


def test_a_proxy_is_believed_on_the_socket_for_each_request(behind):
    home, path = behind
    with over(path, headers=WEISS) as gate:
        entered = gate.get(LEAVE)
        assert entered.status_code == 200
        (cookie,) = (each for each in entered.headers.get_list("set-cookie") if each.startswith(f"{COOKIE}="))
        assert "Secure" in cookie
        held = {"Cookie": cookie.partition(";")[0]}
        page = gate.get("/", headers=held)
        assert page.status_code == 200
        form = {"csrf": re.search(r'name="csrf" value="([^"]+)"', page.text)[1], "reason": "a look"}
        assert gate.post("/freeze", data=form, headers={**held, "Origin": BEHIND}).status_code == 303
        # Another one's name, or role, or none, or two, beside the same cookie.
        for changed in ({"X-Remote-User": "braun"}, {"X-Remote-Roles": "dpswd-viewer"}, {"X-Remote-User": ""}):
            assert gate.get("/", headers={**held, **changed}).status_code == 303
        twice = [*WEISS.items(), ("X-Remote-User", "braun"), *held.items()]
        assert httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://x").get(
            "/", headers=twice
        ).status_code in (303, 421)
        assert gate.get(LEAVE, headers={"X-Remote-Roles": "staff"}).status_code == 403
    by = home.read_ledger().entries[-1].payload["by"]
    assert by["subject"] == {"issuer": "https://gate.hospital.example", "sub": "weiss", "name": "weiss"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user, whom the socket must not believe")
def test_another_user_at_the_socket_is_not_the_proxy(behind):
    _, path = behind
    for each in (path, *list(path.parents)[:-1]):
        each.chmod(0o777)
    child = os.fork()
    if child == 0:
        try:
            os.setuid(65534)
            with over(path, headers=WEISS) as gate:
                os._exit(0 if gate.get(LEAVE).status_code == 403 and gate.get("/").status_code == 303 else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_proxy_is_never_believed_on_tcp(tmp_path):
    made = made_home_without_a_past(tmp_path)
    made.settings.write_text("\n".join([made.settings.read_text(), "[console]", *PROXY, ""]))
    said = CliRunner().invoke(main, ["console", "--home", str(made.path), "--address", "127.0.0.1:0"])
    assert (said.exit_code, "on a Unix socket alone" in said.output) == (3, True)
    listening = server.listen_on_loopback("127.0.0.1:0")
    door = console(made, origins=origins_of(listening.address), announce=print, on_socket=True)  # whoever errs here
    with running(door, listening.socket), httpx.Client(headers=WEISS | {"Host": listening.address}) as browser:
        assert browser.get(f"http://{listening.address}{LEAVE}").status_code == 403
        assert browser.get(f"http://{listening.address}/").status_code == 303


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (('client_id = "x"',), "console.issuer"),
        (('issuer = "http://idp.example"',), "https"),
        ((*PROXY, 'client_id = "x"'), "beside one of"),
        (('issuer = "https://idp.example"', 'client_id = "x"', 'ca_file = "nowhere.pem"'), "cannot be used"),
        (('operator = ""',), "console.operator"),
    ],
)
def test_settings_that_cannot_work_are_refused_in_words(tmp_path, lines, said):
    made = made_home_without_a_past(tmp_path)
    made.settings.write_text("\n".join([made.settings.read_text(), "[console]", *lines, ""]))
    with pytest.raises(SettingsError, match=said):
        console(made, origins=frozenset(), announce=print, on_socket=True)
