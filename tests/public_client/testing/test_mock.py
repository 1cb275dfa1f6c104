"""The mock curator: prices as the ledger does, speaks the wire's types, and spends nothing."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from kinds_of_plan import planned

from private_curator.ledger.budget import Account
from private_curator.ledger.renyi import RenyiAccounting
from public_client import Curator, DomainAdaptation
from public_client.curator.description import Description
from public_client.data.datasets import Labelled
from public_client.data.networks import digits_network
from public_client.data.source import source_loader
from public_client.plans.declarable import Declarable
from public_client.testing.mock import MockCurator, mock_description
from shared import errors
from shared.errors import InvalidValue
from shared.protocol.messages import Evaluation, RunParameters

HOSPITAL = {"records": 800, "record_shape": (1, 8, 8), "epsilon": 2.0, "delta": 1e-5}


def mock(**changes):
    return MockCurator(mock_description(**HOSPITAL | changes))


def data():
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(96, 1, 8, 8, generator=generator) * 2 - 1
    return source_loader(Labelled(images, torch.randint(10, (96,), generator=generator)), batch_size=32)


def adaptation(curator, **wishes):
    torch.manual_seed(3)
    plan = planned(curator, **{"epsilon": 1.0, "directions": 16, "source_records": 64, "tuning_steps": 5} | wishes)
    return DomainAdaptation(*digits_network((1, 8, 8)), curator=curator, plan=plan, source_epochs=1, device="cpu")


@pytest.mark.parametrize(
    "wishes",
    [
        {"steps": 4, "batch_size": 50},
        {"release": "rows", "steps": 3, "batch_size": 50},
        {"release": "rows", "parameters": "none", "steps": 1, "batch_size": 60},
        {"release": "critic", "steps": 3, "batch_size": 60},
    ],
)
def test_every_release_runs_and_is_charged_what_was_planned(wishes):
    curator = mock()
    fitted = adaptation(curator, **wishes).fit(data(), progress=False)
    (charge,) = curator.charges
    assert 0.98 * fitted.plan.epsilon < charge.epsilon <= fitted.plan.epsilon
    assert charge.parameters.steps == wishes["steps"]
    assert curator.describe().spent == pytest.approx(charge.epsilon)
    assert f"a run of {wishes['steps']} step" in str(charge)
    with pytest.raises(errors.RunFinished):
        fitted.sites["curator"].run.draw(torch.zeros(4, 96))


def test_it_prices_like_the_ledger():
    """The same filter, fixed by the same first run: quote, second quote and refusal agree with the ledger's books."""
    curator = mock()
    accounting = RenyiAccounting()
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
    generous = curator.plan(epsilon=1.9, steps=4, batch_size=50, extractor=model.extractor)
    assert generous.epsilon > generous.remaining
    assert generous.fits is True
    with pytest.raises(errors.BudgetExhausted):
        for _ in range(100):
            curator.open_run(curator.charges[0].parameters)
    refused = curator.plan(epsilon=1.9, steps=4, batch_size=50, extractor=model.extractor)
    assert refused.fits is False
    assert "does NOT fit" in str(refused)
    charged = len(curator.charges)
    with pytest.raises(errors.BudgetExhausted):
        adaptation(curator, epsilon=1.9, steps=4, batch_size=50).fit(data(), progress=False)
    assert len(curator.charges) == charged
    assert curator.describe().spent <= 2.0


def test_without_the_extractor_a_plan_above_what_is_left_says_that_it_does_not_know():
    curator = mock()
    adaptation(curator, steps=4, batch_size=50).fit(data(), progress=False)
    offline = curator.plan(epsilon=1.9, steps=4, batch_size=50)
    assert offline.fits is None
    assert "ask the curator" in str(offline)


def test_a_repeated_request_is_answered_alike():
    curator = mock()
    run = adaptation(curator, steps=2, batch_size=50).fit(data(), progress=False).sites["curator"].run
    parameters = run.run.parameters
    opened = curator.open_run(parameters, request_id="11111111-1111-4111-8111-111111111111")
    assert curator.open_run(parameters, request_id="11111111-1111-4111-8111-111111111111") is opened
    pending = curator.prepare_step(opened, source=torch.zeros(8, 96).numpy())
    first, again = curator.send(pending), curator.send(pending)
    assert (first.release == again.release).all()
    assert first.directions_seed == again.directions_seed


def test_what_a_curator_refuses_is_refused():
    with pytest.raises(errors.ExtractorUnsupported):
        mock().plan(epsilon=1.0, extractor=digits_network((1, 28, 28))[0])
    with pytest.raises(InvalidValue, match="Describe"):
        Curator.describe(mock())
    with pytest.raises(InvalidValue, match="nothing is left"):
        MockCurator(mock_description(**HOSPITAL | {"epsilon": 0.0}))


def test_a_declaration_is_refused_where_a_curator_would_refuse_it():
    """A critic of more than one logit, an evaluation, more adapted numbers or a larger sum than is allowed."""
    curator = mock()
    fitted = adaptation(curator, release="critic", steps=2, batch_size=50).fit(data(), progress=False)
    critic = fitted.sites["curator"].run.run.parameters
    extractor = Declarable.of_source(fitted.extractor, (1, 8, 8), mock().plan(epsilon=1.0, parameters="adapters"))
    uploaded = curator.upload_extractor(extractor.graph.to_bytes(), extractor.weights)
    digests = {"graph_digest": uploaded.graph_digest, "weights_digest": uploaded.weights_digest}
    gradient = replace(critic.gradient, parameters=extractor.names)
    for wrong, match in (
        (replace(critic, **digests, gradient=gradient), "a critic computes one logit"),
        (replace(critic, gradient=None), "a critic's run declares one"),
        (replace(critic, gradient=replace(critic.gradient, clip_norm=1e9)), "does not fit in 32 bits"),
        (replace(critic, gradient=replace(critic.gradient, parameters=("critic.none",))), "unknown to the graph"),
        (replace(critic, batch_size=801), "allowed are 1 to 800"),
        (RunParameters(**digests, directions=0, batch_size=800, steps=1, release=Evaluation(10, 5.0)), "evaluation"),
    ):
        with pytest.raises(errors.RequestInvalid, match=match):
            curator.price_run(wrong)
    described = mock_description(**HOSPITAL)
    narrow = MockCurator(replace(described, limits=replace(described.limits, max_adapted_parameters=10)))
    with pytest.raises(errors.RequestInvalid, match="at most 10 are allowed"):
        adaptation(narrow, release="critic", steps=2, batch_size=50).fit(data(), progress=False)
    assert narrow.charges == []


def test_a_description_survives_its_json():
    description = mock_description(**HOSPITAL)
    assert Description.from_json(json.loads(json.dumps(description.to_json()))) == description
    with pytest.raises(InvalidValue, match="describe --format json"):
        Description.from_json({"records": 3})
