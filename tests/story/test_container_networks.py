"""What separates the sites: networks that lead nowhere and volumes that are mounted on one side alone."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # under importlib mode a test directory is no package

from two_sites import CLIENT, finish

pytestmark = [
    pytest.mark.containers,
    pytest.mark.timeout(1800),
]


_TRY = """
import concurrent.futures, socket, sys
def tried(target):
    host, port = target.rsplit(":", 1)
    try:
        socket.create_connection((host, int(port)), timeout=4).close()
        return target, "CONNECTED"
    except OSError as error:
        return target, type(error).__name__, error.errno
with concurrent.futures.ThreadPoolExecutor() as pool:
    for said in pool.map(tried, sys.argv[1:]):
        print(*said)
"""


def test_the_curator_reaches_nothing_outside(sites):
    team = sites.docker.networks.get(sites.name("team"))
    gateway = team.attrs["IPAM"]["Config"][0]["Gateway"]
    with socket.create_server(("0.0.0.0", 0)) as listener:
        listener.listen(16)
        port = listener.getsockname()[1]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as route:
            route.connect(("198.51.100.1", 9))  # sends nothing; tells the host's own outward address
            outward = route.getsockname()[0]
        targets = [f"{gateway}:{port}", f"{outward}:{port}", "198.51.100.1:443", "1.1.1.1:53", "example.com:443"]
        control = sites.docker.containers.run(
            CLIENT, ["-c", _TRY, targets[0]], entrypoint=["python"], remove=True, network=sites.name("team")
        ).decode()
        tried = sites.container("curator").exec_run(["python", "-c", _TRY, *targets]).output.decode()
    assert "CONNECTED" in control  # from a network with a way out the same attempt succeeds
    assert len(tried.splitlines()) == len(targets), tried
    assert "CONNECTED" not in tried
    assert _ways_out(sites) == []


def test_no_bridge_is_reached_by_a_link_local_address(sites):
    """A bridge has an IPv6 address of its own at the host's end, whatever `internal` says; nobody here speaks IPv6."""
    for service in ("curator", "hospital-console-door"):
        held = sites.container(service).exec_run(["cat", "/proc/net/if_inet6"]).output.decode().splitlines()
        assert [line for line in held if not line.endswith(" lo")] == [], service


def _ways_out(sites) -> list[str]:
    """Gateways of the curator that a machine answers for; an engine may set a route to an empty address."""
    table = sites.container("curator").exec_run(["cat", "/proc/net/route"]).output.decode().splitlines()[1:]
    gateways = [line.split()[2] for line in table if line.split()[1] == "00000000"]
    neighbours = sites.container("curator").exec_run(["cat", "/proc/net/arp"]).output.decode().splitlines()[1:]
    answering = {line.split()[0] for line in neighbours if line.split()[2] != "0x0"}
    dotted = [socket.inet_ntoa(bytes.fromhex(gateway)[::-1]) for gateway in gateways]
    return [gateway for gateway in dotted if gateway in answering]


def test_the_sites_share_one_network_and_no_volume_with_records(sites):
    curator, client = sites.container("curator"), sites.container("client")
    networks = [set(c.attrs["NetworkSettings"]["Networks"]) for c in (curator, client)]
    assert networks[0] & networks[1] == {sites.name("crossing")}
    for name in networks[0]:
        assert sites.docker.networks.get(name).attrs["Internal"]
    private = {sites.name("hospital-records"), sites.name("hospital-home")}
    assert {m["Name"] for m in curator.attrs["Mounts"]} == private
    for service in ("client", "team-init"):
        mounted = {m.get("Name") for m in sites.container(service).attrs["Mounts"]}
        assert mounted
        assert not mounted & private
    for path in ("/records/records.npz", "/var/lib/dpswd/ledger.db", "/var/lib/dpswd/ledger.key"):
        # The client's own container is gone by now; one with its very mounts looks.
        volumes = {
            mount["Name"]: {"bind": mount["Destination"], "mode": "ro"}
            for mount in client.attrs["Mounts"]
            if mount["Type"] == "volume"
        }
        looked = sites.team(f"-c 'test ! -e {path}'", entrypoint="sh", volumes=volumes)
        finish(looked)
