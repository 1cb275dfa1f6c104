"""The ladder: what is asked, what it costs, when it stops, and that nothing is charged twice."""

from __future__ import annotations

import copy
import json
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest
import torch
from text_networks import WORDS, D, T
from torch import nn
from torch.nn import functional

from dpswd import adapt, plan_ladder
from dpswd.public_client.adaptation.domain_adaptation import DomainAdaptation
from dpswd.public_client.ladder.pricing import budgets_of, priced_together
from dpswd.public_client.ladder.rungs import GLANCE, LAYERS, SHARES, VIEWS, Ladder, applicable, sized_plan
from dpswd.public_client.ladder.whole_model import as_batches, split
from dpswd.public_client.testing.local_hospital import LocalHospital
from dpswd.public_client.testing.mock import mock_description
from dpswd.public_client.training.saved_model import load_adapted
from dpswd.shared.accounting.pricing import filter_for
from dpswd.shared.core.errors import BudgetExhausted, DataInvalid, InvalidValue
from dpswd.shared.core.privacy.budget import PrivacyBudget

pytestmark = pytest.mark.usefixtures("short_tuning", "extractors_in_process")
SIDE, CLASSES, RECORDS = 8, 4, 1200


class Named(nn.Module):
    """A network whose head is found by no order of registration."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(12, CLASSES)
        self.body = nn.Sequential(
            nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.fc(self.body(images))
        return scores


def made_images(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Stripes of four directions on a grey ground, within [-1, 1]."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    y, x = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    angle = labels * torch.pi / CLASSES
    phase = 2 * torch.pi * torch.rand(count, generator=generator)
    wave = (x * torch.cos(angle)[:, None, None] + y * torch.sin(angle)[:, None, None]) * 1.6 + phase[:, None, None]
    images = 0.6 * torch.sin(wave) + 0.15 * torch.randn(count, SIDE, SIDE, generator=generator)
    return images[:, None].clamp(-1, 1), labels


@contextmanager
def connected(*hospitals):
    """A connection to each of several hospitals: records, and the epsilon of its budget."""
    with ExitStack() as opened:
        served = [LocalHospital(own.numpy(), epsilon=epsilon, delta=1e-5) for own, epsilon in hospitals]
        yield [opened.enter_context(opened.enter_context(one).connect()) for one in served]


@pytest.fixture(scope="module")
def trained() -> Named:
    torch.manual_seed(0)
    network, (images, labels) = Named(), made_images(1200, 1)
    optimizer = torch.optim.Adam(network.parameters(), 1e-2)
    for _ in range(24):
        for part in torch.randperm(len(images)).split(120):
            loss = functional.cross_entropy(network(images[part]), labels[part])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return network.eval()


def accuracy(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    with torch.no_grad():
        return 100.0 * float((model(images).argmax(1) == labels).float().mean())


def described(epsilon: float = 1.0):
    return mock_description(records=RECORDS, record_shape=(1, SIDE, SIDE), epsilon=epsilon, delta=1e-5)


def test_a_split_gives_the_same_scores(trained):
    records = made_images(32, 5)[0]
    parts = split(trained, records)
    assert isinstance(parts.classifier, nn.Linear)
    with torch.no_grad():
        assert torch.allclose(parts.whole()(records), trained(records), atol=1e-6)


@pytest.mark.parametrize("wrapped", [torch.compile, nn.DataParallel, lambda own: copy.deepcopy(own).double()])
def test_a_model_is_taken_out_of_what_it_was_trained_in(trained, wrapped):
    records = made_images(32, 5)[0]
    own = wrapped(trained)
    before = {name: value.dtype for name, value in own.state_dict().items()}
    with torch.no_grad():
        torch.testing.assert_close(split(own, records).whole()(records), trained(records))
    assert {name: value.dtype for name, value in own.state_dict().items()} == before  # the team's own stays as it is


def test_a_compiled_script_is_refused_with_what_to_pass(trained):
    records = made_images(8, 5)[0]
    with pytest.raises(InvalidValue, match=r"is compiled already; pass the module it was made of, or its ONNX"):
        split(torch.jit.trace(trained, records), records)


def test_a_model_whose_head_is_not_last_is_refused_in_words():
    model = nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, CLASSES), nn.Tanh())
    with pytest.raises(InvalidValue, match=r"head=\.\.\."):
        split(model, made_images(8, 0)[0])
    with pytest.raises(InvalidValue, match="cannot be adapted"):
        split(b"model", made_images(8, 0)[0])


def test_scores_of_a_convolution_are_adapted_as_they_are_and_logarithms_of_probabilities():
    torch.manual_seed(0)
    head = nn.Conv2d(8, CLASSES, 1)
    network = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), head, nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    with torch.no_grad():
        head.bias[0] += 3.0
    images = made_images(8, 0)[0]
    model = split(network.eval(), images)
    torch.testing.assert_close(model.whole()(images), network(images))
    assert isinstance(model.classifier, nn.Identity)
    rungs, left_out = applicable(described(1.0), model, classes=CLASSES)
    assert {GLANCE, LAYERS} <= set(rungs), left_out
    for end in (nn.Softmax(dim=1), nn.LogSoftmax(dim=1)):  # of probabilities logarithms are scores
        taken = split(nn.Sequential(nn.Sequential(*network), _Ending(end)).eval(), images).whole()
        torch.testing.assert_close(torch.softmax(taken(images), dim=1), torch.softmax(network(images), dim=1))
    with pytest.raises(InvalidValue, match="not probabilities"):
        split(nn.Sequential(nn.Sequential(*network), _Ending(nn.Sigmoid())).eval(), images)


class _Ending(nn.Module):
    """An end that is not found among the layers, as a function in forward is not."""

    def __init__(self, end):
        super().__init__()
        self.ends = (end,)

    def forward(self, scores):
        return self.ends[0](scores)


def test_sources_of_all_kinds_give_batches():
    images, labels = made_images(50, 0)
    for source in ((images, labels), (images.numpy(), labels.numpy()), [(images, labels)]):
        records, classes = next(iter(as_batches(source)))
        assert records.dtype == torch.float32
        assert classes.dtype == torch.int64
    with pytest.raises(DataInvalid, match="int"):
        as_batches(3)


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 8.0])
def test_all_rungs_together_cost_what_was_asked(trained, epsilon):
    description, model = described(epsilon), split(trained, made_images(8, 0)[0])
    rungs, _ = applicable(description, model, classes=CLASSES)
    plans = {name: sized_plan(description, rung.method, model, epsilon=epsilon) for name, rung in rungs.items()}
    assert list(plans)[:2] == [GLANCE, LAYERS]
    budgets = budgets_of(description, epsilon=epsilon)
    priced = priced_together(budgets, plans, SHARES, epsilon=epsilon)
    events = [plan.event() for plan in priced.values()]
    own = filter_for(PrivacyBudget(epsilon, 1e-5), plan=events[0])
    spent = own.zero()
    for event in events:
        spent = own.admit(spent, own.price(event))
    assert 0.99 * epsilon < own.epsilon(spent) <= epsilon
    for plan, event in zip(priced.values(), events, strict=True):  # the ledger's own quote raises no noise
        assert own.alone(own.price(event)) <= plan.epsilon < epsilon
    with pytest.raises(BudgetExhausted):
        own.admit(spent, own.price(sized_plan(description, rungs[VIEWS].method, model, epsilon=epsilon).event()))


def test_an_epsilon_that_bears_no_rung_is_refused_before_anything_is_asked(trained):
    description, model = described(1.0), split(trained, made_images(8, 0)[0])
    rungs, _ = applicable(description, model, classes=CLASSES)
    plans = {name: sized_plan(description, rung.method, model, epsilon=1.0) for name, rung in rungs.items()}
    with pytest.raises(InvalidValue, match="does not bear"):
        priced_together(budgets_of(description, epsilon=1e-4), plans, SHARES, epsilon=1e-4)


@pytest.mark.long
def test_moved_channels_are_put_right_and_a_repeat_charges_nothing(trained, tmp_path):
    images, labels = made_images(RECORDS, 2)
    shifted = (0.35 * images - 0.5).clamp(-1, 1)
    source = made_images(1200, 1)
    before = accuracy(trained, shifted, labels)
    assert before < 60.0
    with connected((shifted, 4.0)) as (hospital,):
        ladder = plan_ladder(trained, source, hospital, epsilon=4.0)
        assert str(ladder).startswith("Recommended for rehearsal: the ladder, because a glance at what your model")
        assert f"  {'':<8} if it comes to that, it takes about" in str(ladder)  # the views' fit
        assert hospital.describe().spent == 0.0
        adapted = adapt(trained, source, hospital, epsilon=4.0, directory=tmp_path / "run", progress=False)
        assert [answer.rung for answer in adapted.answers][:2] == [GLANCE, LAYERS]
        assert adapted.changed
        assert accuracy(adapted.module, shifted, labels) > before + 20.0
        assert torch.equal(adapted.predict(shifted.numpy().astype("float64")), adapted.predict(shifted))
        assert str(adapted).startswith("Your model was changed for rehearsal: its inputs look paler, or blurred, there")
        assert "nats" not in str(adapted)
        assert "nats" in adapted.explain() or VIEWS not in {answer.rung for answer in adapted.answers}
        spent = hospital.describe().spent
        assert 0.0 < spent <= 4.0
        again = adapt(trained, source, hospital, epsilon=4.0, directory=tmp_path / "run", progress=False)
        assert hospital.describe().spent == spent
        for one, other in zip(adapted.module.state_dict().values(), again.module.state_dict().values(), strict=True):
            assert torch.equal(one, other)
        file = adapted.save(tmp_path / "adapted.safetensors")
        assert file.stat().st_size > 0
        assert json.loads((tmp_path / "run" / "ladder.json").read_text())["epsilon"] == 4.0


@pytest.mark.long
def test_where_nothing_has_changed_one_cheap_question_is_charged_and_the_model_stays(trained):
    images, _ = made_images(RECORDS, 2)
    with connected((images, 2.0)) as (hospital,):
        adapted = adapt(trained, made_images(1200, 1), hospital, epsilon=2.0, progress=False)
        assert [answer.rung for answer in adapted.answers] == [GLANCE]
        assert not adapted.changed
        assert str(adapted).startswith("Your model is kept for rehearsal: it sees there what it saw of your source")
        assert "not asked, and not charged: layers, views" in str(adapted)
        assert hospital.describe().spent < 1.2


@pytest.mark.long
def test_a_source_of_words_as_whole_numbers_is_read_and_no_map_moves_them():
    torch.manual_seed(0)
    labels = torch.randint(3, (RECORDS,))
    words = 1 + torch.randint(4, (RECORDS, T)) + 4 * labels[:, None]
    model = nn.Sequential(nn.Embedding(WORDS, D), nn.LayerNorm(D), nn.Flatten(), nn.Linear(T * D, 3)).eval()
    with torch.no_grad():
        model[0].weight[20:] += 2.0  # what no word of the source is
    with connected((words.float() + 19.0, 2.0)) as (hospital,):
        assert list(plan_ladder(model, (words, labels), hospital, epsilon=2.0).plans) == [GLANCE, LAYERS]
        batches = [(words[i : i + 100], labels[i : i + 100]) for i in range(0, RECORDS, 100)]
        adapted = adapt(model, batches, hospital, epsilon=2.0, progress=False)
        assert adapted.answers[0].plain.startswith("numbers in its first layer")
        assert adapted.predict(words[:5].float()).shape == (5,)
        named = split(model, words[:8].float(), head="3")
        torch.testing.assert_close(named.whole()(words[:5].float()), model(words[:5]), atol=1e-5, rtol=1e-5)
        with pytest.raises(DataInvalid, match=r"Sequential takes no records of shape .*: index out of range"):
            split(model, words[:8].float() + 99.0)


@pytest.mark.long
def test_a_hospital_that_answers_no_further_leaves_what_was_reached(trained, monkeypatch):
    images, labels = made_images(RECORDS, 2)
    shifted = (0.35 * images - 0.5).clamp(-1, 1)
    whole = DomainAdaptation.fit

    def refused(self, *args, **options):
        if self.method.name == "replay":
            raise BudgetExhausted(1.0, 1.0, 0.0)
        return whole(self, *args, **options)

    monkeypatch.setattr(DomainAdaptation, "fit", refused)
    with connected((shifted, 4.0)) as (hospital,):
        adapted = adapt(trained, made_images(1200, 1), hospital, epsilon=4.0, progress=False)
    assert [answer.rung for answer in adapted.answers] == [GLANCE, LAYERS]
    assert "answers no further" in adapted.ended
    assert accuracy(adapted.module, shifted, labels) > accuracy(trained, shifted, labels)


def test_records_of_another_shape_are_refused_before_a_charge(trained):
    records = np.zeros((50, 3), np.float32)
    with (
        LocalHospital(records, epsilon=1.0, delta=1e-5) as here,
        here.connect() as hospital,
        pytest.raises(DataInvalid, match="shape"),
    ):
        plan_ladder(trained, made_images(64, 1), hospital, epsilon=1.0)


def test_what_cannot_travel_is_listed_once(trained):
    class Branches(nn.Module):
        def forward(self, x):
            return x if float(x.mean()) > 0 else -x

    source = made_images(64, 1)
    with (
        LocalHospital(source[0].numpy(), epsilon=1.0, delta=1e-5) as here,
        here.connect() as hospital,
        pytest.raises(InvalidValue, match="tracing failed") as refused,
    ):
        plan_ladder(nn.Sequential(Branches(), trained), source, hospital, epsilon=1.0)
    assert str(refused.value).count("tracing failed") == 1
    assert "views: as glance" in str(refused.value)


@pytest.mark.parametrize("value_range", [None, (0.0, 1.0)])
def test_images_of_bytes_as_floats_are_refused_before_a_charge(trained, value_range):
    """A whole epsilon went to such a source, and 2194.8% of the variance was unexplained."""
    (images, labels), target = made_images(256, 1), (made_images(300, 2)[0] + 1) / 2
    with (
        LocalHospital(target.numpy(), epsilon=1.0, delta=1e-5, value_range=value_range) as here,
        here.connect() as hospital,
    ):
        with pytest.raises(DataInvalid, match=r"reach from .* to 255"):
            adapt(trained, ((images + 1) * 127.5, labels), hospital, epsilon=1.0, progress=False)
        assert hospital.describe().spent == 0.0


@pytest.mark.long
@pytest.mark.parametrize("hospital", [object(), {}, "hospital:50051"])
def test_what_is_no_connection_is_refused_in_words(trained, hospital):
    with pytest.raises(InvalidValue, match=r"needed is a connection, connect\(...\)"):
        adapt(trained, made_images(60, 2), hospital, progress=False)


def test_one_hospital_that_is_exhausted_leaves_the_other_alone_and_is_named(trained):
    images = made_images(RECORDS, 2)[0]
    with connected((images, 2.0), (images, 0.5)) as (large, small):
        adapted = adapt(trained, made_images(1200, 1), {"large": large, "small": small}, epsilon=2.0, progress=False)
        assert (large.describe().spent > 0.0, small.describe().spent) == (True, 0.0)
        with pytest.raises(BudgetExhausted):
            adapt(trained, made_images(1200, 1), {"small": small}, epsilon=2.0, progress=False)
    assert isinstance(adapted["small"].lost, BudgetExhausted)
    assert str(adapted).startswith("Your model was kept for large, small.")
    assert "small was left out, and your model stays as it is: BudgetExhausted" in str(adapted)
    (report,) = adapted["small"].reports("small")
    assert (report["state"], report["charged_epsilon"]) == ("refused", 0.0)


def test_what_is_not_asked_is_asked_more_exactly_of_the_last_rungs(trained):
    description, model = described(1.0), split(trained, made_images(8, 0)[0])
    rungs, left_out = applicable(description, model, classes=CLASSES)
    plans = {name: sized_plan(description, rung.method, model, epsilon=1.0) for name, rung in rungs.items()}
    budgets = budgets_of(description, epsilon=1.0)
    ladder = Ladder(priced_together(budgets, plans, SHARES, epsilon=1.0), 1.0, left_out, "made", budgets)
    assert Ladder.from_json(json.loads(json.dumps(ladder.to_json()))) == ladder
    after = ladder.without({LAYERS}, [GLANCE])
    assert (after.plans[GLANCE], after.plans[LAYERS]) == (ladder.plans[GLANCE], ladder.plans[LAYERS])
    assert after.plans[VIEWS].noise < 0.8 * ladder.plans[VIEWS].noise
    own = filter_for(budgets[0], plan=after.plans[GLANCE].event())
    spent = own.zero()
    for name in (GLANCE, VIEWS):
        spent = own.admit(spent, own.price(after.plans[name].event()))
    assert 0.99 < own.epsilon(spent) <= 1.0
    assert ladder.without({LAYERS, VIEWS}, [GLANCE]) is ladder


@pytest.mark.long
def test_several_hospitals_are_asked_each_by_itself(trained, tmp_path):
    images, labels = made_images(RECORDS, 2)
    shifted = (0.35 * images - 0.5).clamp(-1, 1)
    with connected((images, 4.0), (shifted, 4.0)) as (plain, moved):
        adapted = adapt(trained, made_images(1200, 1), {"plain": plain, "moved": moved}, epsilon=4.0, progress=False)
    assert {name: own.changed for name, own in adapted.items()} == {"plain": False, "moved": True}
    assert str(adapted).startswith("Your model was changed for moved; kept for plain.")
    assert accuracy(adapted["moved"].module, shifted, labels) > accuracy(trained, shifted, labels) + 20.0
    files = adapted.save(tmp_path / "adapted.safetensors")
    assert [file.name for file in files] == ["adapted-plain.safetensors", "adapted-moved.safetensors"]
    assert torch.equal(load_adapted(files[1]).predict(shifted), adapted["moved"].predict(shifted))
