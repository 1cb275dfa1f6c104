"""One release for everybody, as a signed file: what a hospital does that lets nobody connect.

A proposal is answered by the service that answers clients, asked without a transport: the same admission, trial run,
confined worker, ledger and receipts. The ids of its two requests follow from the proposal and the client that it is
charged to. So a repeat, after a crash at any moment too, meets the stored charge and the stored reply: it costs nothing
and gives the same file.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dpswd.private_curator.books.figures import Quote
from dpswd.private_curator.core.ledger.statements import Request
from dpswd.private_curator.serving.server import CuratorServer
from dpswd.private_curator.serving.service import CuratorService
from dpswd.private_curator.settings import tree as configuration
from dpswd.private_curator.storage.certificates import check_client_name
from dpswd.private_curator.storage.home_directory import HomeDirectory
from dpswd.shared.core.errors import DataInvalid, SettingsError
from dpswd.shared.core.mechanisms.declared import AdmittedRun
from dpswd.shared.core.wire.checks import invalid
from dpswd.shared.core.wire.messages import run_digest
from dpswd.shared.core.wire.v1 import curator_pb2 as pb
from dpswd.shared.files import write_private, write_public
from dpswd.shared.protocol.contract import DataContract
from dpswd.shared.protocol.publications import Proposal, Publication
from dpswd.shared.words import one_line

CONFIRMATION = "publish"
"""The word that is typed to confirm."""


@dataclass(frozen=True)
class Preview:
    """What a publication would release and cost, before anything is charged.

    Attributes:
        releases: what everybody will read, in the mechanism's words.
        records: n; all of them are in it.
        epsilon: of the release alone, at the data set's delta, as the ledger counts it.
        adds: what it adds to the data set's epsilon.
        adds_to_share: what it adds to the client's own share; None without one.
        expected: epsilon that the team expected.
        delta: of the data set's budget.
        spent: epsilon of the data set so far.
        remaining: epsilon that is left to the client that is charged: of its share, or of the data set.
        afterwards: the same after the release.
        fits: whether the budgets admit it now.
    """

    releases: str
    records: int
    epsilon: float
    adds: float
    adds_to_share: float | None
    expected: float
    delta: float
    spent: float
    remaining: float
    afterwards: float
    fits: bool

    @classmethod
    def of(cls, run: AdmittedRun, quote: Quote, *, expected: float) -> Preview:
        """Of a run of all records and what it would cost now."""
        account, adds = quote.data_set, (quote.adds_to_data_set, quote.adds_to_share)
        left = [account.epsilon_remaining] + ([] if quote.client is None else [quote.client.epsilon_remaining])
        return cls(
            releases=run.summary,
            records=run.facts.data.records,
            epsilon=quote.epsilon,
            adds=quote.adds_to_data_set,
            adds_to_share=quote.adds_to_share,
            expected=expected,
            delta=account.delta,
            spent=account.epsilon_spent,
            remaining=min(left),
            afterwards=max(0.0, min(had - (used or 0.0) for had, used in zip(left, adds, strict=False))),
            fits=quote.fits,
        )


@dataclass(frozen=True)
class Publishing:
    """One proposal at one hospital.

    Args:
        home: the curator's directory.
        proposal: from a team.
        client: registered; the release is charged to this name.

    Raises:
        InvalidValue: the client's name is none.
    """

    home: HomeDirectory
    proposal: Proposal
    client: str

    def __post_init__(self) -> None:
        check_client_name(self.client)  # part of a file's name

    def read_copy(self) -> Publication | None:
        """What was published of this proposal before; a copy that is damaged counts as none, the ledger has it all."""
        try:
            copy = Publication.read(self._copy)
        except DataInvalid:
            return None
        return None if copy.problems(self.home.read_ledger_keys()) else copy

    def charged(self, service: CuratorService) -> bool:
        """Whether this very publication is charged already, so that it costs nothing any more."""
        digest = run_digest(self.proposal.parameters)
        request = Request(client=self.client, request_id=self._request_id("run"), digest=digest)
        return service.ledger.opened_run(request) is not None

    def preview(self, service: CuratorService) -> Preview:
        """What would be released and charged; spends nothing.

        Raises:
            RequestInvalid: the proposal breaks a rule, or was made for another data set.
            ExtractorNotApproved: the operator lists extractors, and this one is not listed.
            GrantNotHeld: the client is not registered, or shut out.
        """
        asked, records = self.proposal.parameters, service.data_set.records
        if asked.batch_size != records:
            text = f"is {asked.batch_size}; a publication is of all {records} records: prepare it for this data set"
            raise invalid("proposal.parameters.batch_size", text)
        upload = pb.UploadExtractorRequest(graph=self.proposal.graph, weights=self.proposal.weights)
        service.ask("UploadExtractor", upload, client=self.client)
        service.ask("OpenRun", self._run_request(validate_only=True), client=self.client)
        run, _ = service.admitted(self._find_client(service), asked)
        quote = service.ledger.price_run(client=self.client, event=run.event)
        return Preview.of(run, quote, expected=self.proposal.epsilon)

    def publish(self, service: CuratorService, *, purpose: str) -> Publication:
        """Charges the run, computes its only step, signs all of it and keeps a copy; after `preview`, or `charged`.

        Args:
            service: that is ready.
            purpose: why, in one line; it stands in the file.

        Raises:
            BudgetExhausted: the budgets do not admit it; nothing was spent.
            DpswdError: what a client would have met. Once the run is charged, a repeat costs nothing.
        """
        for _, text in one_line("purpose", purpose, least=1):
            raise SettingsError(f"a publication needs its purpose: it {text}")
        opened = service.ask("OpenRun", self._run_request(purpose=purpose), client=self.client)
        step_id = self._request_id("step")
        step = pb.DrawStepRequest(run_id=opened.run_id, request_id=step_id, payload=self.proposal.payload)
        drawn = service.ask("DrawStep", step, client=self.client)
        description = service.ask("Describe", pb.DescribeRequest(), client=self.client)
        # A file is of one release: what else was spent is no reader's business, and would differ at a repeat.
        own = pb.BudgetStatus(
            epsilon=opened.epsilon, delta=description.data_set_budget.delta, epsilon_spent=opened.epsilon
        )
        for reply in (description, opened):
            reply.data_set_budget.CopyFrom(own)
            reply.client_budget.CopyFrom(own)
        message = pb.Publication(
            description=description,
            proposal=self.proposal.to_message(),
            purpose=purpose,
            run_request_id=self._request_id("run"),
            run=opened,
            step_request_id=step_id,
            step=drawn,
        )
        made = Publication.signed(message, sign=self.home.read_ledger_key().sign)
        try:
            self._copy.parent.mkdir(mode=0o700, exist_ok=True)
            write_private(self._copy, made.to_file())
        except OSError as error:
            raise _unwritten(self._copy, error) from error
        return made

    @property
    def _copy(self) -> Path:
        return self.home.publications / f"{self.client}-{self.proposal.digest}.dpswd"

    def _find_client(self, service: CuratorService) -> Any:
        return next(one for one in service.ledger.clients() if one.name == self.client)

    def _run_request(self, *, validate_only: bool = False, purpose: str = "") -> pb.OpenRunRequest:
        parameters = self.proposal.parameters.to_message()
        request_id = self._request_id("run")
        return pb.OpenRunRequest(
            request_id=request_id, parameters=parameters, validate_only=validate_only, purpose=purpose
        )

    def _request_id(self, what: str) -> str:
        return str(uuid.uuid5(uuid.NAMESPACE_OID, f"dpswd publication {self.client} {self.proposal.digest} {what}"))


def released(asked: Publishing, *, purpose: str, agreed: Callable[[Preview], object]) -> tuple[Publication, bool]:
    """The publication, made now where it was not before, and whether it was charged now.

    Args:
        asked: the proposal, and who is charged.
        purpose: see `Publishing.publish`.
        agreed: called with what will be released and charged, before it is; raises to stop.

    Raises:
        DpswdError: see `Publishing`.
    """
    copy = asked.read_copy()
    if copy is not None:
        check_purpose(copy, purpose)
        return copy, False
    asked.home.acting.propose()
    with CuratorServer(asked.home, configuration.load(asked.home.path)) as server:
        service = server.ready()
        charged = not asked.charged(service)
        if charged:
            agreed(asked.preview(service))
        return asked.publish(service, purpose=purpose), charged


def check_purpose(copy: Publication, purpose: str) -> None:
    """Holds a repeat to the words that were signed.

    Raises:
        SettingsError: the publication was made for another purpose.
    """
    if copy.message.purpose != purpose:
        raise SettingsError(
            f"this proposal was published for the purpose {copy.message.purpose!r}; repeat it with these words, the "
            "file is signed with them"
        )


def check_out(out: Path, copy: Publication | None, *, purpose: str) -> bool:
    """Looks, before anything is charged, where a publication is to be written.

    Args:
        out: the file.
        copy: what was published of the proposal before.
        purpose: of the publication.

    Returns:
        Whether the file is there already, as it would be written.

    Raises:
        SettingsError: another file is there, its folder is not, or the publication was made for another purpose.
    """
    if copy is not None:
        check_purpose(copy, purpose)
    if not out.parent.is_dir():
        raise SettingsError(f"{out.parent} is no folder; make it, or choose another file")
    if not out.exists():
        return False
    if copy is not None and out.is_file() and out.read_bytes() == copy.to_file():
        return True
    raise SettingsError(f"{out} exists, and nothing is ever overwritten; choose another file")


def write_out(out: Path, made: Publication) -> None:
    """Writes the publication's file, whole or not at all.

    Raises:
        SettingsError: it cannot be written; the publication is kept, and a repeat costs nothing.
    """
    try:
        write_public(out, made.to_file())
    except OSError as error:
        raise _unwritten(out, error) from error


def description_json(message: pb.DescribeResponse) -> dict[str, Any]:
    """What `dpswd-client describe --format json` prints of a curator's answer, for one that nobody can ask."""
    plain = {field.name: getattr(message, field.name) for field in message.DESCRIPTOR.fields}
    lists = {name: list(plain[name]) for name in ("record_shape", "mechanisms", "key_changes")}
    return {
        **plain,
        **lists,
        **{name: _budget(plain[name]) for name in ("data_set_budget", "client_budget")},
        "contract": asdict(DataContract.from_message(message.contract)),
        "limits": {field.name: getattr(message.limits, field.name) for field in message.limits.DESCRIPTOR.fields},
        "ledger_public_key": message.ledger_public_key.hex(),
    }


def _budget(status: pb.BudgetStatus) -> dict[str, Any]:
    return {
        "epsilon": status.epsilon,
        "delta": status.delta,
        "spent": status.epsilon_spent,
        "remaining": status.epsilon_remaining,
        "closed": status.closed,
    }


def _unwritten(path: Path, error: OSError) -> SettingsError:
    return SettingsError(
        f"{path} cannot be written ({error.strerror}). Nothing is lost: what is charged is charged once and kept in "
        "the ledger; mend this and repeat the same command, which costs nothing"
    )
