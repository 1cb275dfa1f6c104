"""How many lines each room of the house has, and the annexes together; these numbers only ever fall."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RINGS = {"shared/core", "private_curator/core", "shared/sandbox", "private_curator/sandbox"}
"""Which `test_rings` counts."""
ANNEXES = {
    "public_client/published_methods", "shared/published_mechanisms", "shared/device_noise", "private_curator/console",
    "private_curator/cluster", "private_curator/postgres", "private_curator/onnx",
}  # fmt: skip
HOUSE = 50_000
"""The aim of the rooms below together with the files beside them; the annexes' is 10,000."""
BUDGETS = {
BUDGETS_HERE
}


def lines_of(path: Path) -> int:
    files = [path] if path.is_file() else [file for file in path.rglob("*.py") if "_pb2" not in file.name]
    return sum(len(file.read_text().splitlines()) for file in files)


def rooms() -> dict[str, list[Path]]:
    """The folders of each side, the files beside them, and the annexes, by name."""
    found: dict[str, list[Path]] = {}
    for side in ("private_curator", "public_client", "shared"):
        for path in (ROOT / side).iterdir():
            name = f"{side}/{path.name}"
            if name in RINGS or not (path.suffix == ".py" or (path / "__init__.py").exists()):
                continue
            room = "annexes" if name in ANNEXES else f"{side}/*.py" if path.is_file() else name
            found.setdefault(room, []).append(path)
    return found


ROOMS = rooms()


def test_each_room_has_a_budget_and_each_annex_is_there():
    assert set(ROOMS) == set(BUDGETS)
    assert len(ROOMS["annexes"]) == len(ANNEXES)
    assert sum(BUDGETS.values()) - BUDGETS["annexes"] <= HOUSE


@pytest.mark.parametrize("room", BUDGETS)
def test_a_room_has_no_more_lines_than_before(room):
    lines = sum(map(lines_of, ROOMS.get(room, [])))
    assert lines <= BUDGETS[room], f"{room} has {lines} lines, and may have {BUDGETS[room]}: say less, or move it out"
    assert lines > BUDGETS[room] - 100, f"{room} has {lines} lines: lower its budget"
