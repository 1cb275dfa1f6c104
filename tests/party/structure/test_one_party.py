"""A hospital installs its side without the team's dependencies, and a team without the hospital's.

What may be imported follows from pyproject.toml: the base, one party's extra, and all that these require in turn.
Everything else that is installed here is blocked.
"""

from __future__ import annotations

import ast
import functools
import json
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PARTIES = {
    "private_curator": ("curator", "public_client"),
    "public_client": ("client", "private_curator"),
}
"""By folder: the extra that installs it, and the folder of the other party."""
ANNEXES = {
    "private_curator/cluster": "cluster",
    "private_curator/onnx": "embed",
    "private_curator/console/provider.py": "oidc",
    "private_curator/keys/token.py": "pkcs11",
    "private_curator/sources": "sources",
    "public_client/onnx": "onnx",
    "public_client/tools": "onnx",
    "public_client/federated": "nvflare",
    "private_curator/observability/tracing.py": "tracing",
    "public_client/published_methods/transport.py": "transport",
    "public_client/published_methods/dpda.py": "transport",
}
"""Files that need a further extra, which they import when it is asked for."""
OF_A_DEVICE = {"shared/device_noise/fused.py": "triton"}
"""What comes with a build of torch for a GPU, tried before it is used."""
BY_HAND = {"public_client/federated/flower.py": "flwr"}
"""What asks for an older protobuf than ours, so that no extra can bring it (docs/ml-team/federated.md)."""
OF_ONE_PARTY = {"shared/accounting/crosscheck.py": "autodp"}
"""The second accountant is the curator's; a team never calls it."""

SCRIPT = """
import importlib, json, sys
allowed, names = json.loads(sys.stdin.read())
owner = set(allowed)
class Blocked:
    def find_spec(self, name, path=None, target=None):
        first = name.partition(".")[0]
        if first in owner:
            raise ModuleNotFoundError(f"{name} is blocked", name=name)
sys.meta_path.insert(0, Blocked())
for name in names:
    importlib.import_module(name)
print(json.dumps(sorted(name for name in sys.modules if name.startswith("dpswd."))))
"""


def required(*extras: str) -> set[str]:
    """The distributions that the base and these extras install, with all that they need in turn."""
    extra = [line for name in extras for line in PROJECT["optional-dependencies"][name]]
    ahead = [Requirement(line) for line in PROJECT["dependencies"] + extra]
    requirements: set[tuple[str, frozenset[str]]] = set()
    while ahead:
        one = ahead.pop()
        name = canonicalize_name(one.name)
        if (name, frozenset(one.extras)) in requirements:
            continue
        requirements.add((name, frozenset(one.extras)))
        try:
            further = metadata.requires(name) or []
        except metadata.PackageNotFoundError:  # of another system
            continue
        for requirement in map(Requirement, further):
            environments = [{"extra": each} for each in ("", *one.extras)]
            if requirement.marker is None or any(requirement.marker.evaluate(each) for each in environments):
                ahead.append(requirement)
    return {name for name, _ in requirements}


owners = functools.cache(metadata.packages_distributions)


@functools.cache
def blocked(*extras: str) -> set[str]:
    """The first words of imports that no distribution of `required` brings, though something here does."""
    may = required(*extras)
    return {
        module
        for module, names in owners().items()
        if module not in ("dpswd", "benchmarks", "tests") and not {canonicalize_name(name) for name in names} & may
    }


def modules(*places: str) -> list[str]:
    files = [file for place in places for file in (ROOT / place).rglob("*.py")]
    names = [str(file.relative_to(ROOT)) for file in files if file.name != "__main__.py"]
    outside = tuple(ANNEXES) + tuple(OF_A_DEVICE)
    return sorted(
        f"dpswd.{name.removesuffix('.py').replace('/', '.').removesuffix('.__init__')}"
        for name in names
        if not name.startswith(outside)
    )


@functools.cache
def imported(file: Path) -> set[str]:
    """The first word of every import of a file, inside functions too."""
    packages = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            packages |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            packages.add(node.module.partition(".")[0])
    return packages


def extras_of(file: str, party: str) -> list[str]:
    return [party, *(extra for place, extra in ANNEXES.items() if file.startswith(place))]


@pytest.mark.long
@pytest.mark.parametrize("party", PARTIES)
def test_every_module_of_a_party_imports_without_the_others_packages(party):
    """And loads none of the other party's code: with `shared`, that is all of it but the annexes."""
    extra, other = PARTIES[party]
    given = json.dumps([sorted(blocked(extra)), modules(party, "shared")])
    done = subprocess.run([sys.executable, "-c", SCRIPT], input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loaded = json.loads(done.stdout)
    assert len(loaded) > 200
    assert not [name for name in loaded if name.startswith(f"dpswd.{other}")]


@pytest.mark.parametrize("party", PARTIES)
def test_a_party_is_installed_with_all_that_its_files_name(party):
    """Inside functions too, where no import is seen until somebody needs it."""
    extra, _ = PARTIES[party]
    wrong = {}
    for file in [file for place in (party, "shared") for file in (ROOT / place).rglob("*.py")]:
        name = str(file.relative_to(ROOT))
        missing = imported(file) & blocked(*extras_of(name, extra))
        if missing - {OF_A_DEVICE.get(name), OF_ONE_PARTY.get(name), BY_HAND.get(name)}:
            wrong[name] = sorted(missing)
    assert not wrong, f"dpswd[{extra}] does not install what these import: {wrong}"


@pytest.mark.parametrize("party", PARTIES)
def test_a_partys_command_loads_nothing_of_the_other(party):
    _, other = PARTIES[party]
    code = f"import sys, dpswd.{party}.cli.main\nprint([name for name in sys.modules if '.{other}' in name])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_what_one_party_alone_needs_is_not_in_the_base():
    """Each base dependency is imported by both parties or by what they share."""
    seen = {}
    for place in ("private_curator", "public_client", "shared"):
        named = {name for file in (ROOT / place).rglob("*.py") for name in imported(file) - {"google"}}
        seen[place] = {canonicalize_name(each) for name in named for each in owners().get(name, ())}
    both = seen["shared"] | (seen["private_curator"] & seen["public_client"]) | {"protobuf"}
    base = {canonicalize_name(Requirement(line).name) for line in PROJECT["dependencies"]}
    assert base <= both, f"move to an extra: {base - both}"
    assert "autodp" not in base  # `shared` names it for the curator's second accountant


def test_a_blocked_package_would_be_detected():
    curator, client = blocked("curator"), blocked("client")
    assert {"sklearn", "ot", "lightgbm", "yaml", "tensorboard"} <= curator
    assert {"prometheus_client", "starlette", "psycopg", "autodp"} <= client
    assert not {"torch", "numpy", "click", "grpc", "rich"} & (curator | client)
    given = json.dumps([sorted(client), ["prometheus_client"]])
    done = subprocess.run([sys.executable, "-c", SCRIPT], input=given, capture_output=True, text=True, check=False)
    assert "prometheus_client is blocked" in done.stderr


def test_a_rehearsal_without_the_curator_installed_says_what_to_install(monkeypatch):
    from dpswd import LocalHospital, SettingsError

    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(SettingsError, match=r"pip install 'dpswd\[client,curator\]'"):
        LocalHospital(np.zeros((4, 2), dtype=np.float32), epsilon=1.0, delta=1e-5)
