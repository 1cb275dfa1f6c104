from __future__ import annotations

import contextlib
import threading

import pytest

from dpswd.private_curator.serving.turns import Turns
from dpswd.shared.core.errors import RequestInProgress, TooManyRequests

LARGEST = 40


def made(most, *, most_bytes=200, most_in_all=400, wait_s=0.0):
    return Turns(most, most_bytes=most_bytes, largest=LARGEST, most_in_all=most_in_all, wait_s=wait_s)


def test_each_client_has_its_own_turns():
    turns = made(2)
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
    turns = made(1)
    for _ in range(3):
        with pytest.raises(KeyError), turns.taken("one"):
            raise KeyError
    assert not turns._under_way
    assert not turns._bytes


def test_a_step_that_is_being_answered_is_not_answered_twice():
    turns = made(4)
    with turns.alone("one", "a"):
        with pytest.raises(RequestInProgress), turns.alone("one", "a"):
            pass
        with turns.alone("one", "b"), turns.alone("two", "a"), turns.alone("one", None), turns.alone("one", None):
            pass
    with turns.alone("one", "a"):
        pass
    assert not turns._steps


def test_a_request_counts_as_the_largest_until_its_size_is_known():
    turns = made(9, most_bytes=100)
    with turns.taken("one") as first, turns.taken("one"):
        with (
            pytest.raises(TooManyRequests, match=r"this client's requests .* 100 bytes.*for 40 more"),
            turns.taken("one"),
        ):
            pass
        first(20)
        with turns.taken("one"), turns.taken("two"):
            assert turns._bytes == {"one": 100, "two": 40}
    assert not turns._bytes
    assert not turns._under_way


def test_all_clients_requests_have_so_many_bytes_together():
    turns = made(4, most_in_all=100)
    with turns.taken("one") as first, turns.taken("two"):
        with pytest.raises(TooManyRequests, match="all clients' requests"), turns.taken("three"):
            pass
        assert turns._under_way == {"one": 1, "two": 1}
        first(0)
        with turns.taken("three"):
            pass


def test_one_request_may_always_come():
    with made(4, most_bytes=1, most_in_all=1).taken("one") as received:
        received(LARGEST)


def test_a_request_waits_for_room():
    turns = made(4, most_in_all=LARGEST, wait_s=60.0)
    done = threading.Event()

    def other():
        with turns.taken("two"):
            done.set()

    with turns.taken("one") as received:
        thread = threading.Thread(target=other)
        thread.start()
        assert not done.wait(timeout=0.1)
        received(0)
        assert done.wait(timeout=60)
    thread.join(timeout=60)
    assert not turns._bytes


def test_replies_that_nobody_reads_are_bounded():
    turns = made(2, most_bytes=100)
    left = [turns.replied("one", 1) for _ in range(8)]
    with pytest.raises(TooManyRequests, match="has not read 8 replies of 8 bytes"), turns.taken("one"):
        pass
    left.pop()()
    with turns.taken("one"), turns.taken("two"):
        pass
    left.append(turns.replied("one", 101 - 7))
    left.pop(0)()
    with turns.taken("one"):
        pass
    left.append(turns.replied("one", 1))
    with pytest.raises(TooManyRequests, match="of 101 bytes"), turns.taken("one"):
        pass
    for one in left:
        one()
    assert not turns._unread
    assert not turns._unread_bytes
