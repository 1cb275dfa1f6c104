"""Events price themselves the same for ever: a golden file, round trips, refusals."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from exploring import tried
from hypothesis import given, settings
from hypothesis import strategies as st

from dpswd.shared.core.errors import InvalidEvent
from dpswd.shared.core.privacy.event_json import event_from_json, event_to_json
from dpswd.shared.core.privacy.events import (
    BoundedSum,
    ClippedVector,
    QuantileCoefficients,
    RowProjections,
    RunEvent,
    SanitizedGradient,
    StepEvent,
)

GOLDEN = Path(__file__).parent / "golden" / "events-v1.json"


def examples() -> list[tuple[RunEvent, tuple[int, int, float, float]]]:
    """Events and the law of their step's shift, written down by hand from the docstrings of the parts."""
    rows = RowProjections(feature_dimension=320, directions=200, sigma=5.0)
    on_grid = RowProjections(feature_dimension=100, directions=25, sigma=2.0, grid_step=0.01)
    quantiles = QuantileCoefficients(feature_dimension=64, directions=16, coefficients=2, sigma=0.5)
    gradient = SanitizedGradient(parameters=100, clip_norm=1.0, sigma=4.0, grid_step=0.01)
    sums = (
        BoundedSum(values=1, sensitivity=1.0, changed=1, sigma=4.0, grid_step=0.01),
        BoundedSum(values=30, sensitivity=1.5, changed=4, sigma=2.0, grid_step=0.02),
    )
    vector = ClippedVector(values=64, clip_norm=0.5, sigma=2.0, grid_step=0.01)
    # on_grid: t = g sqrt(m) / sqrt(k/d) = 0.01 * 5 / 0.5 = 0.1; scale (1+t)/4, constant (1+10) * 1e-4 * 25 / 4
    return [
        (RunEvent(step=StepEvent(records=7438, batch=128, parts=(rows,)), steps=5900), (320, 200, 0.04, 0.0)),
        (
            RunEvent(step=StepEvent(records=100, batch=100, parts=(on_grid,)), steps=1),
            (100, 25, 1.1 / 4, 11 * 2.5e-3 / 4),
        ),
        (
            # gradient: (2 + 0.01 * 10)^2 / 16; quantiles: weight 3/512 / 0.25
            RunEvent(step=StepEvent(records=7438, batch=512, parts=(quantiles, gradient)), steps=200),
            (64, 16, 3 / 512 / 0.25, 2.1**2 / 16),
        ),
        (RunEvent(step=StepEvent(records=50, batch=5, parts=(gradient,)), steps=3), (1, 1, 0.0, 2.1**2 / 16)),
        # (1 + 0.01)^2 / 16 and (1.5 + 0.02 * sqrt 4)^2 / 4
        (RunEvent(step=StepEvent(records=90, batch=90, parts=sums), steps=1), (1, 1, 0.0, 1.01**2 / 16 + 1.54**2 / 4)),
        # (2 * 0.5 + 0.01 * sqrt 64)^2 / 4
        (RunEvent(step=StepEvent(records=600, batch=50, parts=(vector,)), steps=9), (1, 1, 0.0, 1.08**2 / 4)),
    ]


def test_the_golden_file_reads_to_the_same_events_and_shifts() -> None:
    """If this fails, the meaning of stored charges has changed: add a new kind instead."""
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    assert len(golden) == len(examples())
    for entry, (event, law) in zip(golden, examples(), strict=True):
        assert event_from_json(entry["text"]) == event
        assert event_to_json(event) == entry["text"]
        shift = event.step.shift()
        assert (shift.feature_dimension, shift.directions) == law[:2]
        assert (shift.scale, shift.constant) == pytest.approx(law[2:], rel=1e-12)
        assert [shift.scale, shift.constant] == entry["shift"]  # bit for bit


sigmas = st.floats(1e-3, 1e6)
steps = st.builds(
    lambda n, b, parts: StepEvent(records=n, batch=min(n, b), parts=parts),
    st.integers(2, 10**6),
    st.integers(2, 1000),
    st.one_of(
        st.builds(
            lambda d, k, s: (RowProjections(d, k, s, s / 2048),), st.integers(1, 999), st.integers(1, 999), sigmas
        ),
        st.builds(
            lambda d, s, p: (QuantileCoefficients(d, 10, 2, s), SanitizedGradient(p, 1.0, s)),
            st.integers(1, 9999),
            sigmas,
            st.integers(1, 10**6),
        ),
    ),
)


@settings(max_examples=tried(80))
@given(steps, st.integers(1, 10**9))
def test_every_run_survives_its_text(step: StepEvent, count: int) -> None:
    run = RunEvent(step=step, steps=count)
    assert event_from_json(event_to_json(run)) == run
    assert hash(event_from_json(event_to_json(run))) == hash(run)


TEXT = event_to_json(examples()[2][0])


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (TEXT + " ", "canonical"),
        (TEXT.replace('"steps":200', '"steps":200.0'), "whole number"),
        (TEXT.replace('"steps":200', '"steps":true'), "whole number"),
        (TEXT.replace('"steps":200', '"steps":200,"steps":200'), "canonical"),
        (TEXT.replace('"steps":200', '"steps":200,"note":1'), "canonical"),
        (TEXT.replace('"steps":200,', ""), "missing.*steps"),
        (TEXT.replace('"version":1', '"version":2'), "version"),
        (TEXT.replace('"version":1', '"version":true'), "canonical"),
        (TEXT.replace("replace-one", "add-or-remove"), "relation"),
        (TEXT.replace('"sigma":0.5', '"sigma":NaN'), "sigma is nan"),
        (TEXT.replace('"sigma":0.5', '"sigma":1e999'), "sigma is inf"),
        (TEXT.replace('"sigma":0.5', '"sigma":-0.5'), "sigma"),
        (TEXT.replace('"sigma":0.5', '"sigma":0.50'), "canonical"),
        (TEXT.replace('"sigma":0.5', '"sigma":"0.5"'), "sigma"),
        (TEXT.replace("quantile-coefficients", "subset"), "kind"),
        (TEXT.replace('"kind":"run"', '"kind":"poisson"'), "kind"),
        (TEXT.replace('"kind":"run"', '"kind":[]'), "kind"),
        ('{"kind":"run","step":' + TEXT + ',"steps":1,"version":1}', "unknown or wrong field"),
        ("[1]", "object"),
        ("", "not JSON"),
        ("[" * 5000, "not JSON"),
        ("x" * 20_000, "characters"),
    ],
)
def test_anything_but_a_canonical_text_is_refused(text: str, match: str) -> None:
    with pytest.raises(InvalidEvent, match=match):
        event_from_json(text)


ROWS = RowProjections(feature_dimension=3, directions=2, sigma=1.0)
GRADIENT = SanitizedGradient(parameters=3, clip_norm=1.0, sigma=1.0)
STEP = StepEvent(records=10, batch=5, parts=(ROWS,))


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: RowProjections(0, 1, 1.0), "feature_dimension"),
        (lambda: RowProjections(1, 10**9, 1.0), "directions"),
        (lambda: RowProjections(1, 1, math.nan), "sigma"),
        (lambda: RowProjections(1, 1, 0.0), "sigma"),
        (lambda: RowProjections(1, 1, 1.0, 2.0), "grid_step"),
        (lambda: SanitizedGradient(1, math.inf, 1.0), "clip_norm"),
        (lambda: QuantileCoefficients(1, 1, 0, 1.0), "coefficients"),
        (lambda: ClippedVector(0, 1.0, 1.0), "values"),
        (lambda: ClippedVector(1, 0.0, 1.0), "clip_norm"),
        (lambda: BoundedSum(0, 1.0, 1, 1.0), "values"),
        (lambda: BoundedSum(3, 0.0, 1, 1.0), "sensitivity"),
        (lambda: BoundedSum(3, 1.0, 4, 1.0), "changed"),
        (lambda: BoundedSum(3, 1.0, 0, 1.0), "changed"),
        (lambda: BoundedSum(3, 1.0, 2, 1.0, 1.5), "grid_step"),
        (lambda: StepEvent(10, 5, (BoundedSum(3, 1.0, 2, 1.0), ROWS)), "first"),
        (lambda: StepEvent(10, 11, (ROWS,)), "batch"),
        (lambda: StepEvent(0, 1, (ROWS,)), "records"),
        (lambda: StepEvent(10, 5, ()), "at least one part"),
        (lambda: StepEvent(10, 5, (ROWS, ROWS)), "at most one"),
        (lambda: StepEvent(10, 5, (GRADIENT, ROWS)), "first"),
        (lambda: StepEvent(10, 5, (STEP,)), "nested"),  # type: ignore[arg-type]
        (lambda: StepEvent(10, 5, (QuantileCoefficients(3, 2, 6, 1.0),)), "coefficients"),
        (lambda: StepEvent(10, 5, (ROWS,), relation="replace-one"), "relation"),  # type: ignore[arg-type]
        (lambda: RunEvent(RunEvent(STEP, 1), 1), "do not nest"),  # type: ignore[arg-type]
        (lambda: RunEvent(STEP, 0), "steps"),
        (lambda: event_to_json(STEP), "not an event"),  # type: ignore[arg-type]
    ],
)
def test_a_malformed_event_is_refused_by_name(make: object, match: str) -> None:
    with pytest.raises(InvalidEvent, match=match):
        make()  # type: ignore[operator]


def test_the_grid_costs_little_and_never_less_than_nothing() -> None:
    plain = StepEvent(10, 5, (RowProjections(320, 200, 5.0),)).shift()
    fine = StepEvent(10, 5, (RowProjections(320, 200, 5.0, 5.0 / 2048),)).shift()
    expected = (math.sqrt(plain.mean) + math.sqrt(200) / 2048) ** 2  # the split of the square is tight on the mean
    assert fine.mean == pytest.approx(expected, rel=1e-12)
    assert fine.scale > plain.scale
    assert fine.constant > 0


def test_quantiles_never_weigh_more_than_an_orthonormal_basis() -> None:
    for coefficients in (1, 2, 60, 100):
        shift = StepEvent(200, 100, (QuantileCoefficients(5, 7, coefficients, 1.0),)).shift()
        assert shift.scale == min(1.0, (2 * coefficients - 1) / 100)
