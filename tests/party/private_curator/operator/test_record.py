"""What an operator sees of a curator whose directory cannot be written, without its key and without the records."""

from __future__ import annotations

import datetime as dt
import html
import re
import shutil
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from charged_home import charged
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from declarations import quantiles, rows
from made_home import made_home

from dpswd.private_curator.operator.facts import WHY_COUNTS_DIFFER
from dpswd.private_curator.operator.history import Category, selected
from dpswd.private_curator.operator.record import Record
from dpswd.private_curator.operator.report import check_report, print_pdf, report_page, signed_page
from dpswd.private_curator.storage.asks import Ask
from dpswd.private_curator.storage.home_directory import HomeDirectory
from dpswd.shared.core.errors import DataInvalid, GrantNotHeld, InvalidValue, SettingsError
from dpswd.shared.core.privacy.budget import PrivacyBudget

RECORDS = np.zeros((300, 4), np.float32)
NOW = dt.datetime.now(dt.UTC)


@pytest.fixture(scope="module")
def lived(tmp_path_factory):
    """A curator's directory after a few days, as an operator's console sees it."""
    directory = tmp_path_factory.mktemp("lived")
    made = made_home(directory, RECORDS, epsilon=5.0, clients={"ml-team": "a", "visitors": "b"})
    anna = HomeDirectory(made.path, operator="Anna Weber")
    with anna.open_ledger() as ledger:
        first = charged(ledger, quantiles(8, 2.0), batch=300, purpose="sepsis model, spring")
        ledger.extend_budget(PrivacyBudget(8.0, 1e-5), reason="second study")
        second = charged(ledger, rows(60.0), batch=50, steps=10, purpose="<script>alert(1)</script>")
        ledger.set_share("ml-team", PrivacyBudget(4.0, 1e-5), reason="a share after all")
        third = charged(ledger, quantiles(8, 2.0), batch=300)
        ledger.pause_client("visitors", reason="on holiday")
        ledger.request_budget(client="ml-team", epsilon=1.0, purpose="one more site")
    fingerprint = Record(made).clients[0].certificates[0].fingerprint
    for count in range(3):
        refused = Ask(
            time=NOW, operation="OpenRun", client="ml-team", outcome="BUDGET_EXHAUSTED", fingerprint=fingerprint,
            peer="10.0.0.7", dry_run=True, mechanism="rows", epsilon=9.0 + count, purpose="all of it",
        )  # fmt: skip
        made.asks.record(refused)
    made.asks.record(Ask(time=NOW, operation="Describe", client="ml-team", outcome="OK", fingerprint=fingerprint))
    made.asks.close()
    made.checks.note("verify", ok=True, entries=9, by="Anna Weber")
    made.ledger_key.rename(directory / "key.pem")  # nothing that is looked at here may need it
    (directory / "records.npy").unlink()
    return made, first, second, third


@pytest.fixture(scope="module")
def record(lived):
    return Record(HomeDirectory(lived[0].path))


def test_the_overview_has_the_budget_over_time(record):
    seen = record.overview
    assert (seen.state, seen.records, seen.epsilon, seen.runs) == ("open", 300, 8.0, 3)
    kinds = [point.kind for point in seen.points]
    assert kinds == ["data-set-opened", "run-opened", "budget-extended", "run-opened", "run-opened"]
    spent = [point.spent for point in seen.points]
    assert spent[0] == 0.0
    assert spent == sorted(spent)
    assert seen.spent == spent[-1]
    assert [point.epsilon for point in seen.points] == [5.0, 5.0, 8.0, 8.0, 8.0]
    assert seen.forecast.next_spent > seen.spent
    assert seen.forecast.next_fits
    assert seen.forecast.exhausted_on is None  # of less than a week no rate is taken
    assert "epsilon 8, delta 1e-05" in seen.promise


def test_a_week_of_spending_tells_a_rate(lived):
    home = HomeDirectory(lived[0].path)
    early, late = (Record(home, now=NOW + dt.timedelta(days=days)).overview.forecast for days in (6.9, 7.1))
    assert early.exhausted_on is None
    assert late.exhausted_on > (NOW + dt.timedelta(days=8)).date().isoformat()
    assert early.next_spent == late.next_spent


def test_every_client_has_a_count_with_or_without_a_share(record, lived):
    team, visitors = record.clients
    assert (team.name, team.state, team.runs, team.share) == ("ml-team", "active", 3, 4.0)
    # The share came after two runs, and counts them: all runs are this client's, in filters of the same orders.
    assert team.spent == pytest.approx(record.overview.spent, rel=1e-6)
    assert team.remaining == pytest.approx(4.0 - team.spent)
    assert (team.refusals, team.waiting.epsilon, team.waiting.purpose) == (3, 1.0, "one more site")
    (certificate,) = team.certificates
    assert team.last_seen == certificate.last_seen == NOW.isoformat(timespec="seconds").replace("+00:00", "Z")
    assert not certificate.expired
    assert (visitors.state, visitors.spent, visitors.last_seen) == ("paused", 0.0, None)


def test_a_run_is_shown_with_its_price_and_why(record, lived):
    _, first, _, third = lived
    seen = record.run(first.run_id)
    assert (seen.purpose, seen.mechanism, seen.noise) == ("sepsis model, spring", "quantiles", "2")
    assert seen.release == "160 noised numbers; no record"
    assert seen.exactly == "quantile coefficients (feature dimension 4, directions 20, coefficients 8)"
    assert seen.epsilon == pytest.approx(seen.increase)
    assert seen.client_increase is None
    later = record.run(third.run_id)
    assert later.epsilon == pytest.approx(seen.epsilon)
    assert 0 < later.increase < later.epsilon  # epsilon does not add up
    assert later.client_increase == pytest.approx(later.increase)
    total = sum(run.increase for run in record.runs)
    assert total == pytest.approx(record.overview.spent)
    with pytest.raises(GrantNotHeld, match="dpswd-curator runs"):
        record.run("0" * 32)


def test_the_history_says_who_did_what_and_why(record, lived):
    acts = selected(record.history, categories=[Category.ACT], who="Anna Weber")
    assert [(act.kind, act.why) for act in acts] == [
        ("budget-extended", "second study"),
        ("share-set", "a share after all"),
        ("client-paused", "on holiday"),
    ]
    assert acts[0].text == "extended the budget from 5 to epsilon 8 at delta 1e-05"
    (refusal,) = selected(record.history, categories=[Category.REFUSAL])
    assert (refusal.count, refusal.epsilon, refusal.client, refusal.why) == (3, 11.0, "ml-team", "all of it")
    assert "asked for a run of 'rows' and was refused: BUDGET_EXHAUSTED, 3 times" in refusal.text
    charges = selected(record.history, categories=[Category.CHARGE], client="ml-team")
    assert [charge.run for charge in charges] == [run.run_id for run in lived[1:]]
    assert selected(record.history, until="2020-01-01") == []
    with pytest.raises(InvalidValue, match="no day"):
        selected(record.history, since="yesterday")


def test_the_ledgers_health(record):
    seen = record.health
    assert seen.head_signed
    assert seen.witness_holds
    assert seen.verified.ok
    assert (seen.backed_up, seen.incidents, seen.serving) == (None, 0, "")


def test_a_witness_of_a_longer_ledger_is_seen(lived, tmp_path):
    copy = tmp_path / "home"
    shutil.copytree(lived[0].path, copy)
    with (lived[0].path / "ledger.witness").open() as noted:
        line = noted.read()
    (copy / "ledger.witness").write_text(line.replace('\\"seq\\":', '\\"seq\\":9'))
    health = Record(HomeDirectory(copy)).health
    assert health.witness_holds is False
    assert "LACKS" in health.witness


@pytest.fixture(scope="module")
def signed(lived, record, tmp_path_factory):
    key = load_pem_private_key((lived[0].path.parent / "key.pem").read_bytes(), password=None)
    file = tmp_path_factory.mktemp("report") / "report.html"
    file.write_bytes(signed_page(report_page(record), sign=key.sign))
    return file, key, key.public_key().public_bytes_raw().hex()


def test_the_report_is_for_a_board_and_runs_nothing(signed, record):
    text = signed[0].read_text()
    for word in (record.overview.promise, "sepsis model, spring", "Anna Weber", "second study", "BUDGET_EXHAUSTED"):
        assert html.escape(word) in text
    for client in record.clients:
        assert client.certificates[0].fingerprint in text
    assert record.health.head in text
    assert WHY_COUNTS_DIFFER in html.unescape(text)
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    assert not re.search(r"(src|href)=|https?:", text)  # self-contained
    chart = ET.fromstring(text[text.index("<svg") : text.index("</svg>") + 6])
    lines = {path.get("class"): path.get("d") for path in chart.iter("path")}
    assert (lines["spent"].count("V"), lines["limit"].count("V")) == (3, 1)  # three charges, one extension


def test_a_report_of_some_days_lists_those_alone(record):
    text = report_page(record, since="2020-01-01", until="2020-12-31")
    assert "sepsis model" not in text.partition('class="annex"')[2]  # the sheets before it are of the whole life
    assert f"epsilon {record.overview.epsilon:g}" in text  # what is promised is of the whole life


def test_a_changed_report_is_detected(signed, tmp_path):
    file, _, public = signed
    check_report(file, public_key=public)
    for change in (b"Anna Weber", b"sepsis"):
        changed = tmp_path / "changed.html"
        changed.write_bytes(file.read_bytes().replace(change, change[::-1], 1))
        with pytest.raises(DataInvalid, match="changed since it was signed"):
            check_report(changed, public_key=public)
    with pytest.raises(DataInvalid, match="another key"):
        check_report(file, public_key=Ed25519PrivateKey.generate().public_key().public_bytes_raw().hex())
    (tmp_path / "bare.html").write_bytes(b"<p>nothing</p>\n")
    with pytest.raises(DataInvalid, match="does not end"):
        check_report(tmp_path / "bare.html", public_key=public)
    with pytest.raises(SettingsError, match="hexadecimal"):
        check_report(file, public_key="no key")


@pytest.mark.long
def test_the_report_is_printed_where_there_is_a_browser(signed, tmp_path, monkeypatch):
    file, key, public = signed
    pdf = tmp_path / "report.pdf"
    if shutil.which("chromium"):
        print_pdf(file, pdf, sign=key.sign)
        assert pdf.read_bytes().startswith(b"%PDF-")
        check_report(pdf, public_key=public)
        pdf.write_bytes(pdf.read_bytes() + b" ")
        with pytest.raises(DataInvalid, match="changed since"):
            check_report(pdf, public_key=public)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SettingsError, match="in any browser"):
        print_pdf(file, tmp_path / "another.pdf", sign=key.sign)
