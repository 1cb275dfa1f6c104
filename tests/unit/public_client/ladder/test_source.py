"""What a team hands over, as arrays or as a frame, is looked at before anything is asked: by its own places."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

from dpswd.public_client.adaptation.hospital import Hospital
from dpswd.public_client.ladder.adapt import adapt
from dpswd.public_client.ladder.whole_model import as_batches, declared, split
from dpswd.public_client.models.trees import as_module
from dpswd.public_client.testing.mock import MockCurator, mock_description
from dpswd.shared.core.errors import DataInvalid, InvalidValue
from dpswd.shared.protocol.contract import DataContract

X = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)
GAP = X.copy()
GAP[7, 1] = np.nan


class Frame(dict):
    """As much of a data frame as is asked of one."""

    columns = property(lambda self: list(self))

    def __getitem__(self, named):
        return Frame({name: self[name] for name in named}) if isinstance(named, list) else super().__getitem__(named)

    def __array__(self, dtype=None, copy=None):
        return np.stack(list(self.values()), axis=1).astype(dtype)


def frame(order="abc", **others):
    values = dict(zip("abc", X.T, strict=True)) | others
    return Frame({name: values[name] for name in (*order, *others)} | {"y": Y})


class Fitted:
    feature_names_in_ = np.array(list("abc"))


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ((X, Y + 0.5), "labels are of type float64.*unique"),
        ((X, np.array(["no", "yes"])[Y]), "labels are of type <U3.*class numbers"),
        ((X, Y.astype(object)), "labels are of type object"),
        ((X, Y[:5]), "each record needs one label"),
        ((X[:0], Y[:0]), "each record needs one label"),
        ((X.astype("U9"), Y), "must be numbers"),
        ((GAP, Y), r"record 7 of the source holds NaN or infinity at \(1,\).*missing="),
        ((X, Y * 0), "all labels of the source are 0"),
    ],
)
def test_what_is_no_record_or_no_label_is_refused_with_its_place(source, words):
    with pytest.raises(DataInvalid, match=words):
        as_batches(source)


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int32, np.uint8])
def test_numbers_of_any_kind_are_taken(kind):
    (records, labels), *_ = as_batches((np.abs(X).round().astype(kind), Y.astype(np.float64)))
    assert (records.dtype, labels.dtype) == (torch.float32, torch.int64)


def test_a_frame_has_numbers_in_the_order_that_the_model_knows():
    seen = torch.cat([records for records, _ in as_batches(frame(), label="y", model=Fitted())])
    assert set(map(tuple, seen.tolist())) == set(map(tuple, X.tolist()))
    apart = frame()[list("abc")], Y  # as scikit-learn is given them
    torch.testing.assert_close(torch.cat([records for records, _ in as_batches(apart, model=Fitted())]), seen)
    for wrong in (frame("cab"), (frame("cab")[list("cab")], Y)):
        with pytest.raises(DataInvalid, match="columns are c, a, b, the model's were a, b, c"):
            as_batches(wrong, label="y", model=Fitted())
    with pytest.raises(DataInvalid, match="columns sex hold no numbers"):
        as_batches(frame(sex=np.array(["f", "m"])[Y]), label="y")


def test_names_that_a_frame_and_an_estimator_know_are_held_to_the_hospital_s():
    words = np.array(["well", "ill"])[Y]
    model = LogisticRegression().fit(X, words)
    theirs = DataContract(column_names=("a", "b", "c"), class_names=("well", "ill"))
    described = mock_description(records=60, record_shape=(3,), epsilon=1.0, delta=1e-4, classes=2, contract=theirs)
    curator = MockCurator(described, records=X, labels=Y)
    with pytest.raises(DataInvalid, match=r"class_names differ: .* first 'ill' for 'well'"):
        adapt(model, (X, words), Hospital(curator), progress=False)
    with pytest.raises(DataInvalid, match=r"column_names differ: .* first 'c' for 'a'"):
        adapt(LogisticRegression().fit(X, Y), frame("cab"), Hospital(curator), label="y", progress=False)
    assert curator.describe().remaining == 1.0
    assert declared(None, (X, Y), None, LogisticRegression().fit(X, Y)) is None
    assert declared(None, frame(), "y", model) == replace(theirs, class_names=("ill", "well"))
    assert declared(theirs, frame("cab"), "y", model) is theirs, "what the team states itself counts"
    folder = TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
    folder.classes = ["ill", "well"]  # as torchvision's ImageFolder has them, from its folders' names
    for data in (folder, Subset(folder, range(30))):
        assert declared(None, DataLoader(data), None, nn.Linear(3, 2)).class_names == ("ill", "well")
    assert declared(None, frame(), "y", nn.Linear(3, 2)).class_names == ()


def test_an_estimator_as_a_module_is_whole():
    """No layer of its trees is taken for a head, so that it is asked what the estimator itself is asked."""
    estimator = HistGradientBoostingClassifier(max_iter=3).fit(X, Y)
    model = split(as_module(estimator, missing=-9.0), torch.from_numpy(X))
    assert isinstance(model.classifier, nn.Identity)
    seen = torch.softmax(model.extractor(torch.from_numpy(X)), dim=1).detach().numpy()
    np.testing.assert_allclose(seen, estimator.predict_proba(X), atol=1e-5)


@pytest.mark.parametrize("words", [np.array(["yes", "no"]), np.array([7, 3]), np.array(["yes", "no"], dtype=object)])
def test_labels_that_an_estimator_was_fitted_on_are_its_classes(words):
    model = LogisticRegression().fit(X, words[Y])
    (records, labels), *_ = as_batches((X, words[Y]), model=model)
    seen = torch.softmax(split(model, records).whole()(records), dim=1)
    assert (seen.argmax(dim=1) == labels).double().mean() > 0.9
    with pytest.raises(DataInvalid, match="labels are of type <U7"):
        as_batches((X, np.array(["unknown", "no"])[Y]), model=model)


class OneScore(nn.Module):
    def __init__(self, *, bias=True):
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(3, 5), nn.ReLU()), nn.Linear(5, 1, bias=bias)

    def forward(self, x):
        return self.head(self.body(x)).squeeze(-1)


def ending(classes, *ends):
    return nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, classes), *ends)


@pytest.mark.parametrize(
    ("network", "probabilities"),
    [
        (ending(3, nn.Softmax(dim=1)), lambda p: p),
        (ending(3, nn.LogSoftmax(dim=1)), torch.exp),
        (ending(1), torch.sigmoid),
        (ending(1, nn.Sigmoid()), lambda p: p),
        (OneScore(), torch.sigmoid),
        (OneScore(bias=False), torch.sigmoid),
    ],
)
def test_probabilities_and_one_score_of_two_classes_are_taken_for_what_they_mean(network, probabilities):
    records = torch.from_numpy(X)
    model = split(network, records)
    assert isinstance(model.classifier, nn.Linear)
    with torch.no_grad():
        own, seen = probabilities(network(records)), torch.softmax(model.whole()(records), dim=1)
    if seen.shape[1] == 2:  # one score is of class 1
        seen, own = seen[:, 1], own.reshape(-1)
    torch.testing.assert_close(seen, own)


def test_several_labels_of_one_record_are_no_classes():
    with pytest.raises(InvalidValue, match="not probabilities"):
        split(ending(3, nn.Sigmoid()), torch.from_numpy(X))
