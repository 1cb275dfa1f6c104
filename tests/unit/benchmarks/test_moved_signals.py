"""The benchmark of signals: its shifts are what they say, and the page shows what is on file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import moved_signals, records

PAGE = Path(__file__).parents[3] / "docs" / "ml-team" / "normalisation.md"


def test_the_page_shows_what_is_on_file():
    runs = records.read(moved_signals.RESULTS)
    assert len(runs) == len([*moved_signals.jobs(moved_signals.SEEDS)])
    assert "\n".join(moved_signals.lines(moved_signals.summary(runs))) in PAGE.read_text()


@pytest.mark.parametrize("leads", [1, 3])
def test_beats_are_of_their_classes_and_elsewhere_as_named(leads):
    signals, kinds = moved_signals.beats(400, leads, 3)
    assert signals.shape == (400, leads, 187 if leads == 1 else 150)
    shares = np.bincount(kinds) / len(kinds)
    assert np.abs(shares - moved_signals._SHARES).max() < 0.1
    there = {shift: moved_signals.elsewhere(signals, shift, 1) for shift in moved_signals.SHIFTS}
    np.testing.assert_array_equal(there["none"], signals)
    np.testing.assert_allclose(there["gain 1.6, offset 0.3"], 1.6 * signals + 0.3)
    np.testing.assert_array_equal(there["upside down"], -signals)
    flipped = (there["one lead upside down"] == -signals).all(axis=(0, 2))
    assert flipped.tolist() == [lead == 1 for lead in range(leads)]
    assert there["hum and noise"].std() > signals.std()
    peaks = [each.mean(axis=(0, 1)).argmax() for each in (signals, there["20% slower"])]
    middle = signals.shape[2] / 2
    assert abs((peaks[1] - middle) - 1.2 * (peaks[0] - middle)) <= 1.5


def test_a_summary_counts_what_was_run():
    run = {"model": "lstm", "shift": "upside down", "epsilon": 1.0, "source": 50.0, "delivered": 90.0, "unmoved": 95.0}
    figures = moved_signals.summary([run, run | {"delivered": 40.0}])
    assert figures == {
        "upside down 1 lstm": {"source": 50.0, "delivered": 65.0, "unmoved": 95.0, "runs": 2, "worst": -10.0}
    }
    assert "| upside down | 50.0/65.0/95.0 |" in list(moved_signals.lines(figures))
