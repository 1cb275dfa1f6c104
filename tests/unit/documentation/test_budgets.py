"""How much there is to read: budgets that only ever fall, and pages whose claims follow from a number."""

from __future__ import annotations

import math
import re

import click
import pytest

from benchmarks import first_contact
from dpswd.private_curator.cli.main import main as curator
from dpswd.public_client.cli.main import main as client

BUDGETS = {
    "words": 66_200,  # 70,000
    "words_before_it_works": 15_720,  # 25,000
    "longest_page": 1_500,  # 2,000
    "longest_paragraph": 92,  # 120
    "longest_sentence": 38,  # 40
    "commands": 46,
    "options": 18,
}
IN_WORDS = first_contact.ROOT / "docs" / "privacy" / "in-words.md"
GLOSSARY = first_contact.ROOT / "docs" / "glossary.md"


@pytest.fixture(scope="module")
def counted():
    return first_contact.counted()


@pytest.mark.parametrize("figure", BUDGETS)
def test_there_is_no_more_of_it_than_before(counted, figure):
    assert counted[figure] <= BUDGETS[figure], f"{figure}: {counted[figure]}, {counted['where'].get(figure[8:])}"


def test_what_is_counted_is_prose():
    code, table = "```console\n$ not this\n```", "| a | table |"
    page = f"# A head\n\nOne. Two words, [linked](there.md).\n\n{code}\n\n- an item; 3 x = 4\n\n{table}\n"
    assert list(first_contact.paragraphs(page)) == ["One. Two words, [linked].", "an item; 3 x = 4"]
    assert list(first_contact.sentences(page)) == ["One.", "Two words, [linked].", "an item; 3 x = 4"]
    assert first_contact.Passage("", "`a command of words` and x = 4").words == 2


def test_the_page_without_a_formula_has_none_and_its_odds_follow_from_epsilon():
    page = IN_WORDS.read_text(encoding="utf-8")
    assert not re.search(r"[=^∑√<>]", re.sub(r"<!--.*?-->", "", page))
    rows = re.findall(r"^\| ([\d.]+) \| ([\d.]+)% \| ([\d.]+)% \|$", page, flags=re.MULTILINE)
    assert len(rows) == 4
    for epsilon, *posteriors in rows:
        for prior, posterior in zip((0.5, 0.01), posteriors, strict=True):
            odds = prior / (1 - prior) * math.exp(float(epsilon))
            assert float(posterior) == round(100 * odds / (1 + odds), 1)


def test_the_glossary_is_in_order_and_says_each_word_once():
    words = re.findall(r"^- \*\*(.+?)\*\*: ", GLOSSARY.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert len(words) >= 50
    assert words == sorted(set(words), key=str.lower)


def test_pages_are_of_four_kinds():
    assert list(first_contact.kinds()) == ["Install", "Tutorials", "How-to", "Reference", "Background"]


@pytest.mark.parametrize("page", first_contact.pages(), ids=lambda page: page.stem)
def test_no_page_opens_with_how_it_was_made(page):
    opening = next(first_contact.paragraphs(page.read_text(encoding="utf-8")), "")
    assert not re.search(r"python -m|\b(generated|written|produced) by\b", opening)


GUIDES = {
    "ml-team": ("first-hour", "guide", "trying", "evaluation", "generate", "recalibrate", "normalisation"),
    "operator": ("first-hour", "console", "records", "two-sites"),
}


@pytest.mark.parametrize("guide", [f"{party}/{page}" for party, pages in GUIDES.items() for page in pages])
def test_a_guide_shows_what_comes_of_it(guide):
    page = (first_contact.ROOT / "docs" / f"{guide}.md").read_text(encoding="utf-8")
    picture, row = r"^\[?!\[[^\]]+\]\(figures/", r"^\|(?:[^|]*\|)*? *[\d.]+[^|]*\| *[\d.]+[^|]*\|"
    assert re.search(f"{picture}|{row}", page, flags=re.MULTILINE)


def typed(command: click.Command) -> set[str]:
    """Names of commands and options below a command, those of one letter and hidden ones included."""
    names = {word.strip("-") for each in command.params for word in getattr(each, "opts", ())}
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            names |= {name} | typed(command.get_command(context, name))
    return names


def test_one_word_is_typed_for_one_idea():
    """An operator gives a reason, a team a purpose, and a name is that of a client; what happened is the history."""
    of_curator, of_client = typed(curator), typed(client)
    assert {"reason", "purpose", "client", "clients", "history", "approve", "renew"} <= of_curator
    assert {"purpose", "init", "renew"} <= of_client
    assert "reason" not in of_client
    others = {"because", "why", "cause", "team", "teams", "timeline", "record", "events", "cert", "request", "sign"}
    assert not others & (of_curator | of_client)


@pytest.mark.parametrize("program", [curator, client], ids=["curator", "client"])
def test_help_lists_every_command_once_by_how_often_it_is_typed(program):
    assert list(program.sections) == ["Every day", "Sometimes", "Rarely"]
    assert sorted(name for names in program.sections.values() for name in names) == sorted(
        program.list_commands(click.Context(program))
    )
