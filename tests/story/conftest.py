"""One engine, one pair of images and one pair of sites for all container tests of a run."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # under importlib mode a test directory is no package


@pytest.fixture(scope="session")
def address(tmp_path_factory) -> Iterator[str]:
    """An engine that holds the base image and both sites' images; all processes of a test run share it."""
    pytest.importorskip("docker", reason="NO CONTAINER TEST RAN: the Python package docker is not installed")
    from engine import NoEngine, shared

    base = tmp_path_factory.getbasetemp()
    try:
        with _ahead(), shared(base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) as running:
            yield running
    except NoEngine as reason:
        pytest.skip(f"NO CONTAINER TEST RAN: no Docker engine here and none can be started. {reason}")


@contextlib.contextmanager
def _ahead() -> Iterator[None]:
    """These tests are the longest chain of the suite: what they start, the engine too, goes before other workers."""
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, usual - 5)
    try:
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, usual)


@pytest.fixture(scope="session")
def sites(address):
    """Both sites, after the story's end; the curator serves."""
    import docker
    from engine import say
    from two_sites import Sites

    made = Sites(docker.DockerClient(base_url=address, timeout=300), address, f"dpswdtest{os.getpid()}")
    try:
        made.story = made.tell("hospital-report")
        made.after_story = made.budget()
        say(f"story: {made.seconds['hospital-report']:.0f} s")
        yield made
    finally:
        made.compose("--profile", "two-hospitals", "down", "--volumes", "--timeout", "0")


@pytest.fixture(autouse=True)
def _say_how_long(request, record_property) -> Iterator[None]:
    """What the engine and the stories took goes into the run's summary, with whichever test waited for them."""
    yield
    engine = sys.modules.get("engine")
    while engine is not None and engine.said:
        record_property("containers", engine.said.pop(0))
