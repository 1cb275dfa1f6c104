from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpswd.private_curator.serving.pacing import SHORTEST_QUANTUM_S, Pacer, quantum_ms
from dpswd.shared.sandbox.steady import LARGEST_RATIO


class Clock:
    """A clock that only the test and the pacer's own waiting move."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        assert seconds >= 0.0
        self.now += seconds


def left_after(quantum, work, *, expected=None, fails=False):
    clock = Clock()
    pacer = Pacer(quantum, clock=clock, sleep=clock.sleep)
    try:
        with pacer.paced():
            if expected is not None:
                pacer.expect(quantum_ms(expected) / 1000)
            clock.now += work
            if fails:
                raise KeyError
    except KeyError:
        assert fails
    return clock.now - 100.0


@given(st.floats(1e-4, 10.0), st.floats(0.0, 50.0), st.booleans())
def test_replies_and_errors_leave_at_multiples(quantum, work, fails):
    left = left_after(quantum, work, fails=fails)
    multiple = left / quantum
    assert multiple == pytest.approx(round(multiple), abs=1e-6 + 1e-9 / quantum)
    assert -1e-9 <= left - work <= quantum + 1e-9


def test_zero_holds_nothing_back():
    assert left_after(0.0, 0.123) == pytest.approx(0.123)


@given(st.floats(0.0, 20.0), st.floats(0.0, 1.5 * LARGEST_RATIO))
def test_an_automatic_quantum_is_longer_than_the_rehearsal_took(rehearsed, share):
    """Work of up to one and a half times what the slowest records may take leaves after one and the same time."""
    quantum = left_after("auto", 1e-9, expected=rehearsed)
    assert quantum >= max(SHORTEST_QUANTUM_S, 1.5 * LARGEST_RATIO * rehearsed) - 1e-9
    assert quantum <= 1.5 * LARGEST_RATIO * rehearsed + SHORTEST_QUANTUM_S + 1e-9
    work = min(share * rehearsed, quantum - 1e-6)
    assert left_after("auto", max(work, 1e-9), expected=rehearsed) == pytest.approx(quantum)


def test_what_one_request_expects_is_forgotten_by_the_next():
    clock = Clock()
    pacer = Pacer("auto", clock=clock, sleep=clock.sleep)
    with pacer.paced():
        pacer.expect(3.0)
    begun = clock.now
    with pacer.paced():
        clock.now += 0.01
    assert clock.now - begun == pytest.approx(SHORTEST_QUANTUM_S)
