"""A team's own bad data: a clear error, and nothing is charged for it."""

from __future__ import annotations

import itertools
import math
import re

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from dpswd import AllWeights, DomainAdaptation, Hospital, Replay, Rows
from dpswd.public_client.data.checks import CheckedBatches, undisturbed
from dpswd.public_client.data.datasets import Labelled
from dpswd.public_client.data.source import source_loader, train_source
from dpswd.public_client.testing.mock import MockCurator, mock_description
from dpswd.shared.core.errors import DataInvalid, InvalidValue

D, CLASSES = 6, 3


def good(batches=4, size=8):
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(CLASSES, (batches, size), generator=generator)
    return [(torch.randn(size, D, generator=generator) + y[:, None], y) for y in labels]


def network(width=D):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(width, 5), nn.Dropout(0.5), nn.Tanh()), nn.Linear(5, CLASSES)


def labelled(change):
    """Good batches but for one record's label in the last one."""
    batches = good()
    records, labels = batches[-1]
    batches[-1] = records, change(labels.clone())
    return batches


def with_records(change):
    batches = good()
    records, labels = batches[-1]
    batches[-1] = change(records.clone()), labels
    return batches


def put(tensor, value):
    tensor[3, ...] = value
    return tensor


BAD = {
    "label too large": (labelled(lambda y: put(y, 3)), "batch 4 .* label 3; the classifier has 3 scores, .* 0 to 2"),
    "label -1": (labelled(lambda y: put(y, -1)), "batch 4 .* label -1"),
    "fractional labels": (labelled(lambda y: y + 0.5), "labels of type torch.float32; needed are class numbers: whole"),
    "one-hot labels": (labelled(lambda y: nn.functional.one_hot(y, 3)), r"labels of shape \(8, 3\) for 8 records"),
    "too few labels": (labelled(lambda y: y[:-1]), r"labels of shape \(7,\) for 8 records"),
    "NaN": (with_records(lambda x: put(x, math.nan)), r"batch 4 .* NaN or infinity, first in record 3 at \(0,\)"),
    "infinity": (with_records(lambda x: put(x, math.inf)), "NaN or infinity"),
    "bytes": (with_records(lambda x: x.to(torch.uint8)), "type torch.uint8"),
    "another shape": (with_records(lambda x: x[:, :-1]), r"batch 4 .* shape \(5,\), the first batch of \(6,\)"),
    "no axis": (with_records(lambda x: x[:, 0]), r"shape \(8,\)"),
    "empty": (with_records(lambda x: x[:0]), "m >= 1"),
    "numpy": ([(x.numpy(), y.numpy()) for x, y in good()], "records of type ndarray; needed are tensors"),
    "numpy labels": ([(x, np.asarray(y)) for x, y in good()], "labels of type ndarray"),
    "dicts": ([{"x": x, "y": y} for x, y in good()], r"batch 1 of the source is a dict; needed is \(records, labels\)"),
    "triples": ([(x, y, y) for x, y in good()], "is a tuple of 3"),
    "wrong width": ([(x[:, :4], y) for x, y in good()], r"do not take source records of shape \(4,\)"),
}


@pytest.mark.parametrize("epochs", [0, 1], ids=["trained already", "to be trained"])
@pytest.mark.parametrize(
    ("what", "method"),
    [*((what, Replay) for what in BAD), *itertools.product(["label -1", "NaN"], [Rows, AllWeights])],
)
def test_bad_batches_are_refused_and_nothing_is_charged(what, method, epochs):
    batches, says = BAD[what]
    curator = MockCurator(mock_description(records=200, record_shape=(D,), epsilon=4.0, delta=1e-5))
    hospital, size = Hospital(curator), {} if method is Replay else {"steps": 3, "batch_size": 50}
    plan = hospital.plan(method(directions=4), epsilon=1.0, **size)
    model = DomainAdaptation(*network(), hospital=hospital, plan=plan, source_epochs=epochs, device="cpu")
    with pytest.raises(DataInvalid, match=says):
        model.fit(batches, progress=False)
    assert curator.charges == []


@pytest.mark.parametrize("kind", ["int", "float", "bool", "uint8"])
def test_labels_of_a_binary_loss_and_double_records_are_taken_for_what_they_are(kind):
    batches = [(x.double(), (y > 0).to(getattr(torch, kind))[:, None]) for x, y in good()]
    for (records, labels), (x, y) in zip(CheckedBatches(batches, *network()), good(), strict=True):
        assert records.dtype == torch.float32
        assert torch.equal(records, x)
        assert labels.dtype == torch.int64
        assert torch.equal(labels, (y > 0).long())


@pytest.mark.parametrize("what", BAD)
def test_source_training_and_local_methods_refuse_them_as_well(what):
    batches, says = BAD[what]
    with pytest.raises(DataInvalid, match=says):
        train_source(*network(), batches, epochs=1)


def flat_model(curator):
    extractor = nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.Tanh())
    hospital = Hospital(curator)
    plan = hospital.plan(Replay(directions=4), epsilon=1.0)
    return DomainAdaptation(extractor, nn.Linear(5, 3), hospital=hospital, plan=plan, source_epochs=0, device="cpu")


@pytest.mark.parametrize("shape", [(1, 2, 3), (6,), (2, 3)])
def test_a_source_of_another_shape_than_the_hospitals_is_refused(shape):
    curator = MockCurator(mock_description(records=200, record_shape=shape, epsilon=4.0, delta=1e-5))
    records = torch.randn(8, 3, 2, generator=torch.Generator().manual_seed(0))
    batches = [(records, torch.zeros(8, dtype=torch.int64))]
    with pytest.raises(DataInvalid, match=rf"records have shape \(3, 2\), the hospital's {re.escape(str(shape))}"):
        flat_model(curator).fit(batches, progress=False)
    assert curator.charges == []
    flat_model(curator).fit([(x.reshape(8, *shape), y) for x, y in batches], progress=False)
    assert len(curator.charges) == 1


@pytest.mark.parametrize("which", ["extractor", "classifier"])
def test_a_weight_that_is_not_finite_is_refused_and_nothing_is_charged(which):
    mock = MockCurator(mock_description(records=60, record_shape=(D,), epsilon=9.0, delta=1e-5))
    modules = dict(zip(("extractor", "classifier"), network(), strict=True))
    with torch.no_grad():
        next(modules[which].parameters())[0, 0] = math.nan
    hospital = Hospital(mock)
    plan = hospital.plan(epsilon=1.0)
    with pytest.raises(InvalidValue, match=rf"the {which}'s (0\.)?weight holds NaN or infinity.*Nothing was spent"):
        DomainAdaptation(*modules.values(), hospital=hospital, plan=plan, source_epochs=0, device="cpu").fit(good())
    assert not mock.charges


def test_a_classifier_that_gives_no_scores_is_named():
    with pytest.raises(DataInvalid, match=r"the classifier gives \(1,\) for one record; needed is \(1, C\)"):
        train_source(nn.Linear(D, 5), nn.Sequential(nn.Linear(5, 1), nn.Flatten(0)), good(), epochs=1)


def test_an_empty_loader_is_refused():
    with pytest.raises(InvalidValue, match="gives no batches"):
        CheckedBatches([], *network())


class Once:
    """Iterable, but its batches are used up after one pass."""

    def __init__(self):
        self.batches = iter(good())

    def __iter__(self):
        return self.batches


@pytest.mark.parametrize("epochs", [0, 2], ids=["trained already", "to be trained"])
@pytest.mark.parametrize("source", [lambda: iter(good()), lambda: (b for b in good()), Once])
def test_a_source_of_one_pass_is_refused_and_nothing_is_charged(source, epochs):
    curator = MockCurator(mock_description(records=200, record_shape=(D,), epsilon=4.0, delta=1e-5))
    hospital = Hospital(curator)
    plan = hospital.plan(Replay(directions=4), epsilon=1.0)
    model = DomainAdaptation(*network(), hospital=hospital, plan=plan, source_epochs=epochs, device="cpu")
    with pytest.raises(InvalidValue, match=r"used up after one pass, .* pass a DataLoader or a list"):
        model.fit(source(), progress=False)
    assert curator.charges == []


def test_checks_change_no_seeds_draw():
    data = Labelled(torch.randn(100, D), torch.randint(CLASSES, (100,)))

    def passes(look):
        torch.manual_seed(5)
        loader = source_loader(data, batch_size=16, seed=3)
        if look:
            checked = CheckedBatches(loader, *network_of_its_own())
            checked.check_all()
            assert len(checked) == 7
            loader = checked
        return [torch.cat([y for _, y in loader]) for _ in range(3)], torch.rand(4)

    def network_of_its_own():
        with undisturbed(None):
            return network()

    for plain, looked in zip(*(passes(look)[0] for look in (False, True)), strict=True):
        assert torch.equal(plain, looked)
    assert torch.equal(passes(False)[1], passes(True)[1])


def test_modules_stay_in_their_mode():
    extractor, classifier = network()
    extractor[1].eval()
    CheckedBatches(good(), extractor, classifier)
    assert [m.training for m in extractor] == [True, False, True]
    assert classifier.training


class Stream(IterableDataset):
    def __iter__(self):
        return iter(zip(*(part for part in map(torch.cat, zip(*good(), strict=True))), strict=True))


def test_a_stream_without_a_length_is_counted():
    batches = CheckedBatches(DataLoader(Stream(), batch_size=8), *network())
    assert len(batches) == 4
    train_source(*network(), DataLoader(Stream(), batch_size=8), epochs=2)


def test_a_loader_of_tensors_passes_as_it_is():
    records, labels = (torch.cat(part) for part in zip(*good(), strict=True))
    batches = CheckedBatches(DataLoader(TensorDataset(records, labels), batch_size=8), *network())
    assert torch.equal(torch.cat([x for x, _ in batches]), records)
    assert (batches.record_shape, batches.classes) == ((D,), CLASSES)
