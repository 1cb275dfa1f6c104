"""Values that pass between a client's code and its connection: uploads, quotes, runs, prepared steps."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, fields

from dpswd.shared.core.wire.messages import RunParameters
from dpswd.shared.core.wire.v1 import curator_pb2 as pb


@dataclass(frozen=True)
class UploadedExtractor:
    """An extractor that the curator holds.

    Attributes:
        graph_digest: SHA-256 of the graph.
        weights_digest: SHA-256 of the weights.
    """

    graph_digest: str
    weights_digest: str


@dataclass(frozen=True)
class Quote:
    """What a run costs, or did cost.

    Attributes:
        epsilon: of this run alone at the data set's delta, rounded up.
        fits: whether both budgets would admit it.
        steps_that_fit: how many steps like these still fit, at most the declared number.
    """

    epsilon: float
    fits: bool
    steps_that_fit: int

    @classmethod
    def from_message(cls, reply: pb.OpenRunResponse) -> Quote:
        """Decodes the curator's answer to OpenRun."""
        return cls(reply.epsilon, reply.fits or bool(reply.run_id), reply.steps_that_fit)


@dataclass(frozen=True)
class BudgetAnswer:
    """A request for budget, and what the operator made of it.

    Attributes:
        number: by which the operator knows it.
        time: of the request, UTC.
        epsilon: that was asked for.
        purpose: why.
        decision: approved, cut or denied; empty while it waits.
        granted: epsilon that was added.
        reason: the operator's words.
    """

    number: int
    time: str
    epsilon: float
    purpose: str
    decision: str
    granted: float
    reason: str

    @classmethod
    def all_of(cls, reply: pb.RequestBudgetResponse) -> list[BudgetAnswer]:
        """Decodes the curator's answer to RequestBudget."""
        names = [field.name for field in fields(cls)]
        return [cls(**{name: getattr(asked, name) for name in names}) for asked in reply.requests]


@dataclass(frozen=True)
class Run:
    """A run that is charged; its steps can be drawn.

    Attributes:
        run_id: the curator's name for it.
        parameters: what was declared.
        quote: what it cost.
    """

    run_id: str
    parameters: RunParameters
    quote: Quote


@dataclass(frozen=True)
class PendingStep:
    """One step's request, complete before it is sent.

    Attributes:
        run_id: the run.
        request_id: UUID4.
        payload: the mechanism's request, as bytes.
    """

    run_id: str
    request_id: str
    payload: bytes


def new_request_id() -> str:
    """A fresh UUID4 for one request and its repeats."""
    return str(uuid.uuid4())
