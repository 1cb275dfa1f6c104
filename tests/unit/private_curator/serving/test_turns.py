from __future__ import annotations

import collections
import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from dpswd.private_curator.serving.turns import Turns, next_of
from dpswd.shared.core.errors import RequestInProgress, TooManyRequests

LARGEST = 40


def made(most, *, most_bytes=200, most_in_all=400, wait_s=0.0, threads=16, line=16, **options):
    options |= {"most_in_all": most_in_all, "wait_s": wait_s, "threads": threads, "line": line}
    return Turns(most, most_bytes=most_bytes, largest=LARGEST, **options)


def order(waiting, *, most, free):
    """In which order requests get places, when one that was given is never given back."""
    waiting, held, gone = list(waiting), collections.Counter(), []
    while free > len(gone) and (place := next_of(waiting, held, lambda client: held[client] < most)) is not None:
        gone.append(waiting.pop(place))
        held[gone[-1]] += 1
    return "".join(gone)


def test_who_has_the_least_goes_first_however_many_another_sends():
    assert order("aaaaaab", most=4, free=16) == "abaaa"
    assert order("aaaaaabbbc", most=4, free=6) == "abcaba"
    assert order("cba", most=1, free=2) == "cb"  # equals go as they came
    assert order("aaa", most=4, free=2) == "aa"
    assert order("", most=4, free=2) == ""


def test_one_more_waits_in_the_line_and_a_longer_line_is_refused():
    turns = made(1, wait_s=60.0, line=1)
    with contextlib.ExitStack() as first, ThreadPoolExecutor(1) as pool:
        first.enter_context(turns.taken("one"))

        def second():
            with turns.taken("one"):
                return "went"

        waiting = pool.submit(second)
        while not turns._places.waiting:
            time.sleep(0.001)
        with pytest.raises(TooManyRequests, match="1 requests under way"), turns.taken("one"):
            pass
        with turns.taken("two"):  # another client waits for nobody
            pass
        first.close()
        assert waiting.result(timeout=60) == "went"
    assert not turns._places.waiting
    assert not turns._places.held


def line_of(turns, client, *, step):
    """Whether one more request of this client would be worked on at once."""
    line = turns._computed if step else turns._quick
    return line.may(client)


def test_of_each_client_one_request_is_worked_on_while_others_are_there():
    turns = made(4)
    with turns.taken("one"), turns.taken("one"), turns.working("one", step=False):
        assert line_of(turns, "one", step=False)  # alone
        with turns.taken("two"):
            assert not line_of(turns, "one", step=False)
            assert line_of(turns, "two", step=False)
        assert line_of(turns, "one", step=False)


@pytest.mark.parametrize(("parallel", "alone", "beside"), [(1, 1, 1), (4, 4, 2)])
def test_steps_that_are_computed_at_a_time_are_shared(parallel, alone, beside):
    turns = made(4, parallel_steps=parallel)
    with turns.taken("one"), contextlib.ExitStack() as working:
        for _ in range(beside):
            working.enter_context(turns.working("one", step=True))
        assert line_of(turns, "one", step=True) == (alone > beside)
        with turns.taken("two"):
            assert not line_of(turns, "one", step=True)
            assert line_of(turns, "two", step=True)


def test_a_step_under_way_is_waited_for_by_no_other_request():
    """When it ends must not show in a reply that no pause holds back."""
    turns = made(4)
    with turns.taken("one"), turns.taken("two"), turns.working("one", step=True):
        assert line_of(turns, "one", step=False)
        assert line_of(turns, "two", step=False)


def test_who_crowds_rests_while_others_are_there():
    now, rests = [0.0], []
    turns = made(4, clock=lambda: now[0], sleep=rests.append)

    def one_of_two(beside):
        with contextlib.ExitStack() as there, ThreadPoolExecutor(1) as pool:
            for client in ("one", "one", *beside):
                there.enter_context(turns.taken(client))
            with turns.working("one", step=False):
                second = pool.submit(lambda: turns.working("one", step=False).__enter__())
                while beside and not turns._quick.waiting:
                    time.sleep(0.001)
                if not beside:
                    second.result(timeout=60)  # alone nobody waits
                now[0] += 3.0
            second.result(timeout=60)
            turns._quick.held.clear()

    one_of_two([])
    assert rests == []
    one_of_two(["two"])
    assert rests == [6.0]


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
    assert not turns._places.held
    assert not turns._bytes


def test_a_step_that_is_being_answered_is_not_answered_twice():
    turns = made(4)
    with turns.alone("one", "a"):
        with pytest.raises(RequestInProgress), turns.alone("one", "a"):
            pass
        with turns.alone("one", "b"), turns.alone("two", "a"), turns.alone("one", ""), turns.alone("one", ""):
            pass
    with turns.alone("one", "a"):
        pass
    assert not turns._steps


def test_a_request_counts_as_the_largest_until_it_is_there():
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
    assert not turns._places.held


def test_all_clients_requests_have_so_many_bytes_together():
    turns = made(4, most_in_all=100)
    with turns.taken("one") as first, turns.taken("two"):
        with pytest.raises(TooManyRequests, match="all clients' requests"), turns.taken("three"):
            pass
        assert turns._places.held == {"one": 1, "two": 1}
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
