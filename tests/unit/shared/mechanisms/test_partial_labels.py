"""Records without a label count nowhere, and one in the place of a labelled one moves no sum further than is priced."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hospital import NoNoise

from dpswd.private_curator.core.steps.randomness import SystemNoise
from dpswd.public_client.extractor.tracing import module_weights, trace
from dpswd.shared.core.errors import RequestInvalid
from dpswd.shared.core.mechanisms.class_statistics.mechanism import StatisticsDeclaration
from dpswd.shared.core.mechanisms.evaluation.counts import number_weight
from dpswd.shared.core.mechanisms.evaluation.mechanism import EvaluationDeclaration
from dpswd.shared.core.mechanisms.interface import DataSetFacts, Facts, Limits, ModelFacts, RunSize, Step
from dpswd.shared.core.mechanisms.score_statistics.mechanism import ScoresDeclaration
from dpswd.shared.core.steps.admission import admit_run, offered
from dpswd.shared.core.steps.computing import SecretSample
from dpswd.shared.core.wire.limits import UNLABELLED
from dpswd.shared.core.wire.messages import RunParameters
from dpswd.shared.published_mechanisms import ALL_MECHANISMS
from dpswd.shared.published_mechanisms.clipped_sum import ClippedSum
from dpswd.shared.published_mechanisms.labelled_gradient.mechanism import (
    LabelledGradientDeclaration,
    LossGradientRequest,
)
from dpswd.shared.sandbox.building import Extractor
from dpswd.shared.sandbox.session import DirectSession

INPUTS, CLASSES, N = 4, 3, 40
torch.manual_seed(3)
MODULE = torch.nn.Linear(INPUTS, CLASSES)
GRAPH = trace(MODULE, (INPUTS,))
MODEL = Extractor(GRAPH, module_weights(MODULE, GRAPH), device=torch.device("cpu"))
DATA = DataSetFacts(N, (INPUTS,), CLASSES, partly_labelled=True)
FACTS = Facts(DATA, ModelFacts.of(GRAPH))
TWO = torch.nn.Linear(INPUTS, 2 * CLASSES)
TWO_GRAPH = trace(TWO, (INPUTS,))
TWO_MODEL = Extractor(TWO_GRAPH, module_weights(TWO, TWO_GRAPH), device=torch.device("cpu"))
DECLARED = (
    ("class_statistics", StatisticsDeclaration(CLASSES, 0.7, 0.7, 0.0, 1.0)),
    ("class_statistics", StatisticsDeclaration(CLASSES, 1.0, 3.0, 0.5, 1.0)),
    ("score_statistics", ScoresDeclaration(CLASSES, 1.0, 1.2, 1.0, np.full(1, 2.0, np.float32))),
    ("labelled_gradient", LabelledGradientDeclaration(CLASSES, ClippedSum(("weight", "bias"), 0.3, 1.0))),
    ("comparison", EvaluationDeclaration(CLASSES, 1.0, models=2, partly_labelled=True)),
    ("evaluation", EvaluationDeclaration(CLASSES, 1.0, 1.0, 4, 1.0, partly_labelled=True)),
)


class Held:
    def __init__(self, seed):
        rng = np.random.default_rng(seed)
        self.records = (2.0 * rng.normal(size=(N, INPUTS))).astype(np.float32)
        self.labels = rng.integers(UNLABELLED, CLASSES, size=N)
        self.count = N

    def take(self, indices):
        return self.records[indices]

    def changed(self, number, record, label):
        other = Held(0)
        other.records, other.labels = self.records.copy(), self.labels.copy()
        other.records[number], other.labels[number] = record, label
        return other


def mechanism_of(name):
    """An evaluation of two models is a comparison."""
    return ALL_MECHANISMS["evaluation" if name == "comparison" else name]


def parts(name, declared, held, noise=None):
    """Each part's noised numbers, exact ones with `NoNoise`."""
    step = Step(
        run=RunSize(N),
        facts=FACTS,
        sample=SecretSample(held, held.labels, np.arange(N)),
        model=DirectSession(TWO_MODEL if name == "comparison" else MODEL),
        noise=noise or NoNoise(),
        device=torch.device("cpu"),
        fresh_seed=lambda: bytes(32),
        reached=lambda _: None,
    )
    mechanism = mechanism_of(name)
    request = mechanism.synthetic(declared, RunSize(N), FACTS)
    if name == "labelled_gradient":
        request = LossGradientRequest()
    reply = mechanism.compute(declared, request, step)
    grids = {
        "class_statistics": lambda: (reply.sum,),
        "score_statistics": lambda: (reply.sum,),
        "labelled_gradient": lambda: (reply.gradient,),
        "comparison": lambda: (reply.correct,),
        "evaluation": lambda: (reply.correct, reply.confusion, reply.calibration),
    }[name]()
    return [grid.to_numpy().astype(np.float64).ravel() for grid in grids]


@pytest.mark.parametrize(("name", "declared"), DECLARED)
@pytest.mark.long
def test_a_replaced_record_moves_no_part_further_than_is_priced(name, declared):
    """From and to every kind of record: labelled, without a label, far away; and what is priced is nearly reached."""
    held, rng = Held(1), np.random.default_rng(2)
    priced = mechanism_of(name).parts(declared, RunSize(N), FACTS)
    before = parts(name, declared, held)
    worst = np.zeros(len(priced))
    for trial in range(150):
        length = 10.0 ** rng.uniform(-1, 4)
        record = length * rng.normal(size=INPUTS)
        one = held.changed(0, record, rng.integers(UNLABELLED, CLASSES))
        opposite = rng.choice([-1.0, 0.5, 1.0]) * record
        two = held.changed(0, opposite, UNLABELLED if trial % 3 == 0 else rng.integers(UNLABELLED, CLASSES))
        pairs = zip(parts(name, declared, one), parts(name, declared, two), strict=True)
        moved = [np.linalg.norm(a - b) for a, b in pairs]
        for part, (own, price) in enumerate(zip(moved, priced, strict=True)):
            most = 2.0 * price.clip_norm if name == "labelled_gradient" else price.sensitivity
            values = price.parameters if name == "labelled_gradient" else price.changed
            assert own <= most + price.grid_step * values**0.5 + 1e-9
            worst[part] = max(worst[part], own / most)
    assert (worst > 0.6).all(), worst
    assert [len(values) for values in before] == [getattr(p, "values", getattr(p, "parameters", 0)) for p in priced]


@pytest.mark.parametrize(("name", "declared"), DECLARED)
def test_a_record_without_a_label_counts_nowhere(name, declared):
    held = Held(1)
    number = int(np.flatnonzero(held.labels == UNLABELLED)[0])
    other = held.changed(number, np.full(INPUTS, 1e6), UNLABELLED)
    for one, two in zip(parts(name, declared, held), parts(name, declared, other), strict=True):
        np.testing.assert_array_equal(one, two)
    none = Held(1)
    none.labels = np.full(N, UNLABELLED)
    for values in parts(name, declared, none):
        np.testing.assert_array_equal(values, 0.0)


def test_the_numbers_of_right_and_wrong_are_those_of_labelled_records():
    held = Held(1)
    (numbers, confusion, _) = parts("evaluation", DECLARED[-1][1], held)
    predicted = (held.records @ MODULE.weight.detach().numpy().T + MODULE.bias.detach().numpy()).argmax(axis=1)
    labelled = held.labels != UNLABELLED
    right = int((predicted == held.labels)[labelled].sum())
    np.testing.assert_array_equal(numbers, [right, labelled.sum() - right])
    assert confusion.sum() == labelled.sum()
    noisy = parts("evaluation", DECLARED[-1][1], held, SystemNoise())
    assert any((a != b).any() for a, b in zip(noisy, (numbers, confusion), strict=False))


def test_of_several_models_the_excess_of_correct_ones_and_the_number_of_labels_are_released():
    held, declared = Held(1), DECLARED[-2][1]
    (numbers,) = parts("comparison", declared, held)
    scores = held.records @ TWO.weight.detach().numpy().T + TWO.bias.detach().numpy()
    labelled = held.labels != UNLABELLED
    each = scores.reshape(N, 2, CLASSES).argmax(axis=2)[labelled] == held.labels[labelled, None]
    expected = [*(each.sum(axis=0) - labelled.sum() / 2.0), number_weight(2) * labelled.sum()]
    np.testing.assert_allclose(numbers, expected, atol=1e-3)  # the grid's step is 1 / 2048
    (priced,) = ALL_MECHANISMS["evaluation"].parts(declared, RunSize(N), FACTS)
    assert priced.sensitivity == pytest.approx(2**0.5)  # as where every record has a label


def test_what_is_declared_must_be_what_the_operator_says_and_couplings_need_every_label():
    declared = replace(DECLARED[-1][1], partly_labelled=False)
    broken = ALL_MECHANISMS["evaluation"].violations(declared, RunSize(N), FACTS, Limits())
    assert [field for field, _ in broken] == ["declaration.partly_labelled"]
    public = Facts(replace(DATA, labelled=30), FACTS.model)  # the number is public: correct ones alone tell the share
    assert ALL_MECHANISMS["evaluation"].violations(declared, RunSize(N), public, Limits()) == []
    broken = ALL_MECHANISMS["evaluation"].violations(DECLARED[-1][1], RunSize(N), public, Limits())
    assert [field for field, _ in broken] == ["declaration.partly_labelled"]
    every = set(offered(ALL_MECHANISMS, replace(DATA, partly_labelled=False)))
    assert every == set(ALL_MECHANISMS)
    reads_labels = {name for name in offered(ALL_MECHANISMS, DATA) if ALL_MECHANISMS[name].needs_labels}
    assert reads_labels == {mechanism_of(name).name for name, _ in DECLARED}, (
        "what is offered of partly labelled records is tested above"
    )
    assert "rows" in offered(ALL_MECHANISMS, DATA)
    asked = RunParameters(
        graph_digest="", weights_digest="", mechanism="sinkhorn", declaration=b"", batch_size=N, steps=1
    )
    with pytest.raises(RequestInvalid, match=r"label of every record.*records\.unlabelled"):
        admit_run(asked, mechanisms=ALL_MECHANISMS, data=DATA, model=FACTS.model, limits=Limits())
