"""An evaluator whose sessions begin later."""

from __future__ import annotations

import contextlib


class Delayed:
    """Evaluates as another does, after something else in each session.

    Args:
        evaluator: the other.
        delay: called within the session, before it is used.
    """

    def __init__(self, evaluator, delay):
        self.evaluator, self.delay = evaluator, delay

    @contextlib.contextmanager
    def session(self, source):
        with self.evaluator.session(source) as session:
            self.delay()
            yield session
