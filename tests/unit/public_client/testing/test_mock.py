"""The mock curator: prices as the ledger does, speaks the wire's types, and spends nothing."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from held_receipts import verify_receipts
from small_methods import small

from dpswd import AllWeights, DomainAdaptation, Hospital
from dpswd.private_curator.books.renyi import RENYI
from dpswd.private_curator.core.ledger.budget import Account
from dpswd.public_client.curator.description import Description
from dpswd.public_client.curator.receipts import ReceiptFile
from dpswd.public_client.curator.values import PendingStep, new_request_id
from dpswd.public_client.data.datasets import Labelled
from dpswd.public_client.data.networks import digits_network
from dpswd.public_client.data.source import source_loader
from dpswd.public_client.methods import method_kinds
from dpswd.public_client.published_methods.descent import DescentRun
from dpswd.public_client.testing.mock import MockCurator, mock_description
from dpswd.shared.books import chain_checks
from dpswd.shared.core import errors
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.mechanisms.evaluation.mechanism import EvaluationDeclaration
from dpswd.shared.core.mechanisms.sliced import SlicedRequest
from dpswd.shared.core.noise.feature_map import FeatureMap
from dpswd.shared.core.wire.messages import RunParameters
from dpswd.shared.published_mechanisms.labelled_gradient.mechanism import LabelledGradientDeclaration

MADE = {"records": 800, "record_shape": (1, 8, 8), "epsilon": 2.0, "delta": 1e-5}


def mock(**changes):
    return MockCurator(mock_description(**MADE | changes))


def data():
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(96, 1, 8, 8, generator=generator) * 2 - 1
    return source_loader(Labelled(images, torch.randint(10, (96,), generator=generator)), batch_size=32)


def adaptation(curator, method="all-weights", *, epsilon=1.0, **size):
    torch.manual_seed(3)
    hospital = Hospital(curator)
    plan = hospital.plan(small(method), epsilon=epsilon, **size)
    return DomainAdaptation(*digits_network((1, 8, 8)), hospital=hospital, plan=plan, source_epochs=1, device="cpu")


def drawn_again(run):
    """One more step, which asks what the last one asked."""
    if isinstance(run, DescentRun):
        return run.loss(torch.zeros(4, 96))
    return run.draw(run.mechanism.request.from_bytes(run.answers[-1].asked))


@pytest.mark.parametrize("method", method_kinds())
@pytest.mark.long
def test_every_method_runs_and_is_charged_what_was_planned(method):
    mechanism, steps = small(method).mechanism, 1 if method == "replay" else 3
    records = 1300 if method == "pseudo-labels" else 800  # it refuses fewer
    curator = mock(records=records, classes=10 if mechanism.needs_labels else 0)
    batch = records if mechanism.whole else 60
    fitted = adaptation(curator, method, steps=steps, batch_size=batch).fit(data(), progress=False)
    (charge,) = curator.charges
    assert 0.97 * fitted.plan.epsilon < charge.epsilon <= fitted.plan.epsilon
    assert charge.run.size.steps == steps
    assert curator.describe().spent == pytest.approx(charge.epsilon)
    assert f"a run of {steps} step" in str(charge)
    assert charge.run.summary in str(charge)
    with pytest.raises(errors.RunFinished):  # a method that found nothing has asked no further
        for _ in range(steps if method == "normalisation" else 1):
            drawn_again(fitted.sites["curator"].run)


@pytest.mark.long
def test_it_prices_like_the_ledger():
    """The same filter, fixed by the same first run: quote, second quote and refusal agree with the ledger's books."""
    curator = mock()
    accounting = RENYI
    account = Account(accounting.budget(epsilon=2.0, delta=1e-5, relation="replace-one"))
    model = adaptation(curator, steps=4, batch_size=50).fit(data(), progress=False)
    event = model.plan.event()
    filter_ = accounting.filter_for(account.budget, event)
    spent = filter_.admit(filter_.zero(), filter_.price(event))
    assert curator.describe().spent == filter_.epsilon(spent)
    quote = curator.price_run(curator.charges[0].parameters)
    try:
        filter_.admit(spent, filter_.price(event))
        admitted = True
    except errors.BudgetExhausted:
        admitted = False
    assert quote.fits is admitted
    # Two small samples are rarely the same record's: more than what is left by subtraction is admitted.
    asked = {"epsilon": 1.9, "steps": 4, "batch_size": 50}
    generous = Hospital(curator).plan(small("all-weights"), **asked, extractor=model.extractor)
    assert generous.epsilon > generous.remaining
    assert generous.fits is True
    with pytest.raises(errors.BudgetExhausted):
        for _ in range(100):
            curator.open_run(curator.charges[0].parameters)
    refused = Hospital(curator).plan(small("all-weights"), **asked, extractor=model.extractor)
    assert refused.fits is False
    assert "does NOT fit" in str(refused)
    charged = len(curator.charges)
    with pytest.raises(errors.BudgetExhausted):
        adaptation(curator, **asked).fit(data(), progress=False)
    assert len(curator.charges) == charged
    assert curator.describe().spent <= 2.0


@pytest.mark.long
def test_without_the_extractor_a_plan_above_what_is_left_says_that_it_does_not_know():
    curator = mock()
    adaptation(curator, steps=4, batch_size=50).fit(data(), progress=False)
    offline = Hospital(curator).plan(small("all-weights"), epsilon=1.9, steps=4, batch_size=50)
    assert offline.fits is None
    assert "ask the curator" in str(offline)


@pytest.mark.long
def test_a_repeated_request_is_answered_alike_and_receipts_verify(tmp_path):
    curator = mock(epsilon=9.0)
    curator.receipts = ReceiptFile(tmp_path / "receipts.jsonl")
    run = adaptation(curator, "replay", steps=2, batch_size=50).fit(data(), progress=False).sites["curator"].run
    parameters = run.run.parameters
    opened = curator.open_run(parameters, request_id="11111111-1111-4111-8111-111111111111")
    assert curator.open_run(parameters, request_id="11111111-1111-4111-8111-111111111111").run_id == opened.run_id
    assert len(curator.charges) == 2
    pending = PendingStep(opened.run_id, new_request_id(), SlicedRequest().to_bytes())
    first, again = curator.send(pending), curator.send(pending)
    assert first == again
    other = SlicedRequest(FeatureMap(torch.zeros(96), torch.ones(96))).to_bytes()
    with pytest.raises(errors.RequestIdReused):
        curator.send(replace(pending, payload=other))
    entries, findings = chain_checks.read_export((tmp_path / "receipts.jsonl").read_text().splitlines())
    assert (len(entries), findings) == (2 + 2 + 1, [])  # two charges, and three steps
    key = bytes.fromhex(curator.describe().ledger_public_key)
    assert verify_receipts(entries, entries, key) == ()


def test_what_a_curator_refuses_is_refused():
    with pytest.raises(errors.ExtractorUnsupported):
        Hospital(mock()).plan(epsilon=1.0, extractor=digits_network((1, 28, 28))[0])
    with pytest.raises(InvalidValue, match="nothing is left"):
        mock(epsilon=0.0)


def test_nothing_is_charged_by_what_only_looks():
    """Only `open`, `fit` and `evaluate` open runs: plans, quotes, uploads and predictions are free."""
    curator = mock(classes=10)
    hospital = Hospital(curator)
    extractor, classifier = digits_network((1, 8, 8))
    extractor.eval()
    records, labels = next(iter(data()))
    plan = hospital.plan(small("replay"), epsilon=1.0, extractor=extractor)
    hospital.plan_evaluation(epsilon=0.5, model=torch.nn.Sequential(extractor, classifier))
    model = DomainAdaptation(extractor, classifier, hospital=hospital, plan=plan, source_epochs=0, device="cpu")
    model.predict(records)
    model.predict_proba(records)
    model.score(records, labels)
    str(plan)
    assert curator.charges == []
    assert curator.describe().spent == 0.0
    with hospital.open(plan, extractor) as run:
        assert len(curator.charges) == 1
        run.draw()
    assert len(curator.charges) == 1
    hospital.evaluate(torch.nn.Sequential(extractor, classifier), epsilon=0.5)
    assert len(curator.charges) == 2


def test_a_declaration_is_refused_where_a_curator_would_refuse_it():
    """Features for scores, an evaluation without classes, more adapted numbers or a larger sum than is allowed."""
    curator = mock(classes=10)
    fitted = adaptation(curator, "finetune", steps=2, batch_size=50).fit(data(), progress=False)
    good = fitted.sites["curator"].run.run.parameters
    declared = LabelledGradientDeclaration.from_bytes(good.declaration)
    extractor = AllWeights().declarable(fitted.extractor, (1, 8, 8))
    uploaded = extractor.uploaded(curator)
    digests = {"graph_digest": uploaded.graph_digest, "weights_digest": uploaded.weights_digest}

    def sum_of(**changes):
        return replace(declared, sum=replace(declared.sum, **changes)).to_bytes()

    for wrong, match in (
        (replace(good, **digests, declaration=sum_of(parameters=extractor.names)), "needed is one for each of 10"),
        (replace(good, declaration=sum_of(parameters=())), "must name at least one parameter"),
        (replace(good, declaration=sum_of(clip_norm=1e9)), "does not fit in 32 bits"),
        (replace(good, declaration=sum_of(parameters=("head.none",))), "are no parameters of the extractor"),
        (replace(good, batch_size=801), "at most 800 are allowed"),
        (replace(good, declaration=b"\xff"), "can be parsed"),
    ):
        with pytest.raises(errors.RequestInvalid, match=match):
            curator.price_run(wrong)
    unlabelled = mock()
    extractor.uploaded(unlabelled)
    counts = EvaluationDeclaration(10, 5.0).to_bytes()
    evaluation = RunParameters(**digests, mechanism="evaluation", declaration=counts, batch_size=800, steps=1)
    with pytest.raises(errors.RequestInvalid, match="is not offered"):
        unlabelled.price_run(evaluation)
    described = mock_description(**MADE, classes=10)
    narrow = MockCurator(replace(described, limits=replace(described.limits, max_adapted_parameters=10)))
    with pytest.raises(errors.RequestInvalid, match="at most 10 are allowed"):
        adaptation(narrow, "finetune", steps=2, batch_size=50).fit(data(), progress=False)
    assert narrow.charges == []


def test_a_description_survives_its_json():
    description = mock_description(**MADE)
    assert Description.from_json(json.loads(json.dumps(description.to_json()))) == description
    with pytest.raises(InvalidValue, match="describe --format json"):
        Description.from_json({"records": 3})
