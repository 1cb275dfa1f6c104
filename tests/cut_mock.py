"""A mock curator whose connection is cut once, and the end of a client that a test can catch."""

from __future__ import annotations

from dpswd import MockCurator


class Killed(BaseException):
    """The client's end."""


class CutMock(MockCurator):
    """`Killed`, or another error, comes in the place of the answer to the step of number `at`, the first time.

    Attributes:
        asked: request ids of all steps that were asked for, in order.
    """

    def __init__(self, *given, at=None, error=Killed, **named):
        super().__init__(*given, **named)
        self.at, self.error, self.asked = at, error, []

    def exchange(self, method, request, *, patience=None):
        answer = super().exchange(method, request, patience=patience)
        if method == "DrawStep":
            self.asked.append(request.request_id)
            if len(self.asked) == self.at:
                raise self.error("the wire is cut")
        return answer
