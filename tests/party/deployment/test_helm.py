"""deploy/helm: the chart renders, its parts fit together, contain the pods, and say what the program understands.

No cluster is asked. Helm renders and lints, and Kubernetes' own schemas are asked, where a package index has both
(`kubernetes_tools`); without them what follows from the files alone is tried and the rest is skipped, and says so.
"""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import tarfile
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import click
import kubernetes_tools
import pytest
import yaml

from dpswd.private_curator.cli.main import main as curator_cli
from dpswd.private_curator.settings.tree import CuratorSettings, load

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "deploy" / "helm"
TEMPLATES = {path.name: path.read_text() for path in sorted((CHART / "templates").iterdir())}
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
DOCKERFILE = (ROOT / "deploy" / "images" / "Dockerfile").read_text()
INIT = {"stage": "init", "init": {"epsilon": 1.5, "delta": 1e-5, "options": ["--labels-array=y", "--classes=2"]}}
DATABASE = {"url": "postgresql://curator@db/hospital?sslmode=verify-full", "secret": "password", "cidr": "10.0.0.5/32"}
STAGES: dict[str, dict[str, Any]] = {
    "storage": {},
    "init": INIT,
    "serve": {"stage": "serve"},
    "without metrics": {"stage": "serve", "settings": {"metrics": {"enabled": False}}},
    "one with a database": {"stage": "serve", "database": DATABASE},
    "replicas": {
        "stage": "serve",
        "replicas": 3,
        "database": DATABASE,
        "homeSecret": "home",
        "storage": {"uploads": {"claim": "uploads"}, "records": {"claim": "records"}, "home": {"class": "fast"}},
        "image": {"digest": f"sha256:{'a' * 64}", "pullSecrets": ["registry"]},
        "nodeSelector": {"zone": "clinic"},
        "tolerations": [{"key": "private", "operator": "Exists"}],
    },
}
VERSIONS = {
    "PersistentVolumeClaim": "v1",
    "ConfigMap": "v1",
    "Service": "v1",
    "Job": "batch/v1",
    "StatefulSet": "apps/v1",
    "NetworkPolicy": "networking.k8s.io/v1",
}


def helm(command: str, values: dict[str, Any], *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [kubernetes_tools.helm(), *command.split(), str(CHART), *more, "--values", "-"],
        input=yaml.safe_dump(values), capture_output=True, text=True, check=False,
    )  # fmt: skip


@cache
def text_of(stage: str) -> str:
    done = helm("template dpswd", STAGES[stage], "--namespace", "hospital")
    assert done.returncode == 0, done.stderr
    return done.stdout


def documents(stage: str) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(text_of(stage)) if document]


def named(stage: str, kind: str, name: str) -> dict[str, Any]:
    (match,) = [each for each in documents(stage) if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return match


def pods(stage: str) -> list[dict[str, Any]]:
    return [each["spec"]["template"] for each in documents(stage) if each["kind"] in ("Job", "StatefulSet")]


def leaves(values: dict[str, Any], path: str = "") -> list[str]:
    """Dotted names of all values; a mapping that may be replaced as a whole is one."""
    places: list[str] = []
    for name, value in values.items():
        place = f"{path}{name}"
        whole = place in ("settings", "resources", "nodeSelector", "network.clients", "network.metrics")
        places += leaves(value, f"{place}.") if isinstance(value, dict) and value and not whole else [place]
    return places


def test_values_are_those_of_the_schema_and_nothing_else_is_taken() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    check = jsonschema.Draft7Validator(SCHEMA)
    assert not [*check.iter_errors(VALUES)]
    assert [*check.iter_errors(VALUES | {"replica": 2})], "a misspelt value passes"
    assert [*check.iter_errors(VALUES | {"stage": "init"})], "a budget is never left to a default"
    assert [*check.iter_errors(VALUES | {"replicas": 2})], "replicas pass without PostgreSQL"
    with_password = VALUES["database"] | DATABASE | {"url": "postgresql://curator:secret@db/hospital"}
    assert [*check.iter_errors(VALUES | {"database": with_password})], "a password passes in a URL"


def test_every_value_is_explained_and_used() -> None:
    lines = (CHART / "values.yaml").read_text().splitlines()
    sections = [number for number, line in enumerate(lines) if re.match(r"[a-zA-Z]+:", line)]
    assert [lines[number].partition(":")[0] for number in sections] == list(VALUES)
    assert all(lines[number - 1].startswith("# ") for number in sections)
    whole = "\n".join(TEMPLATES.values())
    for place in leaves(VALUES):
        # An image's and a volume's own values are read off a variable.
        last = place.rpartition(".")[2]
        variable = place.startswith(("image.", "storage."))
        assert f".Values.{place}" in whole or (variable and re.search(rf"[.$ ]{last}\b", whole)), place


def test_the_chart_is_of_this_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert (chart["version"], chart["appVersion"], chart["apiVersion"]) == (version, version, "v2")


def test_no_secret_is_in_the_chart() -> None:
    assert "kind: Secret" not in "".join(TEMPLATES.values())
    assert VALUES["database"]["url"] == VALUES["database"]["secret"] == ""


def test_it_is_linted() -> None:
    for values in STAGES.values():
        done = helm("lint --strict", values)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("version", kubernetes_tools.VERSIONS)
def test_kubernetes_schemas_accept_every_document(stage, version) -> None:
    kubernetes_validate = kubernetes_tools.schemas()
    for document in documents(stage):
        assert document["apiVersion"] == VERSIONS[document["kind"]]
        kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"stage": "init"}, "epsilon"),
        ({"stage": "init", "init": {"epsilon": 0, "delta": 1e-5}}, "epsilon"),
        ({"stage": "serve", "replicas": 2}, "url"),
        ({"stage": "serve", "replicas": 2, "database": DATABASE}, "homeSecret"),
        ({"database": {"url": DATABASE["url"]}}, "secret"),
        ({"database": DATABASE | {"url": "postgresql://curator:secret@db/hospital"}}, "url"),
        ({"image": {"tag": "latest"}}, "tag"),
        ({"network": {"clients": None}}, "clients"),
        ({"init": {"options": ["rm"]}}, "options"),
        ({"epsilon": 1}, "epsilon"),
    ],
)
def test_what_cannot_be_is_refused_by_name(values, words) -> None:
    done = helm("template dpswd", values)
    assert done.returncode != 0
    assert words in done.stderr


@pytest.mark.parametrize("stage", STAGES)
def test_names_refer_to_what_is_there(stage) -> None:
    own = {document["metadata"]["name"] for document in documents(stage) if document["kind"] == "PersistentVolumeClaim"}
    theirs = {"uploads", "records"} if stage == "replicas" else set()
    seen = set()
    for document in documents(stage):
        key = document["kind"], document["metadata"]["name"]
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", key[1])
        assert key not in seen
        seen.add(key)
        labels = document["metadata"]["labels"]
        assert labels["app.kubernetes.io/instance"] == "dpswd"
    for template in pods(stage):
        spec = template["spec"]
        volumes = {volume["name"] for volume in spec["volumes"]} | ({"home"} if stage == "replicas" else set())
        for volume in spec["volumes"]:
            assert set(volume) - {"name"} <= {"persistentVolumeClaim", "emptyDir", "secret"}  # no host path, no token
            if "persistentVolumeClaim" in volume:
                assert volume["persistentVolumeClaim"]["claimName"] in own | theirs
        mounted = set()
        for container in [*spec["containers"], *spec.get("initContainers", [])]:
            mounted |= {mount["name"] for mount in container["volumeMounts"]}
            for source in container.get("envFrom", []):
                assert named(stage, "ConfigMap", source["configMapRef"]["name"])
        assert mounted == volumes
    for stateful in (each for each in documents(stage) if each["kind"] == "StatefulSet"):
        labels = stateful["spec"]["template"]["metadata"]["labels"]
        assert stateful["spec"]["selector"]["matchLabels"].items() <= labels.items()
        assert named(stage, "Service", stateful["spec"]["serviceName"])
        ports = {
            port["name"]: port["containerPort"]
            for port in stateful["spec"]["template"]["spec"]["containers"][0]["ports"]
        }
        services = [each for each in documents(stage) if each["kind"] == "Service"]
        assert len(services) == len(ports) == (1 if stage == "without metrics" else 2)
        for service in services:
            assert service["spec"]["selector"].items() <= labels.items()
            assert [ports[port["targetPort"]] for port in service["spec"]["ports"]] == [
                port["port"] for port in service["spec"]["ports"]
            ]


@pytest.mark.parametrize("stage", [stage for stage in STAGES if stage != "storage"])
def test_pods_are_contained(stage) -> None:
    user = int(re.search(r"useradd --uid (\d+)", DOCKERFILE)[1])
    (template,) = pods(stage)
    spec = template["spec"]
    assert spec["automountServiceAccountToken"] is False
    pod = spec["securityContext"]
    assert pod["runAsNonRoot"] is True
    assert pod["runAsUser"] == pod["runAsGroup"] == pod["fsGroup"] == user
    assert pod["fsGroupChangePolicy"] == "OnRootMismatch"
    assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in [*spec["containers"], *spec.get("initContainers", [])]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["limits"]["memory"]
        assert container["resources"]["requests"].keys() == {"cpu", "memory"}
        assert re.search(r":\d+\.\d+\.\d+$|@sha256:[0-9a-f]{64}$", container["image"])
        for mount in container["volumeMounts"]:
            assert mount.get("readOnly") is (True if mount["name"] in ("records", "database", "seed") else None)
    assert not [volume for volume in spec["volumes"] if volume.get("secret", {}).get("defaultMode", 0o440) != 0o440]


@pytest.mark.parametrize("stage", STAGES)
def test_nothing_goes_out_and_only_what_is_named_comes_in(stage) -> None:
    everything = named(stage, "NetworkPolicy", "dpswd-nothing-by-default")["spec"]
    assert everything["policyTypes"] == ["Ingress", "Egress"]
    assert not {"ingress", "egress"} & everything.keys()
    for template in pods(stage):
        assert everything["podSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    out = []
    for policy in (each for each in documents(stage) if each["kind"] == "NetworkPolicy"):
        out += [peer for rule in policy["spec"].get("egress", []) for peer in rule["to"]]
        for rule in policy["spec"].get("ingress", []):
            assert rule["from"], "a rule without from lets everybody in"
            for peer in rule["from"]:
                assert peer["namespaceSelector"]["matchLabels"]
            assert {port["port"] for port in rule["ports"]} <= {"grpc", "metrics"}
    blocks = [peer["ipBlock"]["cidr"] for peer in out if "ipBlock" in peer]
    names = [peer for peer in out if "podSelector" in peer]
    assert (blocks, len(names)) == (([DATABASE["cidr"]], 1) if "database" in STAGES[stage] else ([], 0))
    curator = named(stage, "NetworkPolicy", "dpswd-curator")["spec"]
    for stateful in (each for each in documents(stage) if each["kind"] == "StatefulSet"):
        assert curator["podSelector"] == stateful["spec"]["selector"]
    for job in (each for each in documents(stage) if each["kind"] == "Job"):  # nobody may ask it
        labels = job["spec"]["template"]["metadata"]["labels"]
        assert not curator["podSelector"]["matchLabels"].items() <= labels.items()


@pytest.mark.parametrize("stage", ["serve", "replicas"])
def test_settings_are_settings_of_the_program(stage, tmp_path, monkeypatch) -> None:
    data = named(stage, "ConfigMap", "dpswd-settings")["data"]
    assert all(isinstance(value, str) for value in data.values())  # what a ConfigMap can hold
    (tmp_path / "curator.toml").write_text('[records]\nfile = "records.npz"\n')
    for name, value in data.items():
        section, field = re.fullmatch(r"DPSWD_CURATOR_([A-Z]+)__([A-Z_]+)", name).groups()
        assert field.lower() in CuratorSettings.model_fields[section.lower()].annotation.model_fields, name
        monkeypatch.setenv(name, value)
    settings = load(tmp_path)
    stateful = named(stage, "StatefulSet", "dpswd")["spec"]
    spec = stateful["template"]["spec"]
    ports = {port["name"]: port["containerPort"] for port in spec["containers"][0]["ports"]}
    assert ports == {"grpc": settings.listen.port, "metrics": settings.metrics.port}
    assert settings.listen.host == settings.metrics.host == "0.0.0.0"
    assert f"EXPOSE {settings.listen.port}" in DOCKERFILE
    assert spec["terminationGracePeriodSeconds"] > settings.listen.shutdown_seconds
    mounts = {mount["mountPath"] for mount in spec["containers"][0]["volumeMounts"]}
    if stage == "replicas":
        assert settings.ledger.url == DATABASE["url"]
        assert str(settings.ledger.password_file.parent) in mounts
    else:
        assert settings.ledger.url is None
        assert stateful["replicas"] == 1  # with the ledger in a file there can be one alone


@pytest.mark.parametrize("stage", ["init", "serve"])
def test_commands_and_options_exist(stage) -> None:
    name, *options = pods(stage)[0]["spec"]["containers"][0]["args"]
    command = curator_cli.get_command(click.Context(curator_cli), name)
    assert command is not None
    accepted = {option for parameter in command.params for option in parameter.opts}
    assert {option.split("=")[0] for option in options} <= accepted
    if stage == "init":
        assert [float(option.split("=")[1]) for option in options if re.match("--(epsilon|delta)=", option)] == [
            1.5,
            1e-5,
        ]


def test_the_probes_ask_by_the_images_own_check() -> None:
    container = pods("serve")[0]["spec"]["containers"][0]
    check = re.search(r'HEALTHCHECK .* CMD \["([a-z-]+)"\]', DOCKERFILE)[1]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["exec"]["command"] == [check]
        assert container[probe]["timeoutSeconds"] >= 5  # the check itself waits so long for an answer
    started = container["startupProbe"]
    assert started["periodSeconds"] * started["failureThreshold"] >= 120  # a large ledger is read as a whole


def test_a_replica_makes_its_home_once_with_keys_that_others_cannot_read(tmp_path) -> None:
    """The very program of the init container, with another place for its two folders."""
    (first,) = pods("replicas")[0]["spec"]["initContainers"]
    *_, script = first["command"]
    home, seed = tmp_path / "home", tmp_path / "seed"
    home.mkdir()
    seed.mkdir()
    with tarfile.open(seed / "home.tar", "w") as made:
        for name, mode in (("curator.toml", 0o644), ("ledger.key", 0o600), ("certificates/ca.crt", 0o644)):
            entry = tarfile.TarInfo(name)
            entry.mode, entry.size = mode, 1
            made.addfile(entry, io.BytesIO(b"1"))
    script = script.replace("/var/lib/dpswd", str(home)).replace("/seed/", f"{seed}/")
    for words in (b"1", b"of this replica"):
        subprocess.run([sys.executable, "-c", script], check=True)
        assert (home / "curator.toml").read_bytes() == words
        (home / "curator.toml").write_bytes(b"of this replica")
    assert (home / "ledger.key").stat().st_mode & 0o777 == 0o600
    assert (home / "certificates" / "ca.crt").exists()


def test_volumes_outlive_the_release() -> None:
    for document in documents("serve"):
        if document["kind"] == "PersistentVolumeClaim":
            assert document["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert named("serve", "PersistentVolumeClaim", "dpswd-home")["spec"]["accessModes"] == ["ReadWriteOncePod"]


def test_the_page_names_every_stage() -> None:
    page = (ROOT / "docs" / "operator" / "kubernetes.md").read_text()
    for stage in SCHEMA["properties"]["stage"]["enum"]:
        assert f"`{stage}`" in page
