"""What the core's values are made of: limits as stated, and no value that can be changed once it was checked."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from pathlib import Path

import pytest

from dpswd.shared.core.wire import limits

ROOT = Path(__file__).resolve().parents[3]
CORE = ("shared/core", "private_curator/core")
CHANGING = {"Books", "Transaction"}
"""Those of the ledger, within one transaction."""
LIMITS = {
    "MAX_MESSAGE_BYTES": 83_886_080, "MAX_DIRECTIONS": 20_000, "MAX_COEFFICIENTS": 512, "MAX_BATCH_SIZE": 65_536,
    "MIN_BATCH_SIZE": 16, "MAX_RECORDS": 4_294_967_295, "MAX_ADAPTED_PARAMETERS": 4_000_000,
    "MAX_SOURCE_FEATURES": 65_536, "MAX_RELEASE_VALUES": 32_000_000, "MAX_STEPS": 10_000_000,
    "MAX_SAMPLE_VALUES": 268_435_456, "MAX_GRADIENT_VALUES": 268_435_456, "MAX_CLASSES": 1000, "MAX_BINS": 100,
    "FRAMING_BYTES": 4096, "MAX_RANK": 8, "GRID_EXPONENT": 11, "UNLABELLED": -1,
}  # fmt: skip


def modules():
    for folder in CORE:
        for file in sorted((ROOT / folder).rglob("*.py")):
            if "_pb2" not in file.name:
                name = ".".join(["dpswd", *file.relative_to(ROOT).with_suffix("").parts]).removesuffix(".__init__")
                yield importlib.import_module(name)


def values():
    """Dataclasses of the core."""
    for module in modules():
        for name, value in vars(module).items():
            own = inspect.isclass(value) and value.__module__ == module.__name__ and name not in CHANGING
            if own and dataclasses.is_dataclass(value) and not issubclass(value, Exception):
                yield f"{module.__name__}.{name}", value


def test_limits_are_those_that_are_stated():
    """Both parties refuse by them: one that moves by mistake refuses what was allowed, or lets in too much."""
    assert {name: value for name, value in vars(limits).items() if name.isupper()} == LIMITS


@pytest.mark.parametrize(("name", "value"), list(values()))
def test_a_value_cannot_be_changed_once_it_was_checked(name, value):
    assert value.__dataclass_params__.frozen, name
    assert "__dataclass_params__" in vars(value) or not vars(value).get("__annotations__"), f"{name} lacks @dataclass"


@pytest.mark.parametrize(("name", "value"), list(values()))
def test_a_value_that_holds_arrays_equals_itself_alone(name, value):
    """Arrays compare number by number, and the truth of that is an error."""
    if any(re.search(r"Array|Tensor|FeatureMap", str(field.type)) for field in dataclasses.fields(value)):
        assert not value.__dataclass_params__.eq, f"{name}: write @dataclass(frozen=True, eq=False)"
