"""The 23 items of the report: each from where it says, two printed sheets, no formula, and read by anybody."""

from __future__ import annotations

import dataclasses
import math
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from charged_home import charged
from declarations import quantiles, rows
from made_home import copied_home, made_home
from real_browser import audit, prefer, started
from scipy.stats import norm

from dpswd.private_curator.books.operators import Operator
from dpswd.private_curator.operator import acts
from dpswd.private_curator.operator.officer import AUDITED, EARLIER, STATEMENTS, TEXTS, items, person_in_all
from dpswd.private_curator.operator.record import Record
from dpswd.private_curator.operator.report import print_pdf, report_page, signed_page
from dpswd.private_curator.storage.asks import Ask
from dpswd.private_curator.storage.home_directory import HomeDirectory
from dpswd.shared.core.errors import InvalidValue, SettingsError
from dpswd.shared.core.privacy.budget import PrivacyBudget

PRIVACY = Path(__file__).resolve().parents[4] / "docs" / "privacy"
RECORDS = 300


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    directory = tmp_path_factory.mktemp("made")
    home = made_home(directory, np.zeros((RECORDS, 4), np.float32), epsilon=5.0)
    with home.open_ledger() as ledger:
        charged(ledger, quantiles(8, 2.0), batch=RECORDS, purpose="sepsis model, spring")
    return home


@pytest.fixture
def home(made, tmp_path):
    """A copy that a test may change."""
    return copied_home(made, tmp_path / "home", operator="Anna Weber")


def said(home) -> dict[int, str]:
    """What each item says, with its table."""
    return {
        item.number: " ".join([*(answer.text for answer in item.answers), *(cell for row in item.rows for cell in row)])
        for item in items(Record(home))
    }


def lower(home):
    with home.open_ledger() as books:
        books.lower_budget(PrivacyBudget(4.0, 1e-6), reason="less")


def extend(home):
    acts.extend_budget(home, epsilon=6.0, reason="second study")


def spend(home):
    with home.open_ledger() as books:
        charged(books, rows(60.0), batch=50, steps=10, purpose="another one")


def enrol(home):
    other = Operator.make(home.path / "key", "Anna Weber")
    with HomeDirectory(home.path, operator=other).open_ledger() as books:
        books.enrol("Anna Weber", other.credential)


def fail(home):
    (home.path / "incidents.jsonl").write_text("")
    home.checks.note("verify", ok=True, entries=9, by="Anna Weber")


def state(item: str, words: str = "as agreed on 3 May"):
    def stating(home):
        acts.state(home, item, words)

    return stating


CHANGES = {
    3: [lower, extend, spend],
    4: [lower, extend, spend],
    5: [spend],
    9: [state("records-kept"), state("records-readers")],
    15: [lower, extend, state(EARLIER, "epsilon 1, delta 1e-5 (2024)")],
    16: [spend],
    17: [state("final-model-audit")],
    19: [state(item) for item in ("controller", "purpose", "legal-basis", "permit", "retention", "consent")],
    21: [extend, enrol],
    22: [spend, fail],
    23: [state("recipient-terms")],
}
"""What changes an item's words, by the item's number."""


def test_there_are_23_and_each_says_where_its_answers_come_from(home):
    answers = items(Record(home))
    assert [item.number for item in answers] == list(range(1, 24))
    sources = {answer.source for item in answers for answer in item.answers}
    assert sources == {"the ledger", "the settings", "this software", ""}
    for item in answers:
        for answer in item.answers:
            assert answer.text
            assert bool(answer.source) != ("not stated (dpswd-curator report --state " in answer.text)


@pytest.mark.parametrize(
    ("number", "change"), [(number, change) for number, changes in CHANGES.items() for change in changes]
)
def test_what_the_ledger_says_is_what_the_page_says(home, number, change):
    before = said(home)
    change(home)
    after = said(home)
    assert after[number] != before[number]
    # 22 counts entries, whatever they are.
    assert {n for n in after if after[n] != before[n]} <= {3, 4, 5, 13, 15, 16, 21, 22} | {number}


def test_unit_neighbours_and_records_are_the_ledgers(tmp_path):
    one = said(made_home(tmp_path, np.zeros((64, 4), np.float32)))
    assert one[1] == "One record; a person has one."
    assert "Both have 64 records" in one[2]


def test_settings_are_the_settings(home):
    before = said(home)[13]
    home.settings.write_text(home.settings.read_text() + "\n[limits]\nmax_step_attempts = 3\n")
    assert "at most 16 times" in before
    assert "at most 3 times" in said(home)[13]


def test_what_is_stated_names_who_and_when(home):
    record = Record(home)
    assert [a.source for a in items(record)[16].answers] == [""]
    acts.state(home, "final-model-audit", "  certificate of 4 May: nothing found ")
    (answer,) = items(Record(home))[16].answers
    assert answer.text == "Final model audit: certificate of 4 May: nothing found"
    assert re.fullmatch(r"Anna Weber, \d{4}-\d\d-\d\d", answer.source)
    acts.state(home, "final-model-audit", "withdrawn")  # the last one counts, and the first one stays in the ledger
    assert "withdrawn" in said(home)[17]
    texts = [event.text for event in Record(home).history]
    assert "stated the final model audit: certificate of 4 May: nothing found" in texts


@pytest.mark.parametrize(
    ("item", "words", "message"),
    [
        ("colour", "blue", "an operator states controller"),
        ("permit", "two\nlines", "one line of 1 to 200"),
        ("permit", " ", "one line of 1 to 200"),
        ("permit", "x" * 201, "one line of 1 to 200"),
        (EARLIER, "about one", "epsilon 1, delta 1e-5"),
    ],
)
def test_what_is_no_statement_is_refused(home, item, words, message):
    entries = Record(home).health.entries
    with pytest.raises(InvalidValue, match=message):
        acts.state(home, item, words)
    assert Record(home).health.entries == entries


def test_a_statement_can_take_two(home, tmp_path):
    home.settings.write_text(home.settings.read_text() + '\n[operators]\nsecond = ["state"]\n')
    anna, ben = (HomeDirectory(home.path, operator=Operator.make(tmp_path / name, name)) for name in ("anna", "ben"))
    for each in (anna, ben):
        with anna.open_ledger() as books:
            books.enrol(each.acting.name, each.acting.credential)
    with pytest.raises(SettingsError, match="noted for anna and not done: state takes two"):
        acts.state(anna, "permit", "EHDS 12/2026")
    assert "Permit: not stated" in said(home)[19]
    acts.state(ben, "permit", "EHDS 12/2026")
    assert "Permit: EHDS 12/2026" in said(home)[19]
    assert acts.verify_ledger(ben).ok


def test_a_person_who_stays_has_the_sum(home):
    assert person_in_all(Record(home)) == (5.0, 1e-5)
    acts.state(home, EARLIER, "epsilon 1, delta 1e-5 (2024); epsilon 2.5, delta 2e-06 (2025)")
    epsilon, delta = person_in_all(Record(home))
    assert (epsilon, delta) == (pytest.approx(8.5), pytest.approx(2.2e-5))
    acts.state(home, EARLIER, "none")
    assert person_in_all(Record(home)) == (5.0, 1e-5)


def test_the_odds_are_those_of_the_release(tmp_path):
    """One release whose directions all agree: in one dimension a Gaussian, known in closed form."""
    home = made_home(tmp_path, np.zeros((RECORDS, 4), np.float32), epsilon=5.0)
    with home.open_ledger() as ledger:
        run = charged(ledger, quantiles(8, 2.0), batch=RECORDS)
    odds = items(Record(home))[3]
    (_, *until), (_, *whole) = odds.rows
    law = run.event.step.shift()
    # No more than of the mean shift, for a Gaussian's profile is concave in it here, and no less than of none.
    most = 2 * norm.cdf(math.sqrt(law.mean) / 2) - 1
    assert 0.5 * most < float(until[0].rstrip("%")) / 100 <= most * 1.002 + 1e-4
    posterior = 100 / (1 + math.exp(-5.0))
    assert float(whole[1].rstrip("%")) == pytest.approx(posterior, abs=0.1)
    assert all(float(a.rstrip("%")) < float(b.rstrip("%")) for a, b in zip(until, whole, strict=True))


def test_what_a_copy_released_is_in_the_odds(home, tmp_path):
    once = items(Record(home))[3].rows[0]
    copy = HomeDirectory(shutil.copytree(home.path, tmp_path / "served"))
    with copy.open_ledger(here=False) as served:
        released = charged(served, quantiles(8, 2.0), batch=RECORDS)
    with home.open_ledger() as ledger:
        assert ledger.count_copies([released.receipt.entry], reason="it was served") == 1
    with copy.open_ledger(here=False) as served:  # the same two releases, of one ledger
        together = items(Record(copy))[3].rows[0]
    assert items(Record(home))[3].rows[0] == together != once


def test_audits_are_those_of_the_documentation():
    """Each row of the honest curators' tables, by the mechanism that it attacks."""
    others = (PRIVACY / "audit-mechanisms.md").read_text(encoding="utf-8")
    names = dict(re.findall(r"^\| ([a-z ]+) \| `([a-z_]+)` \|", others, flags=re.MULTILINE))
    names |= {"rows": "rows", "coefficients": "quantiles", "gradient": "gradient"}
    rows_of = {}
    for page in ("audit.md", "audit-mechanisms.md"):
        text = (PRIVACY / page).read_text(encoding="utf-8")
        table = text.partition("## The honest curator")[2].partition("\n## ")[0]
        for name, trials, claimed, proved in re.findall(
            r"^\| ([a-z ]+) \| (\d+) \| ([\d.]+) \| [\d.]+ \| ([\d.]+) \|", table, flags=re.MULTILINE
        ):
            if name in names:
                rows_of[names[name]] = f"claimed {claimed}, proved {proved} by {trials} trials"
    canaries = others.partition("## Canaries in one run")[2].partition("\n## ")[0]
    for name, least in re.findall(r"^\| `([a-z_]+)` \| [\d.]+ \(([\d.]+)\) \|", canaries, flags=re.MULTILINE):
        rows_of[name] = f"claimed 1, proved {least}"
    assert rows_of == AUDITED


def test_there_is_no_formula_and_every_word_that_officers_search_for(home):
    text = " ".join(
        each.terms + each.title + " ".join(answer.text for answer in each.answers) for each in items(Record(home))
    )
    assert not re.search(r"[=^∑√<>*]", text)
    for word in ("NIST SP 800-226", "EDPB 28/2024", "recital 26", "GDPR", "30(1)", "35", "HIPAA", "EHDS 66", "73"):
        assert word in text, word
    used = {a["stated"] for each in TEXTS["items"] for a in each["answers"] if "stated" in a}
    assert used | {"region"} == set(STATEMENTS)  # the region is the registry's


@pytest.fixture
def full(home):
    """As much as there can be: long words everywhere, many clients, and everything stated."""
    for item in STATEMENTS:
        acts.state(home, item, ("epsilon 1, delta 1e-5 " if item == EARLIER else "") + "W" * 170)
    with home.open_ledger() as books:
        for number in range(9):
            name = f"{'M' * 120}{number}"
            books.add_client(name, f"{number:064x}")
            charged(books, quantiles(8, 20.0), client=name, batch=RECORDS, purpose=f"{number} {'W' * 190}")
    extend(HomeDirectory(home.path, operator="M" * 100))
    home.asks.record(Ask(time=Record(home).now, operation="OpenRun", client="x", outcome="BUDGET_EXHAUSTED"))
    home.asks.close()
    return home


def pages(pdf: Path) -> int:
    return len(re.findall(rb"/Type\s*/Page\b", pdf.read_bytes()))


@pytest.mark.long
@pytest.mark.parametrize("filled", [False, True], ids=["as it comes", "full"])
def test_it_prints_to_two_sheets(home, request, tmp_path, filled):
    if shutil.which("chromium") is None:
        pytest.skip("NO BROWSER PRINTED THIS: chromium is not installed")
    home = request.getfixturevalue("full") if filled else home
    page, pdf = tmp_path / "report.html", tmp_path / "report.pdf"
    key = home.read_ledger_key()
    page.write_bytes(signed_page(report_page(Record(home)), sign=key.sign))
    print_pdf(page, pdf, sign=key.sign)
    assert 1 <= pages(pdf) <= 2


def test_the_page_is_read_without_seeing_it(home):
    """A language, one main, headings in order, tables with heads, and each item named by its heading."""
    text = report_page(Record(home))
    assert '<html lang="en">' in text
    assert (text.count("<main>"), text.count("<header>"), text.count("<h1>")) == (1, 1, 1)
    ids = re.findall(r'id="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'aria-labelledby="(item-\d+)"', text)) == {f"item-{n}" for n in range(1, 24)} <= set(ids)
    assert text.count("<table") == text.count("<caption")


@pytest.mark.long
def test_axe_has_nothing_to_say_of_it(full, tmp_path):
    page = tmp_path / "report.html"
    page.write_text(report_page(Record(full)))
    with started() as browser:
        for scheme in ("light", "dark"):
            prefer(browser, scheme)
            browser.get(page.as_uri())
            audit(browser)


def test_facts_are_frozen(home):
    (first, *_) = items(Record(home))
    with pytest.raises(dataclasses.FrozenInstanceError):
        first.title = "another"
