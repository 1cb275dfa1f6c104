"""Newton's steps by noised gradients and public curvature: where they end, what noise leaves, and as a method."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from dpswd import DomainAdaptation, Finetune, Hospital, MockCurator, mock_description
from dpswd.public_client.published_methods.newton import Newton, less_sure
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.wire.limits import UNLABELLED

WIDTH, CLASSES, STEPS = 6, 3, 20
SCALES = torch.tensor([2.0, 1.0, 0.3, 0.1, 0.05, 0.02])
"""Deviations of the features: what tells the classes apart lies in the small ones too."""
WEIGHTS = torch.randn(CLASSES, WIDTH, generator=torch.Generator().manual_seed(4)) / SCALES


def made(count, seed, *, turned=0):
    """Records whose labels follow a softmax model; `turned` ones have the next class's name."""
    generator = torch.Generator().manual_seed(seed)
    records = SCALES * torch.randn(count, WIDTH, generator=generator)
    scores = records @ WEIGHTS.T - torch.empty(count, CLASSES).exponential_(generator=generator).log()
    return records, (scores.argmax(dim=1) + turned) % CLASSES


def head():
    zero = nn.Linear(WIDTH, CLASSES)
    nn.init.zeros_(zero.weight)
    nn.init.zeros_(zero.bias)
    return zero


def loss(classifier, records, labels):
    return float(functional.cross_entropy(classifier(records), labels).detach())


def right(classifier, records, labels):
    return float((classifier(records).argmax(dim=1) == labels).double().mean())


def descend(classifier, descent, records, labels, *, noise, steps=STEPS, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        descent.zero_grad()
        functional.cross_entropy(classifier(records), labels).backward()
        for parameter in classifier.parameters():
            parameter.grad += noise * torch.randn(parameter.shape, generator=generator)
        descent.step()
    return classifier


def test_without_noise_twenty_steps_end_at_the_minimum_and_in_noise_they_stay():
    public, hospital = made(3000, 1), made(3000, 2)
    start, newton, drowned = head(), head(), head()
    descend(newton, Newton(newton, public[0], noise=1e-9), *hospital, noise=0.0)
    aim = head()
    best = torch.optim.LBFGS(aim.parameters(), max_iter=300, line_search_fn="strong_wolfe")

    def closure():
        best.zero_grad()
        value = functional.cross_entropy(aim(hospital[0]), hospital[1])
        value.backward()
        return value

    best.step(closure)
    far = loss(start, *hospital) - loss(aim, *hospital)
    assert far > 0.3
    assert loss(newton, *hospital) - loss(aim, *hospital) < 0.1 * far
    plain = head()
    descend(plain, torch.optim.Adam(plain.parameters(), lr=0.2), *hospital, noise=0.0)
    assert loss(plain, *hospital) > loss(newton, *hospital)  # Adam does not see which directions are flat
    descend(drowned, Newton(drowned, public[0], noise=10.0), *hospital, noise=10.0)
    assert abs(loss(drowned, *hospital) - loss(start, *hospital)) < 0.2 * far


def test_its_state_can_be_stored_and_taken_up():
    public, hospital = made(500, 1), made(1000, 2)
    whole, half = head(), head()
    descend(whole, Newton(whole, public[0], noise=0.01), *hospital, noise=0.0, steps=3)
    stopped = Newton(half, public[0], noise=0.01)
    descend(half, stopped, *hospital, noise=0.0, steps=2)
    resumed = Newton(half, public[0], noise=0.01)
    resumed.load_state_dict(stopped.state_dict())
    descend(half, resumed, *hospital, noise=0.0, steps=1)
    torch.testing.assert_close(half.weight, whole.weight)
    again = head()
    again.load_state_dict(whole.state_dict())
    descend(again, Newton(again, public[0], noise=0.01), *hospital, noise=0.0, steps=1)
    fourth = descend(half, resumed, *hospital, noise=0.0, steps=1)
    assert not torch.allclose(again.weight, fourth.weight)  # a fourth step is shorter than a first


def adapted(hospital, plan, **fitting):
    """A classifier of public records, which learns a hospital's labels by a plan."""
    head = nn.Linear(WIDTH, CLASSES)
    model = DomainAdaptation(nn.Identity(), head, hospital=hospital, plan=plan, seed=0, source_epochs=50, device="cpu")
    source = torch.utils.data.TensorDataset(*made(2000, 1))
    return model.fit(torch.utils.data.DataLoader(source, batch_size=200), progress=False, **fitting)


@pytest.mark.long
def test_as_a_method_it_learns_the_hospitals_labels(tmp_path):
    records, labels = made(16_000, 3, turned=1)
    description = mock_description(records=16_000, record_shape=(WIDTH,), epsilon=2.0, delta=1e-5, classes=CLASSES)
    curator = MockCurator(
        description, records=records.numpy(), labels=labels.numpy(), randomness=np.random.default_rng(0).bytes
    )
    with Hospital(curator) as hospital:
        plan = hospital.plan(Finetune(), epsilon=1.0)
        assert (plan.batch_size, plan.steps) == (16_000, STEPS)
        model = adapted(hospital, plan, checkpoint=tmp_path / "run")
    fresh = made(4000, 4, turned=1)
    assert right(model.classifier, *fresh) < 0.3  # every label of the source has another name here
    ceiling = right(lambda records: records @ WEIGHTS.T, fresh[0], (fresh[1] - 1) % CLASSES)
    assert model.score(*fresh) > ceiling - 0.08
    assert type(model.model().classifier) is nn.Linear


def test_a_classifier_begins_less_sure_of_the_same_decisions():
    records, _ = made(1000, 5)
    torch.manual_seed(0)
    sure = nn.Linear(WIDTH, CLASSES)
    with torch.no_grad():
        sure.weight.mul_(30.0)
        made_less, unsure = less_sure(sure, records), less_sure(head(), records)
        assert float(torch.softmax(sure(records), dim=1).amax(dim=1).mean()) > 0.9
        assert float(torch.softmax(made_less(records), dim=1).amax(dim=1).mean()) == pytest.approx(0.8, abs=1e-4)
        torch.testing.assert_close(made_less(records).argmax(dim=1), sure(records).argmax(dim=1))
        assert not unsure.weight.any()


def test_it_averages_by_itself():
    with pytest.raises(InvalidValue, match="averages by itself"):
        Finetune(averaging=0.5)


@pytest.mark.parametrize("labelled", [0, 8_000])
@pytest.mark.long
def test_of_partly_labelled_records_it_learns_the_labels_there_are(labelled):
    """Half of them have one; how many is public, or private, and then steps are as much shorter."""
    records, labels = made(16_000, 3, turned=1)
    labels[::2] = UNLABELLED
    description = mock_description(
        records=16_000, record_shape=(WIDTH,), epsilon=2.0, delta=1e-5, classes=CLASSES, partly_labelled=True,
        labelled=labelled,
    )  # fmt: skip
    curator = MockCurator(
        description, records=records.numpy(), labels=labels.numpy(), randomness=np.random.default_rng(0).bytes
    )
    with Hospital(curator) as hospital:
        model = adapted(hospital, hospital.plan(Finetune(), epsilon=1.0))
        assert model.sites["curator"].run.labelled == (labelled or 16_000)
    fresh = made(4000, 4, turned=1)
    ceiling = right(lambda records: records @ WEIGHTS.T, fresh[0], (fresh[1] - 1) % CLASSES)
    assert right(model.classifier, *fresh) < 0.3
    assert model.score(*fresh) > ceiling - 0.12
