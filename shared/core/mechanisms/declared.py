"""What a run declares, beside the mechanism that means it: the price and the release come from one value.

A registry of mechanisms has forgotten their types. Here each is bound to its own declaration, and each request to its
own run, so that the type checker sees what is computed for what was charged; outside only bytes go in and come out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Generic

from dpswd.shared.core.errors import RequestInvalid
from dpswd.shared.core.mechanisms.interface import Facts, Limits, Mechanism, Payload, RunSize, Step
from dpswd.shared.core.mechanisms.linear import D_co, LinearMechanism, LinearRun, Q_co, R_co
from dpswd.shared.core.privacy.events import RunEvent, StepEvent
from dpswd.shared.core.wire.checks import Violation


@dataclass(frozen=True)
class Declared(Generic[D_co, Q_co, R_co]):
    """A mechanism with what a run declares of it.

    Attributes:
        mechanism: what the run's steps release.
        declaration: the mechanism's own.
        size: batch and steps.
        facts: of the data set and of the uploaded graph.
        graph: the graph's digest, once it was uploaded.
    """

    mechanism: Mechanism[D_co, Q_co, R_co]
    declaration: D_co
    size: RunSize
    facts: Facts
    graph: str = ""

    @cached_property
    def event(self) -> RunEvent:
        """Prices the run as a whole; the same at both parties.

        Raises:
            InvalidValue: the accountant does not cover such a release.
        """
        parts = self.mechanism.parts(self.declaration, self.size, self.facts)
        return RunEvent(StepEvent(self.facts.data.records, self.size.batch, parts), self.size.steps)

    @property
    def work(self) -> tuple[object, ...]:
        """What the time and the memory of a step depend on, all of it public; not the weights: by form."""
        return (self.graph, self.size.batch, self.mechanism.name, *self.mechanism.work(self.declaration))

    @property
    def summary(self) -> str:
        """What a step releases, in words."""
        return self.mechanism.summary(self.declaration, self.facts)

    def violations(self, limits: Limits) -> list[Violation]:
        """Every rule that the declaration breaks."""
        return self.mechanism.violations(self.declaration, self.size, self.facts, limits)

    def synthetic(self) -> bytes:
        """The most expensive request that a step may bring."""
        return self.mechanism.synthetic(self.declaration, self.size, self.facts).to_bytes()

    def asked(self, payload: bytes) -> Asked[D_co, Q_co, R_co]:
        """A request of this run, decoded, and nothing is checked.

        Raises:
            RequestInvalid: the bytes are no such value.
        """
        return Asked(self, self.mechanism.request.from_bytes(payload))

    def admit_step(self, payload: bytes, *, limits: Limits) -> Asked[D_co, Q_co, R_co]:
        """Checks a step's request against this run.

        Args:
            payload: as it was sent.
            limits: the operator's.

        Raises:
            RequestInvalid: every broken rule.
        """
        request = self.mechanism.request.from_bytes(payload)
        if broken := self.mechanism.check(request, self.declaration, self.facts, limits):
            raise RequestInvalid(tuple(broken))
        return Asked(self, request)


@dataclass(frozen=True)
class Asked(Generic[D_co, Q_co, R_co]):
    """A step's request, with the run that it belongs to and no other.

    Attributes:
        run: as declared.
        request: the mechanism's own.
    """

    run: Declared[D_co, Q_co, R_co]
    request: Q_co

    @property
    def linear(self) -> LinearRun[D_co, Q_co, R_co] | None:
        """What the shards of a sum over every record need; None where the mechanism is no such sum."""
        run = self.run
        if isinstance(run.mechanism, LinearMechanism):
            return LinearRun(run.mechanism, run.mechanism.stepped(run.declaration, self.request), run.facts)
        return None

    def computed(self, step: Step) -> bytes:
        """The reply. Everything private lives and dies inside this call."""
        return self.run.mechanism.compute(self.run.declaration, self.request, step).to_bytes()


AdmittedRun = Declared[Payload, Payload, Payload]
"""One whose declaration was checked."""
AdmittedStep = Asked[Payload, Payload, Payload]
"""One that was checked against its run."""
