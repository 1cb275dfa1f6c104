"""What is said of two rounds: by hand, by simulation with its false alarms, and where nothing can be said."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom

from dpswd.shared.watching import Change, Round


def made(accuracy, *, records=1000, noise=0.005, day="2026-03-01", public=True):
    return Round(day, "m", records, float(records), public, accuracy, noise, 0.1)


def test_all_records_of_then_and_now_by_hand():
    change = Change.between(made(0.8), made(0.75, records=2000, noise=0.003, day="2026-06-01"))
    assert change is not None
    assert change.loss == pytest.approx(0.05)
    variance = 0.005**2 + 0.003**2 + 0.8 * 0.2 / 1000 + 0.75 * 0.25 / 2000
    assert change.deviation == pytest.approx(math.sqrt(variance))
    assert change.worse
    assert str(change) == "The model is worse by 5.0 points (95%: 1.7 to 8.3) than on 2026-03-01."


def test_what_was_added_is_looked_at_alone_by_hand():
    """Of 1,000 records 800 are right, of 1,400 are 1,050: of the 400 that were added 250, which is 62.5%."""
    change = Change.between(made(0.8), made(0.75, records=1400), appended=True)
    assert change is not None
    assert change.loss == pytest.approx(0.8 - 0.625)
    noise = math.hypot(1000 * 0.005 * (1 / 400 + 1 / 1000), 1400 * 0.005 / 400)
    assert change.deviation == pytest.approx(math.sqrt(noise**2 + 0.75 * 0.25 * (1 / 400 + 1 / 1000)))
    assert "than on 2026-03-01 on the 400 records that were added." in str(change)


@pytest.mark.parametrize(
    ("later", "appended"),
    [(made(0.75), True), (made(0.75, records=900), True), (made(0.75, records=1400, public=False), True)],
    ids=["as many", "fewer", "a number that is private"],
)
def test_all_records_are_compared_where_the_added_ones_cannot_be(later, appended):
    whole, alone = Change.between(made(0.8), later), Change.between(made(0.8), later, appended=appended)
    assert whole == alone


def test_no_change_says_what_would_have_been_seen():
    change = Change.between(made(0.8), made(0.79))
    assert change is not None
    assert not change.worse
    seen = 100 * (1.959964 + 0.841621) * change.deviation
    assert str(change).startswith("No change can be told since 2026-03-01: -1.0 points (95%: -4.8 to +2.8).")
    assert str(change).endswith(f"A loss of {seen:.1f} points would be seen in four of five cases.")
    gain = Change.between(made(0.7), made(0.8))
    assert "better by 10.0 points" in str(gain)
    assert not gain.worse


def test_without_enough_labels_nothing_is_compared():
    assert Change.between(made(None), made(0.8)) is None
    assert Change.between(made(0.8), made(None)) is None
    assert "too few" in made(None).line()


def test_rounds_without_an_error_or_without_a_hit_keep_an_interval():
    change = Change.between(made(1.0, noise=0.0), made(1.0, noise=0.0))
    assert change is not None
    assert change.deviation > 0.0


@pytest.mark.parametrize(("appended", "stay"), [(False, 0), (False, 2000), (True, 2000)])
def test_an_unchanged_model_is_called_worse_as_rarely_as_stated(appended, stay):
    """At most 1 in 40; the bound on the count of 4,000 tries is passed by chance with probability below 1e-6."""
    rng, tries, n0, n1, sigma = np.random.default_rng(9), 4000, 2000, 3000, 12.0
    called = 0
    for _ in range(tries):
        early = rng.random(n0) < 0.8
        late = np.concatenate([early[:stay], rng.random(n1 - stay) < 0.8])
        rounds = [
            made((part.sum() + sigma * rng.normal()) / len(part), records=len(part), noise=sigma / len(part))
            for part in (early, late)
        ]
        change = Change.between(*rounds, appended=appended)
        assert change is not None
        called += change.worse
    most = int(binom.isf(1e-6, tries, 0.026))  # 0.026: the normal law and the estimated spread are near, not exact
    assert called <= most
    if not (stay and not appended):  # where records stay the interval is wider than needed
        assert called >= int(binom.ppf(1e-6, tries, 0.024))


@pytest.mark.parametrize("appended", [False, True])
def test_a_loss_as_large_as_stated_is_seen_in_four_of_five_cases(appended):
    """The share of 3,000 tries is off by 0.037 with probability below 1e-6; 0.003 are for the spread of fewer hits."""
    rng, tries, n0, n1, sigma = np.random.default_rng(10), 3000, 2000, 4000, 10.0
    spread = 0.8 * 0.2
    if appended:
        weight = 1 / (n1 - n0) + 1 / n0
        deviation = math.sqrt((sigma * weight) ** 2 + (sigma / (n1 - n0)) ** 2 + spread * weight)
    else:
        deviation = math.sqrt((sigma / n0) ** 2 + (sigma / n1) ** 2 + spread / n0 + spread / n1)
    seen = 0
    for _ in range(tries):
        early = rng.random(n0) < 0.8
        worse = rng.random(n1 - n0 if appended else n1) < 0.8 - 2.801585 * deviation
        late = np.concatenate([early, worse]) if appended else worse
        rounds = [
            made((part.sum() + sigma * rng.normal()) / len(part), records=len(part), noise=sigma / len(part))
            for part in (early, late)
        ]
        change = Change.between(*rounds, appended=appended)
        assert change is not None
        seen += change.worse
    assert abs(seen / tries - 0.8) < 0.04
