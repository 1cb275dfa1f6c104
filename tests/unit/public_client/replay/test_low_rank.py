"""Features that moved along few directions: found, followed and paid for; not seen where there is no such shift."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from benchmarks.local import RATE, released
from dpswd.public_client.data.accuracy import accuracy
from dpswd.public_client.data.datasets import Labelled
from dpswd.public_client.data.progress import reporting
from dpswd.public_client.data.ranks import Ranks
from dpswd.public_client.data.source import source_loader, train_source
from dpswd.public_client.linear_evidence import LinearModel
from dpswd.public_client.replay import fit, low_rank
from dpswd.public_client.replay.delivery import Delivered, deliver
from dpswd.public_client.replay.low_rank import LowRankView, low_rank_view
from dpswd.public_client.replay.posterior import VIEW_STEPS, Posterior
from dpswd.public_client.replay.residuals import Residuals
from dpswd.public_client.replay.verdict import CONVINCED, Fitted
from dpswd.shared.core.errors import InvalidValue

CLASSES, D = 4, 8


def vectors(count: int, seed: int) -> Labelled:
    """Classes that differ in some directions of D."""
    generator = torch.Generator().manual_seed(seed)
    world = torch.Generator().manual_seed(99)
    centres = 2.0 * torch.randn(CLASSES, D, generator=world) * (torch.arange(D) < 5)
    mixed = torch.linalg.qr(torch.randn(D, D, generator=world))[0] * torch.exp(-0.1 * torch.arange(D))
    labels = torch.randint(CLASSES, (count,), generator=generator)
    return Labelled((centres[labels] + torch.randn(count, D, generator=generator)) @ mixed.T, labels)


SOURCE = vectors(1500, 0)


def directions(count: int) -> torch.Tensor:
    """Some among the source's first components, (D, count)."""
    top = torch.linalg.svd(SOURCE.images - SOURCE.images.mean(dim=0)).Vh[:5].T
    return torch.linalg.qr(top @ torch.randn(5, count, generator=torch.Generator().manual_seed(3)))[0]


def turned(data: Labelled) -> Labelled:
    plane = directions(2)
    within = (data.images - SOURCE.images.mean(dim=0)) @ plane
    cos, sin = math.cos(0.9), math.sin(0.9)
    return Labelled(data.images + (within @ torch.tensor([[cos, sin], [-sin, cos]]) - within) @ plane.T, data.labels)


def noisy(data: Labelled) -> Labelled:
    grain = 4.0 * torch.randn(len(data), 1, generator=torch.Generator().manual_seed(4))
    return Labelled(data.images + grain @ directions(1).T, data.labels)


def residuals_of(target: torch.Tensor, epsilon: float) -> Residuals:
    return released(target, SOURCE.images, epsilon=epsilon, delta=1e-5, seed=bytes(32))


def fit_view(residuals: Residuals, view: LowRankView | None = None) -> Fitted:
    generator = torch.Generator().manual_seed(0)
    with reporting("", VIEW_STEPS, shown=False) as bar:
        return fit.find_view(
            nn.Identity(), SOURCE, residuals, learning_rate=RATE, generator=generator, bar=bar, view=view
        )


@pytest.fixture(scope="module")
def classifier():
    torch.manual_seed(0)
    classifier = nn.Linear(D, CLASSES)
    train_source(nn.Identity(), classifier, source_loader(SOURCE, batch_size=64), epochs=6, learning_rate=1e-2)
    return classifier.eval()


def given(classifier: nn.Module, fitted: Fitted) -> Delivered:
    with reporting("", 60, shown=False) as bar:
        return deliver(
            nn.Identity(), classifier, {"site": fitted}, {"site": 1.0}, SOURCE,
            steps=60, seed=0, generator=torch.Generator().manual_seed(0), bar=bar,
        )["site"]  # fmt: skip


def test_the_identity_is_the_identity_and_other_features_are_refused():
    view = low_rank_view(SOURCE.images)
    assert torch.equal(view(nn.Identity(), SOURCE.images), SOURCE.images)
    assert float(view.penalty().detach()) == 0.0
    with pytest.raises(InvalidValue, match="moves 8 features, the extractor gives 5"):
        view.check(SOURCE.images, torch.zeros(3, 5))


def test_slopes_are_the_derivatives_of_coefficients_also_at_the_rim():
    """Against central differences; a tenth of the records or more is clipped."""
    generator = torch.Generator().manual_seed(0)
    residuals = residuals_of(SOURCE.images, 8.0)
    features, weights = 1.3 * SOURCE.images[:300], torch.rand(300, generator=generator) + 0.5
    basis, inputs = torch.randn(D, 2, generator=generator), torch.randn(300, 3, generator=generator)
    slopes = residuals.slopes(features, basis, inputs, weights)
    for q, p in ((0, 0), (1, 2)):
        moved = 1e-3 * inputs[:, p : p + 1] * basis[:, q]
        above, below = (residuals.of_all(features + sign * moved, weights).flatten() for sign in (1.0, -1.0))
        expected = residuals.unit * (above - below) / 2e-3
        torch.testing.assert_close(slopes[:, q, p], expected.double(), rtol=0.02, atol=0.02 * float(expected.std()))


def test_the_price_of_parameters_is_that_of_the_marginal_likelihood():
    """A second derivation: the density of a Gaussian sum; the widths' step is at rest where that is largest."""
    generator = torch.Generator().manual_seed(0)
    J = torch.randn(60, 8, generator=generator).double()
    truth = torch.cat((0.8 * torch.randn(5, generator=generator), torch.zeros(3))).double()
    y = J @ truth + torch.randn(60, generator=generator).double()
    model, widths = LinearModel(J, y, (5, 3)), torch.tensor([0.7, 0.4]).double()
    scales = torch.tensor([0.7] * 5 + [0.4] * 3).double()
    law = model.under(widths)
    mode = law.mean
    at_mode = -0.5 * (y - J @ mode).square().sum() - 0.5 * (mode / scales).square().sum() - law.volume
    covariance = torch.eye(60).double() + (J * scales**2) @ J.T
    normal = torch.distributions.MultivariateNormal(torch.zeros(60).double(), covariance)
    assert float(at_mode) == pytest.approx(float(normal.log_prob(y)) + 30.0 * math.log(2.0 * math.pi), rel=1e-9)
    assert float(law.log_evidence) == pytest.approx(float(at_mode), rel=1e-9)
    assert float(law.square) == pytest.approx(float(y @ torch.linalg.solve(covariance, y)), rel=1e-9)
    torch.testing.assert_close(law.covariance, torch.linalg.inv(J.T @ J + torch.diag(1.0 / scales**2)))
    torch.testing.assert_close(law.spread @ law.spread.T, law.covariance)
    for _ in range(100):
        widths = model.better_factors(widths, model.under(widths).mean).clamp(min=1e-3)
    best = model.under(widths).log_evidence - 10.0 * widths.sum()
    for change in (0.9, 1.1):
        other = widths * torch.tensor([change, 1.0])
        assert model.under(other).log_evidence - 10.0 * other.sum() < best


def test_noise_of_a_given_covariance_is_whitened_and_pays_for_its_volume():
    """Dense and diagonal, a prior of width 0 among them: against the density of the whole covariance."""
    generator = torch.Generator().manual_seed(1)
    J, y = torch.randn(9, 4, generator=generator).double(), torch.randn(9, generator=generator).double()
    root = torch.randn(9, 12, generator=generator).double()
    scales = torch.tensor([0.5, 0.5, 0.0, 0.0]).double()
    for noise in (root @ root.T, root.square().sum(dim=1)):
        whole = noise if noise.dim() == 2 else torch.diag(noise)
        law = LinearModel(J, y, (2, 2), noise=noise).under((0.5, 0.0))
        covariance = whole + (J * scales**2) @ J.T
        normal = torch.distributions.MultivariateNormal(torch.zeros(9).double(), covariance)
        expected = float(normal.log_prob(y)) + 4.5 * math.log(2.0 * math.pi)
        assert float(law.log_evidence) == pytest.approx(expected, rel=1e-9)
        torch.testing.assert_close(law.mean, scales**2 * (J.T @ torch.linalg.solve(covariance, y)))


@pytest.mark.long
@pytest.mark.parametrize(
    ("shift", "shapes"),
    [
        (turned, ((2, 0),)),
        pytest.param(turned, low_rank.SHAPES, marks=pytest.mark.exhaustive),
        pytest.param(noisy, low_rank.SHAPES, marks=pytest.mark.exhaustive),
    ],
)
def test_a_shift_along_few_directions_is_understood_and_followed(classifier, monkeypatch, shift, shapes):
    monkeypatch.setattr(low_rank, "SHAPES", shapes)  # each costs a second
    target = shift(vectors(1500, 1))
    fitted = fit_view(residuals_of(target.images, 3.0))
    assert isinstance(fitted.view, LowRankView), fitted.reason
    assert "features that moved along few directions (a map of rank" in fitted.reason
    model = given(classifier, fitted)
    assert model.outcome == "adapted by a view", model.reason
    fresh = shift(vectors(4000, 2))
    before, after = (accuracy(nn.Identity(), one, fresh) for one in (classifier, model.classifier))
    assert after > before + 1.5


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_features_of_few_dimensions_have_maps_of_no_higher_rank(ranks):
    """Also where the others are constant."""
    images = SOURCE.images.clone()
    images[:, ranks:] = 0.25
    target = images.clone()
    target[:, :ranks] = 1.5 * images[:, :ranks] + 0.3
    residuals = released(target, images, epsilon=8.0, delta=1e-5, seed=bytes(32), along=60)
    view = low_rank_view(images)
    assert len(view.move) == ranks
    for one in (view, low_rank.find_low_rank(view, Labelled(images[:400], SOURCE.labels[:400]), residuals, Ranks())):
        assert one(nn.Identity(), images[:5]).isfinite().all()
        assert max(one.out.shape[1], one.grain.shape[1]) <= ranks


@pytest.mark.long
def test_a_release_without_a_shift_makes_no_map_a_million_times_more_probable():
    """The search itself, which `find_view` begins only where a misfit is seen."""
    identity = low_rank_view(SOURCE.images)
    residuals = residuals_of(vectors(400, 5).images, 1.0)
    source = Labelled(SOURCE.images[:500], SOURCE.labels[:500])
    posterior = Posterior(nn.Identity(), source, residuals, torch.Generator().manual_seed(0), Ranks())
    view = low_rank.find_low_rank(identity, source, residuals, Ranks())
    gained = posterior.evidence(view).log_evidence - posterior.evidence(identity).log_evidence
    assert view.grain.shape[1] or view.out.shape[1]
    assert gained < CONVINCED


@pytest.mark.long
@pytest.mark.parametrize("tries", [1, pytest.param(10, marks=pytest.mark.exhaustive)])
def test_fewer_classes_are_no_map(tries):
    for seed in range(tries):
        data = vectors(2000, 10 + seed)
        half = fit_view(residuals_of(data.images[data.labels < 2], 3.0))
        assert half.outcome == "priors corrected", half.reason


def test_a_release_without_a_shift_leaves_a_view_that_was_asked_for_at_the_identity():
    """More than the noise must be left before any view is looked for: a false alarm has a chance below 1e-6."""
    view = low_rank_view(SOURCE.images)
    fitted = fit_view(residuals_of(vectors(400, 5).images, 1.0), view)
    moved = fitted.view(nn.Identity(), SOURCE.images) - SOURCE.images
    assert fitted.outcome == "kept"
    assert float(moved.detach().abs().max()) == 0.0
