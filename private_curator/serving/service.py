"""The RPCs: authenticate, decode, decide, answer; and the one boundary where errors are translated.

An error of the table in `shared.protocol.status` was made from public values and travels in its own words. Everything
else may hold a record's values in its text: the client gets a constant text with an incident number, the operator the
types and places of the exceptions.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import TypeVar, cast

import grpc
from google.protobuf.message import Message
from google.rpc import status_pb2
from grpc_status import rpc_status

from private_curator.ledger import AccountStatus, DataSetState, Ledger, Run, StoredReply
from private_curator.serving.authentication import Principal, authenticate
from private_curator.serving.incidents import IncidentBook
from private_curator.serving.pacing import Pacer
from private_curator.serving.turns import Turns
from private_curator.serving.uploads import Kind, UploadStore
from private_curator.settings.tree import CuratorSettings
from private_curator.steps import admission
from private_curator.steps.admission import DataSetFacts, Operation
from private_curator.steps.extraction import ExtractorCatalogue
from private_curator.steps.inputs import StepInputs, declared
from private_curator.steps.release import ReleasePipeline
from shared.errors import AccountantsDisagree, DpswdError
from shared.privacy.events import RunEvent
from shared.protocol import limits, status
from shared.protocol.digests import run_digest
from shared.protocol.messages import RunParameters
from shared.protocol.receipts import encode_receipt
from shared.protocol.v1 import curator_pb2 as pb
from shared.protocol.v1 import curator_pb2_grpc as pb_grpc

OK = "OK"
"""The outcome of a request that was answered."""

_Reply = TypeVar("_Reply", bound=Message)

_log = logging.getLogger(__name__)

_STEPS = frozenset(operation.value for operation in Operation)
"""The RPCs whose replies are made from records: they are paced, refusals and errors included."""


@dataclass(frozen=True)
class Parts:
    """What the service is made of.

    Attributes:
        settings: the operator's choices.
        ledger: budgets, charges and stored replies.
        data_set: the public facts of the data set.
        uploads: extractors and source features.
        extractors: builds extractors from uploads.
        pipeline: computes and releases steps.
        incidents: unexpected errors.
        pacer: holds replies to charged requests back.
        turns: bounds what one client may have under way.
        crosscheck: re-derives a run's price by an independent accountant; raises AccountantsDisagree.
        now: the present.
    """

    settings: CuratorSettings
    ledger: Ledger
    data_set: DataSetFacts
    uploads: UploadStore
    extractors: ExtractorCatalogue
    pipeline: ReleasePipeline
    incidents: IncidentBook
    pacer: Pacer
    turns: Turns
    crosscheck: Callable[[RunEvent], object]
    now: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC)


class CuratorService(pb_grpc.CuratorServiceServicer):
    """The servicer of dpswd.curator.v1.CuratorService."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._inputs = StepInputs(parts.uploads, parts.settings.limits)

    def Describe(self, request: pb.DescribeRequest, context: grpc.ServicerContext) -> pb.DescribeResponse:  # noqa: N802
        """See curator.proto."""
        return self._answer(context, "Describe", self._describe, request)

    def UploadExtractor(  # noqa: N802
        self, request: pb.UploadExtractorRequest, context: grpc.ServicerContext
    ) -> pb.UploadExtractorResponse:
        """See curator.proto."""
        return self._answer(context, "UploadExtractor", self._upload_extractor, request)

    def UploadSource(  # noqa: N802
        self, request: pb.UploadSourceRequest, context: grpc.ServicerContext
    ) -> pb.UploadSourceResponse:
        """See curator.proto."""
        return self._answer(context, "UploadSource", self._upload_source, request)

    def OpenRun(self, request: pb.OpenRunRequest, context: grpc.ServicerContext) -> pb.OpenRunResponse:  # noqa: N802
        """See curator.proto."""
        return self._answer(context, "OpenRun", self._open_run, request)

    def AlignTarget(self, request: pb.AlignTargetRequest, context: grpc.ServicerContext) -> pb.AlignTargetResponse:  # noqa: N802
        """See curator.proto."""
        return self._answer(context, "AlignTarget", self._align_target, request)

    def ReleaseProjections(  # noqa: N802
        self, request: pb.ReleaseProjectionsRequest, context: grpc.ServicerContext
    ) -> pb.ReleaseProjectionsResponse:
        """See curator.proto."""
        return self._answer(context, "ReleaseProjections", self._release_projections, request)

    def ReleaseQuantiles(  # noqa: N802
        self, request: pb.ReleaseQuantilesRequest, context: grpc.ServicerContext
    ) -> pb.ReleaseQuantilesResponse:
        """See curator.proto."""
        return self._answer(context, "ReleaseQuantiles", self._release_quantiles, request)

    def EvaluateModel(  # noqa: N802
        self, request: pb.EvaluateModelRequest, context: grpc.ServicerContext
    ) -> pb.EvaluateModelResponse:
        """See curator.proto."""
        return self._answer(context, "EvaluateModel", self._evaluate_model, request)

    def ReleaseCriticGradient(  # noqa: N802
        self, request: pb.ReleaseCriticGradientRequest, context: grpc.ServicerContext
    ) -> pb.ReleaseCriticGradientResponse:
        """See curator.proto."""
        return self._answer(context, "ReleaseCriticGradient", self._release_critic_gradient, request)

    # -- the boundary ---------------------------------------------------------------------------------------------

    def _answer(
        self,
        context: grpc.ServicerContext,
        operation: str,
        handler: Callable[[Principal, Message], _Reply],
        request: Message,
    ) -> _Reply:
        """Runs one handler for the authenticated caller; every error leaves through here and only here."""
        paced = self._parts.pacer.paced() if operation in _STEPS else contextlib.nullcontext()
        with paced:
            reply, refusal, caller, outcome = self._outcome(context, operation, handler, request)
        # After the wait: the time of a line in the log tells no more than that of the reply.
        fields = {"operation": operation, "client": caller, "outcome": outcome}
        _log.info("%s for %s: %s", operation, caller or "nobody", outcome, extra=fields)
        if refusal is None:
            assert reply is not None
            return reply
        # Outside of the handling of the error: gRPC logs the exception that abort raises together with its context.
        context.abort_with_status(rpc_status.to_status(refusal))
        raise AssertionError("abort_with_status raises")

    def _outcome(
        self,
        context: grpc.ServicerContext,
        operation: str,
        handler: Callable[[Principal, Message], _Reply],
        request: Message,
    ) -> tuple[_Reply | None, status_pb2.Status | None, str, str]:
        """The handler's reply or the refusal that it comes to, the caller's name, and OK or the refusal's reason."""
        parts = self._parts
        caller = ""
        try:
            # grpc-stubs states one value for each key; gRPC gives a list of them.
            peer = cast("Mapping[str, Sequence[bytes]]", context.auth_context())
            principal = authenticate(peer, find=parts.ledger.client_by_fingerprint, now=parts.now())
            caller = principal.name
            with parts.turns.taken(caller):
                reply = handler(principal, request)
        except Exception as error:  # noqa: BLE001 - the boundary: nothing may pass it untranslated
            if isinstance(error, DpswdError) and (reason := status.reason_for(error)) is not None:
                refusal, outcome = status.to_status(error), reason.reason
                if isinstance(error, AccountantsDisagree):  # a defect, made of public values: the operator must know
                    _log.error("%s for %s: %s", operation, caller, error)
            else:
                number = parts.incidents.record(error, operation=operation, client=caller)
                refusal, outcome = status.incident(number), "INTERNAL"
        else:
            return reply, None, caller, OK
        return None, refusal, caller, outcome

    # -- handlers -------------------------------------------------------------------------------------------------

    def _describe(self, principal: Principal, request: Message) -> pb.DescribeResponse:  # noqa: ARG002
        parts = self._parts
        data_set_budget, client_budget = self._budgets(principal)
        bounds = parts.settings.limits
        return pb.DescribeResponse(
            data_set=parts.settings.records.name,
            records=parts.data_set.records,
            record_shape=parts.data_set.record_shape,
            data_set_budget=data_set_budget,
            client_budget=client_budget,
            neighbouring_relation=parts.ledger.status().data_set.relation,
            mechanisms=["rows", "quantiles", "gradient", "critic", *(["evaluation"] * bool(parts.data_set.classes))],
            limits=pb.Limits(
                max_message_bytes=bounds.max_message_bytes,
                max_directions=bounds.max_directions,
                max_coefficients=bounds.max_coefficients,
                max_batch_size=min(bounds.max_batch_size, parts.data_set.records),
                max_adapted_parameters=bounds.max_adapted_parameters,
                max_source_features=bounds.max_source_features,
            ),
            grid_exponent=limits.GRID_EXPONENT,
            ledger_public_key=parts.ledger.public_key,
            client_name=principal.name,
            software_version=metadata.version("dpswd"),
            classes=parts.data_set.classes,
            class_names=parts.data_set.class_names,
        )

    def _upload_extractor(self, principal: Principal, request: Message) -> pb.UploadExtractorResponse:
        assert isinstance(request, pb.UploadExtractorRequest)
        parts = self._parts
        # Built before it is kept: what cannot run takes no room and is refused with its layer's path.
        facts = parts.extractors.check(request.graph, request.weights, record_shape=parts.data_set.record_shape)
        graph = parts.uploads.put(Kind.GRAPH, request.graph, client=principal.name, field="graph")
        weights = parts.uploads.put(Kind.WEIGHTS, request.weights, client=principal.name, field="weights")
        return pb.UploadExtractorResponse(
            graph_digest=graph, weights_digest=weights, feature_dimension=facts.feature_dimension
        )

    def _upload_source(self, principal: Principal, request: Message) -> pb.UploadSourceResponse:
        assert isinstance(request, pb.UploadSourceRequest)
        features = self._inputs.uploaded(request.features)
        digest = self._parts.uploads.put(Kind.SOURCE, features.tobytes(), client=principal.name, field="features")
        return pb.UploadSourceResponse(source_digest=digest)

    def _open_run(self, principal: Principal, request: Message) -> pb.OpenRunResponse:
        assert isinstance(request, pb.OpenRunRequest)
        parts = self._parts
        if not request.validate_only:
            admission.check_request_id(request.request_id, field="request_id")
        parameters = RunParameters.from_message(request.parameters)
        run_id, receipt = "", None
        if request.validate_only:
            event = self._event(principal, parameters)
        else:
            run = self._opened(principal, request.request_id, parameters)
            run_id, receipt, event = run.run_id, _receipt(run), run.event
        quote = parts.ledger.price_run(client=principal.name, event=event)
        data_set_budget, client_budget = self._budgets(principal)
        return pb.OpenRunResponse(
            run_id=run_id,
            epsilon=quote.epsilon,
            data_set_budget=data_set_budget,
            client_budget=client_budget,
            fits=quote.fits or bool(run_id),
            steps_that_fit=event.steps if run_id else quote.steps_that_fit,
            receipt=receipt,
        )

    def _opened(self, principal: Principal, request_id: str, parameters: RunParameters) -> Run:
        """The run that this very request has opened, or a new one, charged."""
        parts, digest = self._parts, run_digest(parameters)
        # First of all: what was paid for is not asked again whether it may be bought.
        known = parts.ledger.opened_run(client=principal.name, request_id=request_id, digest=digest)
        if known is not None:
            return known
        event = self._event(principal, parameters)
        parts.crosscheck(event)
        if parts.ledger.price_run(client=principal.name, event=event).fits:  # else the ledger refuses, with figures
            parts.pipeline.rehearse(parameters, parts.extractors.get(parameters, client=principal.name))
        return parts.ledger.open_run(
            client=principal.name,
            request_id=request_id,
            digest=digest,
            event=event,
            parameters=parameters.to_message().SerializeToString(deterministic=True),
        )

    def _align_target(self, principal: Principal, request: Message) -> pb.AlignTargetResponse:
        assert isinstance(request, pb.AlignTargetRequest)
        stored = self._step(principal, Operation.ALIGN_TARGET, request.input, request.source)
        return pb.AlignTargetResponse(step_release=stored.reply, receipt=_receipt(stored))

    def _release_projections(self, principal: Principal, request: Message) -> pb.ReleaseProjectionsResponse:
        assert isinstance(request, pb.ReleaseProjectionsRequest)
        stored = self._step(principal, Operation.RELEASE_PROJECTIONS, request.input, pb.SourceFeatures())
        return pb.ReleaseProjectionsResponse(step_release=stored.reply, receipt=_receipt(stored))

    def _release_quantiles(self, principal: Principal, request: Message) -> pb.ReleaseQuantilesResponse:
        assert isinstance(request, pb.ReleaseQuantilesRequest)
        stored = self._step(principal, Operation.RELEASE_QUANTILES, request.input, request.source)
        return pb.ReleaseQuantilesResponse(step_release=stored.reply, receipt=_receipt(stored))

    def _evaluate_model(self, principal: Principal, request: Message) -> pb.EvaluateModelResponse:
        assert isinstance(request, pb.EvaluateModelRequest)
        stored = self._step(principal, Operation.EVALUATE_MODEL, request.input, pb.SourceFeatures())
        return pb.EvaluateModelResponse(evaluation_release=stored.reply, receipt=_receipt(stored))

    def _release_critic_gradient(self, principal: Principal, request: Message) -> pb.ReleaseCriticGradientResponse:
        assert isinstance(request, pb.ReleaseCriticGradientRequest)
        stored = self._step(principal, Operation.RELEASE_CRITIC_GRADIENT, request.input, pb.SourceFeatures())
        return pb.ReleaseCriticGradientResponse(critic_release=stored.reply, receipt=_receipt(stored))

    def _step(
        self, principal: Principal, operation: Operation, message: pb.StepInput, source: pb.SourceFeatures
    ) -> StoredReply:
        """Checks a step against its run and hands it to the pipeline."""
        parts = self._parts
        admission.check_request_id(message.request_id, field="input.request_id")
        run = parts.ledger.run(client=principal.name, run_id=message.run_id)
        parameters = declared(run.parameters)
        asked = self._inputs.asked(operation, message, source)
        # First of all: a reply that was paid for is sent again whatever the operator has decided since.
        stored = parts.ledger.stored_reply(
            client=principal.name, run_id=run.run_id, request_id=message.request_id, digest=asked.digest
        )
        if stored is not None:
            return stored
        event = self._event(principal, parameters)
        if event != run.event:
            # The charge and the computation must describe one and the same release, or the price is not its price.
            raise RuntimeError("a run's charged event differs from what its declaration means now")
        extractor = parts.extractors.get(parameters, client=principal.name)
        content = self._inputs.content(asked, client=principal.name, extractor=extractor.facts)
        step = admission.admit_step(
            content, parameters=parameters, extractor=extractor.facts, limits=parts.settings.limits
        )
        parts.pacer.expect(parts.pipeline.rehearse(parameters, extractor))
        return parts.pipeline.answer(step, content=content, client=principal.name, extractor=extractor)

    def _event(self, principal: Principal, parameters: RunParameters) -> RunEvent:
        parts = self._parts
        parts.extractors.check_approved(parameters.graph_digest)
        extractor = parts.extractors.get(parameters, client=principal.name)
        return admission.admit_run(
            parameters, data_set=parts.data_set, extractor=extractor.facts, limits=parts.settings.limits
        )

    def _budgets(self, principal: Principal) -> tuple[pb.BudgetStatus, pb.BudgetStatus]:
        ledger = self._parts.ledger
        closed = ledger.status().state is not DataSetState.OPEN
        data_set, client = ledger.budget_of(principal.name)
        return _budget(data_set, closed=closed), _budget(client or data_set, closed=closed)


def _budget(account: AccountStatus, *, closed: bool) -> pb.BudgetStatus:
    return pb.BudgetStatus(
        epsilon=account.epsilon,
        delta=account.delta,
        epsilon_spent=account.epsilon_spent,
        epsilon_remaining=account.epsilon_remaining,
        closed=closed,
    )


def _receipt(stored: StoredReply | Run) -> pb.Receipt:
    return encode_receipt(stored.receipt)
