"""The pages and acts over a real home with a past, asked as a browser would, and attacked."""

from __future__ import annotations

import io
import itertools
import json
import logging
import re
import zipfile
from html.parser import HTMLParser

import pytest
from click.testing import CliRunner
from console_home import OPENED, PURPOSES, SCRIPT, home_with_a_past
from cryptography import x509
from made_home import copied_home
from starlette.routing import Route
from starlette.testclient import TestClient

from dpswd.private_curator.books.figures import Decision
from dpswd.private_curator.books.operators import Operator
from dpswd.private_curator.cli.main import main
from dpswd.private_curator.console.application import console
from dpswd.private_curator.console.door import origins_of
from dpswd.private_curator.console.rendering import _PAGES, PLACES, linked, plain
from dpswd.private_curator.operator.record import Record
from dpswd.private_curator.operator.report import check_report
from dpswd.private_curator.storage.asks import Ask
from dpswd.private_curator.storage.home_directory import HomeDirectory
from dpswd.public_client.curator.identity import make_identity
from dpswd.shared.certificates import request_fingerprint
from dpswd.shared.core.errors import rounded
from dpswd.shared.core.privacy.budget import PrivacyBudget
from dpswd.shared.protocol.publications import MAX_FILE_BYTES, Publication

ORIGIN = "http://127.0.0.1:8466"
OWN = {"Origin": ORIGIN}
OPERATOR = "Dr. Weiss"
OURS = '<script src="/console.js" defer></script>'


@pytest.fixture(scope="module")
def past(tmp_path_factory):
    return home_with_a_past(tmp_path_factory.mktemp("past"))


@pytest.fixture
def home(past, tmp_path):
    """A copy of its own for a test that acts."""
    return copied_home(past, tmp_path / "home", operator=OPERATOR)


def browser(home: HomeDirectory) -> TestClient:
    """A signed-in browser that does not follow where it is sent."""
    tokens: list[str] = []
    made = console(home, origins=origins_of("127.0.0.1:8466"), announce=tokens.append)
    client = TestClient(made, base_url=ORIGIN, follow_redirects=False, raise_server_exceptions=False)
    assert 'value="' + tokens[0] in client.get(f"/sign-in?token={tokens[0]}").text
    signed = client.post("/sign-in", data={"token": tokens[0]}, headers=OWN)
    assert (signed.status_code, signed.headers["location"]) == (303, "/")
    return client


@pytest.fixture(scope="module")
def looking(past):
    return browser(past)


def csrf(client: TestClient) -> str:
    return re.search(r'name="csrf" value="([^"]+)"', client.get("/").text)[1]


def send(client: TestClient, path: str, /, **fields: str):
    return client.post(path, data={"csrf": csrf(client), **fields}, headers=OWN)


class Outline(HTMLParser):
    """What a screen reader finds."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def all(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.tags if tag == name]


def every_page(past) -> list[str]:
    run = past.read_ledger().runs[1].run_id
    return [*(path for path, _ in PLACES), f"/runs/{run}", "/history?kind=refusal", "/runs?client=ml-team", "/no-page"]


def test_the_cookie_is_for_this_site_alone(past):
    tokens: list[str] = []
    client = TestClient(console(past, origins=origins_of("127.0.0.1:8466"), announce=tokens.append), base_url=ORIGIN)
    client.follow_redirects = False
    assert client.post("/sign-in", data={"token": "x"}, headers=OWN).status_code == 403
    assert client.post("/sign-in", data={"token": tokens[0]}).status_code == 403  # no Origin
    cookie = client.post("/sign-in", data={"token": tokens[0]}, headers=OWN).headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert "Max-Age=28800" in cookie
    assert client.post("/sign-in", data={"token": tokens[0]}, headers=OWN).status_code == 403
    assert send(client, "/sign-out").status_code == 303
    assert client.get("/").headers["location"] == "/sign-in"


def test_every_page_shows_what_the_record_says(past, looking):
    record = Record(past)
    overview, health = record.overview, record.health
    assert overview.promise in looking.get("/").text.replace("&#39;", "'")
    for figure in ("1.", f"of {overview.epsilon:g}", f"{overview.records:,}", "budget extended to 3", "leaves epsilon"):
        assert figure in looking.get("/").text
    clients = looking.get("/clients").text
    for client in record.clients:
        assert client.name in clients
        assert client.certificates[0].fingerprint in clients
    runs = looking.get("/runs").text
    assert all(f"/runs/{run.run_id}" in runs for run in record.runs)
    mine = looking.get("/runs?client=audit-group").text
    assert [run.run_id in mine for run in record.runs] == [run.client == "audit-group" for run in record.runs]
    last = record.runs[-1]
    page = looking.get(f"/runs/{last.run_id}").text
    assert last.release in page
    assert last.noise in page
    assert last.graph in page
    assert looking.get(f"/runs/{last.run_id}/receipt.json").text == f"{last.receipt}\n"
    assert health.head in looking.get("/ledger").text
    assert health.public_key in looking.get("/ledger").text
    history = looking.get("/history").text
    assert len(re.findall('<tr role="row"><td', history)) == len(record.history)
    assert "second study, approved, minute 13" in history
    refusals = looking.get("/history?kind=refusal").text
    assert "BUDGET_EXHAUSTED" in refusals
    assert "minute 13" not in refusals
    after = max(event.time[:10] for event in record.history)
    assert "extended the budget" not in looking.get(f"/history?since={after}").text


def test_a_cost_is_one_figure_wherever_it_is_shown(past, looking):
    """Alone, and what it adds to the data set: in the commands and on the pages, rounded alike."""

    def read(*words: str) -> str:
        return CliRunner().invoke(main, list(words), env={"DPSWD_CURATOR_HOME": str(past.path)}).output

    rows, budget = json.loads(read("runs", "--format", "json")), json.loads(read("budget", "--format", "json"))
    runs, history = read("runs"), read("history")
    for row in rows:
        page, alone = looking.get(f"/runs/{row['run_id']}").text, rounded(row["alone"], up=True)
        assert all(alone in text for text in (runs, history, page, looking.get("/runs").text))
        assert all(rounded(row["adds_to_data_set"], up=True) in text for text in (runs, page))
    spent = sum(row["adds_to_data_set"] for row in rows)
    assert spent == pytest.approx(budget["epsilon_spent"])
    for text in (read("budget"), history, looking.get("/").text):
        assert rounded(budget["epsilon_spent"], up=True) in text
    assert not re.search(r"\d\.\d{5}", runs + history + read("budget") + read("clients"))


def test_a_page_is_called_as_its_command_is_and_its_fields_as_options(past, looking):
    """One word for one idea, here and in tests/unit/documentation/test_budgets.py: a client, and its history."""
    assert {path[1:] for path, _ in PLACES} - set(main.commands) == {"", "publication"}
    assert [name for path, name in PLACES[1:]] == [path[1:].capitalize() for path, _ in PLACES[1:]]
    others = re.compile(r"\b(team|teams|timeline)\b", re.IGNORECASE)
    assert not [route.path for route in looking.app.pages.routes if others.search(route.path)]
    for path in every_page(past):
        page = looking.get(path).text
        assert f"<h1>{dict(PLACES).get(path, '')}" in page
        for tag, attributes in Outline(page).tags:
            for name in ("id", "name", "for", "href", "action", "data-label"):
                words = (attributes.get(name) or "").replace("ml-team", "")
                assert not others.search(words), (path, tag, words)


def test_foreign_words_are_only_ever_words(past, looking):
    """A script in a purpose or a reason, and characters that would turn the text around it about."""
    shown = [looking.get(path).text for path in every_page(past)]
    assert sum("&lt;script&gt;alert(1)" in page for page in shown) >= 4
    for page in shown:
        assert page.count("<script") == page.count(OURS) == 1
        assert " style=" not in page
        assert " onclick=" not in page
        assert "\u202e" not in page
    assert (
        plain("a\u202eb\x00c\nd")
        == "a\N{REPLACEMENT CHARACTER}b" + "\N{REPLACEMENT CHARACTER}c\N{REPLACEMENT CHARACTER}d"
    )
    assert SCRIPT in PURPOSES[1]


@pytest.mark.parametrize("query", [f"client={SCRIPT}", "client=%22%3E%3Cimg", "kind=none", "page=-1", "page=9" * 40])
def test_what_an_address_says_is_only_ever_text(looking, query):
    for path in ("/runs", "/history"):
        page = looking.get(f"{path}?{query}")
        assert page.status_code == 200
        assert page.text.count("<script") == page.text.count(OURS)
        assert "<img src=x" not in page.text
    assert looking.get("/history?since=yesterday").status_code == 409
    assert "<script" not in looking.get(f"/sign-in?token={SCRIPT}").text


@pytest.mark.parametrize(
    "path",
    [
        "/console.css/../../pages.py",
        "/static/console.css",
        "/..%2f..%2fcurator.toml",
        "/%2e%2e/ledger.key",
        "/runs/../../etc/passwd",
        "/runs/..%2f..%2fledger.key",
        "/runs/%00",
        "/runs/x/receipt.json",
        "/%2f/evil.example/",
        "/requests/1e9",
        "/home/ledger.key",
    ],
)
def test_no_path_leads_to_a_file(looking, path):
    answer = looking.get(path)
    assert answer.status_code in (303, 404, 405)
    assert answer.headers.get("location", "/").startswith("/")
    assert not answer.headers.get("location", "/").startswith("//")
    assert "PRIVATE KEY" not in answer.text
    assert "import" not in answer.text


@pytest.mark.parametrize("number", ["9" * 19, "9" * 5000, "-1", "1.0", "\u0661"], ids=len)
def test_a_number_that_no_request_has_leads_nowhere(looking, number, caplog):
    answer = send(looking, f"/requests/{number}", decision="deny", reason="x")
    assert answer.status_code == 404
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]  # no traceback


def test_a_screen_reader_finds_its_way(past, looking):
    for path in every_page(past):
        page = looking.get(path)
        outline = Outline(page.text)
        assert outline.all("html") == [{"lang": "en"}]
        assert [len(outline.all(name)) for name in ("main", "nav", "header", "footer", "h1", "title")] == [
            1,
            1,
            1,
            1,
            1,
            1 + (2 if path == "/" else 0),
        ]
        assert len(outline.all("table")) == len(outline.all("caption"))
        assert all(cell.get("scope") for cell in outline.all("th"))
        labelled = {label.get("for") for label in outline.all("label")}
        for name in ("input", "select", "textarea"):
            for control in outline.all(name):
                assert control.get("type") == "hidden" or control.get("id") in labelled, (path, control)
        assert all(image.get("aria-label") or image.get("aria-labelledby") for image in outline.all("svg"))
        ids = [attributes["id"] for _, attributes in outline.tags if "id" in attributes]
        assert len(ids) == len(set(ids)), path
        for attributes in (attributes for _, attributes in outline.tags):
            for name in ("aria-labelledby", "aria-describedby"):
                assert set((attributes.get(name) or "").split()) <= set(ids)
        current = [link for link in outline.all("a") if "aria-current" in link]
        assert len(current) == (0 if path == "/no-page" else 1), path


@pytest.mark.long
def test_no_act_is_done_without_the_form_of_this_session(home):
    """Every path that takes a form, so that none can be forgotten."""
    client = browser(home)
    other = csrf(browser(home))
    routes: list[Route] = client.app.pages.routes
    acts = [route.path.replace("{number:entry}", "2") for route in routes if "POST" in (route.methods or ())]
    assert len(acts) >= 8
    before = home.read_ledger().head.seq
    for path in acts:
        fields = {"reason": "x", "client": "ml-team", "decision": "deny", "epsilon": "1"}
        for token in ({}, {"csrf": ""}, {"csrf": other}, {"csrf": csrf(client)[:-1]}):
            assert client.post(path, data=fields | token, headers=OWN).status_code == 403, path
        good = fields | {"csrf": csrf(client)}
        assert client.post(path, data=good, headers={"Origin": "http://evil.example"}).status_code == 403
        if path != "/sign-in":
            asked = client.get(path, params=good)  # an act is no link
            assert asked.status_code in (200, 405), path
    assert home.read_ledger().head.seq == before


def test_an_operator_stops_decides_and_answers_for_it(home):
    client = browser(home)
    assert send(client, "/clients/pause", client="ml-team", reason="holidays").headers["location"] == "/clients"
    text = client.get("/clients").text
    assert "ml-team is paused" in text
    assert "ml-team is paused" not in client.get("/clients").text  # said once
    assert send(client, "/clients/resume", client="ml-team", reason="back").status_code == 303
    number = next(asked.number for asked in Record(home).requests if asked.decision is None)
    page = client.get("/requests").text
    assert "A last run before the paper" in page
    assert "may spend epsilon" in page
    assert re.findall('name="decision" value="(.*?)"', page) == ["deny", "approve"]  # Enter presses the first
    too_much = send(client, f"/requests/{number}", decision="approve", epsilon="7", reason="x")
    assert too_much.status_code == 409
    assert "grant from 0 to that" in too_much.text
    for wrong in ("nan", "-1", "1e9", "", "0", "0.1; drop"):
        assert send(client, f"/requests/{number}", decision="approve", epsilon=wrong, reason="x").status_code == 409
    assert (
        send(client, f"/requests/{number}", decision="approve", epsilon="0.1", reason="for one run").status_code == 303
    )
    assert send(client, "/freeze", reason="").status_code == 409
    assert send(client, "/freeze", reason="the board meets").status_code == 303
    assert ">frozen<" in client.get("/clients").text
    assert send(client, "/unfreeze", reason="approved").status_code == 303
    assert send(client, "/ledger/verify").status_code == 303
    assert "The ledger verifies" in client.get("/ledger").text
    record = Record(home)
    decided = next(asked for asked in record.requests if asked.number == number)
    assert (decided.decision, decided.granted, decided.decided_by) == (Decision.CUT, 0.1, OPERATOR)
    assert record.health.verified.ok
    acts = [(event.kind, event.who, event.why) for event in record.history if event.entry][-6:]
    assert acts == [
        ("client-paused", OPERATOR, "holidays"),
        ("client-resumed", OPERATOR, "back"),
        ("share-set", OPERATOR, f"request {number}: for one run"),
        ("request-decided", OPERATOR, "for one run"),
        ("frozen", OPERATOR, "the board meets"),
        ("unfrozen", OPERATOR, "approved"),
    ]


def test_a_page_is_live_and_loses_nobodys_words(home):
    """The script asks for another mark; without scripts a page without a form is asked for anew."""
    client = browser(home)
    mark = client.get("/changes?live=1").text
    for path in every_page(home)[:-1]:
        page = client.get(path).text
        assert f'data-mark="{mark}"' in page, path  # looking changes nothing
        address = re.search('data-live="(.*?)"', page)[1].replace("&amp;", "&")
        assert client.get(address).text.count(mark) == 1
        forms = page.count("<form") - 1  # to sign out
        assert page.count('http-equiv="refresh"') == (forms == 0 or path == "/ledger"), path  # a button has no words
    assert "text/javascript" in client.get("/console.js").headers["content-type"]
    with home.open_ledger() as books:
        books.freeze(reason="from elsewhere")
    assert client.get("/changes?live=1").text != mark
    mark = client.get("/changes?live=1").text
    home.asks.record(Ask(time=OPENED, operation="OpenRun", client="ml-team", outcome="BUDGET_EXHAUSTED"))
    home.asks.write()
    assert client.get("/changes?live=1").text != mark
    send(client, "/unfreeze", reason="back")
    assert "open again" not in client.get("/?live=1").text  # by itself a page takes no notice from another
    assert "open again" in client.get("/budget").text


def test_a_new_client_is_signed_for_by_the_fingerprint_that_it_sent(home, tmp_path):
    client = browser(home)
    request = make_identity("cardiology", tmp_path / "cardiology").read_bytes()
    fingerprint = request_fingerprint(request)

    def approve(fingerprint: str, **fields: str):
        data = {"csrf": csrf(client), "fingerprint": fingerprint, "days": "90", **fields}
        return client.post("/clients/approve", data=data, files={"request": ("c.csr", request)}, headers=OWN)

    for wrong in ("", fingerprint[:15], "0" * 64):
        refused = approve(wrong)
        assert refused.status_code == 409
        assert "fingerprint" in refused.text
    assert "cardiology" not in {each.name for each in Record(home).clients}
    assert approve(f"{fingerprint[:8]} {fingerprint[8:24].upper()}", epsilon="0.5").status_code == 303
    added = next(each for each in Record(home).clients if each.name == "cardiology")
    assert added.share == 0.5
    page = client.get("/clients").text
    assert "cardiology is added" in page
    (certificate,) = added.certificates
    files = zipfile.ZipFile(io.BytesIO(client.get(f"/clients/{certificate.fingerprint}/credentials.zip").content))
    assert set(files.namelist()) == {"ca.crt", "client.crt", "ledger.pub"}
    issued = x509.load_pem_x509_certificate(files.read("client.crt"))
    assert issued.public_key() == x509.load_pem_x509_csr(request).public_key()
    assert files.read("ledger.pub").decode().strip() == Record(home).health.public_key
    assert client.get(f"/clients/{'0' * 64}/credentials.zip").status_code == 404


def test_share_cap_and_budget_take_what_the_commands_take(home):
    client = browser(home)
    assert send(client, "/clients/share", client="ml-team", epsilon="2.5", reason="a share").status_code == 303
    assert send(client, "/clients/cap", client="ml-team", epsilon="0.25", reason="a brake").status_code == 303
    first = Record(home).clients[0]
    assert (first.share, first.caps) == (2.5, {"day": (0.25, 0.0)})
    assert send(client, "/clients/cap", client="ml-team", epsilon="0", reason="no brake").status_code == 303
    assert not Record(home).clients[0].caps
    watching = {"client": "ml-team", "reason": "it only watches", "year": "yes"}
    assert send(client, "/clients/cap", epsilon="0.4", **watching).status_code == 303
    assert Record(home).clients[0].caps == {"year": (0.4, 0.0)}
    assert "epsilon 0.4; 0.0000 spent this year" in client.get("/clients").text
    assert "capped ml-team at epsilon 0.4 a year" in client.get("/history").text
    assert send(client, "/clients/cap", epsilon="0", **watching).status_code == 303
    refused = send(client, "/clients/share", client="ml-team", epsilon="9", reason="too much")
    assert refused.status_code == 409
    assert '<a href="/budget#extend">extend the budget first</a>' in refused.text
    small, large = {"epsilon": "3.5", "reason": "minute 14"}, {"epsilon": "12", "reason": "minute 15"}
    shown = send(client, "/budget/extend", **small)
    assert "epsilon 3.5 lets what is concluded" in shown.text
    assert 'name="typed"' not in shown.text
    assert Record(home).overview.epsilon == 3.0
    assert send(client, "/budget/extend", **small, shown="1").status_code == 303
    assert Record(home).overview.epsilon == 3.5
    shown = send(client, "/budget/extend", **large)
    assert "hardly a promise" in shown.text
    words = re.search("Type <code>(.*?)</code>", shown.text)[1]
    for typed in ("", "epsilon 12"):
        assert send(client, "/budget/extend", **large, shown="1", typed=typed).status_code == 409
    assert send(client, "/budget/extend", **large, shown="1", typed=words).status_code == 303
    assert Record(home).overview.epsilon == 12.0


def test_every_thing_to_do_first_leads_to_its_place(looking):
    assert linked("a <b>; see dpswd-curator serve and `dpswd-curator budget --extend`") == (
        'a &lt;b&gt;; see dpswd-curator serve and `<a href="/budget">dpswd-curator budget</a> --extend`'
    )
    for place in _PAGES.values():
        path, _, anchor = place.partition("#")
        page = looking.get(path)
        assert page.status_code == 200
        assert not anchor or f'id="{anchor}"' in page.text


def test_a_board_gets_a_report_that_the_ledgers_key_signed(past, looking, tmp_path):
    made = send(looking, "/report", since="2026-01-01")
    assert made.headers["content-disposition"].startswith('attachment; filename="report-')
    file = tmp_path / "report.html"
    file.write_bytes(made.content)
    check_report(file, public_key=Record(past).health.public_key)
    assert "Spring study" in made.text
    assert send(looking, "/report", since="spring").status_code == 409


def test_an_act_that_takes_two_is_a_request_here_as_well(home, tmp_path):
    home.settings.write_text(home.settings.read_text() + '\n[operators]\nsecond = ["extend", "approve"]\n')
    anna, ben = (
        HomeDirectory(home.path, operator=Operator.make(home.path / f"{name}.key", name)) for name in ("anna", "ben")
    )
    for each in (anna, ben):
        with anna.open_ledger() as books:
            books.enrol(each.acting.name, each.acting.credential)
    first, second = browser(anna), browser(ben)
    asked = {"epsilon": "4", "reason": "a third study", "shown": "1"}
    for _ in range(2):  # the same operator cannot be both
        assert send(first, "/budget/extend", **asked).headers["location"] == "/requests"
        assert "noted for anna" in first.get("/requests").text
    page = second.get("/requests").text
    assert "wait for a second operator" in page
    assert "a third study" in page
    filled = second.get(re.search('href="([^"]*)">extend as well', page)[1].replace("&amp;", "&")).text
    assert 'value="4.0"' in filled
    assert Record(home).overview.epsilon == 3.0
    assert send(second, "/budget/extend", **asked).headers["location"] == "/budget"
    assert Record(home).overview.epsilon == 4.0
    assert "wait for a second" not in second.get("/requests").text

    request = make_identity("cardiology", tmp_path / "cardiology").read_bytes()

    def approve(client: TestClient):
        data = {"csrf": csrf(client), "fingerprint": request_fingerprint(request), "days": "90", "epsilon": "0.5"}
        return client.post("/clients/approve", data=data, files={"request": ("c.csr", request)}, headers=OWN)

    assert approve(first).headers["location"] == "/requests"
    page = second.get("/requests").text
    assert '2<span class="unseen"> waiting</span>' in page  # a client's, and this
    filled = second.get(re.search('href="([^"]*)">approve as well', page)[1].replace("&amp;", "&")).text
    assert 'value="90"' in filled
    assert 'value="0.5"' in filled
    assert approve(second).headers["location"] == "/clients"
    assert Record(home).clients[-1].name == "cardiology"


def test_an_act_of_the_console_states_the_operators_credential(home):
    anna = Operator.make(home.path / "anna.key", "anna")
    with HomeDirectory(home.path, operator=anna).open_ledger() as books:
        books.enrol("anna", anna.credential)
    client = browser(HomeDirectory(home.path, operator=anna))
    assert f"anna ({anna.credential[:8]})" in client.get("/").text
    assert send(client, "/freeze", reason="an inquiry").status_code == 303
    assert send(client, "/unfreeze", reason="it was nothing").status_code == 303
    frozen, opened = home.read_ledger().entries[-2:]
    assert {entry.payload["by"]["credential"] for entry in (frozen, opened)} == {anna.credential}
    assert f"anna ({anna.credential[:8]})" in client.get("/history").text
    nobody = browser(HomeDirectory(home.path, operator="anna"))  # the name alone
    assert send(nobody, "/freeze", reason="a fire").status_code == 303  # which only stops
    refused = send(nobody, "/unfreeze", reason="x")
    assert refused.status_code == 409
    assert "--credential" in refused.text
    assert home.read_ledger().books.closed


def test_looking_needs_neither_the_key_nor_the_records(home):
    """And with the ledger gone, or spoilt, each page says so and what to do, and stays locked."""
    (home.path.parent / "records.npy").unlink(missing_ok=True)
    home.ledger_key.unlink()
    client = browser(home)
    for path in every_page(home)[:-1]:
        assert client.get(path).status_code == 200, path
    refused = send(client, "/freeze", reason="x")
    assert refused.status_code == 409
    assert "restore it from a backup" in refused.text
    home.ledger.write_bytes(b"spoilt" * 1000)
    assert client.get("/").status_code == 503
    home.ledger.unlink()
    assert "there is no ledger" in client.get("/").text


def test_a_form_that_says_no_length_is_cut_off(looking):
    def endless():
        yield b"csrf=x&reason="
        while True:
            yield b"y" * 65536

    headers = OWN | {"Content-Type": "application/x-www-form-urlencoded"}
    cut = looking.post("/freeze", content=itertools.islice(endless(), 100), headers=headers)
    assert cut.status_code == 413


def test_a_defect_shows_nothing_of_itself(past, monkeypatch):
    client = browser(past)

    def fail(*_args, **_kwargs):
        raise RuntimeError("a secret")

    monkeypatch.setattr(Record, "__init__", fail)
    failed = client.get("/")
    assert failed.status_code == 500
    assert "secret" not in failed.text
    assert failed.headers["Content-Security-Policy"]


def test_a_proposal_is_shown_with_its_price_and_published_once_the_word_is_typed(tmp_path):
    """Without records, key or worker the price is the one that the team's own accountant expects."""
    from published_site import CLIENT, Site

    site = Site(tmp_path / "north")
    proposal = site.proposal()
    before = site.home.read_ledger().head.seq
    client = browser(site.home)
    assert client.app.room["/publication"] > MAX_FILE_BYTES

    def look(data: bytes, charged: str = CLIENT):
        files = {"proposal": ("p.dpswd", data)}
        return client.post("/publication", data={"csrf": csrf(client), "client": charged}, files=files, headers=OWN)

    shown = look(proposal.to_file())
    assert shown.status_code == 200, shown.text
    assert "sliced quantile coefficients (3 in each of 8 directions), of all 120 records" in shown.text
    assert shown.text.count(rounded(proposal.epsilon, up=True)) == 3  # alone, what it adds, and what the team expected
    assert "fits the budget" in shown.text
    asked = {"proposal": proposal.digest, "purpose": "the spring study"}
    for wrong in ({"typed": "yes"}, {"typed": "publish", "proposal": "0" * 64}):
        assert send(client, "/publication/make", **asked | wrong).status_code == 409
    wrong = look(b"no proposal")
    assert wrong.status_code == 409
    assert "<bdi>the file " in wrong.text
    assert look(proposal.to_file(), charged="nobody").status_code == 404
    assert site.home.read_ledger().head.seq == before
    with site.home.open_ledger() as books:
        books.extend_budget(PrivacyBudget(3.5, 1e-5), reason="meanwhile")
    stale = send(client, "/publication/make", **asked, typed="publish")
    assert stale.status_code == 409
    assert "look again" in stale.text
    assert look(proposal.to_file()).status_code == 200
    made = [send(client, "/publication/make", **asked, typed="publish") for _ in range(2)]
    assert [reply.status_code for reply in made] == [200, 200], made[0].text
    assert made[0].content == made[1].content
    (tmp_path / "p.dpswd").write_bytes(made[0].content)
    assert Publication.read(tmp_path / "p.dpswd").problems(bytes.fromhex(Record(site.home).health.public_key)) == []
    assert len(Record(site.home).runs) == 1
