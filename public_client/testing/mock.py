"""A curator that does not exist: for dry runs without server, certificate, ledger or budget.

`MockCurator` is a real `Curator` whose requests end in this process. It has no records: it makes synthetic ones
of the described shape. All else is the real thing: requests and replies pass through their wire format, runs are
admitted and steps computed by the code that a curator runs (`dpswd.shared.core.steps`), priced by the ledger's filter,
and receipts are signed, by a key that lives as long as the mock. So a dry run finds what a curator would refuse, what
it would charge and how long the training takes; what it *learns* is meaningless, and nothing is spent.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from google.protobuf.message import Message
from torch import Tensor

from dpswd.public_client.curator.connection import Patience
from dpswd.public_client.curator.description import Budget, Description
from dpswd.public_client.curator.stub import Curator
from dpswd.public_client.curator.transport import REPLIES, Exchange
from dpswd.public_client.evidence.signature import DRY_RUN
from dpswd.shared.accounting.pricing import filter_for
from dpswd.shared.core import errors
from dpswd.shared.core.ledger import receipts as chain
from dpswd.shared.core.mechanisms.declared import AdmittedRun
from dpswd.shared.core.mechanisms.interface import (
    AnyMechanism,
    DataSetFacts,
    FloatArray,
    LabelArray,
    Limits,
    ModelFacts,
)
from dpswd.shared.core.privacy.budget import PrivacyBudget, Spent
from dpswd.shared.core.privacy.event_json import event_to_json
from dpswd.shared.core.privacy.events import NeighbouringRelation
from dpswd.shared.core.privacy.filter import PrivacyFilter
from dpswd.shared.core.steps.admission import admit_run, offered
from dpswd.shared.core.steps.computing import Laboratory, computed
from dpswd.shared.core.wire import limits as protocol
from dpswd.shared.core.wire.checks import invalid
from dpswd.shared.core.wire.messages import RunParameters, StepRelease, run_digest, step_digest
from dpswd.shared.core.wire.v1 import curator_pb2 as pb
from dpswd.shared.mechanisms import every_mechanism
from dpswd.shared.protocol.contract import DataContract
from dpswd.shared.protocol.receipts import encode_receipt
from dpswd.shared.sandbox.building import Extractor
from dpswd.shared.sandbox.graph import ExtractorGraph
from dpswd.shared.sandbox.session import DirectSession
from dpswd.shared.sandbox.weights import weights_from_bytes
from dpswd.shared.seeded_noise import SeededNoise

_BRIGHTNESS = 0.5  # deviation of a synthetic value: most lie in [-1, 1], as pixels and standardised columns do


@dataclass(frozen=True)
class MockCharge:
    """One run that a real curator would have charged.

    Attributes:
        epsilon: of the run alone, at the data set's delta.
        run: what it declared, checked.
        parameters: the same as they were sent.
    """

    epsilon: float
    run: AdmittedRun
    parameters: RunParameters

    def __str__(self) -> str:
        size = self.run.size
        what = self.run.summary
        steps = f"{size.steps} {'step' if size.steps == 1 else 'steps'}"
        epsilon = errors.rounded(self.epsilon, up=True)
        return f"epsilon {epsilon} for a run of {steps}, each releasing {what} of {size.batch} records"


def mock_description(
    *,
    records: int,
    record_shape: tuple[int, ...],
    epsilon: float,
    delta: float,
    name: str = "mock",
    classes: int = 0,
    partly_labelled: bool = False,
    labelled: int = 0,
    contract: DataContract | None = None,
) -> Description:
    """What a curator with a fresh budget and the usual limits would say of such a data set.

    Args:
        records: n.
        record_shape: of one record.
        epsilon: of the whole budget.
        delta: of that budget.
        name: the data set's.
        classes: C of the labels; 0 where there are none.
        partly_labelled: whether some records may have no label.
        labelled: how many of those have one, where that is public.
        contract: what its operator declares of the records' values.

    Returns:
        A description for `MockCurator`.
    """
    budget = Budget(epsilon=epsilon, delta=delta, spent=0.0, remaining=epsilon, closed=False)
    facts = DataSetFacts(records, tuple(record_shape), classes, partly_labelled=partly_labelled, labelled=labelled)
    return Description(
        **vars(facts),
        data_set=name,
        data_set_budget=budget,
        client_budget=budget,
        neighbouring_relation=NeighbouringRelation.REPLACE_ONE.value,
        mechanisms=offered(every_mechanism(), facts),
        limits=replace(
            Limits(),
            max_batch_size=min(protocol.MAX_BATCH_SIZE, records),
            min_batch_size=min(protocol.MIN_BATCH_SIZE, records),
        ),
        grid_exponent=protocol.GRID_EXPONENT,
        ledger_public_key="00" * 32,  # replaced by the mock's own
        client_name=DRY_RUN,
        software_version="mock",
        contract=contract or DataContract(),
    )


@dataclass
class _Run:
    """A run that the mock opened.

    Attributes:
        admitted: checked.
        model: rebuilt from what was uploaded.
        receipt: of its opening.
        answers: stored steps by request id: digest, reply, receipt.
    """

    admitted: AdmittedRun
    model: Extractor
    receipt: chain.Receipt
    answers: dict[str, tuple[str, bytes, chain.Receipt]] = field(default_factory=dict)


class MockCurator(Curator):
    """A `Curator` without a curator, its own transport; see the module. `Hospital(MockCurator(...))` plans and trains.

    What is left of a described budget counts as a fresh budget of that size: which runs spent the rest is not public.

    Args:
        description: of the data set that is imitated, from `mock_description`, or one that a curator gave.
        seed: of the synthetic records.
        randomness: where seeds of directions and noise come from.
        mechanisms: what may be released.
        records: makes so many records (count, *record_shape), to imitate a data set better; or holds records (n,
            *record_shape) of one's own, from which samples are drawn with their labels; by default random numbers.
        labels: (n,) of the records, -1 for one without; by default 0, 1, ... in turn.
        seeds: where seeds of directions come from; by default `randomness`.

    Attributes:
        charges: the runs that a real curator would have charged, in order.
    """

    def __init__(
        self,
        description: Description,
        *,
        seed: int = 0,
        randomness: Callable[[int], bytes] = secrets.token_bytes,
        mechanisms: Mapping[str, AnyMechanism] | None = None,
        records: Callable[[int], Tensor] | FloatArray | None = None,
        labels: LabelArray | None = None,
        seeds: Callable[[int], bytes] | None = None,
    ) -> None:
        super().__init__(self)
        if description.remaining <= 0.0:
            raise errors.InvalidValue(f"nothing is left of the budget of {description.data_set!r}; each run is refused")
        self._described = description
        self._data = description.facts
        self._mechanisms = {
            name: mechanism
            for name, mechanism in (every_mechanism() if mechanisms is None else mechanisms).items()
            # One that lacks nothing but labels is refused by admission, which says so.
            if name in description.mechanisms or (mechanism.needs_labels and not description.classes)
        }
        self._budget = PrivacyBudget(
            epsilon=description.remaining,
            delta=description.data_set_budget.delta,
            relation=NeighbouringRelation(description.neighbouring_relation),
        )
        self._key = Ed25519PrivateKey.generate()
        self._last: chain.SignedEntry | None = None
        self._filter: PrivacyFilter | None = None
        self._spent: Spent | None = None
        self._randomness, self._seeds = randomness, seeds or randomness
        self._generator = torch.Generator().manual_seed(seed)
        self._held = records if isinstance(records, np.ndarray) else None
        self._made = records if callable(records) else self._synthetic
        in_turn = np.arange(description.records, dtype=np.int64) % max(1, description.classes)
        self._labels = in_turn if labels is None else np.asarray(labels)
        self._graphs: dict[str, ExtractorGraph] = {}
        self._weights: dict[str, bytes] = {}
        self._runs: dict[str, _Run] = {}
        self._opened: dict[str, str] = {}
        self._lock = threading.RLock()
        self.charges: list[MockCharge] = []

    def exchange(self, method: str, request: Message, *, patience: Patience | None = None) -> Exchange:  # noqa: ARG002
        """See `Transport`."""
        handlers: dict[str, Callable[[Any], Message]] = {
            "Describe": self._describe,
            "UploadExtractor": self._upload_extractor,
            "OpenRun": self._open_run,
            "DrawStep": self._draw_step,
        }
        with self._lock:
            reply = handlers[method](type(request).FromString(request.SerializeToString()))
        return Exchange(request, REPLIES[method].FromString(reply.SerializeToString()))

    def close(self) -> None:
        """Nothing is open."""

    def take(self, indices: npt.NDArray[np.int64]) -> FloatArray:
        """See `dpswd.shared.core.steps.computing.Records`: made anew at each call, where they are not held."""
        if self._held is not None:
            return self._held[indices]
        values: FloatArray = self._made(len(indices)).numpy()
        return values

    @property
    def count(self) -> int:
        """See `dpswd.shared.core.steps.computing.Records`."""
        return self._described.records

    def _synthetic(self, count: int) -> Tensor:
        return torch.randn((count, *self._described.record_shape), generator=self._generator) * _BRIGHTNESS

    def _describe(self, _: pb.DescribeRequest) -> pb.DescribeResponse:
        described, budget = self._described, self._budget_now()
        own = {
            "data_set_budget": budget,
            "client_budget": budget,
            "limits": pb.Limits(**asdict(described.limits)),
            "ledger_public_key": self._key.public_key().public_bytes_raw(),
            "contract": described.contract.to_message(),
        }
        return pb.DescribeResponse(**{one.name: getattr(described, one.name) for one in fields(described)} | own)

    def _budget_now(self) -> pb.BudgetStatus:
        spent = 0.0 if self._filter is None or self._spent is None else self._filter.epsilon(self._spent)
        return pb.BudgetStatus(
            epsilon=self._budget.epsilon,
            delta=self._budget.delta,
            epsilon_spent=spent,
            epsilon_remaining=max(0.0, self._budget.epsilon - spent),
        )

    def _upload_extractor(self, request: pb.UploadExtractorRequest) -> pb.UploadExtractorResponse:
        """Rebuilds the extractor from its bytes, as a curator does before it keeps them."""
        try:
            graph = ExtractorGraph.from_bytes(request.graph)
            weights_from_bytes(request.weights, graph)
        except errors.InvalidValue as error:
            raise invalid("graph", str(error)) from error
        if graph.input_shape != self._data.record_shape:
            text = f"takes records of shape {graph.input_shape}; this data set's have {self._data.record_shape}"
            raise invalid("graph", text)
        digests = hashlib.sha256(request.graph).hexdigest(), hashlib.sha256(request.weights).hexdigest()
        self._graphs[digests[0]], self._weights[digests[1]] = graph, request.weights
        return pb.UploadExtractorResponse(
            graph_digest=digests[0], weights_digest=digests[1], feature_dimension=graph.feature_dimension
        )

    def _open_run(self, request: pb.OpenRunRequest) -> pb.OpenRunResponse:
        parameters = RunParameters.from_message(request.parameters)
        earlier = self._opened.get(request.request_id)
        if earlier is not None:
            return self._answer_open(self._runs[earlier].admitted, earlier)
        run = self._admitted(parameters)
        if request.validate_only:
            answer = self._answer_open(run, "")
            if request.wanted and not answer.fits:
                own = answer.data_set_budget
                left, steps = own.epsilon_remaining, answer.steps_that_fit
                raise errors.BudgetExhausted(request.wanted, own.epsilon_spent, left, steps_that_fit=steps)
            return answer
        filter_, spent = self._books(run)
        try:
            after = filter_.admit(spent, filter_.price(run.event))
        except errors.BudgetExhausted as error:
            steps = min(run.event.steps, filter_.fits(spent, run.event))
            raise replace(error, steps_that_fit=steps) from error
        priced = self._answer_open(run, "")
        self._filter, self._spent = filter_, after
        graph = self._graphs[parameters.graph_digest]
        weights = weights_from_bytes(self._weights[parameters.weights_digest], graph)
        run_id = f"mock-{len(self._runs) + 1}"
        stated = {"event": event_to_json(run.event), "steps": run.event.steps, "epsilon": priced.epsilon}
        receipt = self._signed(chain.RUN_OPENED, run_id, request.request_id, run_digest(parameters), **stated)
        self._runs[run_id] = _Run(run, Extractor(graph, weights), receipt)
        self._opened[request.request_id] = run_id
        self.charges.append(MockCharge(priced.epsilon, run, parameters))
        return self._answer_open(run, run_id)

    def _books(self, run: AdmittedRun) -> tuple[PrivacyFilter, Spent]:
        """The ledger's filter, which the first run chooses, and what it counts as spent."""
        filter_ = self._filter or filter_for(self._budget, plan=run.event)
        return filter_, self._spent or filter_.zero()

    def _answer_open(self, run: AdmittedRun, run_id: str) -> pb.OpenRunResponse:
        """The price by the ledger's filter, whether it would be admitted, and the receipt of a run that is open."""
        filter_, spent = self._books(run)
        price, steps = filter_.price(run.event), run.event.steps
        try:
            filter_.admit(spent, price)
        except errors.BudgetExhausted:
            steps = min(steps, filter_.fits(spent, run.event))
        budget = self._budget_now()
        return pb.OpenRunResponse(
            run_id=run_id,
            epsilon=filter_.alone(price),
            data_set_budget=budget,
            client_budget=budget,
            fits=bool(run_id) or steps == run.event.steps,
            steps_that_fit=run.event.steps if run_id else steps,
            receipt=encode_receipt(self._runs[run_id].receipt) if run_id else None,
        )

    def _draw_step(self, request: pb.DrawStepRequest) -> pb.DrawStepResponse:
        """Computes a step on synthetic records with the real mechanisms; a repeat gives the same bytes."""
        run = self._runs.get(request.run_id)
        if run is None:
            raise errors.RequestInvalid((("run_id", f"{request.run_id!r} is no run of this mock curator"),))
        digest = step_digest(run_id=request.run_id, payload=request.payload)
        stored = run.answers.get(request.request_id)
        if stored is None:
            if len(run.answers) == run.admitted.size.steps:
                raise errors.RunFinished("all declared steps of this run are used; open another run")
            stored = run.answers[request.request_id] = self._computed(run, request, digest)
        if stored[0] != digest:
            raise errors.RequestIdReused("this request id was used for another request; make a new one for each")
        return pb.DrawStepResponse(step_release=stored[1], receipt=encode_receipt(stored[2]))

    def _computed(self, run: _Run, request: pb.DrawStepRequest, digest: str) -> tuple[str, bytes, chain.Receipt]:
        asked = run.admitted.admit_step(request.payload, limits=self._described.limits)
        lab = Laboratory(
            records=self,
            labels=self._labels if self._data.classes else None,
            noise=SeededNoise(self._randomness(32), purpose="mock release"),  # protects nothing: nothing is here
            device=torch.device("cpu"),
            fresh_seed=lambda: self._seeds(32),
            reached=lambda _: None,
        )
        payload = computed(asked, DirectSession(run.model), lab)
        step = len(run.answers) + 1
        reply = StepRelease(request.run_id, step, payload).to_bytes()
        receipt = self._signed(
            chain.STEP_ANSWERED, request.run_id, request.request_id, digest, step=step, reply=chain.sha256(reply)
        )
        return digest, reply, receipt

    def _admitted(self, parameters: RunParameters) -> AdmittedRun:
        graph = self._graphs.get(parameters.graph_digest)
        if graph is None or parameters.weights_digest not in self._weights:
            raise errors.ExtractorUnknown("no extractor with this digest was uploaded; upload the extractor first")
        return admit_run(
            parameters,
            mechanisms=self._mechanisms,
            data=self._data,
            model=ModelFacts.of(graph),
            limits=self._described.limits,
        )

    def _signed(self, kind: str, run_id: str, request_id: str, digest: str, **more: Any) -> chain.Receipt:
        """The next entry of a chain like a ledger's, as a receipt."""
        payload = {"run": run_id, "client": DRY_RUN, "request_id": request_id, "digest": digest, **more}
        time = "2000-01-01T00:00:00.000000Z"
        self._last = chain.SignedEntry.following(self._last, kind=kind, payload=payload, time=time, sign=self._key.sign)
        return chain.Receipt.of(self._last)
