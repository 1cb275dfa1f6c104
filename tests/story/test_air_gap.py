"""The archive for a site without a network: packed by bundle.sh, installed on an empty engine that has no way out."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # under importlib mode a test directory is no package

import docker
from engine import BASE_IMAGE, ROOT, compose_command, debian_docker, say, started
from two_sites import wait

pytestmark = [pytest.mark.containers, pytest.mark.exhaustive, pytest.mark.timeout(1800)]


def _environment(address: str) -> dict[str, str]:
    """Debian's client comes first in PATH: another one may lack what it needs to build."""
    path = f"{Path(debian_docker()).parent}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "DOCKER_HOST": address, "DOCKER_BUILDKIT": "1", "COMPOSE_HTTP_TIMEOUT": "300"}


def _run(*command: str | Path, address: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, command)), cwd=cwd, env=_environment(address), capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def archive(address, tmp_path_factory):
    """What bundle.sh packs, on the engine that has a network and the images."""
    begun = time.monotonic()
    path = tmp_path_factory.mktemp("connected") / "dpswd-airgap.tar"
    packed = _run("bash", "deploy/airgap/bundle.sh", path, address=address)
    assert packed.returncode == 0, packed.stdout[-2000:] + packed.stderr[-2000:]
    say(f"air gap: archive of {path.stat().st_size / 1e9:.2f} GB in {time.monotonic() - begun:.0f} s")
    yield path
    shutil.rmtree(path.parent)


@pytest.fixture(scope="module")
def unpacked(archive, tmp_path_factory):
    """The archive on the other side, checked as docs/operator/air-gap.md says."""
    site = tmp_path_factory.mktemp("site")
    (site / archive.name).symlink_to(archive)
    shutil.copy(f"{archive}.sha256", site)
    checked = subprocess.run(["sha256sum", "--check", f"{archive.name}.sha256"], cwd=site, capture_output=True)
    assert checked.returncode == 0, checked.stderr
    with tarfile.open(archive) as held:
        held.extractall(site / "dpswd", **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    yield site / "dpswd"
    shutil.rmtree(site)


@pytest.fixture(scope="module")
def lonely():
    with started(isolated=True) as (address, process):
        # Without even a route: what reaches out from here ends here.
        assert Path(f"/proc/{process}/ns/net").readlink() != Path("/proc/self/ns/net").readlink()
        devices = Path(f"/proc/{process}/net/dev").read_text().splitlines()[2:]
        assert {line.split(":")[0].strip() for line in devices} <= {"lo", "docker0"}
        yield address


def test_the_archive_holds_what_it_lists(unpacked):
    listed = dict(reversed(line.split("  ", 1)) for line in (unpacked / "SHA256SUMS").read_text().splitlines())
    assert {"./images.tar", "./install.sh", "./LICENCES.tsv", "./sources/docker-compose.yml"} <= set(listed)
    wheels = [name for name in listed if name.startswith("./wheels/")]
    assert any("/torch-" in name for name in wheels)
    licences = (unpacked / "LICENCES.tsv").read_text().splitlines()
    assert licences[0] == "kind\tname\tversion\tlicence"
    rows = [line.split("\t") for line in licences[1:]]
    assert all(len(row) == 4 and all(row) for row in rows)
    assert {"torch", "numpy", "grpcio", "dpswd"} <= {row[1] for row in rows if row[0] == "python"}
    debian = {row[1]: row[3] for row in rows if row[0] == "debian"}
    assert "GPL" in debian["bash"]
    assert "LGPL" in debian["libc6"]


@pytest.mark.parametrize("change", ["edited", "lost", "added"])
def test_an_archive_that_was_changed_on_the_way_is_refused(unpacked, lonely, change):
    compose, extra = unpacked / "sources" / "docker-compose.yml", unpacked / "sources" / "deploy" / "run-me.sh"
    original = compose.read_bytes()
    try:
        if change == "edited":
            compose.write_bytes(original.replace(b"read_only: true", b"read_only: false"))
        elif change == "lost":
            compose.unlink()
        else:
            extra.write_text("#!/bin/sh\n")
        refused = _run("bash", unpacked / "install.sh", address=lonely, cwd=unpacked)
        assert refused.returncode != 0
        expected = "files that SHA256SUMS does not list" if change == "added" else "damaged or was changed"
        assert expected in refused.stderr
        assert docker.DockerClient(base_url=lonely).images.list() == []
    finally:
        compose.write_bytes(original)
        extra.unlink(missing_ok=True)


def test_a_site_without_a_network_installs_and_serves(unpacked, lonely):
    begun = time.monotonic()
    installed = _run("bash", unpacked / "install.sh", address=lonely, cwd=unpacked)
    assert installed.returncode == 0, installed.stderr[-2000:]
    engine = docker.DockerClient(base_url=lonely, timeout=300)
    tags = {tag for image in engine.images.list() for tag in image.tags}
    assert tags == {BASE_IMAGE, "dpswd-curator:latest", "dpswd-client:latest"}
    sources = unpacked / "sources"
    wheels = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (unpacked / "wheels").glob("*.whl")}
    sums = (sources / "deploy" / "wheelhouse" / "SHA256SUMS").read_text().split()
    assert dict(zip((name.removeprefix("./") for name in sums[1::2]), sums[::2], strict=True)) == wheels
    project = [*compose_command(), "--project-name", "lonely"]
    begun, loaded = time.monotonic(), time.monotonic() - begun
    up = _run(*project, "up", "--no-build", "--detach", "curator", address=lonely, cwd=sources)
    assert up.returncode == 0, up.stderr[-3000:]
    try:
        (curator,) = engine.containers.list(filters={"label": "com.docker.compose.service=curator"})

        def health() -> str:
            curator.reload()
            return curator.attrs["State"]["Health"]["Status"]

        wait("a healthy curator", lambda: health() == "healthy")
        say(f"air gap: installed in {loaded:.0f} s, healthy {time.monotonic() - begun:.0f} s later")
        assert curator.exec_run(["dpswd-curator-health"]).output.decode().strip() == "SERVING"
    finally:
        _run(*project, "down", "--volumes", "--timeout", "5", address=lonely, cwd=sources)
