"""Every ask is visible at the hospital: charged, refused, only priced, or with a certificate that does not count."""

from __future__ import annotations

import datetime as dt
import io
import json
import logging
import urllib.request

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from declarations import quantiles
from made_home import made_home
from prometheus_client.parser import text_string_to_metric_families
from raw_client import RawClient
from serving_here import serving
from torch import nn

from dpswd.private_curator.observability import logs
from dpswd.private_curator.operator.history import Category, selected
from dpswd.private_curator.operator.record import Record
from dpswd.private_curator.serving.asking import host_of
from dpswd.private_curator.settings.groups import LogSettings
from dpswd.private_curator.storage.asks import MOST_ROWS, OTHERS, RETENTION_DAYS, Ask, AskBook
from dpswd.private_curator.storage.home_directory import HomeDirectory
from dpswd.public_client.adaptation.hospital import Hospital
from dpswd.public_client.cli.main import main as client_main
from dpswd.public_client.curator.stub import Curator
from dpswd.public_client.methods.replay import Replay
from dpswd.public_client.plans.declarable import quoted
from dpswd.shared.core import errors
from dpswd.shared.core.wire.messages import RunParameters

RECORDS = np.random.default_rng(4).normal(size=(60, 5)).astype(np.float32)
NOW = dt.datetime(2026, 3, 4, 12, 0, tzinfo=dt.UTC)


@pytest.fixture
def log():
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    stream = io.StringIO()
    logs.configure(LogSettings(), stream=stream)
    yield stream
    root.handlers[:] = before
    root.setLevel(level)


def declared(uploaded, *, sigma=4.0, steps=2):
    name, declaration = quantiles(2, sigma, directions=10)
    return RunParameters(
        **uploaded, mechanism=name, declaration=declaration.to_bytes(), batch_size=20, steps=steps
    )  # fmt: skip


def test_what_a_team_asked_and_was_refused(tmp_path, log):
    made = made_home(tmp_path, RECORDS, epsilon=5.0, clients={"ml-team": "team", "stranger": "stranger"})
    anna = HomeDirectory(made.path, operator="anna")
    append = ["sh", "-c", f"cat >> {tmp_path / 'notices'}"]
    with made.settings.open("a") as file:
        file.write(f"\n[operators]\nnotify_command = {json.dumps(append)}\nlow_share = 0.99\n")
    torch.manual_seed(1)
    with serving(made, **{"metrics.enabled": "true", "metrics.port": "0"}) as address:
        with RawClient(address, credentials=tmp_path / "team") as raw:
            uploaded = raw.upload(nn.Linear(5, 4))
        cheap, dear = declared(uploaded), declared(uploaded, steps=3000, sigma=0.01)
        with Curator.connect(
            address, credentials=tmp_path / "team", run_directory=tmp_path / "runs", purpose="sepsis, spring"
        ) as team:
            assert team.price_run(cheap).fits
            assert not team.price_run(dear).fits  # a question
            for _ in range(3):
                with pytest.raises(errors.BudgetExhausted, match=r"would cost epsilon 7\.5"):
                    team.price_run(dear, requested_epsilon=7.5)  # the stock client asks so where it goes no further
            run = team.open_run(cheap)
            asked = team.request_budget(1.0, purpose="a second site")[-1]
            with anna.open_ledger() as ledger:
                ledger.pause_client("ml-team", reason="an inquiry")
                cut = ledger.decide_request(asked.number, granted=0.4, reason="less will do")
                assert cut.decided_by == "anna"
            with pytest.raises(errors.GrantNotHeld, match="paused"):
                team.open_run(cheap)
            (heard,) = team.budget_requests()
            assert (heard.decision, heard.granted, heard.reason) == ("cut", 0.4, "less will do")
            asking = ["--curator", address, "--credentials", str(tmp_path / "team")]
            typed = CliRunner().invoke(client_main, ["requests", *asking])
            assert "request 1 of " in typed.output
            assert "epsilon 1 more (a second site): cut, epsilon 0.4000 granted: less will do" in typed.output
            more = ["--epsilon", "2", "--purpose", "a third", "--format", "json"]
            typed = CliRunner().invoke(client_main, ["requests", *asking, *more])
            assert json.loads(typed.stdout)[0] | {"time": ""} == {
                "number": 2, "time": "", "epsilon": 2.0, "purpose": "a third", "decision": "", "granted": 0.0,
                "reason": "",
            }  # fmt: skip
            team.purpose = "two\nlines"
            with pytest.raises(errors.RequestInvalid, match="purpose"):
                team.open_run(cheap)
            with pytest.raises(errors.RequestInvalid, match="epsilon"):
                team.request_budget(1e9, purpose="all of it")
        with anna.open_ledger() as ledger:
            ledger.revoke_client("stranger", reason="left")
            gone = ledger.clients()[1].fingerprint
        with pytest.raises(errors.CredentialsInvalid), RawClient(address, credentials=tmp_path / "stranger") as client:
            client.describe()
        scraped = _refusals_counted((made.path / "metrics-address").read_text().strip())
    assert scraped["OpenRun", "BUDGET_EXHAUSTED"] == 3  # what the alert ManyRefusals looks at
    assert scraped["Describe", "CREDENTIALS_INVALID"] == 1

    record = Record(HomeDirectory(made.path))
    (recorded,) = record.runs
    assert (recorded.run_id, recorded.purpose) == (run.run_id, "sepsis, spring")
    (receipt,) = [
        line for line in (tmp_path / "runs" / "receipts.jsonl").read_text().splitlines() if "run-opened" in line
    ]
    assert "sepsis, spring" in receipt
    refused = {event.kind: event for event in selected(record.history, categories=[Category.REFUSAL])}
    assert refused["BUDGET_EXHAUSTED"].count == 3
    assert refused["BUDGET_EXHAUSTED"].epsilon == 7.5
    assert refused["GRANT_NOT_HELD"].who == "ml-team"
    assert gone in refused["CREDENTIALS_INVALID"].text
    assert "from 127.0.0.1" in refused["CREDENTIALS_INVALID"].text or "from ::1" in refused["CREDENTIALS_INVALID"].text
    team_facts, stranger = record.clients
    assert team_facts.last_seen is not None
    assert (team_facts.state, stranger.state) == ("paused", "revoked")
    assert team_facts.share == pytest.approx(record.overview.spent + 0.4)

    notices = [json.loads(line) for line in (tmp_path / "notices").read_text().splitlines()]
    acts = [(one["kind"], one.get("act", one.get("reason", ""))) for one in notices]
    assert acts.count(("refused", "BUDGET_EXHAUSTED")) == 1  # the first of three
    for act in (
        ("budget-low", ""), ("request", "budget-requested"), ("act", "client-paused"), ("act", "request-decided"),
        ("refused", "CREDENTIALS_INVALID"),
    ):  # fmt: skip
        assert act in acts
    (paused,) = [one for one in notices if one.get("act") == "client-paused"]
    assert (paused["by"], paused["reason"], paused["client"]) == ("anna", "an inquiry", "ml-team")

    lines = log.getvalue().splitlines()
    charges = [line for line in lines if "charge charge" in line]
    assert len(charges) == 1
    for word in (run.run_id, "release quantiles", "epsilon ", "certificate ", "peer "):
        assert word in charges[0]
    assert sum("charge dry run" in line and "BUDGET_EXHAUSTED" in line for line in lines) == 3
    assert sum("charge dry run" in line and ": OK" in line for line in lines) == 2
    assert any(gone in line and "CREDENTIALS_INVALID" in line for line in lines)


def test_a_search_for_the_noise_is_one_refusal_with_the_epsilon_that_was_typed(tmp_path):
    """Beside a run that is charged the ledger counts the next one dearer than it is alone: the client asks again and
    again, with more and more noise, until the price is what was typed."""
    made = made_home(tmp_path, RECORDS, epsilon=1.0, clients={"ml-team": "team"})
    asked = []
    with serving(made) as address, Curator.connect(address, credentials=tmp_path / "team") as team:
        hospital = Hospital(team)
        torch.manual_seed(1)
        extractor = nn.Linear(5, 4)
        hospital.open(hospital.plan(Replay(), epsilon=0.9, extractor=extractor), extractor)
        send = team.transport.exchange
        team.transport.exchange = lambda *given, **named: asked.append(given[0]) or send(*given, **named)
        plan = hospital.plan(Replay(), epsilon=1.5)
        with pytest.raises(errors.BudgetExhausted, match=r"would cost epsilon 1\.5000"):
            quoted(team, Replay().declarable(extractor, (5,)), plan, required=True)
    assert asked.count("OpenRun") > 3
    (refused,) = selected(Record(HomeDirectory(made.path)).history, categories=[Category.REFUSAL])
    assert (refused.count, refused.epsilon) == (1, 1.5)


def _refusals_counted(address):
    with urllib.request.urlopen(f"http://{address}/metrics") as reply:
        families = text_string_to_metric_families(reply.read().decode())
        samples = [sample for family in families for sample in family.samples]
    requests = [sample for sample in samples if sample.name == "dpswd_requests_total"]
    return {(sample.labels["operation"], sample.labels["outcome"]): sample.value for sample in requests}


def _refused(client, *, time=NOW, reason="BUDGET_EXHAUSTED"):
    return Ask(time=time, operation="OpenRun", client=client, outcome=reason, fingerprint="f" * 64)


def test_no_client_can_fill_the_book(tmp_path):
    book = AskBook(tmp_path / "asks.db")
    for _ in range(5000):
        book.record(_refused("ml-team"))
    for number in range(MOST_ROWS + 50):
        book.record(_refused(f"client-{number}"))
    book.write()
    for number in range(100):  # of names that no earlier row has
        book.record(_refused(f"later-{number}"))
    book.close()
    rows = book.refusals()
    assert len(rows) <= MOST_ROWS + 1
    counts = {row.client: row.count for row in rows}
    assert counts["ml-team"] == 5000
    assert sum(counts.values()) == 5000 + MOST_ROWS + 50 + 100  # nothing is forgotten, some is nameless
    assert counts[OTHERS] >= 150
    assert (tmp_path / "asks.db").stat().st_size < 2_000_000
    assert (tmp_path / "asks.db").stat().st_mode & 0o077 == 0


def test_the_book_forgets_after_a_year(tmp_path):
    book = AskBook(tmp_path / "asks.db")
    today = dt.datetime.now(dt.UTC)
    book.record(_refused("old", time=today - dt.timedelta(days=RETENTION_DAYS + 1)))
    book.write()
    again = AskBook(tmp_path / "asks.db")
    again.record(_refused("new", time=today))
    again.close()
    assert [row.client for row in again.refusals()] == ["new"]


def test_a_disk_that_takes_no_note_stops_nothing(tmp_path):
    book = AskBook(tmp_path / "no folder" / "asks.db")
    book.record(_refused("ml-team"))
    book.close()
    assert book.refusals() == []


@pytest.mark.parametrize(
    ("place", "host"),
    [("ipv4:10.0.0.7:50123", "10.0.0.7"), ("ipv6:%5B::1%5D:50123", "::1"), ("unix:/run/x", "unix:/run/x")],
)
def test_the_address_of_a_peer(place, host):
    assert host_of(place) == host
