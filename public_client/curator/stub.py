"""A typed stub of one curator: deadlines, request ids, retries, receipts.

Everything that may be charged is a *pending* message first: its bytes, request id included, exist before it is sent,
so that a caller can store them and a repeat, even by another process after a crash, is the same request.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import grpc
import numpy.typing as npt

from public_client.curator.connection import Patience, call, never_answered, open_channel
from public_client.curator.description import Description
from public_client.curator.diagnosis import explain
from public_client.curator.receipts import (
    LEDGER_KEY_FILE,
    RECEIPTS_FILE,
    ReceiptFile,
    check_pinned,
    checked_receipt,
)
from public_client.curator.steps import StepRequests
from public_client.curator.values import Quote, Run, UploadedExtractor, new_request_id, quote_from
from shared.errors import CuratorUnavailable, ProtocolError
from shared.protocol import arrays
from shared.protocol.digests import run_digest
from shared.protocol.messages import RunParameters
from shared.protocol.v1 import curator_pb2 as pb
from shared.protocol.v1 import curator_pb2_grpc as rpc

if TYPE_CHECKING:
    from torch import Tensor, nn

    from public_client.methods.alignment import Alignment
    from public_client.methods.evaluation import EvaluationIds, EvaluationPlan
    from public_client.methods.evaluation_report import Report
    from public_client.plans.critic_plan import CriticPlan
    from public_client.plans.plan import Plan

_FIRST_CONTACT_S = 10.0  # connecting gives up earlier than a running training does: the address may be wrong


class Curator(StepRequests):
    """A connection to one curator. Use as a context manager.

    Args:
        channel: an open channel; `connect` makes one with mutual TLS.
        patience: deadlines and pauses.
        receipts: where receipts are kept; nowhere by default.
    """

    def __init__(
        self, channel: grpc.Channel, *, patience: Patience | None = None, receipts: ReceiptFile | None = None
    ) -> None:
        super().__init__(rpc.CuratorServiceStub(channel), patience=patience or Patience())
        self._channel = channel
        self._description: Description | None = None
        self._last_plan: Plan | None = None
        self._alignments: dict[int, tuple[nn.Module, Plan, Alignment]] = {}
        self.receipts = receipts

    @classmethod
    def connect(
        cls,
        address: str,
        *,
        credentials: str | Path,
        timeout_s: float = 120.0,
        patience_s: float = 180.0,
        run_directory: str | Path | None = None,
        server_name: str | None = None,
    ) -> Curator:
        """Connects with mutual TLS and proves the connection by one free request.

        Args:
            address: ``host:port``.
            credentials: directory with ca.crt, client.crt and client.key, as the operator handed them out.
            timeout_s: deadline of one attempt, in seconds.
            patience_s: how long a lost connection is tried again, in seconds.
            run_directory: where receipts.jsonl is written; nowhere by default.
            server_name: the name in the curator's certificate, where the address differs from it.

        Raises:
            SettingsError: the credentials or the address are incomplete.
            CredentialsInvalid: the curator does not accept the certificate.
            CuratorUnavailable: nobody answers, or not as this curator.
            ProtocolError: the ledger's key is not the one that was pinned.
        """
        channel = open_channel(address, credentials=Path(credentials), server_name=server_name)
        receipts = ReceiptFile(Path(run_directory) / RECEIPTS_FILE) if run_directory is not None else None
        curator = cls(channel, patience=Patience(timeout_s=timeout_s, total_s=patience_s), receipts=receipts)
        try:
            first = Patience(timeout_s=min(timeout_s, _FIRST_CONTACT_S), total_s=min(patience_s, _FIRST_CONTACT_S))
            told = curator._describe(first).ledger_public_key
            pinned = Path(credentials) / LEDGER_KEY_FILE
            if pinned.is_file():
                check_pinned(pinned, told)
            if receipts is not None:
                receipts.pin(told)
        except CuratorUnavailable as error:
            curator.close()
            if not never_answered(error):
                raise
            raise CuratorUnavailable(
                f"no curator answers at {address} with these credentials: "
                f"{explain(address, credentials=Path(credentials), server_name=server_name)} ({error})"
            ) from error
        except BaseException:
            curator.close()
            raise
        return curator

    def __enter__(self) -> Curator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection; runs stay as they are at the curator."""
        self._channel.close()

    def describe(self) -> Description:
        """The data set, the budgets and what is offered. Free, and always fresh."""
        return self._describe(self._patience)

    def _describe(self, patience: Patience) -> Description:
        reply = call(self._stub.Describe, pb.DescribeRequest(), pb.DescribeResponse, patience=patience)
        self._description = Description.from_message(reply)
        return self._description

    def upload_extractor(self, graph: bytes, weights: bytes) -> UploadedExtractor:
        """Uploads an extractor as data. Free, and harmless to repeat.

        Args:
            graph: canonical bytes of the traced graph.
            weights: safetensors bytes.
        """
        request = pb.UploadExtractorRequest(graph=graph, weights=weights)
        reply = call(self._stub.UploadExtractor, request, pb.UploadExtractorResponse, patience=self._patience)
        return UploadedExtractor(reply.graph_digest, reply.weights_digest, reply.feature_dimension)

    def upload_source(self, features: npt.ArrayLike) -> str:
        """Uploads public source features (m, d), before any map, and returns their digest. Free."""
        request = pb.UploadSourceRequest(features=arrays.encode_floats(features))
        reply = call(self._stub.UploadSource, request, pb.UploadSourceResponse, patience=self._patience)
        return reply.source_digest

    def price_run(self, parameters: RunParameters) -> Quote:
        """What a run would cost, and whether it fits, without spending anything."""
        request = pb.OpenRunRequest(request_id=new_request_id(), parameters=parameters.to_message(), validate_only=True)
        return quote_from(call(self._stub.OpenRun, request, pb.OpenRunResponse, patience=self._patience))

    def open_run(self, parameters: RunParameters, *, request_id: str | None = None) -> Run:
        """Declares a run and charges all its steps. Nothing is ever given back.

        Args:
            parameters: the declaration.
            request_id: from `new_request_id`, to be able to repeat this very request after a crash.

        Raises:
            BudgetExhausted: the budget does not allow it; the error says what still fits. Nothing was spent.
        """
        request = pb.OpenRunRequest(request_id=request_id or new_request_id(), parameters=parameters.to_message())
        reply = call(self._stub.OpenRun, request, pb.OpenRunResponse, patience=self._patience)
        self._keep(
            reply.receipt,
            run_id=reply.run_id,
            request_id=request.request_id,
            reply=None,
            step=0,
            request_digest=run_digest(parameters),
        )
        return Run(run_id=reply.run_id, parameters=parameters, quote=replace(quote_from(reply), fits=True))

    def _keep(self, receipt: pb.Receipt, **stated: Any) -> None:
        """Checks a receipt against what it must state, and stores it."""
        description = self._description or self.describe()
        entry = checked_receipt(receipt, public_key=bytes.fromhex(description.ledger_public_key), **stated)
        if self.receipts is not None:
            self.receipts.append(entry)

    def plan(self, *, extractor: nn.Module | None = None, **wishes: Any) -> Plan:
        """Plans a run against this curator's data set and budget; nothing is spent.

        Args:
            extractor: asks the curator itself what the run would cost for it and whether it fits; its weights do not
                matter, its sizes do. Without it the plan knows only what is left by the ledger's count.
            **wishes: of `public_client.plans.plan.make_plan` without `description`: epsilon, steps, batch_size,
                directions, release, parameters, and the recipe's other numbers.

        Raises:
            InvalidValue: a wish is out of range.
        """
        from public_client.plans.plan import make_plan

        description = self.describe()
        plan = make_plan(description, **wishes)
        if extractor is not None:
            from public_client.plans.declarable import Declarable, quoted

            plan = quoted(self, Declarable.of_source(extractor, description.record_shape, plan), plan)
        self._last_plan = plan
        return plan

    def plan_critic(self, **wishes: Any) -> CriticPlan:
        """Plans a domain critic's run (DP-DANN); nothing is spent.

        Args:
            **wishes: of `public_client.plans.critic_plan.CriticPlan`: epsilon, steps, batch_size, and its other fields.

        Raises:
            InvalidValue: this curator offers no critics, or a wish is out of range.
        """
        from public_client.plans.critic_plan import CriticPlan

        return CriticPlan.of(self.describe(), **wishes)

    def plan_evaluation(self, *, epsilon: float, **wishes: Any) -> EvaluationPlan:
        """What an evaluation on all labelled records would release and cost; nothing is spent.

        Args:
            epsilon: what it may cost alone, at the data set's delta.
            **wishes: of `public_client.methods.evaluation.plan_evaluation`: confusion, bins, shares.

        Raises:
            InvalidValue: the curator evaluates nothing, or a wish is out of range.
        """
        from public_client.methods.evaluation import plan_evaluation

        return plan_evaluation(self.describe(), epsilon=epsilon, **wishes)

    def evaluate(
        self, model: Any, *, epsilon: float, request_ids: EvaluationIds | None = None, **wishes: Any
    ) -> Report:
        """Accuracy, confusion matrix and calibration of a model on the hospital's labelled records, noised and charged.

        Args:
            model: an adapted model, the path of its file, or an `nn.Module` from records to one score for each class.
            epsilon: what it may cost alone, at the data set's delta.
            request_ids: to be able to repeat this very evaluation after a crash, free.
            **wishes: see `plan_evaluation`.

        Raises:
            BudgetExhausted: the budget does not allow it; nothing was spent.
            InvalidValue: the curator evaluates nothing, a wish is out of range, or the model does not fit.
        """
        from public_client.methods.evaluation import evaluate

        return evaluate(self, model, self.plan_evaluation(epsilon=epsilon, **wishes), request_ids=request_ids)

    def alignment_loss(self, extractor: nn.Module, source_features: Tensor, *, plan: Plan | None = None) -> Tensor:
        """One private step as a scalar loss for one's own training loop; autograd works.

        The first call with an extractor uploads it and opens (hence charges) the run of `plan`, by default the one
        that `plan()` returned last. Each call draws one step. The value is the estimated distance; its gradient is
        the source branch with respect to `source_features`, and the sanitized target branch with respect to the
        adapted parameters.

        Args:
            extractor: the module that the target's records go through.
            source_features: (m, d), public; may require gradients.
            plan: what to declare.

        Raises:
            BudgetExhausted: the plan does not fit. Nothing was spent.
            RunFinished: all planned steps are used.
        """
        from public_client.methods.alignment import Alignment

        # The entry holds the module: an id may be given out again once its object is gone.
        known = self._alignments.get(id(extractor))
        if known is None:
            wanted = plan or self._last_plan
            if wanted is None:
                raise ProtocolError("alignment_loss needs a plan; call plan(...) first or pass plan=")
            alignment = Alignment(self, extractor, wanted, source_features=source_features.detach())
            self._alignments[id(extractor)] = (extractor, wanted, alignment)
        else:
            _, wanted, alignment = known
            if plan is not None and plan != wanted:
                raise ProtocolError(
                    "this extractor's run was opened with another plan; go on without plan=, or pass a copy of the "
                    "extractor to open a run of its own"
                )
        return alignment.step(source_features).loss
