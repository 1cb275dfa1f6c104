"""The baselines beside the default generator: their statistics, and that the page says what is on file."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from scipy.linalg import sqrtm

from benchmarks import generate_fid, generate_peer, generate_tables, records
from benchmarks.generate_fid import frechet

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "ml-team" / "generate.md").read_text(encoding="utf-8")


def test_the_page_tells_the_distances_on_file():
    on_file = {
        one["method"]: f"{one['distance']:.2f}"
        for one in records.read(generate_fid.RESULTS)
        if (one["data"], one["epsilon"]) in (("mnist", 1.0), ("mnist", None))
    }
    expected = [on_file[name] for name in ("real training images",)]
    assert [figure for figure in re.findall(r"\d+\.\d\d", PAGE) if figure in expected] == expected


def test_the_page_holds_the_rows_of_the_peer():
    table = generate_peer.table(records.read(generate_peer.RESULTS), records.read(generate_tables.RESULTS))
    assert "\n".join(line for line in table.splitlines() if "AIM" in line or "MST" in line) in PAGE


def test_the_frechet_distance_is_that_of_normal_laws():
    """Against the definition, with scipy's root of a matrix that is not symmetric."""
    generator = np.random.default_rng(0)
    first = generator.normal(size=(300, 5)) @ generator.normal(size=(5, 5))
    second = generator.normal(size=(200, 5)) * [0.5, 1, 2, 3, 4] + 1.0
    one, other = np.cov(first, rowvar=False), np.cov(second, rowvar=False)
    moved = np.square(first.mean(axis=0) - second.mean(axis=0)).sum()
    assert frechet(first, second) == pytest.approx(moved + np.trace(one + other - 2.0 * sqrtm(one @ other).real))
    assert frechet(first, first) == pytest.approx(0.0, abs=1e-9)
    assert frechet(first, first + 2.0) == pytest.approx(20.0)
