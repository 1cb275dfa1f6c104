from __future__ import annotations

import contextlib

import pytest

from private_curator.serving.turns import Turns
from shared.errors import RequestInProgress, TooManyRequests


def test_each_client_has_its_own_turns():
    turns = Turns(2, most_bytes=100)
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
    turns = Turns(1, most_bytes=100)
    for _ in range(3):
        with pytest.raises(KeyError), turns.taken("one"):
            raise KeyError
    assert not turns._under_way


def test_a_step_that_is_being_answered_is_not_answered_twice():
    turns = Turns(4, most_bytes=100)
    with turns.alone("one", "a"):
        with pytest.raises(RequestInProgress), turns.alone("one", "a"):
            pass
        with turns.alone("one", "b"), turns.alone("two", "a"), turns.alone("one", None), turns.alone("one", None):
            pass
    with turns.alone("one", "a"):
        pass
    assert not turns._steps


def test_a_client_s_bytes_under_way_are_bounded():
    turns = Turns(4, most_bytes=100)
    with turns.taken("one", size=90):
        with pytest.raises(TooManyRequests, match="90 bytes, with this one more than 100"), turns.taken("one", size=11):
            pass
        with turns.taken("one", size=10), turns.taken("two", size=500):
            pass
    assert not turns._bytes
