"""A Docker engine for the container tests: the one that is there, or one of our own that ends with the tests."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import docker

ROOT = Path(__file__).resolve().parents[2]
BASE_IMAGE = "dpswd-base:bookworm"
PACKAGES = {
    "dockerd": "docker.io",
    "iptables": "iptables",
    "debootstrap": "debootstrap",
    "docker-compose": "docker-compose",
}
START_S = 60.0


class NoEngine(Exception):
    """No engine answers and none can be started; the text says why."""


def say(text: str) -> None:
    print(f"[containers {time.strftime('%H:%M:%S')}] {text}", flush=True)


@contextmanager
def engine() -> Iterator[str]:
    """The address of a Docker engine; one that was started here is ended, with all it holds, at the end."""
    given = os.environ.get("DPSWD_DOCKER_HOST") or os.environ.get("DOCKER_HOST")
    if given and _answers(given):
        install_missing()
        yield given
        return
    install_missing()
    directory = Path(tempfile.mkdtemp(prefix="dpswd-engine-"))
    address = f"unix://{directory}/docker.sock"
    with (directory / "log").open("wb") as log:
        daemon = subprocess.Popen(
            [
                _program("dockerd"), "--host", address, "--data-root", str(directory / "data"),
                "--exec-root", str(directory / "exec"), "--pidfile", str(directory / "pid"),
            ],
            stdout=log,
            stderr=log,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + START_S
        while not _answers(address):
            if daemon.poll() is not None or time.monotonic() > deadline:
                words = (directory / "log").read_text(errors="replace")[-800:]
                raise NoEngine(f"dockerd did not start here (it needs root, cgroups and iptables): {words}")
            time.sleep(0.2)
        yield address
    finally:
        daemon.terminate()
        try:
            daemon.wait(timeout=60)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()
        shutil.rmtree(directory, ignore_errors=True)


def install_missing() -> None:
    """Debian's own packages of what the tests need.

    Raises:
        NoEngine: something is missing and cannot be installed.
    """
    missing = [package for program, package in PACKAGES.items() if _program(program) is None]
    if not missing:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise NoEngine(f"missing: {', '.join(missing)}; as root on Debian they would be installed")
    say(f"installing {', '.join(missing)}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    # The packages' own service must not start: these tests start and end their own engine.
    policy = Path("/usr/sbin/policy-rc.d")
    ours = not policy.exists()
    if ours:
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    try:
        for arguments in (["update"], ["install", "--yes", "--no-install-recommends", *missing]):
            done = subprocess.run(["apt-get", *arguments], env=environment, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise NoEngine(f"apt-get {arguments[0]} failed: {done.stderr.strip()[-400:]}")
    finally:
        if ours:
            policy.unlink()


def build_images(address: str) -> None:
    """The base image from Debian's packages and both sites' images from the wheelhouse, without an image registry."""
    environment = {**os.environ, "DOCKER_HOST": address, "PYTHON": _interpreter()}
    client = docker.DockerClient(base_url=address)
    try:
        client.images.get(BASE_IMAGE)
    except docker.errors.ImageNotFound:
        _timed("base image", ["bash", "deploy/images/base.sh", BASE_IMAGE], environment)
    if not _wheelhouse_fits():
        _timed("wheelhouse", ["bash", "deploy/airgap/wheelhouse.sh"], environment)
    for target in ("curator", "client"):
        command = ["build", "--quiet", "--file", "deploy/images/Dockerfile", "--target", target]
        command += ["--build-arg", f"BASE_IMAGE={BASE_IMAGE}", "--tag", f"dpswd-{target}:test", "."]
        _timed(f"{target} image", [_debian_docker(), *command], {**environment, "DOCKER_BUILDKIT": "1"})


def compose_command() -> list[str]:
    """docker-compose 1.29 (Debian's) or Compose's second generation, whichever is there."""
    standalone = _program("docker-compose")
    return [standalone] if standalone else [str(_program("docker")), "compose"]


def _wheelhouse_fits() -> bool:
    """Whether every wheel is there, by checksum, and no locked version is without one."""
    house = ROOT / "deploy" / "wheelhouse"
    sums = house / "SHA256SUMS"
    if not sums.is_file():
        return False
    for line in sums.read_text().splitlines():
        digest, name = line.split(maxsplit=1)
        wheel = house / name
        if not wheel.is_file() or hashlib.sha256(wheel.read_bytes()).hexdigest() != digest:
            return False
    present = {"-".join(wheel.name.lower().split("-")[:2]) for wheel in house.glob("*.whl")}
    for lock in ("curator.lock", "client.lock"):
        for line in (ROOT / "deploy" / "images" / lock).read_text().splitlines():
            if "==" in line and not line.startswith((" ", "#")):
                name, version = line.split()[0].split("==")
                if f"{name.lower().replace('-', '_').replace('.', '_')}-{version}" not in present:
                    return False
    return True


def _debian_docker() -> str:
    """Debian's client knows BuildKit by itself; others need a plug-in that may be missing."""
    own = Path("/usr/bin/docker")
    return str(own) if own.exists() else str(_program("docker"))


def _interpreter() -> str:
    """The interpreter of the images' version that has pip."""
    for name in ("python3.11", "python3"):
        path = shutil.which(name)
        if path and subprocess.run([path, "-m", "pip", "--version"], capture_output=True, check=False).returncode == 0:
            return path
    return str(ROOT / ".venv" / "bin" / "python")


def _program(name: str) -> str | None:
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin:/usr/bin")


def _timed(what: str, command: list[str], environment: dict[str, str]) -> None:
    begun = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{what}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    say(f"{what}: {time.monotonic() - begun:.0f} s")


def _answers(address: str) -> bool:
    try:
        docker.DockerClient(base_url=address, timeout=5).ping()
    except Exception:
        return False
    return True
