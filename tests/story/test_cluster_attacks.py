"""Members of a cluster that were taken over: certificates of another role, nodes that lie, code in an answer."""

from __future__ import annotations

import contextlib
import logging
import socket
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from cluster_records import ClusterRecords

from dpswd.private_curator.cluster.connection import NodeRefused
from dpswd.private_curator.cluster.shards import ClusterShards
from dpswd.private_curator.storage.certificates import make_cluster_members
from dpswd.shared.core.errors import SettingsError
from dpswd.shared.core.mechanisms.linear import added

CLI = (sys.executable, "-m", "dpswd.private_curator.cli", "cluster")
LIAR = Path(__file__).with_name("cluster_liar.py")
N = 60_000

RAW_SCHEDULER = """
import asyncio, sys
from distributed import Scheduler
from distributed.security import Security
folder = sys.argv[1]
own = {"cert": folder + "/member.crt", "key": folder + "/member.key"}
known = Security(require_encryption=True, tls_ca_file=folder + "/ca.crt",
    **{f"tls_{role}_{what}": path for role in ("client", "scheduler", "worker") for what, path in own.items()})
async def main():
    async with Scheduler(host="tls://127.0.0.1", port=0, security=known, dashboard=False) as scheduler:
        print("scheduling on", scheduler.address, flush=True)
        await asyncio.sleep(600)
asyncio.run(main())
"""


def started(*command: str, ready: str) -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(ready):
            return process, line.strip().rpartition(" ")[2]
    raise AssertionError(process.communicate()[1])


class Site(ClusterRecords):
    """Records, and the certificates of a cluster."""

    def __init__(self, home: Path) -> None:
        super().__init__(home, records=N)
        self.home, self.members = home, home / "members"
        make_cluster_members(self.members, nodes=("node",), names=("127.0.0.1",))

    def node(self, address: str, *, kind: str | None = None) -> subprocess.Popen[str]:
        program = CLI if kind is None else (sys.executable, str(LIAR), kind, "cluster")
        options = {"--settings": self.home / "curator.toml", "--scheduler": address, "--host": "127.0.0.1"}
        options["--certificates"] = self.members / "node"
        return started(*program, "node", *(str(each) for pair in options.items() for each in pair), ready="node of")[0]

    def shards(self, address: str, *, computed_twice: float = 0.0) -> ClusterShards:
        return ClusterShards(
            address, self.members / "curator", meant=self.meant, own=self.alone.sum, computed_twice=computed_twice
        )


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield Site(tmp_path_factory.mktemp("cluster"))
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def address(site):
    folder = str(site.members / "scheduler")
    process, where = started(
        *CLI, "scheduler", "--address", "127.0.0.1:0", "--certificates", folder, ready="scheduling on"
    )
    yield where
    process.kill()
    process.communicate()


@contextlib.contextmanager
def nodes(site, address, *kinds):
    """Nodes of these kinds, and the curator's end of their cluster."""
    with contextlib.ExitStack() as ended:
        for kind in kinds:
            process = site.node(address, kind=kind)
            ended.callback(process.communicate)
            ended.callback(process.kill)
        yield


def refused(site, cluster, caplog, words):
    """A step ends in these words, and the log says more."""
    with (
        contextlib.closing(cluster),
        caplog.at_level(logging.ERROR),
        pytest.raises(NodeRefused, match=words),
    ):
        list(cluster.sums(site.run, site.source))


@pytest.mark.parametrize("kind", ["many", "wrap"])
def test_more_than_records_can_add_up_to_ends_the_step(site, address, kind, caplog):
    with nodes(site, address, kind):
        refused(site, site.shards(address), caplog, "impossible answer")
    assert "gave an impossible answer" in caplog.text
    assert "tls://127.0.0.1" in caplog.text  # which one


def test_a_small_lie_is_detected_by_another_node_and_by_the_curator(site, address, caplog):
    """Within bounds, so that nothing but a second computation finds it."""
    with nodes(site, address, "small"):
        with contextlib.closing(site.shards(address)) as cluster:
            believed = added(cluster.sums(site.run, site.source), records=N)
            expected = added(site.alone.sums(site.run, site.source), records=N)
            assert believed.sums[1][0, 0] > expected.sums[1][0, 0]
        refused(site, site.shards(address, computed_twice=0.01), caplog, "different sums")  # one shard, by the curator
        assert "the curator's own machine" in caplog.text
        caplog.clear()
        with nodes(site, address, None):
            refused(site, site.shards(address, computed_twice=1.0), caplog, "different sums")
        assert "computed different sums of one shard" in caplog.text
        assert "the curator's own machine" not in caplog.text


def test_nodes_that_agree_are_asked_twice_and_the_sum_is_the_same(site, address):
    expected = added(site.alone.sums(site.run, site.source), records=N)
    with nodes(site, address, None, None), contextlib.closing(site.shards(address, computed_twice=1.0)) as cluster:
        for one, two in zip(expected.sums, added(cluster.sums(site.run, site.source), records=N).sums, strict=True):
            np.testing.assert_array_equal(one, two)


def test_code_in_an_answer_reaches_nothing_from_the_courier(site, address, caplog, tmp_path):
    """It runs: Dask unpickles. It could open TCP and Unix sockets, among them a database's."""
    place = str(tmp_path / "p")
    Path(place + ".secret").write_text("key")
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
        unix.bind(place + ".socket")
        unix.listen()
        kind = f"code,{tcp.getsockname()[1]},{place}"
        with nodes(site, address, kind):
            refused(site, site.shards(address), caplog, "could not compute")
            (said,) = {line for line in caplog.messages if "could not compute a shard" in line}
    for attempt in ("tcp", "unix", "pair", "program", "secret", "write"):
        assert f"{attempt}: Permission denied" in said, said


def test_a_nodes_certificate_schedules_nothing(site, address, tmp_path):
    with pytest.raises(SettingsError, match="folder of a scheduler; needed is that of a curator"):
        ClusterShards(address, site.members / "scheduler", meant=site.meant, own=site.alone.sum)
    own = [*CLI, "scheduler", "--address", "127.0.0.1:0", "--certificates", str(site.members / "node")]
    ended = subprocess.run(own, capture_output=True, text=True, timeout=120)
    assert ended.returncode != 0
    assert "needed is that of a scheduler" in ended.stderr
    for folder in ("node", "curator"):  # one that does not look at itself
        program = (sys.executable, "-c", RAW_SCHEDULER, str(site.members / folder))
        false, where = started(*program, ready="scheduling on")
        try:
            with pytest.raises(SettingsError, match="start its scheduler"):
                ClusterShards(where, site.members / "curator", meant=site.meant, own=site.alone.sum, connect_s=5.0)
            if folder == "node":
                _stays_away(site, where)
        finally:
            false.kill()
            false.communicate()


def _stays_away(site, where):
    """A node does not join it, and says why."""
    settings = ["--settings", str(site.home / "curator.toml"), "--certificates", str(site.members / "node")]
    joining = [*CLI, "node", *settings, "--scheduler", where, "--host", "127.0.0.1"]
    node = subprocess.Popen(joining, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    ended = threading.Timer(120.0, node.kill)
    ended.start()
    try:
        assert node.stderr is not None
        assert any("has a certificate for 'node', and not for 'scheduler'" in line for line in node.stderr)
    finally:
        ended.cancel()
        node.kill()
        assert "node of" not in node.communicate()[0]


def test_a_node_gives_no_tasks_to_others(site, address):
    """Whoever may give tasks can run code on every node; a node's certificate may not."""
    from distributed import Client
    from distributed.security import Security

    own = {"cert": str(site.members / "node/member.crt"), "key": str(site.members / "node/member.key")}
    security = Security(
        require_encryption=True,
        tls_ca_file=str(site.members / "node/ca.crt"),
        **{f"tls_{role}_{what}": path for role in ("client", "worker") for what, path in own.items()},
    )
    with pytest.raises((OSError, TimeoutError)):
        Client(address, security=security, timeout=5.0, set_as_default=False)
