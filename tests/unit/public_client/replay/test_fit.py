from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from made_release import residuals_of
from short_tuning import ROUNDS
from torch import Tensor, nn

from dpswd.public_client.data.datasets import Labelled
from dpswd.public_client.data.progress import reporting
from dpswd.public_client.linear_evidence import LinearModel
from dpswd.public_client.replay import fit as replay
from dpswd.public_client.replay import posterior
from dpswd.public_client.replay.augmentation import Variation, Warps, draw_variation
from dpswd.public_client.replay.posterior import Posterior
from dpswd.public_client.replay.residuals import Residuals, weighted_coefficients
from dpswd.public_client.replay.tuning import tune
from dpswd.public_client.replay.verdict import Fitted
from dpswd.public_client.replay.views import FeatureView, ImageView, MixedViews, background_of, view_for
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.mechanisms.quantiles.coefficients import cosine_basis


def fitted(source: Labelled, residuals: Residuals, extractor: nn.Module | None = None, rate: float = 0.03) -> Fitted:
    with reporting("", 1, shown=False) as bar:
        return replay.find_view(
            extractor or nn.Identity(), source, residuals,
            learning_rate=rate, generator=torch.Generator().manual_seed(0), bar=bar,
        )  # fmt: skip


@pytest.mark.parametrize("shape", [(3, 8, 8), (5,)])
def test_views_start_as_the_identity(shape):
    x = torch.rand(40, *shape) * 1.9 - 0.95
    extractor = nn.Flatten()
    view = view_for(x, extractor(x))
    torch.testing.assert_close(view(extractor, x), extractor(x), rtol=1e-4, atol=1e-4)
    assert float(view.penalty().detach()) == pytest.approx(0.0, abs=1e-9)


def test_no_view_for_other_ranks():
    with pytest.raises(InvalidValue, match="no ready view for records of shape"):
        view_for(torch.zeros(2, 1, 2, 3, 4), torch.zeros(2, 5))


def test_weighted_coefficients_of_equal_weights_are_the_release():
    x = torch.randn(300, 7, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    expected = cosine_basis(300, 4).T @ x.sort(dim=0).values / math.sqrt(300)
    torch.testing.assert_close(weighted_coefficients(x, torch.ones(300).double(), 4), expected, rtol=0, atol=1e-4)


def test_a_weight_of_two_is_a_record_twice():
    x = torch.randn(50, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    weights = torch.ones(50).double()
    weights[:10] = 2.0
    repeated = torch.cat((x, x[:10]))
    torch.testing.assert_close(
        weighted_coefficients(x, weights, 3), weighted_coefficients(repeated, torch.ones(60).double(), 3)
    )


def test_residuals_of_the_true_distribution_are_standard_normal():
    """120 residuals: a mean square outside [0.5, 1.6] has a chance below 1e-4."""
    generator = torch.Generator().manual_seed(0)
    source = torch.randn(4000, 6, generator=generator)
    residuals = residuals_of(source, source, sigma=0.5)
    same = residuals.of_all(source, torch.ones(4000))
    assert 0.5 < float(same.square().mean()) < 1.6
    shifted = residuals.of_all(source + 0.5, torch.ones(4000))
    assert float(shifted.square().mean()) > 10.0
    assert residuals.distance(shifted) > 10 * abs(residuals.distance(same))


@pytest.mark.long
def test_the_fit_finds_gains_biases_and_class_frequencies():
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(2, (3000,), generator=generator)
    records = torch.randn(3000, 4, generator=generator) + 3.0 * labels[:, None] * torch.tensor([1.0, -1.0, 0.0, 0.0])
    often = torch.randint(2, (3000,), generator=generator) * torch.randint(2, (3000,), generator=generator)  # 1: 25%
    target = torch.randn(3000, 4, generator=generator) + 3.0 * often[:, None] * torch.tensor([1.0, -1.0, 0.0, 0.0])
    spread = records.std(dim=0)
    target = target * torch.tensor([1.0, 1.0, 1.3, 0.8]) + torch.tensor([0.0, 0.0, 0.4, -0.3])
    result = fitted(Labelled(records, labels), residuals_of(target, records, sigma=0.05), rate=0.1)
    view = result.view
    assert isinstance(view, FeatureView)
    seen = view(nn.Identity(), records).detach()
    for column, (gain, bias) in enumerate([(1.0, 0.0), (1.0, 0.0), (1.3, 0.4), (0.8, -0.3)]):
        expected = records[:, column] * gain + bias
        assert float((seen[:, column] - expected).abs().mean()) < 0.25 * float(spread[column]), column
    ratio = result.class_weights[1] / result.class_weights[0]
    assert float(ratio) == pytest.approx(0.25 / 0.75, rel=0.35)


def test_much_noise_leaves_the_view_at_the_identity():
    """The prior holds where the release says nothing: no record is moved by a fifth of the spread."""
    generator = torch.Generator().manual_seed(0)
    records = torch.randn(500, 5, generator=generator)
    source = Labelled(records, torch.randint(3, (500,), generator=generator))
    result = fitted(source, residuals_of(records + 1.0, records, sigma=200.0))
    moved = result.view(nn.Identity(), records).detach() - records
    assert float(moved.abs().mean()) < 0.2
    torch.testing.assert_close(result.class_weights, torch.ones(3), rtol=0.0, atol=0.2)


@pytest.mark.long
def test_many_starts_lead_to_a_large_turn(monkeypatch):
    """From the identity alone the fit ends in a shear: the reason for the candidates."""
    monkeypatch.setattr(posterior, "_ROUNDS", ROUNDS)
    generator = torch.Generator().manual_seed(0)
    images = torch.full((400, 1, 12, 12), -1.0)
    images[:, 0, 2:10, 4:7] = torch.rand(400, 8, 3, generator=generator)  # bars of random brightness
    hidden = ImageView(1, -1.0)
    with torch.no_grad():
        hidden.warp.theta.copy_(torch.tensor([[0.87, 0.45, 0.05], [-0.45, 0.87, 0.0]]))
        target = hidden.see(images).flatten(1)
    residuals = residuals_of(target, images.flatten(1), sigma=0.05, k=100)
    result = fitted(Labelled(images, torch.zeros(400, dtype=torch.int64)), residuals, nn.Flatten())
    assert isinstance(result.view, ImageView)
    torch.testing.assert_close(result.view.warp.theta.detach(), hidden.warp.theta, rtol=0.0, atol=0.12)


def test_tuning_a_feature_view_leaves_the_extractor_alone():
    torch.manual_seed(0)
    extractor, classifier = nn.Linear(3, 4), nn.Linear(4, 2)
    records = torch.randn(64, 3)
    source = Labelled(records, (records[:, 0] > 0).long())
    view = FeatureView(torch.ones(4))
    with reporting("", 1, shown=False) as bar:
        tuned = tune(extractor, classifier, view, source, steps=60, generator=torch.Generator().manual_seed(0), bar=bar)
    torch.testing.assert_close(tuned[0].weight, extractor.weight)
    loss = nn.functional.cross_entropy
    with torch.no_grad():
        features = extractor(records)
        assert loss(tuned[1](features), source.labels) < loss(classifier(features), source.labels)


def test_mixed_views_use_each_by_its_weight():
    records = torch.arange(2000.0)[:, None].expand(2000, 3)
    views = [FeatureView(torch.ones(3)) for _ in range(3)]
    with torch.no_grad():
        for view, bias in zip(views, (0.0, 0.5, 9.0), strict=True):
            view.bias.fill_(bias)
    seen = MixedViews(views, [1.0, 3.0, 0.0], seed=0)(nn.Identity(), records).detach()
    moved = (seen - records)[:, 0]  # every record stays in its place
    torch.testing.assert_close(seen, (records + moved[:, None]))
    assert set(moved.tolist()) == {0.0, float(views[1](nn.Identity(), torch.zeros(1, 3)).detach()[0, 0])}
    assert 1360 < int((moved > 0).sum()) < 1640  # twice binomial(1000, 3/4): outside with a chance below 1e-6


@pytest.mark.parametrize("rare", [0.5, 0.02])  # of that most batches have one pair, or none
def test_batch_normalisation_takes_the_statistics_of_each_view(rare):
    """Two views that are 5 apart: were they normalised together, the variance would be above 6 where both are usual."""
    torch.manual_seed(0)
    images, labels = torch.randn(60, 1, 4, 4), torch.arange(60) % 2
    source = Labelled(images, labels)
    views = [ImageView(1) for _ in range(2)]
    with torch.no_grad():
        views[1].affine.bias.fill_(5.0)
    extractor = nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(16, 4), nn.BatchNorm1d(4), nn.Dropout(0.9))
    mixed = MixedViews(views, [1.0 - rare, rare], seed=0)
    with reporting("", 1, shown=False) as bar:
        tuned, _ = tune(
            extractor.eval(), nn.Linear(4, 2), mixed, source,
            steps=80, generator=torch.Generator().manual_seed(1), bar=bar,
        )  # fmt: skip
    assert not tuned.training
    assert float(extractor[0].running_mean) == 0.0  # the team's own stays as it is
    assert 0.0 < float(tuned[0].running_mean) < 5.0
    assert float(tuned[0].running_var) < 2.0


def test_a_background_is_the_value_of_most_border_pixels():
    images = torch.full((10, 1, 6, 6), -1.0)
    images[:, :, 2:4, :] = 0.5
    assert background_of(images) == pytest.approx(-1.0)
    assert background_of(torch.rand(10, 1, 6, 6)) is None


def test_variation_moves_images_and_is_repeatable():
    images = torch.rand(5, 1, 8, 8)
    variation = Variation(warps=Warps(0.1, 0.1, 0.1, 0.1, 0.1), elastic=0.1, stroke=0.3, gamma=0.3)
    one, two = (
        ImageView(1).see(images, draw_variation(variation, images, torch.Generator().manual_seed(7))).detach()
        for _ in range(2)
    )
    torch.testing.assert_close(one, two)
    assert float((one - images).abs().mean()) > 0.01
    still = Variation(warps=Warps(0, 0, 0, 0, 0), elastic=0.0, stroke=0.0, gamma=0.0)
    same = ImageView(1).see(images, draw_variation(still, images, torch.Generator().manual_seed(7))).detach()
    torch.testing.assert_close(same, ImageView(1).see(images).detach(), rtol=1e-4, atol=1e-4)


def test_a_fit_leaves_the_identity_by_thicker_and_by_thinner_strokes():
    """Its slope there is the mean of both sides', not the 0 of relu and abs."""
    images = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))

    def brightness(stroke: float) -> Tensor:
        view = ImageView(1)
        with torch.no_grad():
            view.stroke.fill_(stroke)
        mean = view.see(images).mean()
        mean.backward()
        return torch.stack((mean.detach(), view.stroke.grad))

    below, at, above = (brightness(stroke) for stroke in (-1e-2, 0.0, 1e-2))
    thinner, thicker = (at[0] - below[0]) / 1e-2, (above[0] - at[0]) / 1e-2
    assert min(thinner, thicker) > 0.1
    torch.testing.assert_close(at[1], (thinner + thicker) / 2, rtol=0.02, atol=0.0)
    torch.testing.assert_close(below[1], thinner, rtol=0.02, atol=0.0)
    torch.testing.assert_close(above[1], thicker, rtol=0.02, atol=0.0)


def test_warps_stay_within_their_bounds_and_include_both_signs():
    drawn = Warps(turn=0.0, scale=0.0, aspect=0.0, shear=0.0, shift=0.2).draw(200, torch.Generator().manual_seed(0))
    torch.testing.assert_close(drawn[:, :, :2], torch.eye(2).expand(200, 2, 2))
    assert float(drawn[:, :, 2].abs().max()) <= 0.2
    assert float(drawn[:, :, 2].min()) < -0.15
    assert float(drawn[:, :, 2].max()) > 0.15


@pytest.mark.long
def test_widths_follow_what_the_release_shows():
    """Biases that are there keep their width; gains that are not there lose it, so noise does not become gains."""
    generator = torch.Generator().manual_seed(0)
    records = torch.randn(400, 6, generator=generator)
    source = Labelled(records, torch.randint(2, (400,), generator=generator))
    moved = records + 0.8 * torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0, -1.0])
    view = fitted(source, residuals_of(moved, records, sigma=0.4), rate=0.1).view
    assert isinstance(view, FeatureView)
    assert float(view.factors[1]) > 0.6
    assert float(view.factors[0]) < 0.4
    seen = view(nn.Identity(), records).detach()
    torch.testing.assert_close(seen.mean(dim=0), moved.mean(dim=0), rtol=0.0, atol=0.3)
    torch.testing.assert_close(seen.std(dim=0), records.std(dim=0), rtol=0.1, atol=0.0)


def test_widths_of_a_linear_gaussian_model_are_the_true_ones():
    """r(t) = J t - J t0 with t0 of deviation 2 in one group and 0 in the other; 30 + 30 parameters, unit noise."""
    generator = torch.Generator().manual_seed(1)
    J = torch.randn(500, 60, generator=generator)
    truth = torch.cat((2.0 * torch.randn(30, generator=generator), torch.zeros(30)))
    noise = torch.randn(500, generator=generator)
    widths = LinearModel.at_identity(lambda t: J @ (t - truth) + noise, (30, 30), J).widths()
    assert widths.factors[0] == pytest.approx(2.0, rel=0.35)
    assert widths.factors[1] < 0.1
    assert widths.variance == pytest.approx(1.0, rel=0.25)


def test_what_changes_least_is_fitted_beside_the_best_starts(monkeypatch):
    """Bright spots that got dark: far warps look better than the identity at first."""
    torch.manual_seed(0)
    spots = torch.rand(600, 1, 8, 8) * 2 - 1
    source = Labelled(spots, (spots[:, 0, 4, 4] > 0).long())
    residuals = residuals_of((0.6 * spots - 0.4).flatten(1), spots.flatten(1), sigma=0.02)
    rounds: list[list[torch.Tensor]] = []
    fit_all = Posterior._fit_all

    def noted(self: Any, starts: list[Any], *arguments: Any) -> None:
        rounds.append([start.view for start in starts])
        fit_all(self, starts, *arguments)

    begun: list[Any] = []
    monkeypatch.setattr(posterior, "_HOPELESS", math.inf)
    monkeypatch.setattr(Posterior, "_fit_all", noted)
    monkeypatch.setattr(posterior, "_ROUNDS", tuple(posterior._Round(survivors, 2, 1.0) for survivors in (8, 8, 3, 2)))
    fits = Posterior.square

    def worst(self: Any, view: Any, *arguments: Any) -> float:
        """The identity is the first that is scored; as if it explained least of all."""
        begun.append(view)
        return fits(self, view, *arguments) + 1e3 * (len(begun) == 1)

    monkeypatch.setattr(Posterior, "square", worst)
    fitted(source, residuals, nn.Flatten())
    identity = begun[0]
    assert [len(views) for views in rounds] == [8, 8, 3, 2]
    assert all(any(view is identity for view in views) for views in rounds[:3])


def test_models_are_tuned_by_all_views_that_are_hardly_less_probable():
    scores = {"best": 30.0, "near": 30.0 - math.log(3.0), "far": 30.0 - math.log(90.0), "out": 30.0 - math.log(110.0)}
    views = {name: FeatureView(torch.ones(1)) for name in scores}
    starts = [posterior._Start(views[name], torch.ones(1), score=score) for name, score in reversed(scores.items())]
    likely = posterior._likely(starts)
    assert [view for view, _ in likely] == [views["best"], views["near"], views["far"]]
    total = 1 + 1 / 3 + 1 / 90
    assert [chance for _, chance in likely] == pytest.approx([1 / total, 1 / 3 / total, 1 / 90 / total])
    same = [posterior._Start(FeatureView(torch.ones(1)), torch.ones(1), score=1.0) for _ in range(6)]
    assert [chance for _, chance in posterior._likely(same)] == pytest.approx([0.25] * 4)


@pytest.mark.long
def test_a_view_of_images_is_tuned_by_beside_what_it_leaves_as_it_is(monkeypatch):
    """A part of the shift is none of the family's: two rows of pixels are brighter than the rest."""
    monkeypatch.setattr(posterior, "_ROUNDS", ROUNDS)
    torch.manual_seed(0)
    spots = torch.rand(600, 1, 8, 8) * 2 - 1
    source = Labelled(spots, (spots[:, 0, 4, 4] > 0).long())
    dark = 0.6 * spots - 0.4
    dark[:, :, 2:4] += 0.06
    model = fitted(source, residuals_of(dark.flatten(1), spots.flatten(1), sigma=0.05, k=60), nn.Flatten())
    assert model.outcome == "adapted by a view", model.reason
    assert isinstance(model.tuned_by, MixedViews)
    *likely, still = model.tuned_by.views
    assert any(view is model.view for view in likely)
    torch.testing.assert_close(still(nn.Flatten(), spots), spots.flatten(1), rtol=0.0, atol=3e-3)
    weights = model.tuned_by._weights
    assert float(weights.sum()) == pytest.approx(1.0)
    assert f"{100 * float(weights[-1]):.0f}% of the records that models are tuned on stay as they are" in model.reason


def test_one_start_that_stands_out_stays_alone(monkeypatch):
    """Ranked as if the eighth had been 100 nats ahead all along: the identity does not come back in its place."""
    torch.manual_seed(0)
    spots = torch.rand(400, 1, 8, 8) * 2 - 1
    source = Labelled(spots, (spots[:, 0, 4, 4] > 0).long())
    residuals = residuals_of((0.6 * spots - 0.4).flatten(1), spots.flatten(1), sigma=0.02)
    rounds: list[list[Any]] = []

    def ranked(_: Any, starts: list[Any]) -> float:
        for start in starts:
            start.score = 0.0
        best = rounds[0][7]
        best.score = 100.0
        starts.sort(key=lambda start: start.score, reverse=True)
        return 1.0

    monkeypatch.setattr(Posterior, "_fit_all", lambda _, starts, *__: rounds.append(list(starts)))
    monkeypatch.setattr(Posterior, "_rank", ranked)
    fitted(source, residuals, nn.Flatten())
    assert [len(starts) for starts in rounds] == [8, 8, 1, 1]
    assert rounds[2] == rounds[3] == [rounds[0][7]]
