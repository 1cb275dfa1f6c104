"""2,000 canaries in one run: each mechanism's claim is nearly proved, each planted fault refutes it.

Seeds are fixed, so nothing here fails by chance; with other seeds a sound claim is refuted once in a million runs.
"""

from __future__ import annotations

import itertools

import pytest

from benchmarks.audit import canaries
from benchmarks.audit.faults import FAULTLESS
from benchmarks.records import read
from dpswd.public_client.testing.canaries import DESIGNS
from dpswd.shared.core.mechanisms import MECHANISMS

LONG = ("labelled_quantiles", "quantiles", "score_statistics")
REST = {(name, planted) for name in LONG for planted in (FAULTLESS, *canaries.PLANTED)} - {
    ("labelled_quantiles", FAULTLESS),
    *(("score_statistics", planted) for planted in (FAULTLESS, "clipped for additions")),
} | {(name, "noise left out") for name in DESIGNS}  # fmt: skip
"""Seconds each, in `make test-exhaustive`: labelled quantiles have the others' code and labels beside it, the clip of
quantiles is one function for all, no noise is less than half of it, and where 0.8 of a claim is proved, half of the
noise proves more than all of it."""


def cases(*planted):
    return [
        pytest.param(*case, marks=pytest.mark.exhaustive if case in REST else ())
        for case in itertools.product(DESIGNS, planted)
    ]


@pytest.mark.parametrize(("name", "planted"), cases(FAULTLESS))
@pytest.mark.long
def test_a_sound_mechanism_is_proved_to_spend_nearly_what_it_claims(name, planted):
    row = canaries.measured(name, planted, 0)
    assert 0.8 * canaries.EPSILON < row["by_law"] < canaries.EPSILON
    assert row["whatever_it_is"] < row["by_law"]
    assert not row["refuted"]


@pytest.mark.parametrize(("name", "planted"), cases(*canaries.PLANTED))
@pytest.mark.long
def test_a_planted_fault_is_caught(name, planted):
    if (name, planted) in [(each, canaries.PLANTED[-1]) for each in canaries.UNCLIPPED]:
        assert not canaries.measured(name, planted, 1)["refuted"], "counts have no clip"
        return
    assert canaries.measured(name, planted, 1)["refuted"]


def test_every_mechanism_of_the_core_has_canaries():
    assert set(DESIGNS) == set(MECHANISMS)


def test_the_page_shows_what_is_on_file():
    page = canaries.RESULTS.parents[2] / "docs" / "privacy" / "audit-mechanisms.md"
    assert canaries.page() in page.read_text()


def test_what_is_on_file_is_as_good_as_it_is_said_to_be():
    rows = read(canaries.RESULTS)
    assert {row["mechanism"] for row in rows} == set(DESIGNS)
    for line in canaries.summary(rows):
        assert line["least"] > 0.8 * canaries.EPSILON
        assert line["alarms"] == 0
        shares = [line[planted].split(" of ") for planted in canaries.PLANTED if line[planted] != "-"]
        assert all(caught == of for caught, of in shares)
