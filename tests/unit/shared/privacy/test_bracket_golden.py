"""Numbers of the bracket, of the filter's lanes and of the noise's tables, as they were when their proofs were read.

After a change that is meant, ``python tests/unit/shared/privacy/test_bracket_golden.py`` writes them anew.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[up]) for up in (0, 3, 4)]

from bracket_steps import STEPS

from dpswd.shared.core.noise import grid_gaussian
from dpswd.shared.core.privacy import bracket

GOLDEN = Path(__file__).with_name("bracket.json")
ORDERS = np.array([1.3, 1.75, 2.0, 2.5, 3.0, 4.0, 7.0, 16.0, 33.0, 63.0, 300.0, 900.0])
COMPOSED = ("rows", "few directions", "quantiles of all", "gradient", "counts", "vector")


def numbers_of(name: str) -> dict[str, list[float]]:
    """Of one step's event."""
    step = STEPS[name]
    shift = bracket.pair_shift(step)
    numbers = {
        "shift": [float(shift.dimension), float(shift.directions), shift.weight, shift.constant],
        "lower": list(bracket.lower_costs(step, ORDERS)),
        "upper": list(bracket.upper_costs(step, ORDERS)),
        "sharp": list(bracket.sharp_orders(step)),
    }
    if name in COMPOSED:
        numbers["delta"] = [bracket.composed_delta(step, steps, epsilon) for steps, epsilon in ((1, 0.5), (20, 2.0))]
    return {key: list(map(float, values)) for key, values in numbers.items()}


def tables() -> dict[str, str]:
    """SHA-256 of the sampler's tables: exact integers, the same on every machine."""
    table = grid_gaussian.grid_gaussian_table()
    arrays = {name: getattr(table, name).tobytes() for name in ("thresholds", "tie_breaks", "aliases")}
    texts = {f"weights {exponent}": repr(grid_gaussian.gaussian_weights(exponent)).encode() for exponent in (4, 8)}
    return {name: hashlib.sha256(data).hexdigest() for name, data in (arrays | texts).items()}


@pytest.mark.parametrize("name", STEPS)
def test_the_bracket_has_the_numbers_that_were_proved(name):
    """A delta of a composed grid is rounding below 1e-30, and processors round differently."""
    golden = json.loads(GOLDEN.read_text())[name]
    for key, values in numbers_of(name).items():
        floor = 1e-30 if key == "delta" else 1e-300
        for value, expected in zip(values, map(float, golden[key]), strict=True):
            assert value == expected or math.isclose(value, expected, rel_tol=1e-7, abs_tol=floor), (key, value)


def test_the_tables_are_the_same_integers():
    assert tables() == json.loads(GOLDEN.read_text())["tables"]


if __name__ == "__main__":
    written: dict[str, object] = {"tables": tables()}
    written |= {name: {key: [str(v) for v in vs] for key, vs in numbers_of(name).items()} for name in STEPS}
    GOLDEN.write_text(json.dumps(written, indent=1) + "\n")
