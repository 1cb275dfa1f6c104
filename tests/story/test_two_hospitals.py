"""The profile with a second hospital: another shift, another budget, networks of its own; one client adapts to both."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # under importlib mode a test directory is no package

from two_sites import LEAST_RIGHT, percentage

pytestmark = [
    pytest.mark.containers,
    pytest.mark.exhaustive,
    pytest.mark.timeout(1800),
]

PROFILE = ("--profile", "two-hospitals")


@pytest.fixture(scope="module")
def both(sites):
    """The second story, told on top of the first; what each ledger said before it, and the second's report."""
    if sites.budget()["epsilon_spent"] > 1.0:  # other tests have used what the second story would extend
        sites.leave(3.0)
    before = sites.budget()
    report = sites.tell("south-report", *PROFILE)
    return sites, before, report


def test_one_client_adapts_to_both_and_each_is_charged_on_its_own(both):
    sites, before, report = both
    north, south = sites.budget(), sites.budget("south-home")
    assert north["runs"] > before["runs"]
    assert north["epsilon_spent"] > before["epsilon_spent"]
    assert south["runs"] >= 1
    assert 0.1 < south["epsilon_spent"] <= 1.21
    assert south["epsilon"] == 2.0
    assert north["epsilon"] >= 4.0
    assert "The ledger verifies" in report
    assert percentage(sites.words("south-trial")) > LEAST_RIGHT
    for home in ("hospital-home", "south-home"):
        assert json.loads(sites.operator("ledger", "verify", "--format", "json", home=home))["ok"]


def test_the_hospitals_do_not_meet(both):
    sites, _, _ = both
    first, second = (
        set(sites.container(name).attrs["NetworkSettings"]["Networks"]) for name in ("curator", "south-curator")
    )
    assert not first & second
    for name in first | second:
        assert sites.docker.networks.get(name).attrs["Internal"]
    mounts = {
        service: {mount["Name"] for mount in sites.container(service).attrs["Mounts"] if mount["Type"] == "volume"}
        for service in ("curator", "south-curator", "client-both")
    }
    assert not mounts["curator"] & mounts["south-curator"]
    assert not mounts["client-both"] & (mounts["curator"] | mounts["south-curator"])
    address = sites.container("south-curator").attrs["NetworkSettings"]["Networks"][sites.name("south-crossing")]
    tried = sites.container("curator").exec_run(
        ["python", "-c", "import socket, sys; socket.create_connection((sys.argv[1], 50051), 4)", address["IPAddress"]]
    )
    assert tried.exit_code != 0
    assert b"OSError" in tried.output or b"TimeoutError" in tried.output
