"""Draws of class frequencies, against their posterior on a grid."""

from __future__ import annotations

import math

import pytest
import torch

from dpswd.public_client.replay.frequency_posterior import RARER, STRENGTHS, LinearPosterior

SOURCE = torch.tensor([0.7, 0.3], dtype=torch.float64)


@pytest.mark.parametrize(("slope", "at"), [(2.0, 0.5), (20.0, 0.95), (300.0, 1.02)])
def test_draws_have_the_moments_of_the_posterior(slope, at):
    """One value that says at +- 1 / known of the first class's frequency, also that it is more than all.

    Strengths and rare classes are summed over. About 30 independent values of a mean in each of hundreds of chains: a
    tenth of a deviation is more than ten standard errors; and the seed is fixed.
    """
    left, slopes = slope * torch.tensor([at - 0.6]).double(), slope * torch.tensor([[1.0, 0.0]]).double()
    w0 = torch.tensor([0.6, 0.4], dtype=torch.float64)
    drawn = LinearPosterior(left, slopes, w0, SOURCE).draws()
    torch.testing.assert_close(drawn.sum(dim=1), torch.ones(len(drawn)).double())

    z = torch.linspace(-60.0, 60.0, 60_001).double()
    logs = torch.stack([torch.nn.functional.logsigmoid(z), torch.nn.functional.logsigmoid(-z)], dim=1)
    priors = [(0.5, SOURCE)]  # half of the probability is that no class is rare, half that one of the two is
    for factor in RARER:
        for rare in (torch.tensor([factor, 1.0]).double(), torch.tensor([1.0, factor]).double()):
            priors.append((0.25 / len(RARER), SOURCE * rare / (SOURCE @ rare)))
    log_prior = torch.stack(
        [
            math.log(probability)
            + torch.lgamma(torch.tensor(2.0 * one).double())
            - torch.lgamma(2.0 * one * centre).sum()
            + 2.0 * one * (logs @ centre)
            for probability, centre in priors
            for one in STRENGTHS
        ]
    )
    weights = torch.softmax(torch.logsumexp(log_prior, dim=0) - 0.5 * (slope * (at - logs[:, 0].exp())).square(), dim=0)
    first = logs[:, 0].exp()
    mean = float(weights @ first)
    deviation = float(weights @ (first - mean).square()) ** 0.5
    assert float(drawn[:, 0].mean()) == pytest.approx(mean, abs=0.1 * deviation)
    assert float(drawn[:, 0].std()) == pytest.approx(deviation, rel=0.15)


def test_classes_that_look_alike_move_together():
    """The second and the third class are known in sum alone: each may be anything up to it."""
    alike = 200.0 * torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]], dtype=torch.float64)
    source = torch.full((3,), 1.0 / 3.0, dtype=torch.float64)
    drawn = LinearPosterior(alike @ (torch.tensor([0.2, 0.6, 0.2]).double() - source), alike, source, source).draws()
    assert float(drawn[:, 0].mean()) == pytest.approx(0.2, abs=0.005)
    assert float(drawn[:, 0].std()) < 0.01
    assert float(drawn[:, 1].std()) > 0.05
    assert float(torch.corrcoef(drawn[:, 1:].T)[0, 1]) < -0.9


def test_one_class_has_one_frequency():
    one = torch.ones(1, dtype=torch.float64)
    assert LinearPosterior(one, one[:, None], one, one).draws().tolist() == [[1.0]]


def test_absent_classes_are_decided_as_absent_where_the_others_keep_their_proportions():
    """Two pairs: the sum of each is known well, and which of a pair it is to a deviation of 0.05, or of 0.0125.

    One of each pair absent and the other doubled is told from all else; where no proportions are kept, nothing is
    decided.
    """
    source = torch.full((4,), 0.25, dtype=torch.float64)

    def draws(true: list[float], slope: float) -> torch.Tensor:
        pairs = torch.tensor([[200.0, 200.0, 0.0, 0.0], [slope, -slope, 0.0, 0.0], [0.0, 0.0, slope, -slope]]).double()
        return LinearPosterior(pairs @ (torch.tensor(true).double() - source), pairs, source, source).draws()

    assert float(draws([0.5, 0.0, 0.5, 0.0], 10.0)[:, 1].mean()) < 0.02
    other = draws([0.4, 0.1, 0.2, 0.3], 40.0)[:, 1]
    assert float(other.mean()) == pytest.approx(0.1, abs=0.02)
    assert float(other.std()) > 0.008


@pytest.mark.parametrize("absent", [7, 10])
def test_many_classes_are_searched_along_one_order(absent):
    """Of 20 classes: seen at +- 0.01 each; those that are known as absent leave a tenth of the noise.

    Not every number of absent classes is tried at first: 10 is, 7 is found between 6 and 8.
    """
    slopes, source = 100.0 * torch.eye(20).double(), torch.full((20,), 0.05, dtype=torch.float64)
    true = torch.tensor([0.0] * absent + [1.0 / (20 - absent)] * (20 - absent)).double()
    noise = torch.randn(20, generator=torch.Generator().manual_seed(0)).double()
    drawn = LinearPosterior(slopes @ (true - source) + noise, slopes, source, source).draws()
    assert float((drawn.mean(dim=0) - true).abs().max()) < 0.005


@pytest.mark.parametrize("size", [1e7, 1e160])
def test_rounding_ends_in_frequencies_all_the_same(size):
    """Slopes so steep, beside a class so rare, that matrices are singular or overflow."""
    source = torch.tensor([1e-9, 0.5, 0.5 - 1e-9]).double()
    slopes = size * torch.tensor([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]]).double()
    drawn = LinearPosterior(torch.ones(2).double(), slopes, source, source).draws()
    assert torch.isfinite(drawn).all()
    torch.testing.assert_close(drawn.sum(dim=1), torch.ones(len(drawn)).double())
