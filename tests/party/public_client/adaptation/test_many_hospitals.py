"""Mock curators and real ones in one federation: who is down, slow or silent holds the others up for seconds."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import ExitStack

import numpy as np
import pytest
import torch
from free_ports import own_port
from made_home import made_home
from serving_here import serving
from torch import nn

from dpswd import DomainAdaptation, Federation, Hospital, MockCurator, Statistics, mock_description
from dpswd.private_curator.settings.groups import RecordsSettings
from dpswd.public_client.data.feature_maps import map_from_source
from dpswd.public_client.methods.statistics_method import StatisticsRun
from dpswd.public_client.plans.declarable import Declarable
from dpswd.public_client.training.asking import ask_each
from dpswd.public_client.training.sites import Group, Site
from dpswd.shared.core.errors import CuratorUnavailable, InvalidValue, SettingsError

WIDTH, CLASSES = 6, 3
MEANS = 1.2 * np.random.default_rng(21).normal(size=(CLASSES, WIDTH))
SECONDS = 60.0  # of a busy machine; what would wait for a site by a connection's patience takes 180
SILENCE_S = 600.0


def made(count, seed, *, turned=1):
    """Records whose classes are the public source's turned round, and their labels."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(CLASSES, size=count)
    return (MEANS[(labels + turned) % CLASSES] + rng.normal(size=(count, WIDTH))).astype(np.float32), labels


@pytest.fixture(scope="module")
def real(request, tmp_path_factory):
    """Homes, addresses and credentials of curators."""
    with ExitStack() as opened:
        sites = {}
        for number in range(getattr(request, "param", 1)):
            directory = tmp_path_factory.mktemp(f"real-{number}")
            records, labels = made(300, number)
            np.savez(directory / "records.npz", records=records, labels=labels)
            settings = RecordsSettings(
                file=directory / "records.npz", array="records", labels_array="labels", classes=CLASSES
            )
            home = made_home(directory, settings)
            sites[f"real-{number}"] = home, opened.enter_context(serving(home)), directory / "credentials"
        yield sites


@pytest.fixture
def nobody():
    """A port that takes connections, and says nothing."""
    with socket.create_server(("localhost", 0)) as listening:
        yield f"localhost:{listening.getsockname()[1]}"


class Mock(MockCurator):
    """Another hospital far away: an answer takes a while; `outcome` is what becomes of a step."""

    under_way, most, counting, end = 0, 0, threading.Lock(), threading.Event()

    def __init__(self, number, outcome="answered"):
        records, labels = made(300, 100 + number)
        description = mock_description(
            records=300, record_shape=(WIDTH,), epsilon=4.0, delta=1e-5, name=f"mock-{number}", classes=CLASSES
        )
        super().__init__(description, seed=number, records=records, labels=labels)
        self._outcome = outcome

    def exchange(self, method, request, *, patience=None):
        if method != "DrawStep":
            return super().exchange(method, request, patience=patience)
        with self.counting:
            Mock.under_way += 1
            Mock.most = max(self.most, self.under_way)
        time.sleep(0.3)
        if self._outcome == "dead":
            raise CuratorUnavailable("gone")
        if self._outcome == "silent":
            self.end.wait(timeout=SILENCE_S)
        with self.counting:
            Mock.under_way -= 1
        return super().exchange(method, request, patience=patience)


def where(real, **more):
    addresses = {name: address for name, (_, address, _) in real.items()} | more
    some = next(iter(real.values()))[2]
    return addresses, {name: real[name][2] if name in real else some for name in addresses}


@pytest.mark.parametrize(
    ("real", "mocks"), [(1, 9), pytest.param(5, 50, marks=pytest.mark.exhaustive)], indirect=["real"]
)
def test_one_model_of_all_that_answer(real, mocks, nobody):
    Mock.under_way, Mock.most = 0, 0
    Mock.end.clear()
    addresses, credentials = where(real, dead="localhost:1", silent=nobody)
    begun = time.monotonic()
    with Federation.connect(addresses, credentials=credentials, start_s=2.0) as reached:
        assert time.monotonic() - begun < SECONDS
        assert set(reached.lost) == {"dead", "silent"}
        outcomes = {3: "dead", 7: "silent"}
        others = {f"mock-{n}": Hospital(Mock(n, outcomes.get(n, "answered"))) for n in range(mocks)}
        everybody = Federation({**reached.hospitals, **others}, straggler_s=15.0)
        plans = everybody.plan(Statistics(prior="none"), epsilon=1.0)
        assert len(plans) == len(real) + mocks
        source, labels = made(200, 5, turned=0)
        batches = [(torch.from_numpy(source), torch.from_numpy(labels))]
        extractor = nn.Linear(WIDTH, WIDTH).eval()
        with torch.no_grad():
            extractor.weight.copy_(torch.eye(WIDTH))
            extractor.bias.zero_()
        model = DomainAdaptation(
            extractor, nn.Linear(WIDTH, CLASSES), hospital=everybody, plan=plans, shared=True, source_epochs=0
        )
        begun = time.monotonic()
        try:
            model.fit(batches, progress=False)
        finally:
            Mock.end.set()
        assert time.monotonic() - begun < SILENCE_S / 2
    reports = {report["site"]: report for report in model.reports}
    assert {name for name, report in reports.items() if report["state"] == "set aside"} == {"mock-3", "mock-7"}
    assert "half of the sites" in reports["mock-7"]["reason"]
    assert Mock.most > mocks // 2  # releases travel side by side
    for home, _, _ in real.values():  # the real ones were charged once, for the one release
        with home.open_ledger() as ledger:
            status = ledger.status()
        assert (status.runs, status.steps_used) == (1, 1)
    fresh, labels = made(2000, 9)
    best = float((((fresh[:, None] - MEANS) ** 2).sum(axis=2).argmin(axis=1) == (labels + 1) % CLASSES).mean())
    assert (
        model.score(torch.from_numpy(fresh), torch.from_numpy(labels)) > best - 0.15
    )  # chance: a third; the source model: none


def test_who_needs_all_sites_is_refused_before_anything_is_spent(real):
    addresses, credentials = where(real, dead="localhost:1")
    with pytest.raises(CuratorUnavailable) as refused:
        Federation.connect(addresses, credentials=credentials, start_s=0.0, absent="refuse")
    assert "dead" in refused.value.__notes__[0]
    with pytest.raises(SettingsError, match="set aside"):
        Federation.connect(addresses, credentials=credentials, start_s=0.0, absent="perhaps")

    class Gone(Mock):
        def exchange(self, method, request, *, patience=None):
            if method == "OpenRun" and request.validate_only:
                raise CuratorUnavailable("gone")
            return super().exchange(method, request, patience=patience)

    both = Federation({"here": Hospital(Mock(0)), "gone": Hospital(Gone(1))}, absent="refuse")
    plans = both.plan(Statistics(prior="none"), epsilon=1.0)
    source, labels = made(60, 5)
    batches = [(torch.from_numpy(source), torch.from_numpy(labels))]
    model = DomainAdaptation(
        nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES), hospital=both, plan=plans, shared=True, source_epochs=0
    )
    with pytest.raises(CuratorUnavailable, match="gone"):
        model.fit(batches, progress=False)
    assert not both.hospitals["here"].curator.charges


def test_a_site_that_starts_slowly_is_waited_for_when_asked(tmp_path):
    home, credentials = made_home(tmp_path, made(60, 1)[0]), tmp_path / "credentials"
    port, done = own_port(), threading.Event()

    def start_late():
        time.sleep(1.5)
        with serving(home, **{"listen.port": str(port)}):
            done.wait(timeout=120)

    with pytest.raises(CuratorUnavailable):
        Hospital.connect(f"localhost:{port}", credentials=credentials, start_s=0.0)
    late = threading.Thread(target=start_late)
    late.start()
    try:
        Hospital.connect(f"localhost:{port}", credentials=credentials, start_s=100.0).close()
    finally:
        done.set()
        late.join()


def test_a_straggler_is_given_up_only_when_half_have_answered():
    end = threading.Event()

    def ask(name):
        if name == "late":
            end.wait(timeout=60)
        if name == "wrong":
            raise InvalidValue("no")
        return name

    answers, lost = ask_each(["a", "b", "late", "wrong"], ask, straggler_s=0.1)
    assert (sorted(answers), sorted(lost)) == (["a", "b"], ["late", "wrong"])
    threading.Timer(0.5, end.set).start()
    answers, lost = ask_each(["late", "wrong"], ask, straggler_s=0.0)  # one of two, and nobody else answered
    assert (sorted(answers), sorted(lost)) == (["late"], ["wrong"])


class Opening(Mock):
    """`opening` is what becomes of the request that charges the run."""

    def __init__(self, number, opening):
        super().__init__(number)
        self._opening = opening

    def exchange(self, method, request, *, patience=None):
        if method != "OpenRun" or request.validate_only:
            return super().exchange(method, request, patience=patience)
        if self._opening == "slow":
            time.sleep(0.5)
        charged = super().exchange(method, request, patience=patience)
        if self._opening == "lost":
            raise CuratorUnavailable("the reply is lost")
        return charged


def test_nobody_is_given_up_while_runs_are_charged():
    """The straggler limit is none at all; the thread that opens the slow site's run is waited for."""
    curators = {"quick": Opening(0, "quick"), "also": Opening(1, "quick"), "slow": Opening(2, "slow")}
    curators["lost"] = Opening(3, "lost")
    plans = {
        name: Hospital(curator).plan(Statistics(prior="none"), epsilon=1.0).for_model(
            feature_dimension=WIDTH, gradient_parameters=0
        )
        for name, curator in curators.items()
    }  # fmt: skip
    group = Group([Site(name, curators[name], plan) for name, plan in plans.items()], None, straggler_s=0.0)
    ready = Declarable.of(nn.Linear(WIDTH, WIDTH).eval(), (WIDTH,))
    feature_map = map_from_source(torch.randn(20, WIDTH, generator=torch.Generator().manual_seed(0)))
    group.charge_each(lambda site: StatisticsRun(site.curator, ready, site.plan, feature_map=feature_map).open())
    assert [len(curator.charges) for curator in curators.values()] == [1, 1, 1, 1]
    assert {site.name: site.state for site in group.sites} == {
        "quick": "finished", "also": "finished", "slow": "finished", "lost": "perhaps charged",
    }  # fmt: skip
    (lost,) = [site.report() for site in group.sites if site.lost is not None]
    assert lost["charged_epsilon"] == pytest.approx(curators["lost"].charges[0].epsilon, rel=0.05)


def test_a_callers_mistake_is_raised_when_no_thread_charges_any_more():
    done = threading.Event()

    def ask(name):
        if name == "wrong":
            raise SettingsError("another extractor")
        time.sleep(0.3)
        done.set()

    with pytest.raises(SettingsError, match="another extractor"):
        ask_each(["wrong", "late"], ask, to_the_end=True)
    assert done.is_set()
