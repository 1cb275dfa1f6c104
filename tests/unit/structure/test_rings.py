"""One name, `dpswd`, and rings in it: what a hospital's reviewer reads is a place with an end."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SIDES = ("private_curator", "public_client", "shared")
RINGS = {
    "core": ("shared/core", "private_curator/core"),
    "sandbox": ("shared/sandbox", "private_curator/sandbox"),
}
BUDGETS = {"core": 8_500, "sandbox": 3_387}
"""Lines of each ring, generated code aside. The core may have 8,500, and 8,000 is its next aim."""


def files_of(*folders: str) -> list[Path]:
    return [file for folder in folders for file in (ROOT / folder).rglob("*.py") if "_pb2" not in file.name]


def imported(tree: ast.AST) -> set[str]:
    """The first word of every import."""
    packages = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            packages |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            packages.add((node.module or "").partition(".")[0])
    return packages


def forbidden(ring: str) -> set[str]:
    """What import-linter forbids to a ring, of our own."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    places = {f"dpswd.{folder.replace('/', '.')}" for folder in RINGS[ring]}
    (modules,) = [set(each["forbidden_modules"]) for each in contracts if set(each.get("source_modules", ())) == places]
    return modules


def test_everything_of_ours_is_imported_by_the_name_dpswd():
    """From the repository's root `shared` can be imported as well: the same files would be loaded twice."""
    read = files_of(*SIDES, "dpswd", "benchmarks", "deploy", "tests")
    assert len(read) > 800
    names = re.compile(rf"(?<![.\w/])(?:{'|'.join(SIDES)})\b")
    texts = {file: text for file in read if names.search(text := file.read_text())}  # the others import none of them
    wrong = [file for file, text in texts.items() if imported(ast.parse(text)) & set(SIDES)]
    assert not wrong, f"import dpswd.shared, dpswd.private_curator, dpswd.public_client: {wrong}"


def test_pages_import_by_the_name_dpswd_as_well():
    kinds = ("*.md", "*.yml", "docs/**/*.md", "benchmarks/**/*.txt")
    for page in (page for kind in kinds for page in ROOT.glob(kind)):
        assert not re.search(rf"\b(?:from|import) (?:{'|'.join(SIDES)})\b", page.read_text()), page


def test_another_way_would_be_detected():
    assert imported(ast.parse("def f():\n    from shared import core\nimport a.b")) == {"shared", "a"}


def test_the_three_folders_are_links_of_dpswd():
    """Relative ones: a checkout, an image's build and an archive hold them wherever they lie."""
    assert {path.name: str(path.readlink()) for path in (ROOT / "dpswd").iterdir() if path.is_symlink()} == {
        side: f"../{side}" for side in SIDES
    }


@pytest.mark.parametrize("ring", RINGS)
def test_a_ring_has_no_more_lines_than_before(ring):
    lines = sum(len(file.read_text().splitlines()) for file in files_of(*RINGS[ring]))
    assert lines <= BUDGETS[ring], f"{ring} has {lines} lines, and may have {BUDGETS[ring]}: say less, or move it out"
    assert lines > BUDGETS[ring] - 100, f"{ring} has {lines} lines: lower its budget"


@pytest.mark.parametrize("ring", RINGS)
def test_the_contract_of_a_ring_names_everything_beside_it(ring):
    """A new room is forbidden to the rings from its first day."""
    rooms = {
        f"dpswd.{side}.{path.stem}"
        for side in ("shared", "private_curator")
        for path in (ROOT / side).iterdir()
        if (path.suffix == ".py" or (path / "__init__.py").exists()) and path.stem != "__init__"
    }
    places = {f"dpswd.{folder.replace('/', '.')}" for folder in RINGS[ring]}
    below = {f"dpswd.{folder.replace('/', '.')}" for folder in RINGS["core"]}
    assert rooms - places - below == forbidden(ring)


def test_where_a_charge_meets_a_release_nothing_has_any_type():
    """A registry of mechanisms has forgotten their types; from `Declared` on the type checker sees them again."""
    files = [*files_of("shared/core/steps", "private_curator/core/steps"), ROOT / "shared/core/mechanisms/declared.py"]
    assert len(files) > 8
    for file in files:
        assert not re.search(r"(:|->) Any\b|Mechanism\[Any", file.read_text().replace("dict[str, Any]", "")), file
