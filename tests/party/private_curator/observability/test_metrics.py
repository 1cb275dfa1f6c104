"""Metrics are those of the catalogue, with labels from closed sets, and none of them comes from a record."""

from __future__ import annotations

import re
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dpswd.private_curator.observability.metrics import BUCKETS_S, CATALOGUE, TIME_STEP_S, Metrics, MetricsServer
from dpswd.private_curator.observability.requests import OUTCOMES, outcome_of, rounded_up
from dpswd.private_curator.settings import tree as settings
from dpswd.private_curator.settings.groups import MetricsSettings
from dpswd.shared.core.errors import LedgerUnavailable, SettingsError
from dpswd.shared.core.wire.v1 import curator_pb2 as pb

CANARY = 987654.25  # the fixture puts it into every record
OPERATIONS = {method.name for method in pb.DESCRIPTOR.services_by_name["CuratorService"].methods}
CLOSED = {
    "operation": OPERATIONS,
    "outcome": OUTCOMES,
    "scope": {"data set", "client"},
    "client": {"", "ml-team"},
    "state": {"open", "frozen", "ended"},
    "certificate": {"server", "ca"},
}


@pytest.fixture(scope="module")
def scraped(watched):
    address = (watched.home.path / "metrics-address").read_text().strip()
    with urllib.request.urlopen(f"http://{address}/metrics") as reply:
        return reply.read().decode()


@pytest.fixture(scope="module")
def samples(scraped):
    return [sample for family in text_string_to_metric_families(scraped) for sample in family.samples]


def value(samples, name, **labels):
    (number,) = [sample.value for sample in samples if sample.name == name and sample.labels == labels]
    return number


@pytest.mark.long
def test_there_are_the_metrics_of_the_catalogue_and_no_others(scraped, samples):
    families = {family.name: family for family in text_string_to_metric_families(scraped)}
    named = {name.removesuffix("_total") if CATALOGUE[name].kind == "counter" else name for name in CATALOGUE}
    created = {f"{name}_created" for name in named}  # when counting began, of counters and histograms
    assert named <= families.keys() <= named | created
    for name, described in CATALOGUE.items():
        family = families[name.removesuffix("_total") if described.kind == "counter" else name]
        assert family.type == described.kind
        assert family.documentation == described.help
        for sample in family.samples:
            assert sample.labels.keys() - {"le"} == set(described.labels), sample
    for sample in samples:
        assert sample.name.startswith("dpswd_")  # none of the process, none of Python


@pytest.mark.long
def test_every_label_has_a_value_from_a_closed_set(samples):
    for sample in samples:
        for label, given in sample.labels.items():
            if label == "version":
                assert re.fullmatch(r"[0-9A-Za-z.+]+", given)
            elif label != "le":
                assert given in CLOSED[label], sample


def test_the_figures_are_those_of_the_session(samples, watched):
    with watched.home.open_ledger() as ledger:
        status = ledger.status()
    assert value(samples, "dpswd_budget_epsilon", scope="data set", client="") == 5.0
    assert value(samples, "dpswd_budget_epsilon", scope="client", client="ml-team") == 4.0
    spent = value(samples, "dpswd_budget_epsilon_spent", scope="data set", client="")
    assert spent == status.data_set.epsilon_spent > 0
    left = value(samples, "dpswd_budget_epsilon_remaining", scope="data set", client="")
    assert left == pytest.approx(5.0 - spent)
    assert value(samples, "dpswd_data_set_state", state="open") == 1
    assert value(samples, "dpswd_data_set_state", state="frozen") == 0
    assert (value(samples, "dpswd_runs"), value(samples, "dpswd_steps_charged")) == (1, 3)
    assert (value(samples, "dpswd_steps_used"), value(samples, "dpswd_step_attempts_repeated")) == (3, 1)
    assert (value(samples, "dpswd_incidents"), value(samples, "dpswd_clients")) == (1, 1)
    counted = {
        (sample.labels["operation"], sample.labels["outcome"]): sample.value
        for sample in samples
        if sample.name == "dpswd_requests_total"
    }
    assert counted["OpenRun", "OK"] == 1
    assert counted["OpenRun", "REQUEST_INVALID"] == 1
    assert counted["OpenRun", "BUDGET_EXHAUSTED"] == 1
    assert counted["DrawStep", "INTERNAL"] == 1
    assert counted["DrawStep", "OK"] == 3


def test_times_are_whole_multiples_of_the_step(samples):
    sums = [sample.value for sample in samples if sample.name == "dpswd_request_seconds_sum"]
    assert sums
    assert all(total % TIME_STEP_S == 0 for total in sums)
    assert all(bound % TIME_STEP_S == 0 for bound in BUCKETS_S)


@pytest.mark.parametrize(("seconds", "shown"), [(0.0, 0.25), (0.25, 0.25), (0.2501, 0.5), (3.9, 4.0)])
def test_a_time_is_rounded_up(seconds, shown):
    assert rounded_up(seconds) == shown


def test_no_value_of_a_record_is_served(scraped):
    # Times of creation and the disk's room are long numbers of their own.
    figures = re.sub(r"^\S*(_created|disk_free_bytes).*$", "", scraped, flags=re.MULTILINE)
    assert "_total" in figures
    assert str(int(CANARY)) not in figures


def test_a_ledger_that_cannot_be_read_is_a_figure_and_no_error(watched):
    class Broken:
        def status(self):
            raise LedgerUnavailable("locked")

    metrics = Metrics(watched.home, Broken())
    families = {family.name: family.samples for family in metrics.registry.collect()}
    assert families["dpswd_ledger_up"][0].value == 0
    assert "dpswd_budget_epsilon" not in families
    assert families["dpswd_disk_free_bytes"][0].value > 0


def test_restarts_of_the_worker_are_counted(samples):
    assert value(samples, "dpswd_worker_restarts_total") == 1


def test_a_port_in_use_is_said_so(watched):
    with watched.home.open_ledger() as ledger:
        metrics = Metrics(watched.home, ledger)
    port = int((watched.home.path / "metrics-address").read_text().rpartition(":")[2])
    with pytest.raises(SettingsError, match=r"metrics\.port"):
        MetricsServer(metrics, MetricsSettings(port=port), watched.home)


def test_metrics_are_off_unless_the_operator_turns_them_on(watched):
    assert not settings.load(watched.home.path).metrics.enabled
    assert settings.load(watched.home.path).metrics.host == "127.0.0.1"


def test_an_outcome_without_a_reason_is_unknown():
    class Context:
        def trailing_metadata(self):
            return (("grpc-status-details-bin", b""), ("other", b"x"))

    assert outcome_of(Context()) == "UNKNOWN"
