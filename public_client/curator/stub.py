"""A typed stub of one curator: requests, their ids, checked receipts, and nothing else.

Everything that may be charged is a *pending* message first: its bytes, request id included, exist before it is sent,
so that a caller can store them and a repeat, even by another process after a crash, is the same request.
"""

from __future__ import annotations

import logging
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from dpswd.public_client.curator.connection import Patience, never_answered, open_channel
from dpswd.public_client.curator.description import Description
from dpswd.public_client.curator.diagnosis import explain
from dpswd.public_client.curator.receipts import (
    LEDGER_KEY_FILE,
    RECEIPTS_FILE,
    ReceiptFile,
    check_pinned,
    checked_receipt,
)
from dpswd.public_client.curator.transport import Exchange, GrpcTransport, Transport
from dpswd.public_client.curator.values import BudgetAnswer, PendingStep, Quote, Run, UploadedExtractor, new_request_id
from dpswd.shared.core.errors import CuratorUnavailable, ProtocolError
from dpswd.shared.core.ledger.keys import LedgerKeys
from dpswd.shared.core.ledger.receipts import SignedEntry
from dpswd.shared.core.wire.messages import RunParameters, StepRelease, run_digest, step_digest
from dpswd.shared.core.wire.v1 import curator_pb2 as pb

_FIRST_CONTACT_S = 3.0  # then it is said what may be wrong: with the address, the certificates, the curator
_START_S = 10.0  # longer waiting mends no wrong port and no certificate
_LEAST_ATTEMPT_S = 2.0  # for a handshake and an answer

_log = logging.getLogger(__name__)


class Curator(AbstractContextManager["Curator"]):
    """A connection to one curator. Use as a context manager.

    Args:
        transport: carries the requests; `connect` makes one with mutual TLS.
        receipts: where receipts are kept; nowhere by default.
        purpose: why runs are opened, in one line; it stands in the hospital's ledger and in their receipts.
        credentials: directory with the key that signs what is made of the answers; None without.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        receipts: ReceiptFile | None = None,
        purpose: str = "",
        credentials: Path | None = None,
    ) -> None:
        self.transport = transport
        self.purpose = purpose
        self.credentials = credentials
        self.receipts = receipts
        self._ledger_keys: LedgerKeys | None = None

    @classmethod
    def connect(
        cls, address: str, *, credentials: str | Path, timeout_s: float = 120.0, patience_s: float = 180.0,
        start_s: float | None = None, run_directory: str | Path | None = None, server_name: str | None = None,
        purpose: str = "",
    ) -> Curator:  # fmt: skip
        """See `Hospital.connect`; close it, or use it in a ``with`` statement.

        Raises:
            SettingsError: the credentials or the address are incomplete.
            CredentialsInvalid: the curator does not accept the certificate.
            CuratorUnavailable: nobody answers, or not as this curator.
            ProtocolError: the ledger's key is not the one that was pinned.
        """
        channel = open_channel(address, credentials=Path(credentials), server_name=server_name)
        receipts = ReceiptFile(Path(run_directory) / RECEIPTS_FILE) if run_directory is not None else None
        transport = GrpcTransport(channel, patience=Patience(timeout_s=timeout_s, total_s=patience_s))
        curator = Curator(transport, receipts=receipts, purpose=purpose, credentials=Path(credentials))
        begun, wait_s = time.monotonic(), min(_START_S, patience_s) if start_s is None else start_s
        try:
            least_s = min(timeout_s, _START_S if start_s is None else max(start_s, _LEAST_ATTEMPT_S))
            first = Patience(timeout_s=least_s, total_s=min(wait_s, _FIRST_CONTACT_S), signs=False)
            newest = None if receipts is None else receipts.newest()
            try:
                keys = curator.describe(patience=first, present=newest).ledger_keys
            except CuratorUnavailable:
                # With what may be wrong, for whoever waits.
                why = explain(address, credentials=Path(credentials), server_name=server_name)
                left_s = begun + wait_s - time.monotonic()
                if wait_s <= first.total_s or left_s <= 0:
                    raise
                attempt_s = min(first.timeout_s, max(left_s, _LEAST_ATTEMPT_S))
                left = Patience(timeout_s=attempt_s, total_s=left_s, quiet=True, signs=False)
                _log.warning("waiting for a curator at %s, for up to %.0f s more: %s", address, left_s, why)
                keys = curator.describe(patience=left, present=newest).ledger_keys
            pinned = Path(credentials) / LEDGER_KEY_FILE
            if pinned.is_file():
                check_pinned(pinned, keys)
            if receipts is not None:
                receipts.pin(keys)
        except CuratorUnavailable as error:
            curator.close()
            if not never_answered(error):
                raise
            why = explain(address, credentials=Path(credentials), server_name=server_name)
            raise CuratorUnavailable(f"no curator answers at {address} with these credentials: {why}") from error
        except BaseException:
            curator.close()
            raise
        return curator

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection; runs stay as they are at the curator."""
        self.transport.close()

    def describe(self, *, patience: Patience | None = None, present: SignedEntry | None = None) -> Description:
        """The data set, the budgets and what is offered. Free, and always fresh.

        Args:
            patience: instead of the connection's own.
            present: a receipt that the curator's ledger must hold; one that lost it stops.

        Returns:
            The curator's answer; budgets in epsilon.

        Raises:
            CuratorUnavailable: nobody answers.
        """
        request = pb.DescribeRequest()
        if present is not None:
            request.newest_receipt.statement = present.statement
            request.newest_receipt.signature = present.signature
        sent = self.transport.exchange("Describe", request, patience=patience)
        description = Description.from_message(sent.reply)
        keys, before = description.ledger_keys, self._ledger_keys
        if before is not None and before.newest not in keys.every:
            raise ProtocolError("the curator's ledger has another key than a moment ago, to which nothing leads")
        self._ledger_keys = keys
        return description

    def upload_extractor(self, graph: bytes, weights: bytes) -> UploadedExtractor:
        """Uploads an extractor as data. Free, and harmless to repeat.

        Args:
            graph: canonical bytes of the traced graph.
            weights: safetensors bytes.

        Returns:
            The digests by which runs name it.

        Raises:
            RequestInvalid: the graph or the weights are not allowed; the message names the layer.
        """
        request = pb.UploadExtractorRequest(graph=graph, weights=weights)
        reply = self.transport.exchange("UploadExtractor", request).reply
        return UploadedExtractor(reply.graph_digest, reply.weights_digest)

    def price_run(self, parameters: RunParameters, *, requested_epsilon: float = 0.0) -> Quote:
        """Asks what a run would cost, and whether it fits, without spending anything.

        Args:
            parameters: the declaration.
            requested_epsilon: what was asked for, where a run that does not fit is to be refused: the operator sees the
                refusal, and this figure. A question of a search states none.

        Returns:
            The price in epsilon, at the data set's delta.

        Raises:
            RequestInvalid: the declaration breaks a rule; each is named.
            BudgetExhausted: it does not fit, and `requested_epsilon` is stated.
        """
        request = pb.OpenRunRequest(
            parameters=parameters.to_message(), validate_only=True, purpose=self.purpose, wanted=requested_epsilon
        )
        return Quote.from_message(self.transport.exchange("OpenRun", request).reply)

    def open_run(self, parameters: RunParameters, *, request_id: str | None = None) -> Run:
        """Declares a run and charges all its steps. Nothing is ever given back.

        Args:
            parameters: the declaration.
            request_id: from `new_request_id`, to be able to repeat this very request after a crash.

        Returns:
            The charged run, the same for a repeat of the request.

        Raises:
            BudgetExhausted: the budget does not allow it; the error says what still fits. Nothing was spent.
        """
        asked = request_id or new_request_id()
        request = pb.OpenRunRequest(request_id=asked, parameters=parameters.to_message(), purpose=self.purpose)
        sent = self.transport.exchange("OpenRun", request)
        parameters = RunParameters.from_message(sent.request.parameters)
        self._keep(sent, run_id=sent.reply.run_id, reply=None, step=0, request_digest=run_digest(parameters))
        return Run(run_id=sent.reply.run_id, parameters=parameters, quote=Quote.from_message(sent.reply))

    def request_budget(self, epsilon: float, *, purpose: str) -> list[BudgetAnswer]:
        """Asks the hospital's operator for more budget; the operator grants all, a part, or nothing.

        Args:
            epsilon: on top of what may be spent.
            purpose: why, in one line of at most 200 characters.

        Returns:
            All requests of this client, the oldest first; the last one is this.

        Raises:
            GrantNotHeld: another request waits for the operator.
            RequestInvalid: epsilon is no budget, or the reason no such line.
        """
        request = pb.RequestBudgetRequest(epsilon=epsilon, purpose=purpose)
        return BudgetAnswer.all_of(self.transport.exchange("RequestBudget", request).reply)

    def budget_requests(self) -> list[BudgetAnswer]:
        """This client's requests for budget and what became of them, the oldest first. Free."""
        reply = self.transport.exchange("RequestBudget", pb.RequestBudgetRequest()).reply
        return BudgetAnswer.all_of(reply)

    def send(self, pending: PendingStep) -> StepRelease:
        """Draws a step, now or again; a repeat of an answered request returns the stored bytes, free.

        Args:
            pending: the request, complete.

        Returns:
            The step's number, from 1, and the mechanism's reply as bytes.

        Raises:
            RunFinished: all declared steps are used.
            ProtocolError: the reply or its receipt does not hold.
        """
        request = pb.DrawStepRequest(run_id=pending.run_id, request_id=pending.request_id, payload=pending.payload)
        sent = self.transport.exchange("DrawStep", request)
        stored: bytes = sent.reply.step_release
        release = StepRelease.from_bytes(stored)
        if release.run_id != pending.run_id:
            raise ProtocolError(f"the reply belongs to run {release.run_id!r}, asked was {pending.run_id!r}")
        digest = step_digest(run_id=pending.run_id, payload=sent.request.payload)
        self._keep(sent, run_id=pending.run_id, reply=stored, step=release.step, request_digest=digest)
        return release

    def _keep(self, sent: Exchange, **stated: Any) -> None:
        """Checks a reply's receipt against what it must state, and stores it."""
        if self._ledger_keys is None:
            self.describe()
        stated |= {"request_id": sent.request.request_id}
        try:
            entry = checked_receipt(sent.reply.receipt, **stated, public_key=self._ledger_keys)
        except ProtocolError:
            self.describe()  # the operator may have changed the ledger's key meanwhile, as entries then show
            entry = checked_receipt(sent.reply.receipt, **stated, public_key=self._ledger_keys)
        if self.receipts is not None:
            self.receipts.append(entry)
