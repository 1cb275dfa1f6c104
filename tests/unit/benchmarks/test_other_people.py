"""The benchmark of other people: whom it chooses, and that the page shows what is on file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import other_people, records

PAGE = Path(__file__).parents[3] / "docs" / "ml-team" / "normalisation.md"


def test_the_page_shows_what_is_on_file():
    runs = records.read(other_people.RESULTS)
    assert len(runs) == len([*other_people.jobs(Path(), list(other_people.FILES))])
    assert other_people.words(other_people.summary(runs)) in PAGE.read_text()


def test_people_are_chosen_as_named():
    rng = np.random.default_rng(0)
    numbers, flags = rng.normal(size=(2000, 3)), rng.random((2000, 4)) < [0.3, 0.5, 0.02, 0.4]
    values, labels = np.concatenate([numbers, flags], axis=1).astype(np.float32), rng.integers(2, size=2000)
    for place, column in ((1, 2), (2, 1)):  # from the last number on
        older, younger = (other_people.chances(values, labels, f"{how} {place}") for how in ("older", "younger"))
        np.testing.assert_allclose(np.log(older), np.clip(values[:, column], -2.5, 2.5), atol=1e-6)
        np.testing.assert_allclose(older * younger, 1.0, rtol=1e-6)
    for place, column in ((1, 4), (2, 6)):  # a rare flag is none
        flagged = other_people.chances(values, labels, f"flagged {place}")
        assert set(flagged[values[:, column] == 1.0]) == {6.0}
        assert set(flagged[values[:, column] == 0.0]) == {1.0}
    assert set(other_people.chances(values, labels, "none")) == {1.0}
    for shift, weight in (("frequent", 3.0), ("rare", 0.3)):
        assert set(other_people.chances(values, labels, shift)[labels == 1]) == {weight}


def test_a_summary_counts_changes_and_losses():
    def run(shift, before, after, accuracy):
        scores = [{"log_loss": loss, "accuracy": right} for loss, right in zip((before, after), accuracy, strict=True)]
        outcome = "kept" if before == after else "changed"
        return {"shift": shift, "epsilon": 1.0, "source": scores[0], "delivered": scores[1], "outcome": outcome}

    runs = [run("older 1", 0.5, 0.6, (80.0, 79.0)), run("older 2", 0.5, 0.5, (80.0, 80.0))]
    figures = other_people.summary([*runs, run("rare", 0.5, 0.4, (60.0, 70.0))])
    assert figures["people 1"] | {"worst": 0.0} == {
        "runs": 2, "changed": 1, "lost": 1, "worst": 0.0, "accuracies": [80.0, 79.5],
    }  # fmt: skip
    assert figures["people 1"]["worst"] == pytest.approx(-0.1)
    assert other_people.words(figures) == "1 of 2 changed, 1 lost; rarer classes 60.0 to 70.0 at epsilon 1"
