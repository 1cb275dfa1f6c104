"""Likelihood ratios by shadows: they tell worlds apart where these differ, and what is on file is as it is said."""

from __future__ import annotations

import numpy as np

from benchmarks.audit import membership
from benchmarks.audit.bounds import evidence
from benchmarks.records import read


def test_ratios_are_those_of_the_shadows_laws_and_of_the_other_half():
    rng = np.random.default_rng(0)
    outside, inside = rng.normal(0.0, 1.0, (4000, 2)), rng.normal(0.5, 1.0, (4000, 2))
    scores, others = membership.ratios(outside, inside)
    assert len(scores) == len(others) == 2000
    exact = 0.5 * outside[2000:].sum(axis=1) - 0.25  # of two normal laws, a mean of 1/2 apart in two coordinates
    assert np.corrcoef(scores, exact)[0, 1] > 0.99
    assert evidence(scores, others, delta=1e-3, alpha=0.05).epsilon > 0.3


def test_one_statistic_that_never_changes_is_no_error():
    same = np.ones((40, 1))
    scores, others = membership.ratios(same, same)
    assert np.isfinite(scores).all()
    assert evidence(scores, others, delta=1e-3, alpha=0.05).epsilon == 0.0


def test_on_file_no_claim_is_refuted_but_the_broken_curators():
    rows = read(membership.RESULTS)
    assert {row["artefact"] for row in rows} == set(membership.ARTEFACTS)
    for row in rows:
        assert (row["at_least"] > membership.EPSILON) == (row["curator"] == membership.BROKEN)
