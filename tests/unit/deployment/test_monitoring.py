"""What Prometheus and Grafana are told fits the metrics that exist; with promtool, the rules themselves are tested."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from dpswd.private_curator.observability.logs import FIELDS
from dpswd.private_curator.observability.metrics import CATALOGUE
from dpswd.private_curator.observability.requests import OUTCOMES
from dpswd.private_curator.observability.tracing import SPAN_ATTRIBUTES

ROOT = Path(__file__).resolve().parents[3]
MONITORING = ROOT / "deploy" / "monitoring"
PAGE = (ROOT / "docs" / "operator" / "monitoring.md").read_text()
ALERTS = [
    rule for group in yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"] for rule in group["rules"]
]
DASHBOARD = json.loads((MONITORING / "grafana" / "dashboards" / "curator.json").read_text())
COMPOSE = yaml.safe_load((MONITORING / "compose.yml").read_text())

SERIES = {
    series
    for name, described in CATALOGUE.items()
    for series in ([f"{name}_bucket", f"{name}_sum", f"{name}_count"] if described.kind == "histogram" else [name])
}
LABELS = {label for described in CATALOGUE.values() for label in described.labels} | {"le", "job", "instance"}
WORDS = {"sum", "by", "and", "on", "rate", "increase", "delta", "absent", "time", "histogram_quantile"}
"""What else an expression may hold: PromQL's own."""


def expressions():
    for rule in ALERTS:
        yield rule["alert"], rule["expr"]
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


@pytest.mark.parametrize(("place", "expression"), list(expressions()))
def test_an_expression_names_metrics_and_labels_that_exist(place, expression):
    for opened, closed in ("()", "{}", "[]"):
        assert expression.count(opened) == expression.count(closed), place
    selectors = re.findall(r"([a-z_]+)?\{([^}]*)\}", expression)
    for metric, selector in selectors:
        for label, value in re.findall(r'([a-z_]+)\s*[!=]~?\s*"([^"]*)"', selector):
            labels = CATALOGUE[re.sub(r"_(bucket|sum|count)$", "", metric)].labels if metric != "up" else ()
            assert label in {*labels, "job", "instance"}, place
            if label == "outcome":
                assert set(value.split("|")) <= OUTCOMES, place
            if label == "scope":
                assert value in {"data set", "client"}, place
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]", " ", expression)
    groups = re.findall(r"\b(?:by|on)\s*\(([^)]*)\)", bare)
    assert {label.strip() for group in groups for label in group.split(",") if label.strip()} <= LABELS, place
    names = set(re.findall(r"[a-zA-Z_][a-zA-Z0-9_]*", re.sub(r"\b(by|on)\s*\([^)]*\)", " ", bare)))
    assert names - WORDS <= SERIES | {"up"}, place
    assert names & (SERIES | {"up"}), place


def test_every_metric_is_on_the_dashboard_and_in_the_page():
    shown = " ".join(expression for _, expression in expressions())
    for name in CATALOGUE:
        assert name in shown, name
        assert f"`{name}`" in PAGE, name
    assert set(re.findall(r"`(dpswd_[a-z_]+)`", PAGE)) == set(CATALOGUE)


def test_every_field_and_attribute_is_in_the_page():
    for name in (*FIELDS, *SPAN_ATTRIBUTES):
        assert f"`{name}`" in PAGE, name


def test_every_alert_says_what_to_do():
    headings = {re.sub(r"[^a-z0-9]", "", text.lower()) for text in re.findall(r"^### (.+)$", PAGE, re.MULTILINE)}
    for rule in ALERTS:
        assert rule["labels"]["severity"] in {"info", "warning", "critical"}
        assert rule["annotations"]["summary"]
        path, _, anchor = rule["annotations"]["runbook"].partition("#")
        assert (path, anchor) == ("docs/operator/monitoring.md", rule["alert"].lower())
        assert anchor in headings, rule["alert"]
    assert headings >= {rule["alert"].lower() for rule in ALERTS}


def test_what_must_be_watched_is_watched():
    watched = {rule["alert"] for rule in ALERTS}
    assert {"BudgetNearlyExhausted", "CuratorDown", "ManyRefusals", "Incident", "CertificateExpires"} <= watched


def test_panels_have_places_of_their_own():
    taken = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_the_pieces_fit_together():
    scrape = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    (job,) = scrape["scrape_configs"]
    environment = COMPOSE["services"]["curator"]["environment"]
    host, port = environment["DPSWD_CURATOR_METRICS__HOST"], environment["DPSWD_CURATOR_METRICS__PORT"]
    assert job["static_configs"] == [{"targets": [f"{host}:{port}"]}]
    assert COMPOSE["services"]["curator"]["networks"]["monitoring"]["aliases"] == [host]
    assert all('job="dpswd-curator"' in rule["expr"] for rule in ALERTS if "up{" in rule["expr"])
    assert job["job_name"] == "dpswd-curator"
    source = yaml.safe_load((MONITORING / "grafana/provisioning/datasources/prometheus.yml").read_text())
    (source,) = source["datasources"]
    used = {target["datasource"]["uid"] for panel in DASHBOARD["panels"] for target in panel["targets"]}
    assert used == {source["uid"]}
    provider = yaml.safe_load((MONITORING / "grafana/provisioning/dashboards/dpswd.yml").read_text())
    folder = provider["providers"][0]["options"]["path"]
    volumes = COMPOSE["services"]["grafana"]["volumes"]
    assert f"./deploy/monitoring/grafana/dashboards:{folder}:ro" in volumes


def test_the_teams_network_does_not_reach_the_metrics():
    base = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    members = {name for name, service in base["services"].items() if "monitoring" in (service.get("networks") or [])}
    assert members == set()  # the override alone puts services there
    assert COMPOSE["networks"]["monitoring"] == base["networks"]["hospital"]  # sealed like the hospital's own
    assert COMPOSE["networks"]["monitoring"]["internal"] is True
    for name in ("prometheus", "grafana"):
        assert not {"crossing", "team"} & set(COMPOSE["services"][name]["networks"])
    assert COMPOSE["services"]["grafana"]["ports"] == ["127.0.0.1:${GRAFANA_PORT:-3000}:3000"]
    assert "ports" not in COMPOSE["services"]["prometheus"]


def test_the_rules_do_what_their_own_tests_say():
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: apt-get install prometheus): the alert rules were not run")
    subprocess.run([promtool, "check", "rules", "alerts.yml"], cwd=MONITORING, check=True)
    subprocess.run([promtool, "test", "rules", "alerts_test.yml"], cwd=MONITORING, check=True)
