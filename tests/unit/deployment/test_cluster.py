"""The compose profile of a cluster: who sees what, and that its commands are commands."""

from __future__ import annotations

from pathlib import Path

import click
import yaml

from dpswd.private_curator.cli.cluster import cluster
from dpswd.private_curator.settings.groups import ClusterSettings

ROOT = Path(__file__).resolve().parents[3]
BASE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
COMPOSE = yaml.safe_load((ROOT / "deploy/cluster/compose.yml").read_text())
MEMBERS = ("cluster-scheduler", "cluster-node")


def folders(service):
    """Mounted volumes, by name."""
    return {volume.split(":")[0]: volume.split(":")[1:] for volume in COMPOSE["services"][service]["volumes"]}


def test_members_see_neither_ledger_nor_key_nor_the_teams_network():
    for name in MEMBERS:
        service = COMPOSE["services"][name]
        assert service["profiles"] == ["cluster"]
        assert service["networks"] == ["cluster"]
        assert "hospital-home" not in folders(name)
        assert all(places[-1] == "ro" for places in folders(name).values())
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
    assert COMPOSE["networks"]["cluster"] == BASE["networks"]["hospital"]  # sealed like the hospital's own
    assert "hospital-records" not in folders("cluster-scheduler")
    assert not any("cluster" in (service.get("networks") or []) for service in BASE["services"].values())
    assert folders("cluster-init")["hospital-home"][-1] == "ro"
    assert COMPOSE["services"]["cluster-init"]["network_mode"] == "none"


def test_the_pieces_fit_together():
    environment = COMPOSE["services"]["curator"]["environment"]
    address = environment["DPSWD_CURATOR_CLUSTER__SCHEDULER"]
    settings = ClusterSettings(scheduler=address, certificates=environment["DPSWD_CURATOR_CLUSTER__CERTIFICATES"])
    assert settings.certificates == Path("/cluster")
    assert f"--san {address.removeprefix('tls://').split(':')[0]}" in COMPOSE["services"]["cluster-init"]["command"][0]
    for name in MEMBERS:
        group, command, *arguments = COMPOSE["services"][name]["command"]
        assert group == cluster.name
        options = {option for each in cluster.commands[command].params for option in each.opts}
        assert {each for each in arguments if each.startswith("--")} <= options
        required = {
            each.opts[0]
            for each in cluster.commands[command].params
            if isinstance(each, click.Option) and each.required
        }
        assert required <= set(arguments)
    assert address in COMPOSE["services"]["cluster-node"]["command"]
    targets = (ROOT / "deploy/images/Dockerfile").read_text()
    assert "FROM curator AS cluster\n" in targets
    assert COMPOSE["services"]["curator"]["build"]["target"] == "cluster"
