"""The least epsilon for what is wished: from results alone, and in plain words where they cover no such data."""

from __future__ import annotations

import math

import pytest

from benchmarks import wishes as benchmark
from benchmarks.records import read
from benchmarks.sites import RESULTS as SITES
from dpswd.public_client.plans.wishes import RECALIBRATE, Site, alike, least_epsilon, stored
from dpswd.shared.core.errors import InvalidValue


def site(name, *runs, records=500, modality="vectors"):
    rows = tuple((records, epsilon, gain, left) for epsilon, gain, left in runs)
    return Site(name, modality, 2, modality == "vectors", rows)


@pytest.fixture(scope="module")
def every():
    return benchmark.measured_sites()


@pytest.fixture(scope="module")
def shares(every):
    return benchmark.summary(every)


def test_what_is_read_is_what_the_benchmark_makes_of_the_results_on_file(every, shares):
    assert benchmark.WRITTEN.read_text() == benchmark.written(every, shares)
    sites, right = stored()
    assert sites == every
    assert 0.0 < right["sites"] < right["shifts"] < 1.0
    assert {one.modality for one in sites} == {"vectors", "images"}


def test_the_natural_sites_and_every_source_and_shift_of_the_battery_are_there(every):
    names = {one.name for one in every}
    assert {f"{row['table']} {row['site']}" for row in read(SITES)} < names
    assert {f"{row['source']} {row['shift']}" for row in read(benchmark.BATTERY)} < names


def test_a_site_reached_it_if_its_run_that_tells_most_did():
    one = site("one", (0.1, 2.5, 0.4), (0.3, 1.0, 0.6), (1.0, 2.0, 0.5), (3.0, 4.0, 0.2))
    assert one.reached("accuracy +2") == [True, False, True, True]
    assert one.reached(RECALIBRATE) == [True, False, True, True]
    assert one.reached("accuracy +4.5") == [False] * 4
    assert site("unlabelled", (0.1, 3.0, None)).reached(RECALIBRATE) == []


GRID = (0.03, 0.1, 0.3, 1.0, 3.0)


def needing(least, records=500, name="one"):
    return site(f"{name} {least} {records}", *((e, 3.0 * (e >= least), 0.1) for e in GRID), records=records)


@pytest.mark.parametrize("least", [0.05, 0.2, 0.6])
def test_the_answer_lies_where_sites_began_to_reach_it_with_their_share(least):
    sites = [needing(least * spread) for spread in (0.7, 0.9, 1.0, 1.1, 1.4)] + [needing(math.inf)]
    answer = least_epsilon("accuracy +2", 500, sites)
    assert (answer.reached, answer.sites) == (5, 6)
    assert least / 1.8 < answer.epsilon < least * 1.8
    assert "5 of 6 sites of such data reached it" in str(answer)


def test_one_run_that_failed_by_chance_does_not_move_the_answer():
    sites = [needing(0.2, name=str(number)) for number in range(6)]
    lucky = Site("lucky", "vectors", 2, True, (*sites[0].runs[:4], (500, 3.0, 0.0, 1.0)))
    without, answer = (least_epsilon("accuracy +2", 500, which) for which in (sites, [*sites, lucky]))
    assert answer.epsilon == pytest.approx(without.epsilon, rel=0.3)


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
def test_sizes_count_as_the_sites_themselves_say(power):
    sites = [needing(50.0 / n**power / (50.0 / 700**power) * 0.3, n) for n in (150, 300, 700, 1500, 3000)]
    answer = least_epsilon("accuracy +2", 1500, sites).epsilon / least_epsilon("accuracy +2", 300, sites).epsilon
    assert answer == pytest.approx(0.2**power)


def test_most_that_never_reach_it_are_no_promise():
    sites = [needing(1.0), *(needing(math.inf, name=str(number)) for number in range(3))]
    answer = least_epsilon("accuracy +2", 500, sites)
    assert (answer.reached, answer.sites) == (1, 4)
    assert 0.2 < answer.epsilon < 3.0
    assert "most do not reach it" in str(answer)
    never = least_epsilon("accuracy +2", 500, sites[1:])
    assert never.epsilon == math.inf
    assert "none reached it" in str(never)


def test_other_data_are_said_to_be_unknown():
    sites, _ = stored()
    labelled = alike("vectors", 2, 500, sites)
    assert len(labelled) >= 10
    assert all(one.labelled for one in labelled)
    assert len(alike("images", 10, 2000, sites)) >= 50
    assert not any(one.labelled for one in alike("vectors", 0, 500, sites))
    assert not alike("vectors", 5, 500, sites)
    assert not alike("vectors", 2, 5_000_000, sites)
    assert not alike("sequences", 2, 500, sites)
    answer = least_epsilon(RECALIBRATE, 500, alike("vectors", 0, 500, sites))
    assert answer.sites == 0
    assert "no results cover such data" in str(answer)


@pytest.mark.parametrize("want", ["accuracy", "accuracy + 2", "accuracy +-1", "recalibrated", "auc +2", ""])
def test_another_want_is_refused_and_the_message_says_what_can_be_asked(want):
    with pytest.raises(InvalidValue, match=r"accuracy \+2"):
        least_epsilon(want, 500, [])


def test_the_shares_on_file_are_those_of_the_documentation(shares):
    page = (benchmark.WRITTEN.parents[2] / "docs" / "ml-team" / "trying.md").read_text()
    by_name = {name.rpartition(" (")[0]: (int(name.rpartition("(")[2].split()[0]), s) for name, s in shares.items()}
    (cells, share), (_, where) = by_name["all"], by_name["all, where it was reached"]
    assert f"of {cells} cells {share:.0%} of answers are right, {where:.0%} where it was reached" in page
    (cells, share), (_, where) = by_name["sites"], by_name["sites, where it was reached"]
    assert f"of the {cells} of natural sites {share:.0%} and {where:.0%}" in page
    assert by_name["all"][1] >= 0.8
