"""A site's rounds: what is charged, what an update is made of, what a repeated round gives, where they end."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from curated_sites import CLASSES, EPSILON, RECORDS, ROUNDS, WIDTH, accuracy, charged, made_model, site, sites
from torch import nn

from dpswd import Hospital, Replay
from dpswd.public_client.federated.site import CuratedSite
from dpswd.public_client.training.checkpoint import Checkpoint
from dpswd.shared.core.errors import BudgetExhausted, InvalidValue, RunFinished
from dpswd.shared.published_mechanisms.labelled_gradient.mechanism import LossGradientReply

pytestmark = pytest.mark.long
__all__ = ["sites"]


def start():
    return {name: value.numpy() for name, value in made_model().state_dict().items()}


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=1.0)


def same(one, other):
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


class Interrupted(torch.optim.SGD):
    """The machine fails when the step is answered, and not yet applied."""

    def step(self, closure=None):
        raise KeyboardInterrupt


def test_the_plan_is_charged_once_and_after_its_rounds_nothing_is_sent(sites):
    home, where = sites[0]
    weights = start()
    for number in range(1, ROUNDS + 1):
        with site(*where) as one:  # a node that is forgotten between its rounds
            weights, numbers = one.update(weights)
        assert numbers == {
            "records": RECORDS, "epsilon": EPSILON, "step": number, "epsilon_spent": pytest.approx(EPSILON, abs=1e-5)
        }  # fmt: skip
        assert charged(home) == (1, ROUNDS, number, EPSILON)
    assert accuracy(start()) < 0.5 < 0.75 < accuracy(weights)
    with site(*where) as one, pytest.raises(RunFinished, match="all 4 steps"):
        one.update(weights)
    address, credentials, directory = where
    with site(address, credentials, f"{directory}-of-another") as one, pytest.raises(BudgetExhausted, match="left 0"):
        one.update(weights)
    assert charged(home) == (1, ROUNDS, ROUNDS, EPSILON)


def test_an_update_is_the_released_gradient_and_a_repeated_round_is_free(sites):
    home, where = sites[0]
    with site(*where, optimizer=sgd) as one:
        moved, numbers = one.update(start())
        pending = Checkpoint(tmp := one.directory).read_pending()
        released = LossGradientReply.from_bytes(one.hospital.curator.send(pending).payload).gradient.to_tensor()
        change = np.concatenate([(moved[name] - value).ravel() for name, value in start().items()])
        np.testing.assert_allclose(change, -released.numpy() / RECORDS, atol=1e-6)
    with site(*where, optimizer=sgd) as again:
        assert tmp == again.directory
        repeated, again_numbers = again.update(start())
    assert same(repeated, moved)
    assert again_numbers == numbers
    assert charged(home) == (1, ROUNDS, 1, EPSILON)


@pytest.mark.parametrize(("resumed", "used"), [("this round", 1), ("another", 2)])
def test_an_interrupted_round_goes_on_where_it_was(sites, resumed, used):
    """Its step is answered; a round from other weights has no use for it."""
    home, where = sites[0]
    with site(*where, optimizer=lambda own: Interrupted(own, lr=1.0)) as one, pytest.raises(KeyboardInterrupt):
        one.update(start())
    assert charged(home) == (1, ROUNDS, 1, EPSILON)
    weights = start() if resumed == "this round" else {name: 0.9 * value for name, value in start().items()}
    with site(*where, optimizer=sgd) as one:
        moved, numbers = one.update(weights)
    assert (numbers["step"], charged(home)) == (used, (1, ROUNDS, used, EPSILON))
    with site(*where, optimizer=sgd) as one:
        assert same(one.update(weights)[0], moved)
    assert not same(moved, weights)
    assert charged(home) == (1, ROUNDS, used, EPSILON)


def test_a_round_that_dropped_an_answer_and_was_interrupted_is_not_taken_for_a_done_one(sites, monkeypatch):
    _, where = sites[0]
    with site(*where, optimizer=lambda own: Interrupted(own, lr=1.0)) as one, pytest.raises(KeyboardInterrupt):
        one.update(start())
    weights = {name: 0.9 * value for name, value in start().items()}
    note = CuratedSite._note
    with monkeypatch.context() as patched, site(*where, optimizer=sgd) as one:
        patched.setattr(CuratedSite, "_note", lambda *words: note(*words) and _fail())
        with pytest.raises(KeyboardInterrupt):
            one.update(weights)
    with site(*where, optimizer=sgd) as one:
        moved, numbers = one.update(weights)
    assert numbers["step"] == 2
    assert not same(moved, weights)


def _fail():
    raise KeyboardInterrupt


def test_what_does_not_fit_is_refused_before_anything_is_charged(sites):
    home, where = sites[0]
    name, value = next(iter(start().items()))
    with site(*where) as one:
        for wrong in ({}, {name: value}, start() | {name: value[:2]}, start() | {"other": value}):
            with pytest.raises(InvalidValue, match="send the state_dict of the site's model"):
                one.update(wrong)
        with Hospital.connect(where[0], credentials=where[1]) as hospital:
            frozen = nn.Linear(WIDTH, CLASSES).requires_grad_(requires_grad=False)
            with pytest.raises(InvalidValue, match="requires gradients"):
                CuratedSite(hospital, one.plan, frozen, directory=where[2])
            with pytest.raises(InvalidValue, match="plan it with Finetune"):
                CuratedSite(hospital, hospital.plan(Replay(), epsilon=1.0), made_model(), directory=where[2])
            model = made_model()
            model[0].requires_grad_(requires_grad=False)
            part = CuratedSite(hospital, one.plan, model, directory=f"{where[2]}-part")
            with pytest.raises(InvalidValue, match=r"0\.weight differs"):
                part.update(start() | {"0.weight": 2.0 * start()["0.weight"]})
            moved, _ = part.update(start())
            assert [name for name in moved if not np.array_equal(moved[name], start()[name])] == ["2.weight", "2.bias"]
    assert charged(home) == (1, ROUNDS, 1, EPSILON)
