"""Values that pass between a client's code and its connection: uploads, quotes, runs, prepared steps."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Literal

from public_client.curator.description import Budget
from shared.protocol.messages import Critic, Evaluation, Quantiles, Rows, RunParameters
from shared.protocol.v1 import curator_pb2 as pb

StepKind = Literal[
    "align_target", "release_projections", "release_quantiles", "evaluate_model", "release_critic_gradient"
]


@dataclass(frozen=True)
class UploadedExtractor:
    """An extractor that the curator holds.

    Attributes:
        graph_digest: SHA-256 of the graph.
        weights_digest: SHA-256 of the weights.
        feature_dimension: d.
    """

    graph_digest: str
    weights_digest: str
    feature_dimension: int


@dataclass(frozen=True)
class Quote:
    """What a run costs, or did cost.

    Attributes:
        epsilon: of this run alone at the data set's delta, rounded up.
        fits: whether both budgets would admit it.
        steps_that_fit: how many steps like these still fit, at most the declared number.
        data_set_budget: after the charge, or as it stands for a mere quote.
        client_budget: the same for the caller's share.
    """

    epsilon: float
    fits: bool
    steps_that_fit: int
    data_set_budget: Budget
    client_budget: Budget


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

    @property
    def step_kind(self) -> StepKind:
        """Which request draws a step of this run."""
        match self.parameters.release:
            case Quantiles():
                return "release_quantiles"
            case Evaluation():
                return "evaluate_model"
            case Critic():
                return "release_critic_gradient"
            case Rows():
                return "align_target" if self.parameters.gradient is not None else "release_projections"


@dataclass(frozen=True)
class PendingStep:
    """One step's request, complete before it is sent.

    Attributes:
        kind: which request it is.
        run_id: the run.
        request_id: UUID4; it stands inside `message` as well.
        message: the serialized request.
    """

    kind: StepKind
    run_id: str
    request_id: str
    message: bytes


def new_request_id() -> str:
    """A fresh UUID4 for one request and its repeats."""
    return str(uuid.uuid4())


def quote_from(reply: pb.OpenRunResponse) -> Quote:
    """Decodes the curator's answer to OpenRun."""
    return Quote(
        epsilon=reply.epsilon,
        fits=reply.fits,
        steps_that_fit=reply.steps_that_fit,
        data_set_budget=Budget.from_message(reply.data_set_budget),
        client_budget=Budget.from_message(reply.client_budget),
    )
