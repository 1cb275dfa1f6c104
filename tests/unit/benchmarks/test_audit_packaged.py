"""Others' auditors on the product's releases: what is on file is what the page shows, and no sound claim is refuted."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from benchmarks.audit import packaged
from benchmarks.audit.canaries import PLANTED, UNCLIPPED
from benchmarks.audit.faults import FAULTLESS
from benchmarks.records import read
from dpswd.public_client.testing.canaries import DESIGNS

PAGE = Path(packaged.__file__).parents[2] / "docs" / "privacy" / "audit-mechanisms.md"
INSTALLED = {"jax_privacy", "opake"}


def test_the_page_shows_what_is_on_file():
    assert packaged.page() in PAGE.read_text()


def test_no_auditor_refutes_a_sound_claim_and_each_fault_is_refuted_by_two():
    rows = read(packaged.RESULTS)
    faults = {(row["mechanism"], row["fault"], row["by"]) for row in rows if row["fault"] != FAULTLESS}
    assert {row["mechanism"] for row in rows} == set(DESIGNS)
    assert len(faults) == 2 * (len(DESIGNS) * len(PLANTED) - len(UNCLIPPED))
    for row in rows:
        by = packaged.AUDITORIUM if row["by"] == packaged.AUDITORIUM else "order statistics"
        assert (by in row["refuted"]) == (row["fault"] in PLANTED)
        assert row["fault"] in PLANTED or not row["refuted"]


@pytest.mark.long
@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in INSTALLED), reason="pip install jax-privacy opake-auditing"
)
def test_an_auditor_tells_no_noise_from_the_declared_one():
    assert packaged.measured("feature_sums", "noise left out", 0)["refuted"]
    assert not packaged.measured("feature_sums", FAULTLESS, 0)["refuted"]
