"""How much there is to read: budgets that only ever fall, and pages whose claims follow from a number."""

from __future__ import annotations

import math
import re

import pytest

from benchmarks import first_contact

BUDGETS = {
    "words": 68_200,  # 70,000
    "words_before_it_works": 16_070,  # 25,000
    "longest_page": 1_500,  # 2,000
    "longest_paragraph": 92,  # 120
    "longest_sentence": 38,  # 40
    "commands": 45,
    "options": 19,
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
