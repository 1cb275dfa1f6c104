"""The training loop against scripted answers: what is charged, what changes, and what a crash leaves behind."""

from __future__ import annotations

import pytest
import torch
from kinds_of_plan import method_of, planned

from public_client import Curator, DomainAdaptation
from public_client.data.datasets import Labelled
from public_client.data.networks import digits_network
from public_client.data.source import source_loader
from public_client.training.checkpoint import Checkpoint
from public_client.training.saved_model import load_adapted
from shared import errors
from shared.errors import InvalidValue
from shared.ledger.receipts import STEP_ANSWERED, SignedEntry
from shared.protocol.arrays import decode_floats
from shared.protocol.v1 import curator_pb2 as pb

STEPS = 6


def data(seed=0):
    generator = torch.Generator().manual_seed(seed)
    images = torch.rand(96, 1, 8, 8, generator=generator) * 2 - 1
    return Labelled(images, torch.randint(10, (96,), generator=generator))


@pytest.fixture
def connect(served, tmp_path):
    opened = []

    def make():
        curator = Curator.connect(
            served.address, credentials=served.credentials, patience_s=0.0, run_directory=tmp_path / "run"
        )
        opened.append(curator)
        return curator

    yield make
    for curator in opened:
        curator.close()


DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")],
    ),
]


def model(curator, *, device="cpu", **wishes):
    torch.manual_seed(3)
    extractor, classifier = digits_network((1, 8, 8))
    chosen = {
        "epsilon": 1.0,
        "steps": STEPS,
        "batch_size": 16,
        "directions": 8,
        "source_records": 64,
        "tuning_steps": 20,
    } | wishes
    plan = planned(curator, **chosen)
    return DomainAdaptation(extractor, classifier, curator=curator, plan=plan, source_epochs=1, device=device)


def fit(adaptation, **arguments):
    return adaptation.fit(source_loader(data(), batch_size=32), progress=False, **arguments)


def weights(adaptation):
    modules = (adaptation.target_extractor, adaptation.classifier)
    return [value.clone() for module in modules for value in module.state_dict().values()]


def test_the_adapter_way_changes_the_adapters_alone_and_draws_each_step_once(connect, served):
    adaptation = fit(model(connect(), parameters="adapters"))
    assert served.curator.steps_charged == STEPS
    assert served.curator.calls["UploadSource"] == 1
    before = dict(adaptation.extractor.named_parameters())
    for name, value in adaptation.target_extractor.named_parameters():
        if name.startswith("target_adapter"):
            assert value.grad is not None
        else:
            assert torch.equal(value, before[name]), name
    assert adaptation.history[-1].step == STEPS
    assert adaptation.history[-1].epsilon == pytest.approx(1.0, rel=1e-3)


def test_all_weights_train_on_both_sides_and_bring_their_map_with_each_step(connect, served):
    adaptation = model(connect(), release="rows", learning_rate=1e-2)
    start = {name: value.clone() for name, value in adaptation.extractor.state_dict().items()}
    fit(adaptation)
    assert served.curator.calls["AlignTarget"] == STEPS
    assert all(step.HasField("feature_map") for step in served.curator.inputs)
    assert len({step.adapted_parameters for step in served.curator.inputs}) == STEPS
    assert adaptation.target_extractor is adaptation.extractor
    assert all(not torch.equal(value, start[name]) for name, value in adaptation.extractor.state_dict().items())


def test_replay_asks_once_and_tunes_on_public_data(connect, served):
    adaptation = fit(model(connect(), parameters="none", steps=1, batch_size=200))
    assert served.curator.calls["ReleaseQuantiles"] == 1
    assert served.curator.run.gradient is None
    assert adaptation.target_extractor is not adaptation.extractor


WAYS = [{"parameters": "adapters"}, {"release": "rows"}, {"parameters": "none"}, {"release": "critic"}]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("wishes", WAYS)
def test_every_way_runs_on_every_device(connect, served, device, wishes, tmp_path):
    adaptation = fit(model(connect(), device=device, **wishes), checkpoint=tmp_path / "run")
    assert served.curator.steps_charged == STEPS
    assert all(value.device.type == device for value in weights(adaptation))
    assert adaptation.predict(data().images).device.type == device


def test_a_refused_run_leaves_an_adapted_model_as_it_was(connect, served):
    adaptation = fit(model(connect(), parameters="adapters"))
    adaptation.source_epochs = 0
    adapted = weights(adaptation)
    served.curator.spent = 4.5
    with pytest.raises(errors.BudgetExhausted):
        fit(adaptation)
    assert all(torch.equal(a, b) for a, b in zip(adapted, weights(adaptation), strict=True))


def test_a_run_that_the_ledger_counts_dearer_than_planned_is_not_opened(connect, served):
    with pytest.raises(InvalidValue, match="Nothing was spent"):
        fit(model(connect(), parameters="adapters", epsilon=0.9))  # the fake's ledger always says 1.0
    assert served.curator.spent == 0.0


@pytest.mark.parametrize(
    ("failure", "wishes"),
    [
        ("before", {"parameters": "adapters"}),  # the request never arrived
        ("after", {"parameters": "adapters"}),  # it was charged and stored, the answer was lost
        ("after", {"release": "rows"}),
        ("after", {"parameters": "none"}),
        ("open", {"parameters": "adapters"}),  # the whole run was charged, the answer was lost
        ("before", {"release": "critic"}),
        ("after", {"release": "critic"}),
        ("open", {"release": "critic"}),
        ("declared", {"release": "critic"}),  # the declaration is on disk, and never arrived
    ],
)
def test_a_client_that_dies_goes_on_without_spending_a_step_twice(connect, served, tmp_path, failure, wishes):
    method = method_of(wishes)
    if failure == "open":
        served.curator.lose_open_answer = True
    elif failure == "declared":  # asked twice before the source training, and once before the run is opened
        served.curator.failures["OpenRun"] = [None, None, None, errors.CuratorFault("killed")]
    elif failure == "before":
        served.curator.failures[method] = [None, None, errors.CuratorFault("killed")]
    else:
        served.curator.failures[method + ":after"] = [None, None, 1]
    with pytest.raises((errors.CuratorFault, errors.CuratorUnavailable)):
        fit(model(connect(), **wishes), checkpoint=tmp_path / "run")
    assert Checkpoint(tmp_path / "run").begun
    adaptation = fit(model(connect(), **wishes), checkpoint=tmp_path / "run")
    assert served.curator.steps_charged == STEPS
    assert served.curator.spent == 1.0
    assert adaptation.history[-1].step == STEPS
    kept = [SignedEntry.from_json(line) for line in (tmp_path / "run" / "receipts.jsonl").read_text().splitlines()]
    answered = [entry.payload["step"] for entry in kept if entry.kind == STEP_ANSWERED]
    assert answered == list(range(1, STEPS + 1))


@pytest.mark.parametrize("wishes", WAYS)
def test_a_step_that_the_curator_gives_up_is_left_out(connect, served, tmp_path, wishes):
    """It is charged and gone; the training goes on with the run's next step, also where the request was resumed."""
    method = method_of(wishes)
    served.curator.failures[method] = [None, None, errors.CuratorFault("an attempt failed"), errors.StepGivenUp("lost")]

    def charge():
        served.curator.steps_charged += served.curator.calls[method] == 3  # the step that will be lost, once

    served.curator.before_step = charge
    with pytest.raises(errors.CuratorFault):
        fit(model(connect(), **wishes), checkpoint=tmp_path / "run")
    adaptation = fit(model(connect(), **wishes), checkpoint=tmp_path / "run")
    assert served.curator.steps_charged == STEPS
    assert adaptation.history[-1].step in (STEPS - 1, STEPS)
    kept = [SignedEntry.from_json(line) for line in (tmp_path / "run" / "receipts.jsonl").read_text().splitlines()]
    answered = [entry.payload["step"] for entry in kept if entry.kind == STEP_ANSWERED]
    assert answered == [1, 2, 4, 5, 6]


@pytest.mark.parametrize(
    ("wishes", "answered"),
    [({"parameters": "adapters"}, 3), *(({"release": "critic"}, answered) for answered in (0, 3, STEPS - 1))],
)
def test_a_resumed_adapter_ends_where_an_uninterrupted_one_does(connect, served, tmp_path, wishes, answered):
    """Whichever answer is the one that a killed client did not see any more."""
    served.curator.failures[method_of(wishes) + ":after"] = [None] * answered + [1]
    with pytest.raises(errors.CuratorUnavailable):
        fit(model(connect(), **wishes), checkpoint=tmp_path / "run")
    resumed = fit(model(connect(), **wishes), checkpoint=tmp_path / "run")
    assert served.curator.steps_charged == STEPS
    served.curator.restart()
    straight = fit(model(connect(), **wishes))
    moved = [not torch.equal(a, b) for a, b in zip(weights(straight), weights(model(connect())), strict=False)]
    assert any(moved)
    for a, b in zip(weights(resumed), weights(straight), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_a_resumed_step_is_scored_with_the_batch_that_it_was_asked_with(connect, served, tmp_path):
    """All weights: each request holds its own batch's features; the loader begins anew, its first batch is another."""
    served.curator.failures["AlignTarget:after"] = [None, None, 1]
    with pytest.raises(errors.CuratorUnavailable):
        fit(model(connect(), release="rows"), checkpoint=tmp_path / "run")
    pending = Checkpoint(tmp_path / "run").read_pending()
    asked = pb.AlignTargetRequest.FromString(pending.message).source.inline
    resumed = fit(model(connect(), release="rows"), checkpoint=tmp_path / "run")
    scored = resumed.sites["curator"].run.first.source_features
    torch.testing.assert_close(scored, torch.from_numpy(decode_floats(asked, field="source", max_values=10**6)))
    assert served.curator.steps_charged == STEPS


def test_a_checkpoint_of_another_plan_is_refused(connect, tmp_path):
    fit(model(connect(), parameters="adapters"), checkpoint=tmp_path / "run")
    for other in ({"parameters": "adapters", "steps": STEPS + 1}, {"release": "critic"}):
        with pytest.raises(errors.SettingsError, match="another plan"):
            fit(model(connect(), **other), checkpoint=tmp_path / "run")


def test_a_critic_is_continued_as_it_was_declared(connect, served, tmp_path):
    """Its first weights come from the checkpoint: with others the curator would not know the model again."""
    served.curator.failures["ReleaseCriticGradient:after"] = [None, None, 1]
    with pytest.raises(errors.CuratorUnavailable):
        fit(model(connect(), release="critic"), checkpoint=tmp_path / "run")
    store = Checkpoint(tmp_path / "run")
    kept = store.read_critic()
    declared = served.curator.run
    assert declared.gradient.clip_norm == pytest.approx(kept["clip_norm"])
    again = model(connect(), release="critic")
    again.seed = 99  # of another critic, had there been none
    fit(again, checkpoint=tmp_path / "run")
    assert served.curator.run == declared
    assert served.curator.steps_charged == STEPS
    kept["critic"]["first.bias"] += 1.0
    store.write_critic(kept)
    with pytest.raises(errors.SettingsError, match="another extractor"):
        fit(model(connect(), release="critic"), checkpoint=tmp_path / "run")


def test_one_file_holds_the_whole_model(connect, tmp_path):
    adaptation = fit(model(connect(), parameters="adapters"))
    adaptation.save(tmp_path / "adapted.safetensors")
    loaded = load_adapted(tmp_path / "adapted.safetensors", device="cpu")
    images = data(5).images
    torch.testing.assert_close(
        loaded.scores(images), adaptation.classifier(adaptation.target_extractor(images)).detach()
    )
    assert loaded.plan["epsilon"] == 1.0
    with pytest.raises(errors.DataInvalid):
        load_adapted(__file__)


def test_alignment_loss_serves_ones_own_loop(connect, served):
    curator = connect()
    curator.plan(epsilon=1.0, steps=2, batch_size=16, directions=8, parameters="all", release="rows")
    extractor, _ = digits_network((1, 8, 8))
    features = extractor.eval()(data().images)
    loss = curator.alignment_loss(extractor, features)
    loss.backward()
    assert all(parameter.grad is not None for parameter in extractor.parameters())
    curator.alignment_loss(extractor, features.detach())
    with pytest.raises(errors.RunFinished):
        curator.alignment_loss(extractor, features.detach())
    assert served.curator.steps_charged == 2
    assert served.curator.calls["UploadExtractor"] == 1
