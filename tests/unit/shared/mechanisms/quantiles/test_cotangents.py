from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from dpswd.shared.core.noise.clipping import clip_records
from dpswd.shared.core.noise.directions import directions
from dpswd.shared.published_mechanisms.gradient.cotangents import (
    QuantileCotangent,
    source_coefficients,
)

D, K, BATCH, SOURCE = 12, 300, 64, 400


@pytest.fixture
def source(generator: torch.Generator, device: torch.device) -> torch.Tensor:
    return clip_records(0.1 * torch.randn(SOURCE, D, generator=generator)).to(device)


@pytest.fixture
def U(device: torch.device) -> torch.Tensor:
    return directions(b"u" * 32, D, K, device=device)


@pytest.fixture
def cotangent(source: torch.Tensor, U: torch.Tensor, generator: torch.Generator) -> QuantileCotangent:
    released = torch.randn(3, K, generator=generator).to(source)
    return QuantileCotangent.from_release(released, source, U, batch=BATCH)


def along(points: torch.Tensor, at: torch.Tensor, gaps: torch.Tensor) -> torch.Tensor:
    """Displacements at values (b, k) of sources (m, k) whose projections are their features."""
    U = torch.eye(points.shape[1]).to(points)
    released = source_coefficients(points, batch=BATCH, coefficients=len(gaps)) + math.sqrt(BATCH) * gaps
    cotangent = QuantileCotangent.from_release(released, points, U, batch=BATCH)
    return cotangent.batch(at) * cotangent.scale


LEVEL = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
"""Gaps by which the displacement is sqrt(2) cos(pi t) at level t: it falls from sqrt(2) to -sqrt(2)."""


def test_levels_are_the_empirical_ones(generator: torch.Generator, device: torch.device) -> None:
    points = torch.randn(200, 3, generator=generator, dtype=torch.float64).to(device)
    gaps = LEVEL.to(device)
    levels = torch.acos(along(points, points, gaps).cpu().clamp(-(2**0.5), 2**0.5) / 2**0.5) / math.pi
    ranks = (points.argsort(dim=0).argsort(dim=0).double() + 0.5).cpu() / 200
    assert (levels - ranks).abs().max() <= 8.0 / 200  # at its densest a cell holds several of the 200 points
    far = torch.tensor([[-1e6] * 3, [1e6] * 3], dtype=torch.float64, device=device)
    reached = along(points, far, gaps)
    assert reached[0].min() >= math.sqrt(2) * math.cos(math.pi / 200)
    assert reached[1].max() <= -math.sqrt(2) * math.cos(math.pi / 200)


def test_levels_never_decrease(generator: torch.Generator) -> None:
    points = torch.randn(50, 1, generator=generator, dtype=torch.float64)
    assert (along(points, torch.linspace(-5, 5, 4001).double()[:, None], LEVEL).diff(dim=0) <= 1e-12).all()


def test_a_constant_source_is_a_step() -> None:
    points = torch.full((9, 1), 0.25, dtype=torch.float64)
    below, above = along(points, torch.tensor([[0.2], [0.3]], dtype=torch.float64), LEVEL).flatten().tolist()
    assert -math.sqrt(2) <= above <= 1e-12 <= below + 2e-12 <= math.sqrt(2) + 2e-12


def test_cotangent_is_the_formula(source: torch.Tensor, U: torch.Tensor, generator: torch.Generator) -> None:
    """At levels by ranks, without a table."""
    released = torch.randn(3, K, generator=generator).to(source)
    cotangent = QuantileCotangent.from_release(released, source, U, batch=BATCH)
    v, projections = source[5] * 1.3, (source @ U).cpu().double().numpy()
    at = (v @ U).cpu().double().numpy()
    levels = ((projections < at).sum(axis=0) + (projections <= at).sum(axis=0)) / (2 * SOURCE)
    own = source_coefficients(source @ U, batch=BATCH, coefficients=3)
    gaps = ((released - own) / math.sqrt(BATCH)).cpu().double().numpy()
    basis = [np.ones(K), math.sqrt(2) * np.cos(math.pi * levels), math.sqrt(2) * np.cos(2 * math.pi * levels)]
    sums = sum(gap * function for gap, function in zip(gaps, basis, strict=True))
    expected = D / K * (U.cpu().double().numpy() @ sums) / cotangent.scale
    computed = cotangent.batch(v[None])[0].cpu().numpy()
    assert np.linalg.norm(computed - expected) < 0.02 * np.linalg.norm(expected)  # a cell holds a few of the 400


def test_displacements_are_target_minus_source_over_the_root_of_the_batch(
    source: torch.Tensor, U: torch.Tensor
) -> None:
    shifted = source_coefficients(source @ U, batch=BATCH, coefficients=2)
    shifted[0] += 0.8
    tabulated = QuantileCotangent.from_release(shifted, source, U, batch=BATCH).along
    assert torch.allclose(tabulated, torch.full_like(tabulated, 0.8 / math.sqrt(BATCH)), atol=1e-5)


def test_translation_is_recovered_in_feature_units(source: torch.Tensor, U: torch.Tensor) -> None:
    translation = torch.zeros(D, device=source.device)
    translation[4] = 0.05
    released = source_coefficients((source + translation) @ U, batch=BATCH, coefficients=1)
    recovered = QuantileCotangent.from_release(released, source, U, batch=BATCH)
    displacement = recovered.batch(source).mean(dim=0) * recovered.scale
    # U U^T d / k is near the identity: entries off by about sqrt(d / k).
    assert float(displacement[4]) == pytest.approx(0.05, rel=0.3)
    assert float((displacement - translation).norm()) < 0.03


def test_one_record_under_vmap_equals_the_batch(cotangent: QuantileCotangent, source: torch.Tensor) -> None:
    one_by_one = torch.func.vmap(lambda record: cotangent.batch(record[None])[0])(source[:32])
    assert torch.allclose(one_by_one, cotangent.batch(source[:32]), atol=1e-6)
    assert torch.allclose(cotangent.batch(source[3:4])[0], cotangent.batch(source[:32])[3], atol=1e-6)


def test_no_record_sees_another(cotangent: QuantileCotangent, source: torch.Tensor) -> None:
    batch = source[:32].clone()
    before = cotangent.batch(batch)
    batch[9] = clip_records(torch.full((1, D), 1e20, device=source.device))[0]
    after = cotangent.batch(batch)
    others = [i for i in range(32) if i != 9]
    assert torch.equal(before[others], after[others])
    assert not torch.equal(before[9], after[9])


def test_scale_is_the_source_records_mean_norm(cotangent: QuantileCotangent, source: torch.Tensor) -> None:
    assert cotangent.scale > 0
    assert float(cotangent.batch(source).norm(dim=1).mean()) == pytest.approx(1.0, rel=1e-4)


def test_equal_domains_do_not_divide_by_zero(source: torch.Tensor, U: torch.Tensor) -> None:
    released = source_coefficients(source @ U, batch=BATCH, coefficients=2)
    cotangent = QuantileCotangent.from_release(released, source, U, batch=BATCH)
    assert torch.isfinite(cotangent.batch(source)).all()
