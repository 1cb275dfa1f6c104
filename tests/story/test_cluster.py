"""A scheduler and two nodes as processes of their own: the same bits as alone, and when one is killed."""

from __future__ import annotations

import contextlib
import signal
import socket
import ssl
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from cluster_records import ClusterRecords

from dpswd.private_curator.cluster.connection import NodeRefused
from dpswd.private_curator.cluster.shards import ClusterShards, cluster_of
from dpswd.private_curator.cluster.task import Meant
from dpswd.private_curator.settings import tree as configuration
from dpswd.private_curator.storage.certificates import make_cluster_members
from dpswd.shared.core.errors import ExtractionStopped, SettingsError
from dpswd.shared.core.mechanisms.linear import added

COMMAND = (sys.executable, "-m", "dpswd.private_curator.cli", "cluster")
N = 120_000


def started(*arguments: str, ready: str) -> tuple[subprocess.Popen[str], str]:
    """A process of the cluster, and the line that says it is ready."""
    process = subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(ready):
            return process, line.strip()
    raise AssertionError(f"{arguments[0]} ended before it was ready")


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def listening(pid: int) -> int:
    """How many TCP ports a process listens on."""
    own = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            own.add(str(descriptor.readlink()))
    rows = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
    ]
    return sum(row[3] == "0A" and f"socket:[{row[9]}]" in own for row in rows)


def _named(home: Path, address: str, folder: Path) -> configuration.CuratorSettings:
    """The settings of a curator that has this cluster."""
    return configuration.load(
        home, {"cluster.scheduler": address, "cluster.certificates": str(folder.relative_to(home) / "curator")}
    )


def answers_to(address: str, folder: Path | None) -> bool:
    """Whether a peer with this member's certificate, or with none, can read a byte of the scheduler's greeting."""
    host, _, port = address.removeprefix("tls://").rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if folder is not None:
        context.load_cert_chain(folder / "member.crt", folder / "member.key")
    try:
        with socket.create_connection((host, int(port)), timeout=10) as raw, context.wrap_socket(raw) as channel:
            return bool(channel.recv(1))
    except OSError:
        return False


def test_two_nodes_one_of_which_is_killed_sum_to_the_same_bits(tmp_path):
    for name in ("ours", "other"):
        make_cluster_members(tmp_path / name, nodes=("node",), names=("127.0.0.1",))
    made = ClusterRecords(tmp_path, records=N)
    data, labels, source, run, alone = made.data, made.labels, made.source, made.run, made.alone
    threads = torch.get_num_threads()
    with contextlib.ExitStack() as ended:
        ended.callback(torch.set_num_threads, threads)
        torch.set_num_threads(1)
        expected = added(alone.sums(run, source), records=N)

        folder = tmp_path / "ours"
        scheduler, line = started(
            "scheduler", "--address", "127.0.0.1:0", "--certificates", str(folder / "scheduler"), ready="scheduling on"
        )
        ended.callback(end, scheduler)
        address = line.rpartition(" ")[2]
        assert address.startswith("tls://127.0.0.1:")
        assert answers_to(address, folder / "node")
        assert not answers_to(address, None)
        assert not answers_to(address, tmp_path / "other" / "node")
        assert listening(scheduler.pid) == 1

        nodes = []
        for _ in range(2):
            node, _ = started(
                "node", "--settings", str(tmp_path / "curator.toml"), "--scheduler", address, "--host", "127.0.0.1",
                "--certificates", str(folder / "node"), ready="node of",
            )  # fmt: skip
            ended.callback(end, node)
            assert listening(node.pid) == 1
            nodes.append(node)

        with pytest.raises(SettingsError, match="records accept"):
            cluster_of(named := _named(tmp_path, address, folder), records=data, labels=labels, own=alone)
        made.fingerprint.write(tmp_path)  # as the curator's own check does
        cluster = cluster_of(named, records=data, labels=labels, own=alone)
        assert cluster is not None
        ended.callback(cluster.close)
        first = added(cluster.sums(run, source), records=N)
        parts = []
        for part in cluster.sums(run, source):
            if not parts:
                nodes[0].send_signal(signal.SIGKILL)
            parts.append(part)
        assert len(parts) > 4
        second = added(parts, records=N)
        for one, two, three in zip(expected.sums, first.sums, second.sums, strict=True):
            np.testing.assert_array_equal(one, two)
            np.testing.assert_array_equal(one, three)

        courier = cluster._connection._process  # it dies: the next question starts another one
        courier.kill()
        courier.wait()
        _until_ready(cluster)
        for one, four in zip(expected.sums, added(cluster.sums(run, source), records=N).sums, strict=True):
            np.testing.assert_array_equal(one, four)

        others = ClusterShards(address, folder / "curator", meant=replace(made.meant, scale=2.0), own=alone.sum)
        ended.callback(others.close)
        with pytest.raises(NodeRefused, match="log says why"):
            list(others.sums(run, source))
        others.close()
        assert cluster_of(made.settings, records=data, labels=labels, own=alone) is None

        nodes[1].send_signal(signal.SIGKILL)
        nodes[1].wait()
        with pytest.raises(ExtractionStopped, match="nothing was begun"):
            for _ in range(100):  # until the scheduler has noticed
                cluster.ready()
                time.sleep(0.1)


def _until_ready(cluster: ClusterShards) -> None:
    for _ in range(4):  # a courier may take longer to start than one question waits
        with contextlib.suppress(ExtractionStopped):
            return cluster.ready()
    return cluster.ready()


def test_a_cluster_that_is_not_there_is_reported(tmp_path):
    make_cluster_members(tmp_path / "cluster", nodes=("node",), names=("127.0.0.1",))
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(SettingsError, match="start its scheduler"):
        ClusterShards(
            f"tls://127.0.0.1:{port}",
            tmp_path / "cluster" / "curator",
            meant=Meant("", (1,), 1.0, 0.0, "", "", 1),
            own=lambda *_: None,
            connect_s=0.5,
        )
