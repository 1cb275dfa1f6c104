"""The images and how compose runs them."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # under importlib mode a test directory is no package

from engine import ROOT
from two_sites import CLIENT, CURATOR

pytestmark = [
    pytest.mark.containers,
    pytest.mark.timeout(1800),
]

MAX_IMAGE_BYTES = 1.2e9


def test_images_are_small_and_ship_no_tools(sites, record_property):
    for name in (CURATOR, CLIENT):
        image = sites.docker.images.get(name)
        record_property("containers", f"{name}: {image.attrs['Size'] / 1e9:.2f} GB")
        assert image.attrs["Size"] < MAX_IMAGE_BYTES
        assert image.attrs["Config"]["User"] == "dpswd"
        missing = "for tool in pip gcc cc make curl wget git; do ! command -v $tool || exit 1; done"
        sites.docker.containers.run(name, ["-c", missing], entrypoint=["sh"], remove=True, network_mode="none")


def test_every_container_is_an_ordinary_user_on_a_read_only_root(sites):
    services = (
        "hospital-records",
        "hospital-init",
        "hospital-approve",
        "curator",
        "team-init",
        "client",
        "hospital-trial",
    )
    for service in services:
        attrs = sites.container(service).attrs
        assert attrs["Config"]["User"] == "10001:10001", service
        host = attrs["HostConfig"]
        assert host["ReadonlyRootfs"], service
        assert host["CapDrop"] == ["ALL"], service
        assert "no-new-privileges:true" in host["SecurityOpt"], service
        assert not host["Privileged"], service
        assert not host["PortBindings"], service
    curator = sites.container("curator")
    status = curator.exec_run(["cat", "/proc/1/status"]).output.decode()
    assert re.search(r"^Uid:\t10001\t10001\t10001\t10001$", status, re.MULTILINE)
    assert re.search(r"^CapEff:\t0+$", status, re.MULTILINE)
    assert re.search(r"^NoNewPrivs:\t1$", status, re.MULTILINE)
    for path in ("/opt/dpswd/bin/x", "/usr/bin/x", "/records/x", "/etc/x"):
        assert curator.exec_run(["touch", path]).exit_code != 0, path


def test_what_is_installed_is_what_the_lock_says(sites):
    listing = "from importlib.metadata import distributions as d; [print(x.metadata['Name'], x.version) for x in d()]"
    for name, locks in ((CURATOR, ["curator"]), (CLIENT, ["curator", "client"])):
        printed = sites.docker.containers.run(
            name, ["-c", listing], entrypoint=["python"], remove=True, network_mode="none"
        ).decode()
        installed = {_canonical(line.split()[0]): line.split()[1] for line in printed.splitlines()}
        locked = {}
        for lock in locks:
            text = (ROOT / "deploy" / "images" / f"{lock}.lock").read_text()
            locked |= {_canonical(n): v for n, v in re.findall(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)", text, re.MULTILINE)}
        assert locked
        # torch is no line of the lock: which build of it is installed depends on the accelerator.
        torch = re.search(r"^torch==(\S+)", (ROOT / "deploy" / "torch-cuda.lock").read_text(), re.MULTILINE)[1]
        assert installed.pop("torch").split("+")[0] == torch
        installed.pop("dpswd")
        assert installed == locked


def test_the_programs_start_without_a_shell(sites):
    for name in (CURATOR, CLIENT):
        config = sites.docker.images.get(name).attrs["Config"]
        commands = [config["Entrypoint"], config["Cmd"], config.get("Healthcheck", {}).get("Test") or []]
        assert not {"sh", "/bin/sh", "bash", "CMD-SHELL"} & {word for command in commands for word in command}
    process = sites.container("curator").exec_run(["cat", "/proc/1/cmdline"]).output.split(b"\0")
    assert process[0].endswith(b"python") or process[0].endswith(b"python3")


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
