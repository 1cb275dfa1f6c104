"""The RPCs: authenticate, decode, decide, answer; and the one boundary where errors are translated.

An error of the table in `shared.protocol.status` was made from public values and travels in its own words. Everything
else may hold a record's values in its text: the client gets a constant text with an incident number, the operator the
types and places of the exceptions.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import TypeVar, cast

import grpc
import numpy as np
from google.protobuf.message import Message
from google.rpc import status_pb2
from grpc_status import rpc_status

from private_curator.ledger.ledger import Ledger
from private_curator.ledger.statements import AccountStatus, DataSetState, Run, StoredReply
from private_curator.serving.authentication import Principal, authenticate
from private_curator.serving.pacing import Pacer
from private_curator.serving.turns import Turns
from private_curator.settings.permissions import permitted, require_permitted
from private_curator.settings.tree import CuratorSettings
from private_curator.steps.extraction import ExtractorCatalogue
from private_curator.steps.release import ReleasePipeline
from private_curator.storage.incidents import IncidentBook
from private_curator.storage.uploads import Kind, UploadStore
from private_curator.worker.sessions import ExtractorSource
from shared.errors import AccountantsDisagree, DpswdError, RequestInvalid
from shared.mechanisms.interface import AnyMechanism, DataSetFacts, FloatArray, Limits, PublicArrays
from shared.privacy.events import RunEvent
from shared.protocol import arrays, limits, status
from shared.protocol.checks import invalid
from shared.protocol.digests import run_digest, step_digest
from shared.protocol.messages import RunParameters
from shared.protocol.payloads import float_bytes
from shared.protocol.receipts import encode_receipt
from shared.protocol.v1 import curator_pb2 as pb
from shared.protocol.v1 import curator_pb2_grpc as pb_grpc
from shared.steps.admission import AdmittedRun, admit_run, admit_step, check_request_id, offered

OK = "OK"
"""The outcome of a request that was answered."""

_Reply = TypeVar("_Reply", bound=Message)

_log = logging.getLogger(__name__)

_STEP = "DrawStep"
"""The RPC whose replies are made from records: it is paced, refusals and errors included."""


@dataclass(frozen=True)
class Parts:
    """What the service is made of.

    Attributes:
        settings: the operator's choices.
        ledger: budgets, charges and stored replies.
        mechanisms: what may be released.
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
    mechanisms: Mapping[str, AnyMechanism]
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
        bounds = parts.settings.limits
        told = {field.name: getattr(bounds, field.name) for field in dataclasses.fields(Limits)}
        self._limits = Limits(**told | {"max_batch_size": min(bounds.max_batch_size, parts.data_set.records)})

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

    def DrawStep(self, request: pb.DrawStepRequest, context: grpc.ServicerContext) -> pb.DrawStepResponse:  # noqa: N802
        """See curator.proto."""
        return self._answer(context, "DrawStep", self._draw_step, request)

    # -- the boundary ---------------------------------------------------------------------------------------------

    def _answer(
        self,
        context: grpc.ServicerContext,
        operation: str,
        handler: Callable[[Principal, Message], _Reply],
        request: Message,
    ) -> _Reply:
        """Runs one handler for the authenticated caller; every error leaves through here and only here."""
        paced = self._parts.pacer.paced() if operation == _STEP else contextlib.nullcontext()
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
        mechanisms = permitted(parts.settings.clients, parts.mechanisms, client=principal.name)
        return pb.DescribeResponse(
            data_set=parts.settings.records.name,
            records=parts.data_set.records,
            record_shape=parts.data_set.record_shape,
            data_set_budget=data_set_budget,
            client_budget=client_budget,
            neighbouring_relation=parts.ledger.status().data_set.relation,
            mechanisms=offered(mechanisms, parts.data_set),
            limits=pb.Limits(**dataclasses.asdict(self._limits)),
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
        most = self._limits.max_source_features
        features = arrays.decode_floats(request.features, field="features", max_values=limits.MAX_MESSAGE_BYTES // 4)
        if features.ndim != 2 or not 1 <= features.shape[0] <= most or features.shape[1] < 1:
            text = f"has shape {features.shape}; needed is (m, d) with m from 1 to {most}"
            raise RequestInvalid((("features", text),))
        digest = self._parts.uploads.put(Kind.SOURCE, float_bytes(features), client=principal.name, field="features")
        return pb.UploadSourceResponse(source_digest=digest)

    def _open_run(self, principal: Principal, request: Message) -> pb.OpenRunResponse:
        assert isinstance(request, pb.OpenRunRequest)
        parts = self._parts
        if not request.validate_only:
            check_request_id(request.request_id)
        parameters = RunParameters.from_message(request.parameters)
        run_id, receipt = "", None
        if request.validate_only:
            event = self._admitted(principal, parameters)[0].event
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
        run, extractor = self._admitted(principal, parameters)
        parts.crosscheck(run.event)
        if parts.ledger.price_run(client=principal.name, event=run.event).fits:  # else the ledger refuses, with figures
            parts.pipeline.trial(run, extractor)
        return parts.ledger.open_run(
            client=principal.name,
            request_id=request_id,
            digest=digest,
            event=run.event,
            parameters=parameters.to_bytes(),
        )

    def _draw_step(self, principal: Principal, request: Message) -> pb.DrawStepResponse:
        """Checks a step against its run and hands it to the pipeline."""
        assert isinstance(request, pb.DrawStepRequest)
        parts, client, run_id, request_id = self._parts, principal.name, request.run_id, request.request_id
        check_request_id(request_id)
        charged = parts.ledger.run(client=client, run_id=run_id)
        digest = step_digest(run_id=run_id, payload=request.payload)
        # First of all: a reply that was paid for is sent again whatever the operator has decided since.
        stored = parts.ledger.stored_reply(client=client, run_id=run_id, request_id=request_id, digest=digest)
        if stored is None:
            run, extractor = self._admitted(principal, _declared(charged.parameters))
            if run.event != charged.event:
                # The charge and the computation must describe one and the same release, or the price is not its price.
                raise RuntimeError("a run's charged event differs from what its declaration means now")
            step = admit_step(run, request.payload, public=self._uploaded_by(client, run), limits=self._limits)
            parts.pacer.expect(parts.pipeline.trial(run, extractor))
            stored = parts.pipeline.answer(
                run,
                step,
                client=client,
                run_id=run_id,
                request_id=request_id,
                digest=digest,
                extractor=extractor,
            )
        return pb.DrawStepResponse(step_release=stored.reply, receipt=_receipt(stored))

    def _admitted(self, principal: Principal, parameters: RunParameters) -> tuple[AdmittedRun, ExtractorSource]:
        """The checked run, and the extractor that it declares."""
        parts = self._parts
        require_permitted(parts.settings.clients, parts.mechanisms, parameters.mechanism, client=principal.name)
        parts.extractors.check_approved(parameters.graph_digest)
        extractor = parts.extractors.get(parameters, client=principal.name)
        run = admit_run(
            parameters,
            mechanisms=parts.mechanisms,
            data=parts.data_set,
            model=extractor.facts,
            limits=self._limits,
        )
        return run, extractor

    def _uploaded_by(self, client: str, run: AdmittedRun) -> PublicArrays:
        """Finds source features that this client has uploaded, as the run's extractor makes them."""

        def find(digest: str) -> FloatArray:
            data = self._parts.uploads.get(Kind.SOURCE, digest, client=client)
            if data is None:
                raise invalid("payload.source", "names unknown features; upload the source features first")
            d = run.facts.model.feature_dimension
            if len(data) % (4 * d):
                raise invalid("payload.source", f"names features that are no rows of {d} values")
            return np.frombuffer(data, dtype="<f4").astype(np.float32).reshape(-1, d)

        return find

    def _budgets(self, principal: Principal) -> tuple[pb.BudgetStatus, pb.BudgetStatus]:
        ledger = self._parts.ledger
        closed = ledger.status().state is not DataSetState.OPEN
        data_set, client = ledger.budget_of(principal.name)
        return _budget(data_set, closed=closed), _budget(client or data_set, closed=closed)


@functools.lru_cache(maxsize=64)
def _declared(parameters: bytes) -> RunParameters:
    """A run's declaration as the ledger keeps it; each of its steps reads it."""
    return RunParameters.from_bytes(parameters)


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
