"""The names that a team imports: they are real, lazy, typed, and say what they take."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import dpswd

ROOT = Path(__file__).resolve().parents[3]
NAMES = [name for name in dpswd.__all__ if name != "__version__"]


def public_callables():
    """Every public function and class of the surface, and the public methods of the classes, by name."""
    for name in NAMES:
        value = getattr(dpswd, name)
        yield name, value
        if not inspect.isclass(value) or not value.__module__.startswith("dpswd."):
            continue
        for member, function in inspect.getmembers(value, inspect.isroutine):
            if not member.startswith("_") and getattr(function, "__module__", "").startswith("dpswd."):
                yield f"{name}.{member}", function


@pytest.mark.parametrize("name", NAMES)
def test_every_name_imports_and_says_what_it_is(name):
    value = getattr(dpswd, name)
    assert (inspect.getdoc(value) or "").strip()
    assert name in dir(dpswd)


def test_every_signature_is_real():
    """No `*args`, no `**kwargs`: what a function takes is in its signature, with types."""
    seen = 0
    for name, function in public_callables():
        if inspect.isclass(function) and issubclass(function, Exception):
            continue
        for parameter in inspect.signature(function).parameters.values():
            assert parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL), (name, parameter)
            assert parameter.name in ("self", "cls") or parameter.annotation is not parameter.empty, (name, parameter)
            seen += 1
    assert seen > 100


def test_dir_lists_the_names_and_nothing_else_is_there():
    assert dir(dpswd) == sorted(dpswd.__all__)
    assert dpswd.__all__ == sorted(dpswd.__all__)
    with pytest.raises(AttributeError, match=r"no attribute 'Hospitals'; it has Adapted, AllWeights, .*Hospital"):
        dpswd.Hospitals  # noqa: B018 - reading it is the test


def test_the_version_is_the_distributions():
    assert dpswd.__version__ == metadata.version("dpswd")


def test_importing_it_loads_nothing_heavy():
    """Counted in modules, not in seconds, which a loaded machine stretches."""
    script = (
        "import sys, json\nbefore = set(sys.modules)\nimport dpswd\ndir(dpswd)\n"
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = json.loads(done.stdout)
    assert not {"torch", "numpy", "grpc", "google.protobuf", "pydantic", "cryptography"} & set(loaded)
    assert [name for name in loaded if name.startswith("dpswd.")] == []


def test_the_wheel_is_one_typed_package():
    """Nothing called `shared` lands in anybody's site-packages."""
    from hatchling.builders.wheel import WheelBuilder

    files = {file.distribution_path for file in WheelBuilder(str(ROOT)).recurse_included_files()}
    assert {file.split("/")[0] for file in files} == {"dpswd"}
    sides = ("", "shared/", "private_curator/", "public_client/")
    assert {f"dpswd/{side}__init__.py" for side in sides} | {"dpswd/py.typed"} <= files
