"""A Docker engine for the container tests: the one that is there, or one of our own that ends with the tests."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import docker
from debian_packages import CannotInstall, install

ROOT = Path(__file__).resolve().parents[2]
BASE_IMAGE = "dpswd-base:bookworm"
PACKAGES = {
    "dockerd": "docker.io",
    "iptables": "iptables",
    "mmdebstrap": "mmdebstrap",
    "docker-compose": "docker-compose",
}
START_S = 60.0
NO_NETWORK = (
    "NewConnectionError", "name resolution", "ConnectTimeout", "ReadTimeout", "ProxyError", "Connection aborted",
    "IncompleteRead", "HTTP error 5",
)  # fmt: skip


class NoEngine(Exception):
    """No engine answers and none can be started; the text says why."""


said: list[str] = []
"""What took how long; the run's summary shows it, since a worker's own output is seen nowhere."""


def say(text: str) -> None:
    said.append(text)


@contextmanager
def shared(directory: Path) -> Iterator[str]:
    """One engine with its images for all processes of a test run: the first that asks makes it, and ends after all.

    Args:
        directory: seen by all of them and by no other run.

    Yields:
        The engine's address.

    Raises:
        NoEngine: there can be none.
    """
    address_file, none = directory / "engine-address", directory / "no-engine"
    users = directory / "engine-users"
    users.mkdir(exist_ok=True)
    mine = users / str(os.getpid())
    with ExitStack() as own:
        with _one_at_a_time(directory):
            if none.exists():
                raise NoEngine(none.read_text())
            if not address_file.exists():
                try:
                    address = own.enter_context(engine())
                    build_images(address)
                except NoEngine as reason:
                    none.write_text(str(reason))
                    raise
                address_file.write_text(address)
                own.callback(_wait_for_others, directory, users, address_file)
            address = address_file.read_text()
            mine.touch()
        try:
            yield address
        finally:
            mine.unlink()


@contextmanager
def _one_at_a_time(directory: Path) -> Iterator[None]:
    with (directory / "engine-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _wait_for_others(directory: Path, users: Path, address_file: Path) -> None:
    while True:
        with _one_at_a_time(directory):
            if not any(Path(f"/proc/{user.name}").exists() for user in users.iterdir()):
                address_file.unlink()  # whoever comes now makes another one
                return
        time.sleep(0.5)


@contextmanager
def engine() -> Iterator[str]:
    """The address of a Docker engine; one that was started here is ended, with all it holds, at the end."""
    given = os.environ.get("DPSWD_DOCKER_HOST") or os.environ.get("DOCKER_HOST")
    if given and _answers(given):
        install_missing()
        yield given
        return
    install_missing()
    with started() as (address, _):
        yield address


@contextmanager
def started(*, isolated: bool = False) -> Iterator[tuple[str, int]]:
    """A Docker engine of our own, empty, which ends with all that it holds; its address and its process id.

    Args:
        isolated: in a network namespace of its own, which nothing leads out of.

    Raises:
        NoEngine: it does not start.
    """
    directory = Path(tempfile.mkdtemp(prefix="dpswd-engine-"))
    address = f"unix://{directory}/docker.sock"
    with (directory / "log").open("wb") as log:
        daemon = subprocess.Popen(
            [
                # Whose test run was killed gets SIGTERM, stops its containers and ends. By a program, not in the child:
                # what gRPC does there after a fork ended one before it was a daemon, and all tests were skipped.
                "setpriv", "--pdeathsig", "TERM",
                *(["unshare", "--net"] if isolated else []),
                str(_program("dockerd")), "--host", address, "--data-root", str(directory / "data"),
                "--exec-root", str(directory / "exec"), "--pidfile", str(directory / "pid"),
            ],
            stdout=log,
            stderr=log,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + START_S
        while not _answers(address):
            if daemon.poll() is not None or time.monotonic() > deadline:
                last = (directory / "log").read_text(errors="replace").strip().splitlines()[-2:]
                words = " ".join(" ".join(last).split())[-400:]
                raise NoEngine(f"dockerd did not start here (it needs root, cgroups and iptables): {words}")
            time.sleep(0.2)
        yield address, daemon.pid
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
    begun = time.monotonic()
    try:
        install(missing)
    except CannotInstall as error:
        raise NoEngine(str(error)) from error
    say(f"installing {', '.join(missing)}: {time.monotonic() - begun:.0f} s")


def build_images(address: str) -> None:
    """The base image from Debian's packages and both sites' images from the wheelhouse, without an image registry."""
    environment = {**os.environ, "DOCKER_HOST": address, "PYTHON": _interpreter()}
    client = docker.DockerClient(base_url=address)
    with ThreadPoolExecutor(2) as pool:  # each of the two mostly waits for the other end of a wire
        base = pool.submit(_base_image, client, environment)
        wheels = pool.submit(_wheelhouse, environment)
    base.result()
    wheels.result()

    def build(target: str) -> None:
        # Without a network: the wheelhouse and the base image are all that a build may use.
        command = ["build", "--quiet", "--network", "none", "--file", "deploy/images/Dockerfile", "--target", target]
        command += ["--build-arg", f"BASE_IMAGE={BASE_IMAGE}", "--tag", f"dpswd-{target}:test", "."]
        _timed(f"{target} image", [debian_docker(), *command], {**environment, "DOCKER_BUILDKIT": "1"})

    with ThreadPoolExecutor(2) as pool:  # what both have in common is built once, the rest side by side
        list(pool.map(build, ("curator", "client")))


def _base_image(client: docker.DockerClient, environment: dict[str, str]) -> None:
    try:
        client.images.get(BASE_IMAGE)
    except docker.errors.ImageNotFound:
        try:
            _timed("base image", ["bash", "deploy/images/base.sh", BASE_IMAGE], environment)
        except AssertionError as failure:
            if "mmdebstrap failed" in str(failure):
                raise NoEngine(f"Debian's packages cannot be had: {str(failure)[-600:]}") from failure
            raise


def _wheelhouse(environment: dict[str, str]) -> None:
    if _wheelhouse_fits():
        return
    command = ["bash", "deploy/airgap/wheelhouse.sh"]
    with suppress(AssertionError):  # an index that answered badly once is asked again
        _timed("wheelhouse", command, environment)
        return
    try:
        _timed("wheelhouse, second try", command, environment)
    except AssertionError as failure:
        if any(words in str(failure) for words in NO_NETWORK):
            raise NoEngine(f"the package index cannot be reached: {str(failure)[-600:]}") from failure
        raise


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
    for lock in (ROOT / "deploy" / "images").glob("*.lock"):
        for line in lock.read_text().splitlines():
            if "==" in line and not line.startswith((" ", "#")):
                name, version = line.split()[0].split("==")
                if f"{name.lower().replace('-', '_').replace('.', '_')}-{version}" not in present:
                    return False
    return True


def debian_docker() -> str:
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
