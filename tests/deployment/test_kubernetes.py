"""deploy/kubernetes: its files fit together, contain the pods, and say what the program understands.

No cluster is asked. What is checked is structure: names that refer to one another, the security contexts, and that
settings, commands, port, user and grace period are those of the program and of the image.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from dpswd.private_curator.cli.main import main as curator_cli
from dpswd.private_curator.settings.tree import CuratorSettings, load

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"
DOCKERFILE = (ROOT / "deploy" / "images" / "Dockerfile").read_text()
VERSIONS = {
    "Namespace": "v1",
    "PersistentVolumeClaim": "v1",
    "Secret": "v1",
    "ConfigMap": "v1",
    "Service": "v1",
    "Job": "batch/v1",
    "StatefulSet": "apps/v1",
    "NetworkPolicy": "networking.k8s.io/v1",
}
POD_FIELDS = {
    "automountServiceAccountToken", "containers", "enableServiceLinks", "restartPolicy", "securityContext",
    "terminationGracePeriodSeconds", "volumes",
}  # fmt: skip
CONTAINER_FIELDS = {
    "args", "envFrom", "image", "imagePullPolicy", "livenessProbe", "name", "ports", "readinessProbe", "resources",
    "securityContext", "startupProbe", "volumeMounts",
}  # fmt: skip


def documents() -> list[tuple[str, dict[str, Any]]]:
    return [
        (path.name, document) for path in sorted(FOLDER.glob("*.yaml")) for document in yaml.safe_load_all(path.open())
    ]


def of_kind(kind: str) -> list[dict[str, Any]]:
    return [document for _, document in documents() if document["kind"] == kind]


def named(kind: str, name: str) -> dict[str, Any]:
    (match,) = [document for document in of_kind(kind) if document["metadata"]["name"] == name]
    return match


def templates() -> list[dict[str, Any]]:
    return [document["spec"]["template"] for kind in ("StatefulSet", "Job") for document in of_kind(kind)]


STATEFUL = named("StatefulSet", "dpswd-curator")
CURATOR = STATEFUL["spec"]["template"]["spec"]["containers"][0]


def test_every_document_is_of_a_kubernetes_kind_in_the_namespace_under_a_name_of_its_own() -> None:
    seen = set()
    for file, document in documents():
        assert document["apiVersion"] == VERSIONS[document["kind"]], file
        metadata = document["metadata"]
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", metadata["name"]), file
        assert (document["kind"] == "Namespace") or metadata["namespace"] == "dpswd", file
        assert (document["kind"], metadata["name"]) not in seen, file
        seen.add((document["kind"], metadata["name"]))


def test_names_refer_to_what_is_there() -> None:
    claims = {document["metadata"]["name"] for document in of_kind("PersistentVolumeClaim")}
    for template in templates():
        spec = template["spec"]
        assert set(spec) <= POD_FIELDS
        volumes = {volume["name"] for volume in spec["volumes"]}
        for volume in spec["volumes"]:
            assert set(volume) - {"name"} <= {"persistentVolumeClaim", "emptyDir"}  # no host path, no projected token
            if "persistentVolumeClaim" in volume:
                assert volume["persistentVolumeClaim"]["claimName"] in claims
        for container in spec["containers"]:
            assert set(container) <= CONTAINER_FIELDS
            assert {mount["name"] for mount in container["volumeMounts"]} == volumes
            for source in container.get("envFrom", []):
                assert named("ConfigMap", source["configMapRef"]["name"])
    labels = STATEFUL["spec"]["template"]["metadata"]["labels"]
    assert STATEFUL["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert named("Service", STATEFUL["spec"]["serviceName"])
    ports = {port["name"]: port["containerPort"] for port in CURATOR["ports"]}
    for service in of_kind("Service"):
        assert service["spec"]["selector"].items() <= labels.items()
        for port in service["spec"]["ports"]:
            assert ports[port["targetPort"]] == port["port"]
    init = named("Job", "dpswd-init")["spec"]["template"]["metadata"]["labels"]
    assert not STATEFUL["spec"]["selector"]["matchLabels"].items() <= init.items()  # no Service sends it calls


def test_pods_are_contained() -> None:
    assert named("Namespace", "dpswd")["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    user = int(re.search(r"useradd --uid (\d+)", DOCKERFILE)[1])
    for template in templates():
        spec = template["spec"]
        assert spec["automountServiceAccountToken"] is False
        pod = spec["securityContext"]
        assert pod["runAsNonRoot"] is True
        assert pod["runAsUser"] == pod["runAsGroup"] == pod["fsGroup"] == user
        assert pod["fsGroupChangePolicy"] == "OnRootMismatch"
        assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["resources"]["limits"]["memory"]
            assert container["resources"]["requests"].keys() == {"cpu", "memory"}
            assert not container["image"].endswith(":latest")
            assert ":" in container["image"]
            records = next(mount for mount in container["volumeMounts"] if mount["mountPath"] == "/records")
            assert records["readOnly"] is True


def test_nothing_goes_out_and_only_what_is_named_comes_in() -> None:
    everything = named("NetworkPolicy", "nothing-by-default")["spec"]
    assert everything == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    for policy in of_kind("NetworkPolicy"):
        assert "egress" not in policy["spec"]
        for rule in policy["spec"].get("ingress", []):
            assert rule["from"], "a rule without from lets everybody in"
            for peer in rule["from"]:
                assert peer["namespaceSelector"]["matchLabels"]
            assert {port["port"] for port in rule["ports"]} <= {port["name"] for port in CURATOR["ports"]}
    selected = named("NetworkPolicy", "curator")["spec"]["podSelector"]["matchLabels"]
    assert selected == STATEFUL["spec"]["selector"]["matchLabels"]


def test_settings_are_settings_of_the_program(tmp_path, monkeypatch) -> None:
    data = named("ConfigMap", "dpswd-settings")["data"]
    assert all(isinstance(value, str) for value in data.values())  # what a ConfigMap can hold
    (tmp_path / "curator.toml").write_text('[records]\nfile = "records.npz"\n')
    for name, value in data.items():
        section, field = re.fullmatch(r"DPSWD_CURATOR_([A-Z]+)__([A-Z_]+)", name).groups()
        kind = CuratorSettings.model_fields[section.lower()].annotation
        assert field.lower() in kind.model_fields, name
        monkeypatch.setenv(name, value)
    settings = load(tmp_path)
    ports = {port["name"]: port["containerPort"] for port in CURATOR["ports"]}
    assert ports == {"grpc": settings.listen.port, "metrics": settings.metrics.port}
    assert settings.listen.host == settings.metrics.host == "0.0.0.0"
    assert settings.metrics.enabled
    assert f"EXPOSE {settings.listen.port}" in DOCKERFILE
    grace = STATEFUL["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace > settings.listen.shutdown_seconds
    assert settings.ledger.url is None
    assert STATEFUL["spec"]["replicas"] == 1  # with the ledger in a file there can be one alone


@pytest.mark.parametrize("kind", ["Job", "StatefulSet"])
def test_commands_and_options_exist(kind) -> None:
    (document,) = of_kind(kind)
    name, *options = document["spec"]["template"]["spec"]["containers"][0]["args"]
    command = curator_cli.get_command(click.Context(curator_cli), name)
    assert command is not None
    accepted = {option for parameter in command.params for option in parameter.opts}
    assert {option.split("=")[0] for option in options} <= accepted


def test_the_probes_ask_by_the_images_own_check() -> None:
    check = re.search(r'HEALTHCHECK .* CMD \["([a-z-]+)"\]', DOCKERFILE)[1]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert CURATOR[probe]["exec"]["command"] == [check]
        assert CURATOR[probe]["timeoutSeconds"] >= 5  # the check itself waits so long for an answer
    started = CURATOR["startupProbe"]
    assert started["periodSeconds"] * started["failureThreshold"] >= 120  # a large ledger is read as a whole


def test_no_password_is_committed() -> None:
    assert named("Secret", "dpswd-database")["stringData"] == {"password": "replace-me"}


def test_the_page_names_every_file() -> None:
    page = (ROOT / "docs" / "operator" / "kubernetes.md").read_text()
    for path in FOLDER.glob("*.yaml"):
        assert f"`{path.name}`" in page
