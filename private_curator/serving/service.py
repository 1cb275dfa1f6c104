"""The RPCs: authenticate, decode, decide, answer; and the one boundary where errors are translated.

An error of the table in `dpswd.shared.protocol.status` was made from public values and travels in its own words.
Everything else may hold a record's values in its text: the client gets a constant text with an incident number, the
operator the types and places of the exceptions.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import functools
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any, ClassVar, cast

import grpc
from google.protobuf.message import DecodeError, Message
from google.rpc import status_pb2
from grpc_status import rpc_status

from dpswd.private_curator.books.figures import AccountStatus
from dpswd.private_curator.books.ledger import Ledger
from dpswd.private_curator.core.ledger.statements import Client, DataSetState, Request, Run
from dpswd.private_curator.core.steps.evaluating import ExtractorSource
from dpswd.private_curator.core.steps.release import ReleasePipeline
from dpswd.private_curator.observability.requests import OK, UNKNOWN
from dpswd.private_curator.records.labels import class_count
from dpswd.private_curator.serving import wire
from dpswd.private_curator.serving.asking import AskLog, described, said_by
from dpswd.private_curator.serving.authentication import authenticate
from dpswd.private_curator.serving.pacing import Pacer, quantum_ms
from dpswd.private_curator.serving.turns import Turns
from dpswd.private_curator.settings.groups import LimitSettings, RecordsSettings
from dpswd.private_curator.settings.permissions import permitted, require_permitted
from dpswd.private_curator.settings.tree import CuratorSettings
from dpswd.private_curator.steps.extraction import ExtractorCatalogue
from dpswd.private_curator.steps.trial_run import Trials
from dpswd.private_curator.storage.incidents import IncidentBook
from dpswd.private_curator.storage.uploads import Kind, UploadStore
from dpswd.shared.core.errors import (
    AccountantsDisagree,
    DpswdError,
    GrantNotHeld,
    InvalidValue,
    LedgerCorrupt,
    LedgerUnavailable,
    RequestInvalid,
    RunFinished,
)
from dpswd.shared.core.ledger.receipts import MAX_STATEMENT_BYTES
from dpswd.shared.core.mechanisms.declared import AdmittedRun
from dpswd.shared.core.mechanisms.interface import AnyMechanism, DataSetFacts, Limits
from dpswd.shared.core.privacy.events import RunEvent
from dpswd.shared.core.steps.admission import admit_run, offered
from dpswd.shared.core.wire import limits
from dpswd.shared.core.wire.checks import invalid, positive, positive_or_zero
from dpswd.shared.core.wire.messages import RunParameters, run_digest, step_digest
from dpswd.shared.core.wire.v1 import curator_pb2 as pb
from dpswd.shared.protocol import status
from dpswd.shared.protocol.contract import DataContract
from dpswd.shared.words import one_line

_log = logging.getLogger(__name__)


_MOST_BYTES: Mapping[str, int] = {"Describe": MAX_STATEMENT_BYTES + 1024, "OpenRun": 4 * 2**20, "RequestBudget": 4096}
"""Of one request, by RPC: a receipt; a declaration with the map of 65,536 features. The others bring arrays."""


_CALL_THE_OPERATOR = (
    "the curator does not trust its ledger: it is damaged, or was put back to an older state. Nothing is charged or "
    "released until its operator has decided; call the operator, and keep receipts.jsonl: it shows what was spent"
)


@dataclass(frozen=True)
class _Ended:
    """How a request ended: a reply, or a refusal with its reason and what the handler met.

    The request itself is let go with its turn: what requests hold is bounded by turns.
    """

    caller: str
    said: Mapping[str, Any]
    reply: Message | None = None
    refusal: status_pb2.Status | None = None
    outcome: str = OK
    error: Exception | None = None


@dataclass(frozen=True, eq=False)
class CuratorService:
    """The servicer of dpswd.curator.v1.CuratorService.

    Attributes:
        settings: the operator's choices.
        ledger: budgets, charges and stored replies.
        mechanisms: what may be released.
        data_set: the public facts of the data set.
        contract: what the operator declares of the records' values.
        uploads: extractors.
        extractors: builds extractors from uploads.
        pipeline: computes and releases steps.
        trials: measures steps before they are charged.
        incidents: unexpected errors.
        pacer: holds replies to charged requests back.
        turns: bounds what one client may have under way.
        asks: tells the operator of each request.
        crosscheck: re-derives a run's price by an independent accountant; raises AccountantsDisagree.
        now: the present, by the clock that dates the ledger.
    """

    settings: CuratorSettings
    ledger: Ledger
    mechanisms: Mapping[str, AnyMechanism]
    data_set: DataSetFacts
    contract: DataContract
    uploads: UploadStore
    extractors: ExtractorCatalogue
    pipeline: ReleasePipeline
    trials: Trials
    incidents: IncidentBook
    pacer: Pacer
    turns: Turns
    asks: AskLog
    crosscheck: Callable[[RunEvent], object]
    now: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC)

    @functools.cached_property
    def limits(self) -> Limits:
        """The operator's bounds on requests."""
        return limits_of(self.settings.limits, records=self.data_set.records)

    # -- the boundary ---------------------------------------------------------------------------------------------

    def answer(self, operation: str, requests: Iterator[bytes], context: grpc.ServicerContext) -> Message:
        """Runs one handler for the authenticated caller; every error leaves through here and only here.

        Args:
            operation: the RPC.
            requests: the one request, received when it is asked for.
            context: gRPC's.
        """
        ended = self._ended(operation, requests, context)
        # After the wait: the time of a line in the log tells no more than that of the reply.
        ask = described(
            operation,
            peer=cast("Mapping[str, Sequence[bytes]]", context.auth_context()),
            place=context.peer(),
            said=ended.said,
            reply=ended.reply,
            error=ended.error,
            outcome=ended.outcome,
            time=self.now(),
        )
        self.asks.tell(ask)
        refusal = ended.refusal
        if refusal is None:
            assert ended.reply is not None
            left = self.turns.replied(ended.caller, ended.reply.ByteSize())
            if not context.add_callback(left):
                left()  # the client has gone
            return ended.reply
        # Outside of the handling of the error: gRPC logs the exception that abort raises together with its context.
        context.abort_with_status(rpc_status.to_status(refusal))
        raise AssertionError("abort_with_status raises")

    def _ended(self, operation: str, requests: Iterator[bytes], context: grpc.ServicerContext) -> _Ended:
        """Runs the handler, in its turn and its pace."""
        caller, said = "", {}
        try:
            # grpc-stubs states one value for each key; gRPC gives a list of them.
            peer = cast("Mapping[str, Sequence[bytes]]", context.auth_context())
            client = authenticate(peer, find=self.ledger.client_by_fingerprint, now=self.now())
            caller = client.name
            # Who may not ask is told so before a byte of the request is received, and holds no thread for a quantum. A
            # turn ends with the pause behind the reply: when the next one may begin must not tell when this step was
            # computed.
            with self.turns.taken(caller) as received:
                request = self._parsed(operation, self._received(requests, context, received))
                said = said_by(request)
                step = isinstance(request, pb.DrawStepRequest)
                pace = self.pacer.paced() if step else contextlib.nullcontext()
                with self.turns.alone(caller, getattr(request, "request_id", "")), pace:
                    try:
                        with self.turns.working(caller, step=step):
                            return _Ended(caller, said, reply=self._handled(operation, client, request))
                    except Exception as error:  # noqa: BLE001 - the boundary: nothing may pass it untranslated
                        return self._refused(error, operation, caller, said)
        except grpc.RpcError:
            fields = {"operation": operation, "client": caller, "outcome": UNKNOWN}
            _log.info("%s for %s: not received as a whole", operation, caller, extra=fields)
            raise  # nobody waits for an answer; gRPC knows its own error
        except Exception as error:  # noqa: BLE001 - the same, of what comes before the pause
            return self._refused(error, operation, caller, said)

    def _refused(self, error: Exception, operation: str, caller: str, said: Mapping[str, Any]) -> _Ended:
        """How a request ends with an error, which no longer holds what the request brought."""
        refusal, outcome = self._translated(error, operation=operation, caller=caller)
        return _Ended(caller, said, refusal=refusal, outcome=outcome, error=error.with_traceback(None))

    def ask(self, operation: str, request: Message, *, client: str) -> Any:
        """The reply to a registered client's request, without a transport: for a hospital that serves nobody.

        Raises:
            GrantNotHeld: no such client, or it is shut out.
            Exception: what the handler met, untranslated: the caller is the operator.
        """
        enrolled = next((one for one in self.ledger.clients() if one.name == client and not one.revoked), None)
        if enrolled is None:
            raise GrantNotHeld(f"no client named {client!r} may be charged; `dpswd-curator add` registers one")
        return self._handled(operation, enrolled, request)

    def _received(
        self, requests: Iterator[bytes], context: grpc.ServicerContext, received: Callable[[int], None]
    ) -> bytes:
        """The request's bytes, in so many seconds.

        Raises:
            RequestInvalid: the client sent none.
            grpc.RpcError: the client has gone, or its bytes came too slowly.
        """
        too_slow = threading.Timer(self.settings.limits.receive_seconds, context.cancel)
        too_slow.daemon = True
        too_slow.start()
        try:
            data = next(requests, None)
        finally:
            too_slow.cancel()
        if data is None:
            raise invalid("request", "is missing")
        received(len(data))
        return data

    def _parsed(self, operation: str, data: bytes) -> Message:
        """A request; who sent it, and how much one may, is decided before.

        Raises:
            RequestInvalid: it is larger than such a request may be, or no such message.
        """
        message, _ = self.HANDLERS[operation]
        most = _MOST_BYTES.get(operation, limits.MAX_MESSAGE_BYTES)
        if len(data) > most:
            raise invalid("request", f"has {len(data)} bytes; {operation} takes at most {most}")
        try:
            return message.FromString(data)
        except DecodeError as error:
            raise invalid("request", f"cannot be decoded as a {message.DESCRIPTOR.name}") from error

    def _handled(self, operation: str, client: Client, request: Message) -> Message:
        _, handler = self.HANDLERS[operation]
        return handler(self, client, request)

    def _translated(self, error: Exception, *, operation: str, caller: str) -> tuple[status_pb2.Status, str]:
        """What an error becomes for the client, and the refusal's reason."""
        if isinstance(error, AccountantsDisagree | LedgerCorrupt):
            # Made of public values, entries, paths and times: the operator must know, and what to do.
            _log.error("%s for %s: %s", operation, caller, error)
            self.asks.odd(str(error))
        if isinstance(error, LedgerCorrupt):
            error = LedgerCorrupt(_CALL_THE_OPERATOR)
        if isinstance(error, LedgerUnavailable):
            _log.warning("%s for %s: %s", operation, caller, error)
            error = LedgerUnavailable(wire.without_places(str(error), self.ledger.location))
        if isinstance(error, DpswdError) and (reason := status.reason_for(error)) is not None:
            return status.to_status(error), reason.reason
        number = self.incidents.record(error, operation=operation, client=caller)
        return status.incident(number), "INTERNAL"

    # -- handlers -------------------------------------------------------------------------------------------------

    def _describe(self, client: Client, request: pb.DescribeRequest) -> pb.DescribeResponse:
        if request.HasField("newest_receipt"):
            self.ledger.hold_to(wire.presented(request.newest_receipt))
        data_set, share = self.ledger.budget_of(client.name)
        data_set_budget, client_budget = self._budgets(data_set, share)
        offer = permitted(self.settings.clients, self.mechanisms, client=client.name)
        return pb.DescribeResponse(
            data_set=self.settings.records.name, records=self.data_set.records, record_shape=self.data_set.record_shape,
            data_set_budget=data_set_budget, client_budget=client_budget, neighbouring_relation=data_set.relation,
            mechanisms=offered(offer, self.data_set), limits=pb.Limits(**dataclasses.asdict(self.limits)),
            grid_exponent=limits.GRID_EXPONENT, ledger_public_key=self.ledger.public_key, client_name=client.name,
            software_version=metadata.version("dpswd"), classes=self.data_set.classes,
            partly_labelled=self.data_set.partly_labelled, labelled=self.data_set.labelled,
            records_per_person=self.ledger.records_per_person, contract=self.contract.to_message(),
            key_changes=[change.to_json() for change in self.ledger.keys.changes],
        )  # fmt: skip

    def _upload_extractor(self, client: Client, request: pb.UploadExtractorRequest) -> pb.UploadExtractorResponse:
        # Built before it is kept: what cannot run takes no room and is refused with its layer's path.
        shape = self.data_set.record_shape
        facts = self.extractors.check(request.graph, request.weights, record_shape=shape, client=client.name)
        graph = self.uploads.put(Kind.GRAPH, request.graph, client=client.name, field="graph")
        weights = self.uploads.put(Kind.WEIGHTS, request.weights, client=client.name, field="weights")
        return pb.UploadExtractorResponse(
            graph_digest=graph, weights_digest=weights, feature_dimension=facts.feature_dimension
        )

    def _open_run(self, client: Client, request: pb.OpenRunRequest) -> pb.OpenRunResponse:
        if not request.validate_only:
            wire.check_request_id(request.request_id)
        parameters = RunParameters.from_message(request.parameters)
        broken = one_line("purpose", request.purpose) + positive_or_zero("wanted", request.wanted)
        if broken:
            raise RequestInvalid(tuple(broken))
        if not request.validate_only:
            run = self._opened(client, request.request_id, parameters, purpose=request.purpose)
            whole, own = self._budgets(*self.ledger.budget_of(client.name))
            opened: dict[str, Any] = {"run_id": run.run_id, "receipt": wire.receipt(run), "steps_that_fit": run.steps}
            return pb.OpenRunResponse(
                epsilon=run.epsilon, data_set_budget=whole, client_budget=own, fits=True, **opened
            )
        quote = self.ledger.price_run(client=client.name, event=self.admitted(client, parameters)[0].event)
        if request.wanted and quote.refusal is not None:
            raise dataclasses.replace(quote.refusal, requested=request.wanted)
        whole, own = self._budgets(quote.data_set, quote.client)
        fits: dict[str, Any] = {"fits": quote.fits, "steps_that_fit": quote.steps_that_fit}
        return pb.OpenRunResponse(epsilon=quote.epsilon, data_set_budget=whole, client_budget=own, **fits)

    def _opened(self, client: Client, request_id: str, parameters: RunParameters, *, purpose: str) -> Run:
        """The run that this very request has opened, or a new one, charged."""
        request = Request(client=client.name, request_id=request_id, digest=run_digest(parameters))
        # First of all: what was paid for is not asked again whether it may be bought.
        opened = self.ledger.opened_run(request)
        if opened is not None:
            return opened
        run, extractor = self.admitted(client, parameters)
        self.crosscheck(run.event)
        if self.ledger.price_run(client=client.name, event=run.event).fits:  # else the ledger refuses, with figures
            self._tried(run, extractor)
        return self.ledger.open_run(request, event=run.event, parameters=parameters.to_bytes(), purpose=purpose)

    def _request_budget(self, client: Client, request: pb.RequestBudgetRequest) -> pb.RequestBudgetResponse:
        """Keeps the request for the operator; with epsilon 0, tells what became of earlier ones."""
        if request.epsilon or request.purpose:
            broken = positive("epsilon", request.epsilon) + one_line("purpose", request.purpose, least=1)
            if broken:
                raise RequestInvalid(tuple(broken))
            try:
                self.ledger.request_budget(client=client.name, epsilon=request.epsilon, purpose=request.purpose)
            except InvalidValue as error:
                raise invalid("epsilon", str(error)) from error
        return wire.budget_requests(self.ledger.budget_requests(client=client.name))

    def _draw_step(self, client: Client, message: pb.DrawStepRequest) -> pb.DrawStepResponse:
        """Checks a step against its run and hands it to the pipeline."""
        run_id = message.run_id
        wire.check_request_id(message.request_id)
        charged = self.ledger.run(client=client.name, run_id=run_id)
        digest = step_digest(run_id=run_id, payload=message.payload)
        request = Request(client=client.name, request_id=message.request_id, digest=digest)
        # First of all: a reply that was paid for is sent again whatever the operator has decided since.
        stored = self.ledger.stored_reply(request, run_id=run_id)
        if stored is None:
            if charged.event.step.records != self.data_set.records:
                raise RunFinished("the operator has updated the records since this run was opened; open another run")
            run, extractor = self.admitted(client, wire.declared(charged.parameters))
            if run.event != charged.event:
                # The charge and the computation must describe one and the same release, or the price is not its price.
                raise RuntimeError("a run's charged event differs from what its declaration means now")
            step = run.admit_step(message.payload, limits=self.limits)
            self.pipeline.ready(run)  # an outage is told at once, and not when such a step would be answered
            self._tried(run, extractor)
            stored = self.pipeline.answer(step, extractor, request=request, run_id=run_id)
        return pb.DrawStepResponse(step_release=stored.reply, receipt=wire.receipt(stored))

    def _tried(self, run: AdmittedRun, extractor: ExtractorSource) -> None:
        """Tries a step here; the first one ever of its kind fixes the automatic quantum of all.

        Raises:
            RequestInvalid: a step would exceed the operator's limits.
        """
        took = self.trials.step_time(run, extractor)
        if self.pacer.automatic:
            quantum = self.ledger.quantum(self.trials.work(run), milliseconds=quantum_ms(took.processor_s))
            self.pacer.expect(quantum / 1000)

    def admitted(self, client: Client, parameters: RunParameters) -> tuple[AdmittedRun, ExtractorSource]:
        """The checked run, and the extractor that it declares.

        Raises:
            RequestInvalid, ExtractorUnknown, ExtractorNotApproved: it may not be opened; nothing was spent.
        """
        require_permitted(self.settings.clients, self.mechanisms, parameters.mechanism, client=client.name)
        self.extractors.check_approved(parameters.graph_digest)
        extractor = self.extractors.get(parameters, client=client.name)
        offer, data = self.mechanisms, self.data_set
        run = admit_run(parameters, mechanisms=offer, data=data, model=extractor.facts, limits=self.limits)
        return run, extractor

    def _budgets(self, data_set: AccountStatus, share: AccountStatus | None) -> tuple[pb.BudgetStatus, pb.BudgetStatus]:
        """The data set's budget, and what limits the client: its share, or the same."""
        closed = self.ledger.state is not DataSetState.OPEN
        return wire.budget(data_set, closed=closed), wire.budget(share or data_set, closed=closed)

    # -- the RPCs of curator.proto --------------------------------------------------------------------------------

    HANDLERS: ClassVar[Mapping[str, tuple[type[Message], Callable[..., Message]]]] = {
        "Describe": (pb.DescribeRequest, _describe),
        "UploadExtractor": (pb.UploadExtractorRequest, _upload_extractor),
        "OpenRun": (pb.OpenRunRequest, _open_run),
        "DrawStep": (pb.DrawStepRequest, _draw_step),
        "RequestBudget": (pb.RequestBudgetRequest, _request_budget),
    }
    """What each RPC is sent, and what answers it once its caller is known."""

    def rpcs(self) -> grpc.GenericRpcHandler[Any, Any]:
        """The RPCs for gRPC, as streams of one request: so a handler runs before the request is received."""
        handlers = {
            operation: grpc.stream_unary_rpc_method_handler(
                functools.partial(self.answer, operation), response_serializer=lambda reply: reply.SerializeToString()
            )
            for operation in self.HANDLERS
        }
        return grpc.method_handlers_generic_handler(
            pb.DESCRIPTOR.services_by_name["CuratorService"].full_name, handlers
        )


def limits_of(own: LimitSettings, *, records: int) -> Limits:
    """The operator's bounds on requests for a data set of so many records."""
    values = {field.name: getattr(own, field.name) for field in dataclasses.fields(Limits)}
    most = min(own.max_batch_size, records)
    return Limits(**values | {"max_batch_size": most, "min_batch_size": min(own.min_batch_size, most)})


def facts_of(settings: RecordsSettings, *, records: int, record_shape: tuple[int, ...]) -> DataSetFacts:
    """What runs are admitted for: so many records of this shape, and the declared labels."""
    return DataSetFacts(
        records=records,
        record_shape=record_shape,
        classes=class_count(settings),
        partly_labelled=settings.unlabelled is not None,
        labelled=settings.labelled or 0,
    )
