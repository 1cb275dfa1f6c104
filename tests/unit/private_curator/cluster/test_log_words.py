"""What the page of several machines says that the log says, the log says."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]
PAGE = ROOT / "docs" / "operator" / "cluster.md"


def logged() -> list[str]:
    """The constant texts of warnings and errors, and of what is slow."""
    texts = []
    for path in (*ROOT.glob("private_curator/cluster/*.py"), ROOT / "private_curator/steps/shards.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("_log."):
                assert isinstance(node.args[0], ast.Constant)
                texts.append(node.args[0].value)
    return texts


def test_each_thing_that_can_happen_is_named_in_the_log_as_the_page_names_it():
    table = PAGE.read_text().split("## What can happen")[1].split("## What is open")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line[:1] == "|"]
    assert rows[0][-1] == "the curator's log says"
    for happens, _, says in rows[2:]:
        names = re.findall(r"`([^`]+)`", says)
        assert names, happens
        for name in names:
            pattern = re.compile(".*".join(map(re.escape, name.split(" ... "))))
            assert any(pattern.search(text) for text in logged()), f"{happens}: {name}"
    assert len(rows) >= 12
