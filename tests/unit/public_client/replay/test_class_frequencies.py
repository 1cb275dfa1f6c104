"""Class frequencies from a release: what is found, how surely, and what they cannot explain."""

from __future__ import annotations

import pytest
import torch

from benchmarks.local import released
from dpswd.public_client.data.datasets import Labelled
from dpswd.public_client.replay.class_frequencies import Frequencies, FrequencyModel, Noise
from dpswd.public_client.replay.residuals import Residuals

CLASSES, D = 4, 12
CENTRES = 1.5 * torch.randn(CLASSES, D, generator=torch.Generator().manual_seed(99))


def mixture(count: int, frequencies: list[float], seed: int) -> Labelled:
    """Normal classes around fixed centres."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.multinomial(torch.tensor(frequencies), count, replacement=True, generator=generator)
    return Labelled(CENTRES[labels] + torch.randn(count, D, generator=generator), labels)


SOURCE = mixture(3000, [0.25, 0.25, 0.25, 0.25], 0)


def release(target: torch.Tensor, *, epsilon: float, seed: int = 0) -> Residuals:
    return released(target, SOURCE.images, epsilon=epsilon, delta=1e-5, seed=bytes([seed, *range(31)]), along=80)


def free(target: torch.Tensor, *, epsilon: float, seed: int = 0) -> tuple[Frequencies, Frequencies]:
    """Free frequencies, and the source's own."""
    model = FrequencyModel(SOURCE.images, SOURCE.labels, release(target, epsilon=epsilon, seed=seed), CLASSES)
    return model.free(), model.fixed()


@pytest.mark.long
def test_frequencies_are_estimated_absent_classes_too():
    target = mixture(3000, [0.6, 0.3, 0.1, 0.0], 1)
    after, before = free(target.images, epsilon=2.0)
    truth = torch.bincount(target.labels, minlength=CLASSES) / len(target)
    assert float((after.frequencies - truth).abs().max()) < 0.02
    assert float(after.frequencies[3]) < 0.01
    torch.testing.assert_close(after.weights, after.frequencies / after.before)
    assert after.log_evidence > before.log_evidence + 100.0
    assert before.misfit > 50.0 > after.misfit


@pytest.mark.long
def test_deviations_are_those_of_the_errors():
    """12 standardised errors of frequencies over noises and targets; their mean square is 1 where the law is right.

    Frequencies add up, so 9 are independent: outside [0.018, 5.4] has a chance below 1e-6.
    """
    squares = []
    for seed in range(3):
        target = mixture(1500, [0.4, 0.2, 0.1, 0.3], 10 + seed)
        after, _ = free(target.images, epsilon=1.0, seed=seed)
        truth = torch.bincount(target.labels, minlength=CLASSES) / len(target)
        squares.append(((after.frequencies - truth) / after.deviations).square())
    assert 0.018 < float(torch.cat(squares).mean()) < 5.4


@pytest.mark.long
def test_no_shift_is_no_evidence():
    """600 squared residuals of independent noise: a mean outside [0.7, 1.35] has a chance below 1e-6."""
    after, before = free(mixture(3000, [0.25, 0.25, 0.25, 0.25], 2).images, epsilon=0.5)
    assert 0.7 < before.chi_square < 1.35
    assert after.log_evidence - before.log_evidence < 9.0
    assert after.misfit < 11.3
    assert after.at_most < 0.0125


@pytest.mark.long
def test_chance_in_the_records_is_no_evidence_where_it_exceeds_the_noise():
    """At epsilon 50 records differ by a hundred times the noise: V must hold their chance, of about 3 x 12 axes.

    A mean square above 6 over 36 independent axes has a chance below 1e-6.
    """
    target = mixture(3000, [0.25, 0.25, 0.25, 0.25], 2).images
    after, before = free(target, epsilon=50.0)
    residuals = release(target, epsilon=50.0)
    assert float(residuals.of_all(SOURCE.images, torch.ones(len(SOURCE))).square().mean()) > 20.0
    assert before.chi_square < 6.0
    assert after.at_most < 0.0125
    assert float((after.frequencies - after.before).abs().max()) < 0.03


@pytest.mark.long
def test_what_no_frequencies_explain_is_seen():
    moved = mixture(3000, [0.25, 0.25, 0.25, 0.25], 3).images * 1.4
    after, _ = free(moved, epsilon=1.0)
    assert after.misfit > 100.0
    assert after.unexplained > 0.02


def test_little_epsilon_certifies_nothing():
    after, before = free(mixture(200, [0.7, 0.3, 0.0, 0.0], 4).images, epsilon=0.1)
    assert after.at_most > 0.05
    assert after.log_evidence - before.log_evidence < 9.0


def test_a_class_that_the_source_lacks_stays_absent():
    few = SOURCE.labels != 2
    residuals = release(mixture(1000, [0.5, 0.3, 0.0, 0.2], 5).images, epsilon=2.0)
    after = FrequencyModel(SOURCE.images[few], SOURCE.labels[few], residuals, CLASSES).free()
    assert float(after.frequencies[2]) == 0.0
    assert float(after.weights[2]) == 1.0
    assert float(after.frequencies.sum()) == pytest.approx(1.0)


def test_a_misfit_is_seen_behind_combinations_that_are_much_more_certain():
    """The likelihood of v has a peak at 0 for the values of the first two, and a higher one for the other eight."""
    precision = torch.tensor([1e6] * 2 + [1.0] * 8, dtype=torch.float64)
    noise = Noise(torch.eye(10, dtype=torch.float64), torch.diag(precision))
    left = torch.tensor([0.1] * 2 + [12.0] * 8, dtype=torch.float64)
    v = noise.most_probable(left)
    assert float(noise.log_likelihood(left, v)) > float(noise.log_likelihood(left, 0.0)) + 100.0
    assert v == pytest.approx(114.0, rel=0.01)  # eight of 144 and two of nothing: 8 x 144 = 10 (1 + v)
    assert noise.at_most(left, v) > v
    assert noise.most_probable(0.1 * torch.ones(10, dtype=torch.float64)) == 0.0
