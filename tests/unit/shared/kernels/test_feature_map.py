from __future__ import annotations

import pytest
import torch
from torch.autograd.functional import jacobian

from dpswd.public_client.data.feature_maps import map_from_source
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.noise.feature_map import FeatureMap
from dpswd.shared.published_mechanisms.gradient.mechanism import pulled_back


def test_source_ends_centred_with_the_target_mean_norm(device: torch.device, generator: torch.Generator) -> None:
    features = (torch.randn(500, 12, generator=generator) * 7.0 + 3.0).to(device)
    mapped = map_from_source(features, target_norm=0.25).apply(features)
    assert mapped.mean(dim=0).abs().max() < 1e-6
    assert float(mapped.norm(dim=1).mean()) == pytest.approx(0.25, rel=1e-5)


def test_geometry_is_preserved() -> None:
    features = torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.0, 4.0]], dtype=torch.float64)
    mapped = map_from_source(features).apply(features)
    distances = torch.pdist(mapped) / torch.pdist(features)
    assert torch.allclose(distances, distances[0].expand(3))


def test_identical_features_get_a_map_too() -> None:
    features = torch.full((4, 3), 2.5)
    assert torch.equal(map_from_source(features).apply(features), torch.zeros(4, 3))


def test_pull_back_is_the_transposed_jacobian(device: torch.device, generator: torch.Generator) -> None:
    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(device)

    fmap = FeatureMap(center=draw(4), scale=draw(4).abs() + 2.0)
    features, cotangents = draw(6, 4), draw(6, 4)
    features[3:] *= 20.0  # three rows inside the ball, three clipped
    norms = fmap.apply(features).norm(dim=1)
    features[:3] = fmap.center + (features[:3] - fmap.center) * (0.4 / norms[:3, None])
    pulled = pulled_back(fmap, features, cotangents)
    for row, cotangent, result in zip(features, cotangents, pulled, strict=True):
        whole = jacobian(lambda x: fmap.clipped(x[None])[0], row)
        assert torch.allclose(whole.T @ cotangent, result, atol=1e-9)
    assert (fmap.apply(features[3:]).norm(dim=1) > 0.5).all()


def test_pull_back_keeps_rows_apart_and_finite(generator: torch.Generator) -> None:
    fmap = FeatureMap(center=torch.zeros(3), scale=torch.ones(3))
    features, cotangents = torch.randn(5, 3, generator=generator), torch.randn(5, 3, generator=generator)
    damaged = features.clone()
    damaged[1] = torch.tensor([float("nan"), float("inf"), 1e38])
    pulled = pulled_back(fmap, damaged, cotangents)
    assert torch.isfinite(pulled).all()
    assert pulled[1, :2].tolist() == [0.0, 0.0]
    others = [0, 2, 3, 4]
    assert torch.equal(pulled[others], pulled_back(fmap, features, cotangents)[others])


@pytest.mark.parametrize(
    ("center", "scale"),
    [
        (torch.zeros(2), torch.ones(3)),
        (torch.zeros(2, 2), torch.ones(2, 2)),
        (torch.tensor([0.0, float("nan")]), torch.ones(2)),
        (torch.zeros(2), torch.tensor([1.0, 0.0])),
        (torch.zeros(2), torch.tensor([1.0, -1.0])),
        (torch.zeros(2), torch.tensor([1.0, float("inf")])),
    ],
)
def test_impossible_maps_are_refused(center: torch.Tensor, scale: torch.Tensor) -> None:
    with pytest.raises(InvalidValue):
        FeatureMap(center=center, scale=scale)


@pytest.mark.parametrize("features", [torch.zeros(0, 3), torch.zeros(3), torch.tensor([[float("nan")]])])
def test_unusable_source_features_are_refused(features: torch.Tensor) -> None:
    with pytest.raises(InvalidValue):
        map_from_source(features)


def test_scale_multiplies_as_the_protocol_says() -> None:
    fmap = FeatureMap(center=torch.tensor([1.0, 2.0]), scale=torch.tensor([2.0, 0.5]))
    assert fmap.apply(torch.tensor([[4.0, 4.0]])).tolist() == [[6.0, 1.0]]
