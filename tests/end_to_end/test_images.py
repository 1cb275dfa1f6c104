"""The images and how compose runs them."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # under importlib mode a test directory is no package

from two_sites import CLIENT, CURATOR

pytestmark = [
    pytest.mark.end_to_end,
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
