"""The training loop against scripted answers: what is charged, what changes, and what a crash leaves behind."""

from __future__ import annotations

import itertools

import pytest
import torch
from small_methods import of_every_method, require_all_asked, small, small_network

from dpswd import DomainAdaptation, Hospital
from dpswd.public_client.data.datasets import Labelled
from dpswd.public_client.data.source import source_loader
from dpswd.public_client.methods import method_kinds
from dpswd.public_client.published_methods.all_weights import AlignedRun
from dpswd.public_client.training.checkpoint import Checkpoint
from dpswd.public_client.training.saved_model import load_adapted
from dpswd.shared.core import errors
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.ledger.receipts import STEP_ANSWERED, SignedEntry
from dpswd.shared.published_mechanisms.gradient.mechanism import GradientRequest

STEPS = 6


def data(seed=0):
    generator = torch.Generator().manual_seed(seed)
    images = torch.rand(96, 1, 8, 8, generator=generator) * 2 - 1
    return Labelled(images, torch.randint(10, (96,), generator=generator))


@pytest.fixture
def connect(served, tmp_path):
    opened = []

    def make():
        hospital = Hospital.connect(
            served.address, credentials=served.credentials, patience_s=0.0, run_directory=tmp_path / "run"
        )
        opened.append(hospital)
        return hospital

    yield make
    for hospital in opened:
        hospital.close()


CUDA = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")]


def model(hospital, method, *, device="cpu", epsilon=1.0, steps=STEPS, batch_size=16, **settings):
    torch.manual_seed(3)
    extractor, classifier = small_network()
    plan = hospital.plan(small(method, **settings), epsilon=epsilon, steps=steps, batch_size=batch_size)
    return DomainAdaptation(extractor, classifier, hospital=hospital, plan=plan, source_epochs=1, device=device)


def fit_on(source, adaptation, **arguments):
    return adaptation.fit(source, progress=False, **arguments)


def fit(adaptation, **arguments):
    return fit_on(source_loader(data(), batch_size=32), adaptation, **arguments)


def weights(adaptation):
    trained = adaptation.model()
    modules = (trained.extractor, trained.classifier)
    return [value.clone() for module in modules for value in module.state_dict().values()]


def test_all_weights_train_on_both_sides_and_bring_their_map_with_each_step(connect, served):
    adaptation = model(connect(), "rows", learning_rate=1e-2)
    start = {name: value.clone() for name, value in adaptation.extractor.state_dict().items()}
    fit(adaptation)
    assert served.curator.calls["DrawStep"] == served.curator.steps_charged == STEPS
    assert all(step.feature_map is not None for step in served.curator.requests)
    assert len({step.adapted.tobytes() for step in served.curator.requests}) == STEPS
    assert adaptation.model().extractor is adaptation.extractor
    assert all(not torch.equal(value, start[name]) for name, value in adaptation.extractor.state_dict().items())
    assert adaptation.history[-1].step == STEPS
    assert adaptation.history[-1].epsilon == pytest.approx(1.0, rel=1e-3)


@pytest.mark.long
def test_replay_asks_once_and_tunes_on_public_data(connect, served):
    adaptation = fit(model(connect(), "replay", steps=1, batch_size=200))
    assert served.curator.calls["DrawStep"] == 1
    assert served.curator.run.mechanism == "quantiles"  # no gradient is asked for
    assert adaptation.model().extractor is not adaptation.extractor


def _devices():
    """On a CPU every method also runs to its end below, where a client dies."""
    yield from of_every_method("cpu")
    yield from (pytest.param(method, "cuda", marks=CUDA) for method in method_kinds())


@pytest.mark.parametrize(("method", "device"), list(_devices()))
@pytest.mark.long
def test_every_method_runs_on_every_device(connect, served, device, method, tmp_path):
    adaptation = fit(model(connect(), method, device=device), checkpoint=tmp_path / "run")
    require_all_asked(served, method, STEPS)
    assert all(value.device.type == device for value in weights(adaptation))
    assert adaptation.predict(data().images).device.type == device


def test_a_refused_run_leaves_an_adapted_model_as_it_was(connect, served):
    adaptation = fit(model(connect(), "all-weights"))
    adaptation.source_epochs = 0
    adapted = weights(adaptation)
    served.curator.spent = 4.5
    with pytest.raises(errors.BudgetExhausted):
        fit(adaptation)
    assert all(torch.equal(a, b) for a, b in zip(adapted, weights(adaptation), strict=True))


def test_a_run_that_the_ledger_counts_dearer_than_planned_is_not_opened(connect, served):
    with pytest.raises(InvalidValue, match="Nothing was spent"):
        fit(model(connect(), "all-weights", epsilon=0.9))  # the fake's ledger always says 1.0
    assert served.curator.spent == 0.0


def _deaths():
    """Every method dies where it costs most; wherever else that can be, one of each kind of training."""
    for failure, method in itertools.product(("open", "declared", "before", "after"), method_kinds()):
        usual = failure == "after" or method in ("statistics", "rows")
        yield pytest.param(failure, method, marks=() if usual else pytest.mark.exhaustive)


@pytest.mark.long
@pytest.mark.parametrize(("failure", "method"), list(_deaths()))
def test_a_client_that_dies_goes_on_without_spending_a_step_twice(connect, served, tmp_path, failure, method):
    if failure == "open":  # the whole run was charged, the answer was lost
        served.curator.lose_open_answer = True
    elif failure == "declared":  # on disk, and never arrived: two quotes came before the source training, one after
        served.curator.failures["OpenRun"] = [None, None, None, errors.CuratorFault("killed")]
    elif failure == "before":  # the request never arrived
        served.curator.failures["DrawStep"] = [None, None, errors.CuratorFault("killed")]
    else:  # it was charged and stored, the answer was lost
        served.curator.failures["DrawStep:after"] = [None, None, 1]
    with pytest.raises((errors.CuratorFault, errors.CuratorUnavailable)):
        fit(model(connect(), method), checkpoint=tmp_path / "run")
    assert Checkpoint(tmp_path / "run").begun
    adaptation = fit(model(connect(), method), checkpoint=tmp_path / "run")
    drawn = require_all_asked(served, method, STEPS)
    assert served.curator.spent == 1.0
    assert adaptation.history[-1].step in (drawn, STEPS)
    receipts = [SignedEntry.from_json(line) for line in (tmp_path / "run" / "receipts.jsonl").read_text().splitlines()]
    answered = [entry.payload["step"] for entry in receipts if entry.kind == STEP_ANSWERED]
    assert answered == list(range(1, drawn + 1))


@pytest.mark.parametrize("method", of_every_method())
@pytest.mark.long
def test_a_step_that_the_curator_gives_up_is_left_out(connect, served, tmp_path, method):
    """It is charged and gone; the training goes on with the run's next step, also where the request was resumed."""
    given_up = [None, None, errors.CuratorFault("an attempt failed"), errors.StepGivenUp("lost")]
    served.curator.failures["DrawStep"] = given_up

    def charge():
        served.curator.steps_charged += served.curator.calls["DrawStep"] == 3  # the step that will be lost, once

    served.curator.before_step = charge
    with pytest.raises(errors.CuratorFault):
        fit(model(connect(), method), checkpoint=tmp_path / "run")
    adaptation = fit(model(connect(), method), checkpoint=tmp_path / "run")
    drawn = require_all_asked(served, method, STEPS)
    assert adaptation.history[-1].step in (STEPS - 1, STEPS)
    receipts = [SignedEntry.from_json(line) for line in (tmp_path / "run" / "receipts.jsonl").read_text().splitlines()]
    answered = [entry.payload["step"] for entry in receipts if entry.kind == STEP_ANSWERED]
    assert answered == [1, 2, 4, 5, 6][: drawn - 1]


@pytest.mark.parametrize(
    "answered",
    [pytest.param(0, marks=pytest.mark.exhaustive), 3, pytest.param(STEPS - 1, marks=pytest.mark.exhaustive)],
)
@pytest.mark.parametrize("method", ["all-weights", "finetune"])
def test_a_resumed_training_ends_where_an_uninterrupted_one_does(connect, served, tmp_path, method, answered):
    """Whichever answer is the one that a killed client did not see any more; the source is one batch."""
    source = [(data().images, data().labels)]
    served.curator.failures["DrawStep:after"] = [None] * answered + [1]
    with pytest.raises(errors.CuratorUnavailable):
        fit_on(source, model(connect(), method), checkpoint=tmp_path / "run")
    resumed = fit_on(source, model(connect(), method), checkpoint=tmp_path / "run")
    assert served.curator.steps_charged == STEPS
    served.curator.restart()
    straight = fit_on(source, model(connect(), method))
    moved = [not torch.equal(a, b) for a, b in zip(weights(straight), weights(model(connect(), method)), strict=False)]
    assert any(moved)
    for a, b in zip(weights(resumed), weights(straight), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


@pytest.mark.parametrize("method", ["rows", "all-weights"])
def test_a_resumed_step_is_scored_with_the_batch_that_it_was_asked_with(connect, served, tmp_path, method, monkeypatch):
    """All weights: each request holds its own batch's features; the loader begins anew, its first batch is another."""
    served.curator.failures["DrawStep:after"] = [None, None, 1]
    with pytest.raises(errors.CuratorUnavailable):
        fit(model(connect(), method), checkpoint=tmp_path / "run")
    asked = GradientRequest.from_bytes(Checkpoint(tmp_path / "run").read_pending().payload)
    scored, answered = [], AlignedRun.answered
    seen = lambda run, half, drawn: scored.append(half.features.detach()) or answered(run, half, drawn)  # noqa: E731
    monkeypatch.setattr(AlignedRun, "answered", seen)
    fit(model(connect(), method), checkpoint=tmp_path / "run")
    torch.testing.assert_close(scored[0], torch.from_numpy(asked.source))
    assert served.curator.steps_charged == STEPS


def test_a_checkpoint_of_another_plan_is_refused(connect, tmp_path):
    fit(model(connect(), "all-weights"), checkpoint=tmp_path / "run")
    for other, wishes in (("all-weights", {"steps": STEPS + 1}), ("all-weights", {"clip_norm": 0.25}), ("rows", {})):
        with pytest.raises(errors.SettingsError, match="another plan"):
            fit(model(connect(), other, **wishes), checkpoint=tmp_path / "run")


def test_a_head_is_continued_as_it_was_declared(connect, served, tmp_path):
    """Its first weights come from the checkpoint: with others the curator would not know the model again."""
    served.curator.failures["DrawStep:after"] = [None, None, 1]
    with pytest.raises(errors.CuratorUnavailable):
        fit(model(connect(), "finetune"), checkpoint=tmp_path / "run")
    store = Checkpoint(tmp_path / "run")
    receipts = store.read("head")
    declared = served.curator.run
    assert served.curator.declared.sum.clip_norm == receipts["clip_norm"]
    fit(model(connect(), "finetune"), checkpoint=tmp_path / "run")
    assert served.curator.run == declared
    assert served.curator.steps_charged == STEPS
    (bias,) = [value for name, value in receipts["classifier"].items() if name.endswith("head.bias")]
    bias += 1.0
    store.write("head", receipts)
    with pytest.raises(errors.SettingsError, match="another extractor"):
        fit(model(connect(), "finetune"), checkpoint=tmp_path / "run")


def test_one_file_holds_the_whole_model(connect, tmp_path):
    adaptation = fit(model(connect(), "all-weights"))
    adaptation.save(tmp_path / "adapted.safetensors")
    loaded = load_adapted(tmp_path / "adapted.safetensors", device="cpu")
    images = data(5).images
    torch.testing.assert_close(
        loaded.scores(images), adaptation.classifier(adaptation.model().extractor(images)).detach()
    )
    assert loaded.plan["epsilon"] == 1.0
    with pytest.raises(errors.DataInvalid):
        load_adapted(__file__)


@pytest.mark.parametrize("method", ["all-weights", "rows"])
def test_an_open_run_serves_ones_own_loop(connect, served, method):
    hospital = connect()
    plan = hospital.plan(small(method), epsilon=1.0, steps=2, batch_size=16)
    extractor, _ = small_network()
    features = extractor.eval()(data().images)
    with hospital.open(plan, extractor) as run:
        loss = run.loss(features)
        loss.backward()
        assert all(parameter.grad is not None for parameter in extractor.parameters())
        run.loss(features.detach())
        with pytest.raises(errors.RunFinished):
            run.loss(features.detach())
    assert served.curator.steps_charged == 2
    assert served.curator.calls["UploadExtractor"] == 1


def test_probabilities_sum_to_one_and_the_score_is_the_share_of_right_classes(connect):
    adaptation = fit(model(connect(), "all-weights"))
    held = data(5)
    probabilities = adaptation.predict_proba(held.images)
    assert probabilities.shape == (96, 10)
    torch.testing.assert_close(probabilities.sum(dim=1), torch.ones(96))
    classes = adaptation.predict(held.images)
    assert torch.equal(probabilities.argmax(dim=1), classes)
    assert adaptation.score(held.images, held.labels) == (classes == held.labels).double().mean()
    assert adaptation.score(held.images, classes) == 1.0
    with pytest.raises(errors.DataInvalid, match=r"records have shape \(96, 64\); needed is \(n, 1, 8, 8\)"):
        adaptation.predict(held.images.flatten(1))
    with pytest.raises(errors.DataInvalid, match=r"labels have shape \(96, 1\); needed is \(96,\)"):
        adaptation.score(held.images, held.labels[:, None])  # compared as they come, each label meets every record
