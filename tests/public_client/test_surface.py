"""The names that a team imports: they are real, lazy, typed, and say what they take."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import public_client

ROOT = Path(__file__).resolve().parents[2]
NAMES = [name for name in public_client.__all__ if name != "__version__"]


def public_callables():
    """Every public function and class of the surface, and the public methods of the classes, by name."""
    for name in NAMES:
        value = getattr(public_client, name)
        yield name, value
        if not inspect.isclass(value) or not value.__module__.startswith(("public_client", "shared")):
            continue
        for member, function in inspect.getmembers(value, inspect.isroutine):
            if not member.startswith("_") and getattr(function, "__module__", "").startswith("public_client"):
                yield f"{name}.{member}", function


@pytest.mark.parametrize("name", NAMES)
def test_every_name_imports_and_says_what_it_is(name):
    value = getattr(public_client, name)
    assert (inspect.getdoc(value) or "").strip()
    assert name in dir(public_client)


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
    assert dir(public_client) == sorted(public_client.__all__)
    assert public_client.__all__ == sorted(public_client.__all__)
    with pytest.raises(AttributeError, match=r"no attribute 'Hospitals'; it has Adapter, .*Hospital"):
        public_client.Hospitals  # noqa: B018 - reading it is the test


def test_the_version_is_the_distributions():
    assert public_client.__version__ == metadata.version("dpswd")


def test_importing_it_loads_nothing_heavy():
    """Counted in modules, not in seconds, which a loaded machine stretches."""
    script = (
        "import sys, json\nbefore = set(sys.modules)\nimport public_client\ndir(public_client)\n"
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = json.loads(done.stdout)
    assert not {"torch", "numpy", "grpc", "google.protobuf", "pydantic", "cryptography"} & set(loaded)
    assert [name for name in loaded if name.startswith(("public_client.", "shared"))] == []


@pytest.mark.parametrize("package", ["public_client", "shared", "private_curator"])
def test_the_wheel_says_that_it_is_typed(package):
    from hatchling.builders.wheel import WheelBuilder

    files = {file.distribution_path for file in WheelBuilder(str(ROOT)).recurse_included_files()}
    assert f"{package}/py.typed" in files
    assert f"{package}/__init__.py" in files
