"""The audit in small: its statistics, and every broken curator caught by it, on a live service or in this process.

No seed fixes a curator's randomness. False alarms: the honest curator's rows are wrong with probability at most 1e-3 in
all (`ALPHA`); an alarm counts here if a second audit repeats it, at most 1e-6. Misses: at these numbers of trials, with
scores of the same laws drawn apart, none of 40 to 120 audits missed a fault; one audit of three has to find it.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from scipy.stats import norm

from benchmarks.audit import bounds
from benchmarks.audit.faults import FAULTLESS, FAULTS
from benchmarks.audit.means import ATTACKS
from benchmarks.audit.report import Setup, page
from benchmarks.audit.trials import Audit
from dpswd.public_client.testing.canaries import divided
from dpswd.shared.accounting import pld
from dpswd.shared.core.privacy.events import RunEvent, SanitizedGradient, StepEvent
from dpswd.shared.published_mechanisms import ALL_MECHANISMS

ALPHA = 1e-3
BY_NAME = {attack.name: attack for attack in ATTACKS}
# A promise of epsilon 6 is refuted with fewer trials than one of 1.5.
COEFFICIENTS = dataclasses.replace(BY_NAME["coefficients"], epsilon=6.0)
GRADIENT = BY_NAME["gradient"]
GUESSED = dataclasses.replace(BY_NAME["guessed directions"], epsilon=2.0)
POINTS = dataclasses.replace(BY_NAME["generated points"], epsilon=4.0)
STATISTICS = [
    dataclasses.replace(BY_NAME[name], epsilon=3.0)
    for name in ("class statistics", "score statistics", "evaluation", "labelled gradient")
]
LABELLED = [BY_NAME[name] for name in ("labelled rows", "labelled coefficients")]
SAMPLES = dataclasses.replace(BY_NAME["run of samples"], records=4, epsilon=6.0)


@pytest.fixture(scope="module")
def audit():
    return Audit(alpha=ALPHA, process=False, say=lambda _: None)


@pytest.fixture(scope="module")
def mocked():
    return Audit(alpha=ALPHA, served=False, noise_bounds=False, say=lambda _: None)


@pytest.mark.statistical
class TestLiveCurators:
    def test_no_bound_lies_above_the_claim_without_a_fault(self, audit):
        results = audited_unbroken(audit, [COEFFICIENTS, GRADIENT], 60)
        assert all(1.0 < one.claim.exact <= one.claim.ledger < 1.3 * one.claim.exact for one in results)
        text = page({FAULTLESS: results}, [COEFFICIENTS, GRADIENT], Setup("test", 0.02, ALPHA, 0.1, process=False))
        assert text.count("| no |") == len(results)

    @pytest.mark.parametrize(
        ("fault", "attack", "trials"),
        [
            pytest.param("noise halved", COEFFICIENTS, 600, marks=pytest.mark.exhaustive),
            pytest.param("batch maximum in the place of clipping", COEFFICIENTS, 500, marks=pytest.mark.exhaustive),
            ("target gradient unsanitized", GRADIENT, 100),
            pytest.param("directions chosen by the client", GUESSED, 500, marks=pytest.mark.exhaustive),
            pytest.param("generated points clipped one by one", POINTS, 200, marks=pytest.mark.exhaustive),
        ],
        ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else None,
    )
    def test_a_broken_curator_is_caught(self, audit, fault, attack, trials):
        assert any(audit.audit(fault, [attack], trials=lambda _: trials)[0].caught for _ in range(3))

    @pytest.mark.exhaustive
    def test_no_bound_lies_above_the_claim_for_generated_points(self, audit):
        audited_unbroken(audit, [POINTS], 200)

    @pytest.mark.exhaustive  # make test looks at the samples themselves: test_every_step_takes_a_sample_of_its_own
    def test_a_reused_sample_is_caught_and_a_fresh_one_is_not(self, audit):
        reused = audit.audit("sample reused across steps", [SAMPLES], trials=lambda _: 70)
        assert any(one.caught for one in reused), reused
        audited_unbroken(audit, [SAMPLES], 20)


@pytest.mark.statistical
class TestEveryMechanism:
    """Those that no live curator is asked for above: computed here, by the mock curator."""

    @pytest.mark.parametrize(
        ("attack", "trials"),
        [
            *((one, 160) for one in STATISTICS),
            *(pytest.param(one, 900, marks=pytest.mark.exhaustive) for one in LABELLED),
        ],
        ids=lambda value: value.name.replace(" ", "-") if hasattr(value, "name") else None,
    )
    @pytest.mark.long
    def test_the_claim_holds_and_a_quarter_of_the_noise_is_caught(self, mocked, attack, trials):
        """A quarter: half of it takes thousands of trials to catch surely, for the page's command."""
        results = audited_unbroken(mocked, [attack], 40)
        assert all(one.claim.exact <= one.claim.ledger < 1.3 * one.claim.exact for one in results)
        assert any(mocked.audit("noise quartered", [attack], trials=lambda _: trials)[0].caught for _ in range(3))

    @pytest.mark.parametrize(
        "attack",
        [
            pytest.param(one, marks=pytest.mark.exhaustive)
            for one in STATISTICS
            if one.name in FAULTS["clipped for additions"].attacks
        ],
        ids=lambda one: one.name.replace(" ", "-"),
    )
    def test_a_clip_as_if_records_were_added_is_caught(self, mocked, attack):
        assert any(mocked.audit("clipped for additions", [attack], trials=lambda _: 2000)[0].caught for _ in range(3))

    @pytest.mark.long
    def test_no_bound_lies_above_the_claim_of_labelled_releases(self, mocked):
        audited_unbroken(mocked, LABELLED, 40)

    def test_no_mechanism_is_without_an_attack(self):
        assert {attack.mechanism for attack in ATTACKS} == set(ALL_MECHANISMS)


def audited_unbroken(audit, attacks, trials):
    """An audit of the honest curator that alarms for nothing, or does so only once."""
    for _ in range(2):
        results = audit.audit(FAULTLESS, attacks, trials=lambda _: trials)
        if not any(one.caught for one in results):
            break
    assert not any(one.caught for one in results), results
    return results


def test_every_fault_is_tested_here():
    tested = {FAULTLESS, "sample reused across steps", "clipped for additions", "noise quartered", "noise left out"}
    for mark in TestLiveCurators.test_a_broken_curator_is_caught.pytestmark:
        if mark.name == "parametrize":
            tested |= {getattr(case, "values", case)[0] for case in mark.args[1]}
    assert tested == set(FAULTS)


class TestBounds:
    @pytest.mark.parametrize(("hits", "trials"), [(0, 50), (1, 50), (25, 50), (50, 50), (3, 1000)])
    @pytest.mark.parametrize("alpha", [0.05, 1e-4])
    def test_limits_hold_with_their_confidence(self, hits, trials, alpha):
        """Clopper-Pearson by its definition: at the limit the tail has exactly the probability alpha."""
        from scipy.stats import binom

        low, high = bounds.lower_limit(hits, trials, alpha), bounds.upper_limit(hits, trials, alpha)
        assert low <= hits / trials <= high
        assert hits == 0 or binom.sf(hits - 1, trials, low) == pytest.approx(alpha, rel=1e-6)
        assert hits == trials or binom.cdf(hits, trials, high) == pytest.approx(alpha, rel=1e-6)

    @pytest.mark.parametrize("mu", [0.5, 1.0, 2.0])
    def test_a_gaussian_mechanism_is_bounded_from_below_and_never_above(self, mu):
        """Scores of a mechanism whose epsilon is known. 200 audits at alpha 0.01: more than 9 wrong has p < 1e-4."""
        generator = np.random.default_rng(int(10 * mu))
        delta = 0.02
        event = _gaussian(mu)
        exact = pld.epsilon(event.step, 1, delta)
        best, wrong = 0.0, 0
        for _ in range(200):
            null, other = generator.normal(size=400), generator.normal(mu, size=400)
            results = bounds.evidence(null, other, delta=delta, alpha=0.01)
            wrong += results.epsilon > exact
            best = max(best, results.epsilon)
        assert wrong <= 9
        assert best > 0.2 * exact or mu < 1.0
        results = bounds.evidence(null, other, delta=delta, alpha=0.01, centred=True)
        lower = bounds.noise_bound(results, lambda factor: divided(event, factor), delta)
        assert 0.3 * exact < lower <= exact or mu < 1.0

    def test_scores_that_are_smaller_for_the_neighbour_count_as_well(self):
        null, other = np.full(200, 5.0), np.full(200, -5.0)
        results = bounds.evidence(null, other, delta=0.02, alpha=0.01)
        assert results.epsilon > 2.0
        same = bounds.evidence(null, null, delta=0.02, alpha=0.01)
        assert same.epsilon == 0.0

    def test_dependence_is_seen_only_where_it_is(self):
        generator = np.random.default_rng(3)
        first, second, common = generator.normal(size=(3, 60))
        assert bounds.dependence(first, second, seed=1, permutations=2000) > 0.01
        assert bounds.dependence(first + 2 * common, second + 2 * common, seed=1, permutations=2000) < 0.002

    def test_the_family_of_the_declared_mechanism_is_its_own_profile(self):
        """Rates that lie on the exact trade-off curve of noise factor 2 give that factor's epsilon."""
        event = _gaussian(0.7)
        rate = 0.1
        reached = norm.sf(norm.isf(rate) - 1.4)  # half the noise: twice the shift
        results = bounds.Evidence(0.0, 0.02, rate, reached, 1, 0.01)
        expected = pld.epsilon(_gaussian(1.4).step, 1, 0.02)
        lower = bounds.noise_bound(results, lambda factor: divided(event, factor), 0.02)
        assert expected * 0.93 < lower <= expected * 1.001


def _gaussian(mu: float) -> RunEvent:
    part = SanitizedGradient(parameters=1, clip_norm=0.5, sigma=1.0 / mu, grid_step=0.0)
    assert math.isclose(2 * part.clip_norm / part.sigma, mu)
    return RunEvent(step=StepEvent(records=10, batch=10, parts=(part,)), steps=1)
