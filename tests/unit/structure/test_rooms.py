"""How many lines each room of the house has, and the annexes together; these numbers only ever fall."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
RINGS = {"shared/core", "private_curator/core", "shared/sandbox", "private_curator/sandbox"}
"""Which `test_rings` counts."""
ANNEXES = {
    "public_client/published_methods", "shared/published_mechanisms", "shared/device_noise", "private_curator/console",
    "private_curator/cluster", "private_curator/postgres", "private_curator/onnx", "private_curator/syslog",
    "private_curator/sources", "public_client/onnx", "public_client/tools", "public_client/federated",
}  # fmt: skip
BUDGETS = {
    "annexes": 9_964,
    "private_curator/*.py": 1,
    "private_curator/books": 3_029,
    "private_curator/caps": 90,
    "private_curator/cli": 2_432,
    "private_curator/keys": 368,
    "private_curator/observability": 524,
    "private_curator/operator": 3_168,
    "private_curator/records": 1_814,
    "private_curator/serving": 1_643,
    "private_curator/settings": 515,
    "private_curator/steps": 777,
    "private_curator/storage": 1_355,
    "private_curator/watching": 42,
    "public_client/*.py": 353,
    "public_client/adaptation": 1_234,
    "public_client/cli": 1_716,
    "public_client/curator": 2_001,
    "public_client/data": 1_200,
    "public_client/evidence": 600,
    "public_client/experiments": 1_605,
    "public_client/extractor": 2_693,
    "public_client/generation": 2_483,
    "public_client/ladder": 1_455,
    "public_client/methods": 2_090,
    "public_client/models": 1_387,
    "public_client/normalisation": 994,
    "public_client/plans": 1_018,
    "public_client/probes": 299,
    "public_client/recalibration": 641,
    "public_client/replay": 3_485,
    "public_client/testing": 1_332,
    "public_client/training": 1_369,
    "public_client/watching": 196,
    "shared/*.py": 705,
    "shared/accounting": 2_920,
    "shared/books": 382,
    "shared/models": 553,
    "shared/protocol": 732,
    "shared/records": 629,
    "shared/watching": 119,
}


def lines_of(path: Path) -> int:
    files = [path] if path.is_file() else [file for file in path.rglob("*.py") if "_pb2" not in file.name]
    return sum(len(file.read_text().splitlines()) for file in files)


def rooms() -> dict[str, list[Path]]:
    """The folders of each side, the files beside them, and the annexes, by name."""
    by_name: dict[str, list[Path]] = {}
    for side in ("private_curator", "public_client", "shared"):
        for path in (ROOT / side).iterdir():
            name = f"{side}/{path.name}"
            if name in RINGS or not (path.suffix == ".py" or (path / "__init__.py").exists()):
                continue
            room = "annexes" if name in ANNEXES else f"{side}/*.py" if path.is_file() else name
            by_name.setdefault(room, []).append(path)
    return by_name


ROOMS = rooms()


def test_each_room_has_a_budget_and_each_annex_is_there():
    assert set(ROOMS) == set(BUDGETS)
    assert len(ROOMS["annexes"]) == len(ANNEXES)


@pytest.mark.parametrize("room", BUDGETS)
def test_a_room_has_no_more_lines_than_before(room):
    lines = sum(map(lines_of, ROOMS.get(room, [])))
    assert lines <= BUDGETS[room], f"{room} has {lines} lines, and may have {BUDGETS[room]}: say less, or move it out"
    assert lines > BUDGETS[room] - 100, f"{room} has {lines} lines: lower its budget"


def test_the_house_and_its_annexes_are_no_larger_than_promised():
    assert sum(lines for room, lines in BUDGETS.items() if room != "annexes") <= 50_000
    assert BUDGETS["annexes"] <= 10_000
