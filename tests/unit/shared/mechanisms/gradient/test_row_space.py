"""The hole of the papers' Algorithm 2, and that the sanitized gradient closes it (docs/privacy, 5)."""

from __future__ import annotations

import torch

from dpswd.shared.core.noise.clipping import clip_records
from dpswd.shared.core.noise.directions import directions
from dpswd.shared.published_mechanisms.clipped_sum import release_gradient
from dpswd.shared.published_mechanisms.gradient.cotangents import noised_source_projections, row_cotangents
from dpswd.shared.published_mechanisms.rows.mechanism import release_rows
from dpswd.shared.seeded_noise import SeededNoise

INPUTS, D, K, BATCH = 60, 16, 50, 8


def residual(record: torch.Tensor, gradient: torch.Tensor) -> float:
    """The share of a record that lies outside a gradient's row space: 0 if the record can be read off it."""
    rows = torch.linalg.svd(gradient, full_matrices=False)
    basis = rows.Vh[rows.S[0] * 1e-10 < rows.S]
    return float((record - basis.T @ (basis @ record)).norm() / record.norm())


def linear_extractor_step(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Private records (b, inputs) and the per-record gradients (b, d, inputs) of a linear extractor's weights."""
    records = torch.randn(BATCH, INPUTS, generator=generator, dtype=torch.float64)
    weights = 0.02 * torch.randn(D, INPUTS, generator=generator, dtype=torch.float64)
    source = clip_records(0.1 * torch.randn(100, D, generator=generator, dtype=torch.float64))
    U = directions(b"u" * 32, D, K, dtype=torch.float64)
    features = clip_records(records @ weights.T)
    released = release_rows(features, U, sigma=0.5, noise=SeededNoise(bytes(32)))
    noised = noised_source_projections(source, U, sigma=0.5, seed=bytes(32))
    cotangents, _ = row_cotangents(released.to_tensor(dtype=torch.float64), noised, U)
    return records, cotangents[:, :, None] * records[:, None, :]


def test_unsanitized_gradient_gives_every_record_away(generator: torch.Generator) -> None:
    # Even though all that enters the loss is the noised release.
    records, per_record = linear_extractor_step(generator)
    gradient = per_record.sum(dim=0)
    assert max(residual(record, gradient) for record in records) < 1e-12


def test_sanitized_gradient_holds_no_record(generator: torch.Generator) -> None:
    records, per_record = linear_extractor_step(generator)
    strangers = torch.randn(BATCH, INPUTS, generator=generator, dtype=torch.float64)
    released = release_gradient(per_record.reshape(BATCH, -1), clip_norm=1.0, sigma=4.0, noise=SeededNoise(b"n" * 32))
    gradient = released.to_tensor(dtype=torch.float64).reshape(D, INPUTS)
    members = torch.tensor([residual(record, gradient) for record in records])
    others = torch.tensor([residual(stranger, gradient) for stranger in strangers])
    # A random 16-dimensional space leaves sqrt(1 - 16/60) = 0.86 of any record outside; members fare no worse.
    assert members.min() > 0.6
    assert abs(float(members.mean() - others.mean())) < 0.15
