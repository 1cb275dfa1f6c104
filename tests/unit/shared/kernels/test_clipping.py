from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.noise.clipping import clip_records

anything = st.floats(width=32, allow_nan=True, allow_infinity=True)


@given(records=arrays(np.float32, (4, 5), elements=anything), max_norm=st.floats(1e-3, 1e3))
def test_rows_end_within_the_limit_and_finite(records: np.ndarray, max_norm: float) -> None:
    clipped = clip_records(torch.from_numpy(records), max_norm)
    assert torch.isfinite(clipped).all()
    for row in clipped.tolist():
        assert math.sqrt(math.fsum(v * v for v in row)) <= max_norm


@given(records=arrays(np.float64, (3, 4), elements=st.floats(allow_nan=True, allow_infinity=True)))
def test_float64_rows_end_within_the_limit(records: np.ndarray) -> None:
    for row in clip_records(torch.from_numpy(records)).tolist():
        assert math.hypot(*row) <= 0.5


def test_short_rows_stay_as_they_are(device: torch.device) -> None:
    records = torch.tensor([[0.1, 0.2], [0.0, 0.0], [0.0, -0.4]], device=device)
    assert torch.equal(clip_records(records), records)


def test_long_rows_keep_their_direction(device: torch.device) -> None:
    clipped = clip_records(torch.tensor([[30.0, 40.0]], device=device))
    assert torch.allclose(clipped.cpu(), torch.tensor([[0.3, 0.4]]), rtol=2e-6)


def test_one_outlier_leaves_the_other_rows_alone(device: torch.device, generator: torch.Generator) -> None:
    # The papers divide by the batch's largest norm: there one outlier rescales every row (docs/privacy, 5).
    records = torch.randn(64, 20, generator=generator).to(device)
    with_outlier = records.clone()
    with_outlier[17] = 1e30
    others = torch.arange(64) != 17
    assert torch.equal(clip_records(records)[others], clip_records(with_outlier)[others])


def test_not_a_number_costs_only_its_own_row(device: torch.device, generator: torch.Generator) -> None:
    records = torch.randn(5, 3, generator=generator).to(device)
    damaged = records.clone()
    damaged[2] = torch.tensor([float("nan"), float("inf"), 0.25], device=device)
    clipped = clip_records(damaged)
    assert clipped[2].tolist() == [0.0, 0.0, 0.25]
    others = [0, 1, 3, 4]
    assert torch.equal(clipped[others], clip_records(records)[others])


@pytest.mark.parametrize(
    ("records", "max_norm"),
    [
        (torch.zeros(3), 0.5),
        (torch.zeros(3, 2, dtype=torch.float16), 0.5),
        (torch.zeros(3, 2, dtype=torch.int64), 0.5),
        (torch.zeros(3, 2), 0.0),
        (torch.zeros(3, 2), float("nan")),
        (torch.zeros(3, 2), float("inf")),
    ],
)
def test_unclear_requests_are_refused(records: torch.Tensor, max_norm: float) -> None:
    with pytest.raises(InvalidValue):
        clip_records(records, max_norm)
