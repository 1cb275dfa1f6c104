"""Several curators: who drops out is reported, the rest trains on, and each budget is charged once."""

from __future__ import annotations

import logging
import threading

import numpy as np
import pytest
import torch
from small_methods import of_every_method, require_all_asked, small, small_network

from dpswd import DomainAdaptation, Federation
from dpswd.public_client.data.datasets import Labelled
from dpswd.public_client.data.source import source_loader
from dpswd.public_client.methods import method_kinds
from dpswd.shared.core import errors
from dpswd.shared.core.errors import InvalidValue, SettingsError
from dpswd.shared.core.wire.messages import StepRelease
from dpswd.shared.core.wire.v1 import curator_pb2 as pb
from dpswd.shared.published_mechanisms.labelled_gradient.mechanism import LossGradientReply

STEPS = 4
OF_ITS_OWN = ["finetune"]


@pytest.fixture
def sites(serve):
    south = serve(records=500)
    south.curator.rng = np.random.default_rng(8)  # another hospital, other answers
    return {"north": serve(), "south": south}


@pytest.fixture
def connect(sites, tmp_path):
    opened = []

    def make(names=("north", "south"), **options):
        federation = Federation.connect(
            {name: sites[name].address for name in names},
            credentials={name: sites[name].credentials for name in names},
            patience_s=0.0,
            run_directory=tmp_path / "run",
            **{"start_s": 3.0} | options,  # a busy machine may break off a handshake; what is tested comes after it
        )
        opened.append(federation)
        return federation

    yield make
    for federation in opened:
        federation.close()


def data(seed=0):
    generator = torch.Generator().manual_seed(seed)
    images = torch.rand(96, 1, 8, 8, generator=generator) * 2 - 1
    return Labelled(images, torch.randint(10, (96,), generator=generator))


def model(federation, method, *, shared=False, epsilon=1.0, steps=STEPS, **settings):
    torch.manual_seed(3)
    extractor, classifier = small_network()
    plans = federation.plan(small(method, **settings), epsilon=epsilon, steps=steps, batch_size=16)
    return DomainAdaptation(
        extractor, classifier, hospital=federation, plan=plans, shared=shared, source_epochs=1, device="cpu"
    )


def fit(adaptation, **arguments):
    return adaptation.fit(source_loader(data(), batch_size=32), progress=False, **arguments)


def weights(model):
    return [value.clone() for module in (model.extractor, model.classifier) for value in module.state_dict().values()]


def states(adaptation):
    return {report["site"]: report["state"] for report in adaptation.reports}


@pytest.mark.long
@pytest.mark.parametrize("method", method_kinds())
def test_every_site_is_charged_its_own_run_and_every_method_can_share_a_model(connect, sites, method, tmp_path):
    adaptation = fit(model(connect(), method, shared=True))
    for served in sites.values():
        require_all_asked(served, method, STEPS)
    assert states(adaptation) == {"north": "finished", "south": "finished"}
    files = [file.name for file in adaptation.save(tmp_path / "adapted.safetensors")]
    if method in ("statistics", "recalibrate"):  # each site has what its own labels say
        assert adaptation.model("north").extractor is adaptation.model("south").extractor
        assert files == ["adapted-north.safetensors", "adapted-south.safetensors"]
    elif method == "normalisation":  # each hospital's own statistics stay its own
        assert files == ["adapted-north.safetensors", "adapted-south.safetensors"]
    else:
        assert adaptation.model("north").classifier is adaptation.model("south").classifier
        assert files == ["adapted.safetensors"]


@pytest.mark.parametrize("method", OF_ITS_OWN)
@pytest.mark.long
def test_by_default_each_site_has_a_model_and_a_file_of_its_own(connect, method, tmp_path):
    adaptation = fit(model(connect(), method))
    north, south = weights(adaptation.model("north")), weights(adaptation.model("south"))
    assert any(not torch.equal(a, b) for a, b in zip(north, south, strict=True))
    files = adaptation.save(tmp_path / "adapted.safetensors")
    assert [file.name for file in files] == ["adapted-north.safetensors", "adapted-south.safetensors"]
    images = data(5).images
    for name in ("north", "south"):
        assert adaptation.predict(images, site=name).shape == (96,)
    with pytest.raises(InvalidValue, match="the sites are north, south"):
        adaptation.predict(images, site="east")


@pytest.mark.parametrize("method", OF_ITS_OWN)
def test_a_site_alone_and_a_site_among_others_end_alike(connect, sites, method):
    """Sites with models of their own do not feel each other."""
    alone = fit(model(connect(["north"]), method))
    sites["north"].curator.restart()
    together = fit(model(connect(), method))
    for a, b in zip(weights(alone.model("north")), weights(together.model("north")), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("method", OF_ITS_OWN)
def test_requests_of_a_step_are_under_way_at_the_same_time(connect, sites, method):
    """Each site's answer waits until the other site's request has arrived: asked in turn, both would wait for ever."""
    barrier = threading.Barrier(2, timeout=20)
    for served in sites.values():
        served.curator.before_step = barrier.wait
    adaptation = fit(model(connect(), method, shared=True))
    assert states(adaptation) == {"north": "finished", "south": "finished"}


@pytest.mark.long
@pytest.mark.parametrize(
    ("method", "shared"),
    [*of_every_method(True), *((method, False) for method in OF_ITS_OWN)],
)
def test_a_site_that_fails_in_mid_training_is_reported_and_resumed_later(
    connect, sites, method, shared, tmp_path, caplog
):
    sites["south"].curator.failures["DrawStep"] = [None, None, errors.CuratorUnavailable("gone")]
    with caplog.at_level(logging.WARNING):
        adaptation = fit(model(connect(), method, shared=shared), checkpoint=tmp_path / "run")
    assert states(adaptation) == {"north": "finished", "south": "set aside"}
    report = adaptation.reports[1]
    assert report["charged_epsilon"] == 1.0
    assert "CuratorUnavailable: gone" in report["reason"]
    assert "south" in caplog.text
    assert sites["south"].curator.steps_charged == 2

    again = fit(model(connect(), method, shared=shared), checkpoint=tmp_path / "run")
    assert states(again) == {"north": "finished", "south": "finished"}
    for served in sites.values():
        require_all_asked(served, method, STEPS)
    assert [served.curator.spent for served in sites.values()] == [1.0, 1.0]
    if not shared:
        for a, b in zip(weights(adaptation.model("north")), weights(again.model("north")), strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("method", OF_ITS_OWN)
def test_an_exhausted_site_is_left_out_and_spends_nothing(connect, sites, method, shared):
    federation = connect()
    adaptation = model(federation, method, shared=shared)
    sites["south"].curator.spent = 4.5  # somebody else was faster
    fit(adaptation)
    assert states(adaptation) == {"north": "finished", "south": "refused"}
    assert adaptation.reports[1]["charged_epsilon"] == 0.0
    assert "BudgetExhausted" in adaptation.reports[1]["reason"]
    assert sites["south"].curator.spent == 4.5


@pytest.mark.parametrize(("method", "shared"), [*of_every_method(True), ("finetune", False)])
@pytest.mark.long
def test_a_site_that_goes_down_before_its_run_is_open_is_left_out(connect, sites, method, shared):
    """It answers when the plan is priced, and no more when the run would be opened."""
    adaptation = model(connect(), method, shared=shared)
    sites["south"].curator.failures["Describe"] = [None, errors.CuratorUnavailable("gone")]
    fit(adaptation)
    assert states(adaptation) == {"north": "finished", "south": "refused"}
    assert "CuratorUnavailable: gone" in adaptation.reports[1]["reason"]
    require_all_asked(sites["north"], method, STEPS)
    assert sites["south"].curator.spent == 0.0


def test_a_shared_head_follows_the_weighted_mean_of_the_sites_gradients(connect, sites):
    """Weights 3 and 1: the step's private part is 3/4 of north's sums over its batch and 1/4 of south's."""
    federation = connect(weights={"north": 3.0, "south": 1.0})
    adaptation = model(federation, "finetune", shared=True, steps=1)
    fit(adaptation)
    private = torch.zeros(())
    for name, share in (("north", 0.75), ("south", 0.25)):
        run = adaptation.sites[name].run
        (reply,) = [v for v in sites[name].curator.stored.values() if isinstance(v, pb.DrawStepResponse)]
        sums = LossGradientReply.from_bytes(StepRelease.from_bytes(reply.step_release).payload).gradient.to_tensor()
        private = private + share * sums / run.plan.batch_size
    gradient = torch.cat([parameter.grad.reshape(-1) for parameter in run.parameters])
    torch.testing.assert_close(gradient, private, rtol=1e-5, atol=1e-7)


def test_sites_are_planned_by_one_method(connect, sites):
    federation = connect()
    plans = federation.plan(small("rows"), epsilon=1.0, steps=STEPS, batch_size=16)
    south = federation.hospitals["south"]
    other = south.plan(small("rows", directions=5), epsilon=1.0, steps=STEPS, batch_size=16)
    with pytest.raises(SettingsError, match=r"differ in their method.*directions=5.*plan alike"):
        DomainAdaptation(*small_network(), hospital=federation, plan=plans | {"south": other})
    assert [served.curator.spent for served in sites.values()] == [0.0, 0.0]


def test_a_run_that_the_operator_closes_in_the_middle_ends_for_that_site_alone(connect, sites):
    sites["south"].curator.failures["DrawStep"] = [None, None, errors.RunFinished("closed by the operator")]
    adaptation = fit(model(connect(), "rows"))
    assert states(adaptation) == {"north": "finished", "south": "set aside"}
    assert sites["north"].curator.steps_charged == STEPS


def test_when_no_site_is_left_the_first_error_says_so(connect, sites):
    federation = connect()
    adaptation = model(federation, "finetune")
    for served in sites.values():
        served.curator.spent = 4.5
    with pytest.raises(errors.BudgetExhausted):
        fit(adaptation)
    for served in sites.values():
        served.curator.spent = 0.0
        served.curator.failures["DrawStep"] = [None, errors.CuratorUnavailable("gone")]
    with pytest.raises(errors.CuratorUnavailable) as ended:
        fit(adaptation)
    assert any("gone" in note for note in ended.value.__notes__)


def test_sites_may_have_budgets_and_lengths_of_their_own(connect, sites):
    sites["south"].curator.price = 1.9  # what its ledger says, not what was planned
    adaptation = fit(
        model(
            connect(),
            "rows",
            epsilon={"north": 1.0, "south": 2.0},
            steps={"north": STEPS, "south": 2},
        )
    )
    assert {name: served.curator.steps_charged for name, served in sites.items()} == {"north": STEPS, "south": 2}
    assert [report["charged_epsilon"] for report in adaptation.reports] == [1.0, 1.9]


def test_a_site_that_does_not_answer_at_first_is_left_out(sites, certificates, caplog):
    addresses = {"north": sites["north"].address, "south": "localhost:1"}
    with Federation.connect(
        addresses, credentials=dict.fromkeys(addresses, certificates), patience_s=0.0
    ) as federation:
        assert list(federation) == ["north"]
        assert "south is left out" in caplog.text
        assert list(federation.plan(epsilon={"north": 1.0, "south": 1.0})) == ["north"]
        with pytest.raises(InvalidValue, match="epsilon names west"):
            federation.plan(epsilon={"north": 1.0, "west": 1.0})
    with pytest.raises(errors.CuratorUnavailable):
        Federation.connect({"south": "localhost:1"}, credentials={"south": certificates}, patience_s=0.0)
    with pytest.raises(SettingsError, match="no credentials for south"):
        Federation.connect(addresses, credentials={"north": certificates})


def test_plans_and_weights_are_of_connected_sites(connect):
    federation = connect()
    plans = federation.plan(small("rows"), epsilon=1.0, steps=2, batch_size=16)
    federation.hospitals.pop("south")
    with pytest.raises(SettingsError, match=r"plans for \['south'\]; the connected sites are \['north'\]"):
        federation.check_planned(plans)
    with pytest.raises(SettingsError, match="positive"):
        Federation(federation.hospitals, weights={"north": 0.0})
