"""Every service in a container has a limit of memory, comes back where it serves, and keeps logs that rotate.

A curator's memory holds what its settings allow it to take.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from dpswd.private_curator.settings.groups import ComputeSettings, LimitSettings

ROOT = Path(__file__).resolve().parents[3]
COMPOSE = ("docker-compose.yml", "deploy/monitoring/compose.yml", "deploy/cluster/compose.yml")
UNITS = {"m": 1 << 20, "g": 1 << 30, "Mi": 1 << 20, "Gi": 1 << 30}
OWN = 1 << 30
"""Of a curator without requests: the interpreter, torch, tables of the noise, the ledger's books."""


def needed():
    """Bytes of a curator with the default settings: itself, a worker, requests that are received."""
    return OWN + ComputeSettings().worker_memory_bytes + LimitSettings().message_bytes


def size(text):
    number, unit = re.fullmatch(r"(?:\$\{\w+:-)?(\d+)([a-zA-Z]+)\}?", text).groups()
    return int(number) * UNITS[unit]


@pytest.mark.parametrize("name", COMPOSE)
def test_every_service_of_compose_has_a_limit(name):
    base = yaml.safe_load((ROOT / COMPOSE[0]).read_text())["services"]
    for service, described in yaml.safe_load((ROOT / name).read_text())["services"].items():
        limit = size({**base.get(service, {}), **described}["mem_limit"])  # a second file adds to the first
        assert limit >= (needed() if "dpswd-curator" in str(described.get("image")) else 1 << 29), service


@pytest.mark.parametrize("name", COMPOSE)
def test_what_serves_starts_again_and_no_log_fills_a_disk(name):
    """A service that is waited for to its end is started by whoever wants it; all others come back after a reboot."""
    services = yaml.safe_load((ROOT / name).read_text())["services"]
    ended = {
        waited for one in services.values()
        for waited, how in dict(one.get("depends_on", {})).items()
        if how["condition"] == "service_completed_successfully"
    } | {service for service in services if service.endswith("-report")}  # fmt: skip
    for service, described in services.items():
        if "mem_limit" not in described:
            continue  # a second file adds to the first
        assert described["restart"] == ("no" if service in ended else "unless-stopped"), service
        assert int(described["logging"]["options"]["max-file"]) <= 10, service
        assert described["logging"]["options"]["max-size"] == "10m", service


def test_every_pod_of_the_chart_has_a_limit():
    own = yaml.safe_load((ROOT / "deploy" / "helm" / "values.yaml").read_text())["resources"]
    assert size(own["limits"]["memory"]) >= size(own["requests"]["memory"])
    assert size(own["limits"]["memory"]) >= needed()
    templates = ROOT / "deploy" / "helm" / "templates"
    assert "resources: {{ toJson .Values.resources }}" in (templates / "_parts.tpl").read_text()
    for name, containers in (("init.yaml", 1), ("curator.yaml", 2)):
        assert (templates / name).read_text().count('include "dpswd.container"') == containers
