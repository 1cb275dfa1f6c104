"""What is installed beside this project: all of it by hash, listed with each release, and named in the report."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from deploy import bom
from dpswd.private_curator.operator import officer

ROOT = Path(__file__).resolve().parents[3]
LOCKS = [ROOT / "requirements.lock", *sorted((ROOT / "deploy").rglob("*.lock"))]
SCRIPTS = [*sorted((ROOT / "deploy").rglob("*.sh")), ROOT / "deploy" / "images" / "Dockerfile", ROOT / "Makefile"]
LISTED = json.loads(bom.LIST.read_text())


def pins(lock):
    """Name and version of each line, with its digests."""
    blocks = re.findall(r"^([A-Za-z0-9._-]+)==([^ ;\\\n]+)((?:[^\n]*\\\n)*[^\n]*)", lock.read_text(), re.MULTILINE)
    return {name: (version, re.findall(r"--hash=sha256:[0-9a-f]{64}", rest)) for name, version, rest in blocks}


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_every_line_of_a_lock_is_one_version_with_its_digests(lock):
    lines = [line for line in lock.read_text().splitlines() if line and not line.startswith((" ", "#"))]
    assert len(lines) == len(pins(lock)) > 0
    assert all(digests for _, digests in pins(lock).values())


def test_locks_agree():
    versions = {}
    for lock in LOCKS:
        for name, (version, _) in pins(lock).items():
            assert versions.setdefault(name.lower(), version.partition("+")[0]) == version.partition("+")[0], (
                lock.name,
                name,
            )


def test_torch_in_either_build_and_what_builds_are_locked():
    installed = importlib.metadata.version("torch").partition("+")[0]
    assert pins(ROOT / "deploy" / "torch-cpu.lock")["torch"][0] == f"{installed}+cpu"
    assert pins(ROOT / "deploy" / "torch-cuda.lock")["torch"][0] == installed
    assert {"setuptools", "hatchling", "editables"} <= pins(ROOT / "deploy" / "build.lock").keys()
    needed = [re.match(r"[\w.-]+", each)[0] for each in importlib.metadata.requires("torch") if "extra ==" not in each]
    locked = {re.sub(r"[-_.]+", "-", name).lower() for lock in LOCKS for name in pins(lock)}
    assert {re.sub(r"[-_.]+", "-", name).lower() for name in needed} <= locked


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_nothing_is_installed_but_by_hash_or_from_wheels_that_were_checked(script):
    """Lines that call pip, with those that they go on in; a script's own `pip` that always asks for hashes is one."""
    text = re.sub(r"\\\n", " ", script.read_text())
    assert "--extra-index-url" not in text  # one index at a time: of two, either could answer for the other's names
    own = re.search(r"^pip\(\) \{(.*?)\}$", text, re.MULTILINE | re.DOTALL)
    if own:
        text = text.replace(own[0], "")
    for line in text.splitlines():
        if re.search(r"^[^#]*\bpip\b.*( install| wheel| download|\$@|--no-deps)", line):
            hashed = own is not None and "--require-hashes" in own[1] and re.search(r"(^|\|\| )pip ", line)
            assert hashed or re.search(
                r"--require-hashes|--no-index|\$\{source\[@\]\}|--no-build-isolation --editable", line
            ), line


def test_an_audit_that_reached_no_database_fails_and_says_so(tmp_path):
    """`make audit`: that nothing is known must not read as if nothing were wrong."""
    nowhere = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), "http://127.0.0.1:9")
    asked = {**os.environ, **nowhere, "NO_PROXY": "", "no_proxy": "", "XDG_CACHE_HOME": str(tmp_path)}
    command = ["make", "--old-file=set-up", "audit", f"BIN={Path(sys.executable).parent}"]
    done = subprocess.run(
        command, cwd=ROOT, env=asked | {"PIP_CACHE_DIR": str(tmp_path)}, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "could not be reached" in done.stderr


def test_the_list_is_what_the_locks_say_and_cyclonedx():
    assert bom.LIST.read_text() == bom.listed()  # which holds it to CycloneDX's schema
    listed = {part["name"]: part["version"] for part in LISTED["components"]}
    curator = {re.sub(r"[-_.]+", "-", name).lower(): version for name, (version, _) in pins(LOCKS[0]).items()}
    assert listed["torch"]
    assert listed["grpcio"] == curator["grpcio"]
    for part in LISTED["components"]:
        assert part["purl"] == f"pkg:pypi/{part['name']}@{part['version']}"
        assert part["externalReferences"][0]["hashes"]


def test_what_is_no_list_is_refused(monkeypatch):
    monkeypatch.setattr(bom, "components", lambda _: [bom._component("x", "1", {"no digest"})])
    with pytest.raises(ValueError, match="no CycloneDX"):
        bom.listed()


def test_two_versions_of_one_package_are_refused(tmp_path):
    for lock in bom.LOCKS:
        (tmp_path / lock).parent.mkdir(parents=True, exist_ok=True)
        version = "2" if lock == bom.LOCKS[-1] else "1"
        (tmp_path / lock).write_text(f"x=={version} \\\n    --hash=sha256:{'0' * 64}\n")
    with pytest.raises(ValueError, match=r"x is pinned at 1 and, in deploy/torch-cuda\.lock, at 2"):
        bom.components(tmp_path)


def test_the_report_names_the_list_and_what_differs_from_it(monkeypatch):
    digest = hashlib.sha256(bom.LIST.read_bytes()).hexdigest()[:32]
    stated = officer.dependencies.__wrapped__  # by every process once
    assert stated() == digest
    installed = importlib.metadata.distributions

    class Other:
        name, version = "NumPy", "0.1"

    monkeypatch.setattr(importlib.metadata, "distributions", lambda: [*installed(), Other()])
    assert stated() == f"{digest}; installed in other versions: numpy 0.1"
