"""Every mechanism's replies and costs are those of the golden file.

After a change that is meant, ``python tests/unit/shared/mechanisms/test_golden.py`` writes it anew.
"""

from __future__ import annotations

import json
import math
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[up]) for up in (3, 4)]

from conformance_attack import Bench, Labelled
from conformance_cases import CASES, CLASSES, INPUTS, RECORDS, Case

from dpswd.shared.accounting.costs import step_costs
from dpswd.shared.core.mechanisms.interface import Limits, RunSize
from dpswd.shared.core.privacy.events import StepEvent
from dpswd.shared.core.wire.limits import FRAMING_BYTES
from dpswd.shared.published_mechanisms import ALL_MECHANISMS
from dpswd.shared.seeded_noise import SeededNoise

GOLDEN = Path(__file__).with_name("golden.json")
ORDERS = (1.5, 4.0, 32.0)
SEEDS = 3
PROJECTIONS = 8
NUMBER = re.compile(r"\d+\.?\d*(?:e-?\d+)?")
EVENTS = 40
"""For each case: about 700 in all, of which `make test` prices the first quarter."""


def replies(case: Case) -> list[list[float]]:
    """Of each released array on seeded records with seeded noise: its grid step, and its integers along signs."""
    bench = Bench(ALL_MECHANISMS[case.declared[0]], case, records=RECORDS)
    numbers = []
    for seed in range(SEEDS):
        rng = np.random.default_rng([seed, 17])
        sample = Labelled(rng.normal(size=(RECORDS, INPUTS)).astype(np.float32), rng.permutation(RECORDS) % CLASSES)
        reply = bench.reply(sample, SeededNoise(bytes([seed] * 32)), seed=bytes([seed + 1] * 32))
        for array in case.released(reply):
            integers = np.asarray(array.values, dtype=np.float64).ravel()
            signs = rng.choice([-1.0, 1.0], size=(PROJECTIONS, integers.size))
            numbers.append([array.step, *(signs @ integers / np.linalg.norm(integers))])
    return numbers


def costs(case: Case, events: int = EVENTS) -> list[float]:
    """Of events with this case's parts: full batches, samples, committed runs and single steps, all sizes of noise."""
    rng = np.random.default_rng(len(case.name))
    bench = Bench(ALL_MECHANISMS[case.declared[0]], case, records=RECORDS)
    numbers: list[float] = []
    for number in range(events):
        records = int(rng.integers(20, 5000))
        batch = records if number % 3 == 0 or case.batch == RECORDS else max(1, records // int(rng.integers(2, 50)))
        factor = float(2.0 ** rng.integers(-1, 8))
        parts = tuple(
            replace(part, sigma=part.sigma * factor, grid_step=part.grid_step * factor) for part in bench.parts(batch)
        )
        numbers += step_costs(StepEvent(records, batch, parts), ORDERS, committed=number % 2 == 0)
    return numbers


def stated(case: Case) -> list[str]:
    """What a case declares: its parts, what it says of itself, and what it is refused under narrow limits."""
    bench = Bench(ALL_MECHANISMS[case.declared[0]], case, records=RECORDS)
    lines = [bench.mechanism.summary(case.declaration, bench.facts), *map(repr, bench.parts(case.batch))]
    for room in (0, 1, 100, 400, 3000):
        limits = Limits(max_message_bytes=FRAMING_BYTES + room, max_sample_values=room, max_gradient_values=room)
        lines += map(repr, bench.mechanism.violations(case.declaration, RunSize(case.batch), bench.facts, limits))
    return lines


by_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@by_case
def test_replies_are_the_same(case):
    """To 1e-5 of an array's length: sums of float32 end otherwise on another processor's vector unit."""
    expected = json.loads(GOLDEN.read_text())[case.name]["replies"]
    for array, golden in zip(replies(case), expected, strict=True):
        assert array[0] == golden[0]
        assert np.allclose(array[1:], golden[1:], rtol=0.0, atol=1e-5)


@by_case
def test_what_is_declared_is_stated_and_limited_alike(case):
    for line, golden in zip(stated(case), json.loads(GOLDEN.read_text())[case.name]["stated"], strict=True):
        numbers, others = NUMBER.findall(line), NUMBER.findall(golden)
        assert NUMBER.sub("", line) == NUMBER.sub("", golden)
        assert np.allclose([float(one) for one in numbers], [float(one) for one in others], rtol=1e-12, atol=0.0)


@by_case
@pytest.mark.long
@pytest.mark.parametrize("events", [EVENTS // 8, pytest.param(EVENTS, marks=pytest.mark.exhaustive)])
def test_events_cost_the_same(case, events):
    """To 1e-12: what another processor's vector unit may change."""
    expected = [float(cost) for cost in json.loads(GOLDEN.read_text())[case.name]["costs"]]
    for cost, golden in zip(costs(case, events), expected[: events * len(expected) // EVENTS], strict=True):
        assert math.isclose(cost, golden, rel_tol=1e-12), (cost, golden)


if __name__ == "__main__":
    golden = {
        case.name: {"replies": replies(case), "stated": stated(case), "costs": [str(cost) for cost in costs(case)]}
        for case in CASES
    }
    GOLDEN.write_text(json.dumps(golden, indent=1) + "\n")
