"""The pairs that `pseudo-labels` is held to on deep features: of the wanted kind, and held out of every choice."""

from __future__ import annotations

import pytest

from benchmarks import records
from benchmarks.pseudo_label_deep import CHOSEN, EXPECTED, LEAST_GAIN, Pair, summary

ON_FILE = records.read(CHOSEN)


def test_what_is_held_out_shares_neither_backbone_nor_names_with_development():
    places: dict[str, tuple[set[int], set[tuple[str, str, str]]]] = {}
    for row in ON_FILE:
        pair = Pair(row["backbone"], row["source"], row["target"], row["shift"])
        assert pair.part == row["part"]
        backbones, names = places.setdefault(pair.part, (set(), set()))
        backbones.add(pair.backbone)
        names.add((pair.source, pair.target, pair.shift))
    for mine, others in zip(places["development"], places["held-out"], strict=True):
        assert not mine & others


def test_chosen_are_those_within_reach_where_exact_self_training_gains():
    for row in ON_FILE:
        assert EXPECTED[0] <= row["source_only"] <= EXPECTED[1]
        assert row["chosen"] == (row["exact"] - row["source_only"] >= LEAST_GAIN)


def test_the_share_is_of_the_gains_over_all_runs():
    common = {"part": "held-out", "epsilon": 3.0, "backbone": 2, "source": "a", "target": "b"}
    some = [
        common | {"shift": "c", "source_only": 90.0, "adapted": 93.0, "exact": 94.0, "outcome": "adapted"},
        common | {"shift": "d", "source_only": 92.0, "adapted": 91.0, "exact": 92.0, "outcome": "adapted"},
    ]
    (row,) = summary(some).values()
    assert row["share_of_exact_gain"] == pytest.approx(0.5)
    assert (row["worst"], row["lost"], row["pairs"]) == (-1.0, 1, 2)
