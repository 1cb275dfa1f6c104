"""The reading order leads through each file of the core once, and through none before those that it needs."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "privacy" / "reading-order.md"
MOST_WORDS = 1800
_ITEM = re.compile(r"^(\d+)\. `([^`]+)`: \S", re.MULTILINE)


def core() -> dict[str, ast.Module]:
    """Every file of the core that holds more than a docstring, generated code aside."""
    files = (file for folder in ("shared/core", "private_curator/core") for file in (ROOT / folder).rglob("*.py"))
    trees = {str(file.relative_to(ROOT)): ast.parse(file.read_text()) for file in files if "_pb2" not in file.name}
    return {name: tree for name, tree in trees.items() if not all(isinstance(node, ast.Expr) for node in tree.body)}


def listed() -> list[str]:
    return [name for _, name in _ITEM.findall(PAGE.read_text(encoding="utf-8"))]


def needs(tree: ast.Module, files: set[str]) -> set[str]:
    """The files of the core that a file imports."""
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dpswd."):
            path = node.module.removeprefix("dpswd.").replace(".", "/")
            candidates = (f"{path}/{alias.name}.py" for alias in node.names)
            imported |= files & {*candidates, f"{path}.py", f"{path}/__init__.py"}
    return imported


def test_each_file_of_the_core_is_listed_once():
    assert sorted(listed()) == sorted(core())
    numbers = [int(number) for number, _ in _ITEM.findall(PAGE.read_text(encoding="utf-8"))]
    assert numbers == list(range(1, len(numbers) + 1))


def test_no_file_is_listed_before_one_that_it_needs():
    files, order = core(), listed()
    early = [
        (name, needed)
        for name, tree in files.items()
        for needed in needs(tree, set(files) - {name})
        if order.index(needed) > order.index(name)
    ]
    assert not early, f"listed before what they import: {early}"


def test_an_import_is_seen():
    lines = ("from dpswd.shared.core.wire import limits as protocol, v1", "from dpswd.shared.core.errors import X")
    tree = ast.parse("\n".join(lines))
    files = {"shared/core/wire/limits.py", "shared/core/errors.py", "shared/core/wire/checks.py"}
    assert needs(tree, files) == {"shared/core/wire/limits.py", "shared/core/errors.py"}


def test_it_can_be_read_in_one_sitting():
    assert len(PAGE.read_text(encoding="utf-8").split()) <= MOST_WORDS
