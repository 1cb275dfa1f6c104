"""Draws of class frequencies, against their posterior on a grid."""

from __future__ import annotations

import pytest
import torch

from public_client.replay.frequency_posterior import STRENGTHS, LinearPosterior

SOURCE = torch.tensor([0.7, 0.3], dtype=torch.float64)


@pytest.mark.parametrize(("known", "at"), [(2.0, 0.5), (20.0, 0.95), (300.0, 1.02)])
def test_draws_have_the_moments_of_the_posterior(known, at):
    """One value that says at +- 1 / known of the first class's frequency, also that it is more than all.

    The strength is summed over. About 30 independent values of a mean in each of hundreds of chains: a tenth of a
    deviation is more than ten standard errors; and the seed is fixed.
    """
    left, slopes = known * torch.tensor([at - 0.6]).double(), known * torch.tensor([[1.0, 0.0]]).double()
    w0 = torch.tensor([0.6, 0.4], dtype=torch.float64)
    drawn = LinearPosterior(left, slopes, w0, SOURCE).draws()
    torch.testing.assert_close(drawn.sum(dim=1), torch.ones(len(drawn)).double())

    z = torch.linspace(-60.0, 60.0, 60_001).double()
    logs = torch.stack([torch.nn.functional.logsigmoid(z), torch.nn.functional.logsigmoid(-z)], dim=1)
    log_prior = torch.stack(
        [
            torch.lgamma(torch.tensor(2.0 * one).double())
            - torch.lgamma(2.0 * one * SOURCE).sum()
            + 2.0 * one * (logs @ SOURCE)
            for one in STRENGTHS
        ]
    )
    weights = torch.softmax(torch.logsumexp(log_prior, dim=0) - 0.5 * (known * (at - logs[:, 0].exp())).square(), dim=0)
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
