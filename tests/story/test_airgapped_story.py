"""The profile of a hospital that lets nobody connect: files cross, in containers that are on no network at all."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # under importlib mode a test directory is no package

import docker
from engine import ROOT, say
from two_sites import LEAST_RIGHT, STORY_S, Sites, percentage

pytestmark = [
    pytest.mark.containers,
    pytest.mark.exhaustive,
    pytest.mark.timeout(1800),
]

PROFILE = ("--profile", "airgapped")
REPORT = "airgapped-report"
STORY = ("airgapped-init", "airgapped-prepare", "airgapped-publish", "airgapped-train", "airgapped-trial")
HOME = "airgapped-home"


@pytest.fixture(scope="module")
def sites(address):
    """The story alone, on volumes of its own."""
    made = Sites(docker.DockerClient(base_url=address, timeout=300), address, f"dpswdairgapped{os.getpid()}")
    try:
        made.story = made.tell(REPORT, *PROFILE)
        say(f"airgapped story: {made.seconds[REPORT]:.0f} s")
        yield made
    finally:
        made.compose(*PROFILE, "down", "--volumes", "--timeout", "5")


def test_files_alone_carry_a_model_there_and_back(sites):
    assert "The ledger verifies" in sites.story
    assert "one release (quantiles) of all 898 records" in sites.words("airgapped-prepare")
    team = sites.words("airgapped-train")
    assert "all of it verifies" in team
    assert "charged by the hospital when it published; nothing further" in team  # plan
    assert percentage(sites.words("airgapped-trial")) > LEAST_RIGHT
    budget = sites.budget(HOME)
    assert (budget["runs"], budget["steps_used"]) == (1, 1)
    assert 0.9 < budget["epsilon_spent"] <= 1.01
    assert json.loads(sites.operator("ledger", "verify", "--format", "json", home=HOME))["ok"]


def test_no_container_is_on_a_network(sites):
    for service in STORY:
        attributes = sites.container(service).attrs
        assert attributes["HostConfig"]["NetworkMode"] == "none", service
        assert set(attributes["NetworkSettings"]["Networks"]) <= {"none"}, service
        assert not attributes["HostConfig"]["PortBindings"], service
    # Some generations of compose make the file's networks all the same; nobody is on one.
    for network in sites.docker.networks.list():
        if network.name.startswith(sites.project):
            network.reload()
            assert network.containers == [], network.name


def test_each_side_writes_its_own_folder_and_sees_no_more_of_the_other(sites):
    def mounts(service: str) -> dict[str, bool]:
        return {
            mount["Name"].removeprefix(f"{sites.project}_airgapped-"): mount["RW"]
            for mount in sites.container(service).attrs["Mounts"]
            if mount["Type"] == "volume"
        }

    assert mounts("airgapped-train") == {"team": True, "to-team": False, "to-hospital": True}
    assert mounts("airgapped-publish") == {"records": False, "home": True, "to-team": True, "to-hospital": False}


def test_the_story_again_in_order_as_it_is_said_and_nothing_is_charged(sites):
    before = sites.budget(HOME)
    environment = sites.environment() | {"PROJECT": sites.project}
    again = subprocess.run(
        ["bash", "deploy/story.sh", "airgapped"],
        env=environment, cwd=ROOT, capture_output=True, text=True, timeout=STORY_S, check=False,
    )  # fmt: skip
    assert again.returncode == 0, again.stdout[-2000:] + again.stderr[-2000:]
    assert re.findall("^== (.*)$", again.stdout, re.MULTILINE) == ["airgapped-records", *STORY, REPORT]
    publishing, rest = again.stdout.split("== airgapped-publish\n")[1].split("== airgapped-train\n")
    assert "is there already; nothing was charged" in publishing
    assert "all of it verifies" in rest
    assert "The ledger verifies" in rest
    after = sites.budget(HOME)
    for figure in ("runs", "steps_used", "epsilon_spent"):
        assert after[figure] == before[figure]
