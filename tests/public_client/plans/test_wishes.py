"""The least epsilon for what is wished: from results alone, and in plain words where they cover no such data."""

from __future__ import annotations

import math

import pytest

from benchmarks import wishes as benchmark
from dpswd.public_client.plans.wishes import RECALIBRATE, Site, alike, least_epsilon, stored
from dpswd.public_client.testing.mock import mock_description
from dpswd.shared.core.errors import InvalidValue


def site(name, *runs, records=500, modality="vectors"):
    rows = tuple((records, epsilon, gain, left) for epsilon, gain, left in runs)
    return Site(name, modality, 2, modality == "vectors", rows)


def described(records=500, shape=(6,), classes=2):
    return mock_description(records=records, record_shape=shape, epsilon=8.0, delta=1e-5, classes=classes)


def test_what_is_read_is_what_the_benchmark_makes_of_the_results_on_file():
    assert benchmark.WRITTEN.read_text() == benchmark.written(benchmark.measured_sites())
    sites, right = stored()
    assert sites == benchmark.measured_sites()
    assert 0.0 < right < 1.0
    assert {one.modality for one in sites} == {"vectors", "images"}


def test_a_site_reached_it_from_where_every_larger_epsilon_does():
    one = site("one", (0.1, 2.5, 0.4), (0.3, 1.0, 0.6), (1.0, 2.0, 0.5), (3.0, 4.0, 0.2))
    assert one.least("accuracy +2") == (500, 1.0)
    assert one.least(RECALIBRATE) == (500, 1.0)
    assert one.least("accuracy +4.5") == (500, math.inf)
    assert site("unlabelled", (0.1, 3.0, None)).least(RECALIBRATE) is None


def test_the_answer_is_the_median_of_those_that_reached_it_with_their_share():
    sites = [site(str(at), (at, 3.0, 0.1)) for at in (0.1, 0.3, 1.0)] + [site("never", (1.0, 0.0, 1.0))]
    answer = least_epsilon("accuracy +2", 500, sites)
    assert (answer.reached, answer.sites) == (3, 4)
    assert answer.epsilon == pytest.approx(0.3)
    assert "3 of 4 sites of such data reached it" in str(answer)


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
def test_sizes_count_as_the_sites_themselves_say(power):
    sites = [site(str(n), (50.0 / n**power, 3.0, 0.1), records=n) for n in (200, 500, 2000)]
    assert least_epsilon("accuracy +2", 800, sites).epsilon == pytest.approx(50.0 / 800**power)


def test_most_that_never_reach_it_are_no_promise():
    sites = [site("one", (1.0, 3.0, 0.1)), *(site(str(n), (1.0, 0.0, 1.0)) for n in range(3))]
    answer = least_epsilon("accuracy +2", 500, sites)
    assert (answer.epsilon, answer.reached, answer.sites) == (pytest.approx(1.0), 1, 4)
    assert "most do not reach it" in str(answer)
    never = least_epsilon("accuracy +2", 500, sites[1:])
    assert never.epsilon == math.inf
    assert "none reached it" in str(never)


def test_other_data_are_said_to_be_unknown():
    sites, _ = stored()
    assert len(alike(described(), sites)) >= 10
    assert not alike(described(classes=5), sites)
    assert not alike(described(records=5_000_000), sites)
    assert not alike(described(shape=(40, 3)), sites)
    answer = least_epsilon("accuracy +2", 500, alike(described(classes=0), sites))
    assert answer.sites == 0
    assert "no results cover such data" in str(answer)


@pytest.mark.parametrize("want", ["accuracy", "accuracy + 2", "accuracy +-1", "recalibrated", "auc +2", ""])
def test_another_want_is_refused_and_the_message_says_what_can_be_asked(want):
    with pytest.raises(InvalidValue, match=r"accuracy \+2"):
        least_epsilon(want, 500, [])


def test_the_share_on_file_is_that_of_the_documentation():
    shares = benchmark.summary(benchmark.measured_sites())
    page = (benchmark.WRITTEN.parents[2] / "docs" / "ml-team" / "trying.md").read_text()
    (name,) = [name for name in shares if name.startswith("all, ")]
    assert f"of 122 cells {name.split('(')[1].split()[0]} reached it, and there {shares[name]:.0%} of answers" in page
