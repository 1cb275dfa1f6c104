"""No import circle between files: not inside functions and not under TYPE_CHECKING either."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = "dpswd"


def modules():
    """Every file's dotted name, but for generated code."""
    files = {}
    for place in (ROOT / PACKAGE).iterdir():  # rglob follows no links
        for file in place.rglob("*.py") if place.is_dir() else [place]:
            if file.suffix == ".py" and "_pb2" not in file.name:
                name = ".".join(file.relative_to(ROOT).with_suffix("").parts)
                files[name.removesuffix(".__init__")] = file
    return files


def imported(tree, files):
    """The modules of this project that a file imports anywhere in it."""
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            while name and name not in files:
                name = name.rpartition(".")[0]
            if name:
                yield name


def graph():
    files = modules()
    return {name: set(imported(ast.parse(file.read_text()), files)) - {name} for name, file in files.items()}


@pytest.mark.long
def test_no_file_imports_itself_by_a_detour():
    imports = graph()
    assert len(imports) > 200
    try:
        list(TopologicalSorter(imports).static_order())
    except CycleError as error:
        pytest.fail(f"an import circle: {' <- '.join(error.args[1])}")


@pytest.mark.long
def test_small_commands_start_without_torch():
    """Two seconds of every `budget` otherwise: what needs torch imports it when it runs."""
    commands = [name for name in modules() if ".cli." in name and not name.endswith("__main__")]
    code = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "    importlib.import_module(name)\n"
        "    assert 'torch' not in sys.modules, name"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, *commands], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr


def test_a_circle_would_be_detected(tmp_path):
    code = "from a import b\ndef f():\n    import c.d\n"
    assert set(imported(ast.parse(code), {"a.b", "c"})) == {"a.b", "c"}
    with pytest.raises(CycleError):
        list(TopologicalSorter({"x": {"y"}, "y": {"x"}}).static_order())
