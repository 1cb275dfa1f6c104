from __future__ import annotations

import contextlib

import pytest

from private_curator.serving.turns import Turns
from shared.errors import RequestInProgress, TooManyRequests


def test_each_client_has_its_own_turns():
    turns = Turns(2)
    with contextlib.ExitStack() as under_way:
        for client in ("one", "one", "two", "two"):
            under_way.enter_context(turns.taken(client))
        for client in ("one", "two"):
            with pytest.raises(TooManyRequests, match="2 requests under way"), turns.taken(client):
                pass
        with turns.taken("three"):
            pass
    with turns.taken("one"):
        pass


def test_a_turn_ends_with_an_error_as_well():
    turns = Turns(1)
    for _ in range(3):
        with pytest.raises(KeyError), turns.taken("one"):
            raise KeyError
    assert not turns._under_way


def test_a_step_that_is_being_answered_is_not_answered_twice():
    turns = Turns(4)
    with turns.taken("one", step="a"):
        with pytest.raises(RequestInProgress), turns.taken("one", step="a"):
            pass
        with turns.taken("one", step="b"), turns.taken("two", step="a"):
            pass
    with turns.taken("one", step="a"):
        pass
    assert not turns._under_way
    assert not turns._steps
