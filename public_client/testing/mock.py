"""A curator that does not exist: for dry runs without server, certificate, ledger or budget.

`MockCurator` stands in a curator's place inside the client's own process. It has no records: it makes synthetic ones
of the described shape. All else is the real thing from `shared`: extractors are rebuilt from their graphs, the
mechanisms clip, project and add noise, requests and releases pass through their wire format, and runs are priced and
admitted by the ledger's filter. So a dry run finds what a curator would refuse, what it would charge and how long the
training takes; what it *learns* is meaningless, and nothing is spent.
"""

from __future__ import annotations

import hashlib
import math
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NoReturn, cast

import grpc
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from public_client.curator.description import Budget, Description, Limits
from public_client.curator.stub import Curator
from public_client.curator.values import PendingStep, Quote, Run, UploadedExtractor, new_request_id
from public_client.testing.mock_steps import MockRun, MockStep
from shared.errors import BudgetExhausted, ExtractorUnknown, InvalidValue, RequestInvalid, RunFinished
from shared.extractor import Extractor, ExtractorGraph, check_weights, weights_from_bytes
from shared.mechanisms.gradient.sanitized import check_gradient_range
from shared.privacy.budget import PrivacyBudget, Spent
from shared.privacy.events import NeighbouringRelation, RunEvent
from shared.privacy.filter import PrivacyFilter
from shared.protocol import limits
from shared.protocol.critics import CriticRelease
from shared.protocol.messages import Critic, Evaluation, Quantiles, RunParameters, StepRelease
from shared.protocol.pricing import run_event

_BRIGHTNESS = 0.5  # deviation of a synthetic value: most lie in [-1, 1], as pixels and standardised columns do


@dataclass(frozen=True)
class MockCharge:
    """One run that a real curator would have charged.

    Attributes:
        epsilon: of the run alone, at the data set's delta.
        parameters: what it declared.
        gradient_numbers: p.
    """

    epsilon: float
    parameters: RunParameters
    gradient_numbers: int

    def __str__(self) -> str:
        declared = self.parameters
        each = declared.directions
        if isinstance(declared.release, Quantiles):
            what = [f"{declared.release.coefficients} x {each} quantile coefficients"]
        else:
            what = [] if isinstance(declared.release, Critic) else [f"{declared.batch_size} x {each} noisy projections"]
        if declared.gradient is not None:
            what.append(f"a sanitized gradient of {self.gradient_numbers} numbers")
        steps = f"{declared.steps} {'step' if declared.steps == 1 else 'steps'}"
        return (
            f"epsilon {math.ceil(self.epsilon * 1e4) / 1e4:.4f} for a run of {steps}, each releasing "
            f"{' and '.join(what)} of {declared.batch_size} records"
        )


class _NoChannel:
    """Stands where the network would be: whatever the mock does not imitate ends in a clear refusal."""

    def unary_unary(self, method: str, *_: Any, **__: Any) -> Any:
        def refuse(*_: Any, **__: Any) -> NoReturn:
            raise InvalidValue(f"the mock curator does not imitate {method.rsplit('/', 1)[-1]}; use a real curator")

        return refuse


def mock_description(
    *,
    records: int,
    record_shape: tuple[int, ...],
    epsilon: float,
    delta: float,
    name: str = "mock",
) -> Description:
    """What a curator with a fresh budget and the usual limits would say of such a data set."""
    budget = Budget(epsilon=epsilon, delta=delta, spent=0.0, remaining=epsilon, closed=False)
    return Description(
        data_set=name,
        records=records,
        record_shape=tuple(record_shape),
        data_set_budget=budget,
        client_budget=budget,
        neighbouring_relation=NeighbouringRelation.REPLACE_ONE.value,
        mechanisms=("rows", "quantiles", "gradient", "critic"),
        limits=Limits(
            max_message_bytes=limits.MAX_MESSAGE_BYTES,
            max_directions=limits.MAX_DIRECTIONS,
            max_coefficients=limits.MAX_COEFFICIENTS,
            max_batch_size=min(limits.MAX_BATCH_SIZE, records),
            max_adapted_parameters=limits.MAX_ADAPTED_PARAMETERS,
            max_source_features=limits.MAX_SOURCE_FEATURES,
        ),
        grid_exponent=limits.GRID_EXPONENT,
        ledger_public_key="00" * 32,  # nobody's key: a mock signs nothing, so it gives no receipts
        client_name="dry run",
        software_version="mock",
    )


class MockCurator(Curator):
    """A `Curator` without a curator; see the module.

    What is left of a described budget counts as a fresh budget of that size: which runs spent the rest is not public.

    Args:
        description: of the data set that is imitated, from `mock_description`, or one that a curator gave.
        seed: of the synthetic records.
        randomness: where seeds of directions and noise come from.

    Attributes:
        charges: the runs that a real curator would have charged, in order.
    """

    def __init__(
        self,
        description: Description,
        *,
        seed: int = 0,
        randomness: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        super().__init__(cast("grpc.Channel", _NoChannel()))
        if description.remaining <= 0.0:
            raise InvalidValue(f"nothing is left of the budget of {description.data_set!r}; every run is refused")
        self._described = description
        self._budget = PrivacyBudget(
            epsilon=description.remaining,
            delta=description.data_set_budget.delta,
            relation=NeighbouringRelation(description.neighbouring_relation),
        )
        self._filter: PrivacyFilter | None = None
        self._spent: Spent | None = None
        self._randomness = randomness
        self._records = torch.Generator().manual_seed(seed)
        self._graphs: dict[str, ExtractorGraph] = {}
        self._weights: dict[str, bytes] = {}
        self._sources: dict[str, npt.NDArray[np.float32]] = {}
        self._runs: dict[str, MockRun] = {}
        self._opened: dict[str, Run] = {}
        self._lock = threading.Lock()
        self.charges: list[MockCharge] = []

    def close(self) -> None:
        """Nothing is open."""

    def describe(self) -> Description:
        """The imitated description, with the budget as it would stand now."""
        spent = 0.0 if self._filter is None or self._spent is None else self._filter.epsilon(self._spent)
        budget = Budget(
            epsilon=self._budget.epsilon,
            delta=self._budget.delta,
            spent=spent,
            remaining=max(0.0, self._budget.epsilon - spent),
            closed=False,
        )
        return replace(self._described, data_set_budget=budget, client_budget=budget)

    def upload_extractor(self, graph: bytes, weights: bytes) -> UploadedExtractor:
        """Rebuilds the extractor from its bytes, as a curator does before it keeps them."""
        parsed = ExtractorGraph.from_bytes(graph)
        if parsed.input_shape != self._described.record_shape:
            text = f"takes records of shape {parsed.input_shape}; this data set's have {self._described.record_shape}"
            raise RequestInvalid((("graph", text),))
        check_weights(parsed, weights_from_bytes(weights, parsed.tensor_shapes))
        digests = hashlib.sha256(graph).hexdigest(), hashlib.sha256(weights).hexdigest()
        self._graphs[digests[0]], self._weights[digests[1]] = parsed, weights
        return UploadedExtractor(*digests, parsed.feature_dimension)

    def upload_source(self, features: npt.ArrayLike) -> str:
        """Keeps source features by their digest."""
        values = np.ascontiguousarray(features, dtype="<f4")
        digest = hashlib.sha256(values.tobytes()).hexdigest()
        self._sources[digest] = values
        return digest

    def price_run(self, parameters: RunParameters) -> Quote:
        """The price by the ledger's filter, and whether it would be admitted."""
        return self._quote(*self._priced(parameters))

    def open_run(self, parameters: RunParameters, *, request_id: str | None = None) -> Run:
        """Notes the charge that a curator would make.

        Raises:
            BudgetExhausted: a curator with what is described would refuse.
        """
        with self._lock:
            if request_id in self._opened:
                return self._opened[request_id]
            filter_, spent, event = self._priced(parameters)
            quote = self._quote(filter_, spent, event)
            try:
                self._spent = filter_.admit(spent, filter_.price(event))
            except BudgetExhausted as error:
                raise replace(error, steps_that_fit=quote.steps_that_fit) from error
            self._filter = filter_
            graph = self._graphs[parameters.graph_digest]
            weights = weights_from_bytes(self._weights[parameters.weights_digest], graph.tensor_shapes)
            run = Run(run_id=f"mock-{len(self._runs) + 1}", parameters=parameters, quote=quote)
            self._runs[run.run_id] = MockRun(parameters, Extractor.from_graph(graph, weights))
            self._opened[request_id or new_request_id()] = run
            self.charges.append(MockCharge(quote.epsilon, parameters, self._gradient_numbers(parameters)))
            return run

    def send(self, pending: PendingStep) -> StepRelease:
        """Computes a step on synthetic records with the real mechanisms; a repeat gives the same bytes."""
        return StepRelease.from_bytes(self._answered(pending))

    def send_critic(self, pending: PendingStep) -> CriticRelease:
        """`send` for a critic's step."""
        return CriticRelease.from_bytes(self._answered(pending))

    def synthetic(self, count: int) -> Tensor:
        """Records (count, *record_shape) that nobody has; a subclass may imitate a data set better."""
        return torch.randn((count, *self._described.record_shape), generator=self._records) * _BRIGHTNESS

    def _answered(self, pending: PendingStep) -> bytes:
        run = self._runs[pending.run_id]
        with self._lock:
            if pending.request_id not in run.answers:
                if len(run.answers) == run.parameters.steps:
                    raise RunFinished("all declared steps of this run are used; open another run")
                records = self.synthetic(run.parameters.batch_size)
                step = MockStep(run, pending, records, self._sources, self._randomness)
                run.answers[pending.request_id] = step.answer()
            return run.answers[pending.request_id]

    def _priced(self, parameters: RunParameters) -> tuple[PrivacyFilter, Spent, RunEvent]:
        parameters = RunParameters.from_message(parameters.to_message())  # what the wire refuses is refused here
        graph = self._graphs.get(parameters.graph_digest)
        if graph is None or parameters.weights_digest not in self._weights:
            raise ExtractorUnknown("no extractor with this digest was uploaded; upload the extractor first")
        numbers = self._gradient_numbers(parameters)
        if broken := self._broken(parameters, graph, numbers):
            raise RequestInvalid(tuple(broken))
        event = run_event(
            parameters,
            records=self._described.records,
            feature_dimension=graph.feature_dimension,
            gradient_parameters=numbers,
        )
        filter_ = self._filter or PrivacyFilter.for_budget(self._budget, plan=event)
        return filter_, self._spent or filter_.zero(), event

    def _broken(self, parameters: RunParameters, graph: ExtractorGraph, numbers: int) -> list[tuple[str, str]]:
        """What a curator with the usual limits would refuse of a declaration, field by field."""
        if isinstance(parameters.release, Evaluation):
            return [("parameters.release", "is an evaluation; the mock curator imitates rows, quantiles and critics")]
        broken = []
        bounds = self._described.limits
        most = min(bounds.max_batch_size, self._described.records)
        if parameters.batch_size > most:
            broken.append(("parameters.batch_size", f"is {parameters.batch_size}; allowed are 1 to {most}"))
        if isinstance(parameters.release, Critic) and graph.feature_dimension != 1:
            text = f"computes {graph.feature_dimension} values for each record; a critic computes one logit"
            broken.append(("parameters.graph_digest", text))
        if parameters.gradient is None:
            return broken
        if numbers > bounds.max_adapted_parameters:
            text = f"have {numbers} values; at most {bounds.max_adapted_parameters} are allowed"
            broken.append(("parameters.gradient.parameters", text))
        try:
            check_gradient_range(
                batch=parameters.batch_size, clip_norm=parameters.gradient.clip_norm, sigma=parameters.gradient.sigma
            )
        except InvalidValue as error:
            broken.append(("parameters.gradient.sigma", str(error)))
        return broken

    def _quote(self, filter_: PrivacyFilter, spent: Spent, event: RunEvent) -> Quote:
        price = filter_.price(event)
        try:
            alone = filter_.epsilon(filter_.admit(filter_.zero(), price))
        except BudgetExhausted as error:
            alone = error.requested
        try:
            filter_.admit(spent, price)
            steps = event.steps
        except BudgetExhausted:
            steps = min(event.steps, filter_.fits(spent, event))
        now = self.describe()
        return Quote(
            epsilon=alone,
            fits=steps == event.steps,
            steps_that_fit=steps,
            data_set_budget=now.data_set_budget,
            client_budget=now.client_budget,
        )

    def _gradient_numbers(self, parameters: RunParameters) -> int:
        shapes = self._graphs[parameters.graph_digest].parameter_shapes
        names = parameters.gradient.parameters if parameters.gradient is not None else ()
        unknown = [name for name in names if name not in shapes]
        if unknown:
            raise RequestInvalid((("parameters.gradient.parameters", f"names {unknown[:3]}, unknown to the graph"),))
        return sum(math.prod(shapes[name]) for name in names)
