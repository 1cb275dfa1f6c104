"""What an operator can look at: budget, clients, runs, requests and the ledger's health, as plain values.

Reading needs neither the ledger's key nor the records, and writes nothing: a read-only copy of the curator's directory
will do. Nothing here acts; acts are `dpswd.private_curator.books.operator`'s.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import os
from dataclasses import fields
from functools import cached_property, partial

from dpswd.private_curator.books.figures import AccountStatus, BudgetRequest
from dpswd.private_curator.books.reading import LedgerReading, first_reply
from dpswd.private_curator.books.witness import Witness
from dpswd.private_curator.core.ledger.accounts import CLIENT, DATA_SET
from dpswd.private_curator.core.ledger.statements import Client, Kind, Run
from dpswd.private_curator.core.ledger.store import head
from dpswd.private_curator.operator.facts import CertificateFacts, ClientFacts, Forecast, Health, Overview, RunFacts
from dpswd.private_curator.operator.guards import factor
from dpswd.private_curator.operator.history import Event, Followed, followed, met, refused
from dpswd.private_curator.settings import tree as configuration
from dpswd.private_curator.storage.asks import LastUse, Refusals
from dpswd.private_curator.storage.home_directory import HomeDirectory
from dpswd.private_curator.storage.incidents import IncidentBook
from dpswd.private_curator.watching import watched
from dpswd.shared.accounting.persons import promised_to_person
from dpswd.shared.core.errors import GrantNotHeld
from dpswd.shared.core.privacy.events import Part, QuantileCoefficients, RowProjections, SanitizedGradient
from dpswd.shared.core.wire.v1 import curator_pb2 as pb
from dpswd.shared.watching import Change

_LEAST_SPENDING = dt.timedelta(days=7)
"""Of less no rate is told: whoever tries on a Monday is not told that the budget ends on Tuesday."""


class Record:
    """Everything about one curator at one moment.

    Args:
        home: its directory.
        now: the present, UTC.

    Attributes:
        mark: of what it shows, see `changes`.

    Raises:
        SettingsError: the home is none.
        LedgerUnavailable, LedgerCorrupt: the ledger cannot be read.
    """

    def __init__(self, home: HomeDirectory, *, now: dt.datetime | None = None) -> None:
        self.home = home
        self.mark = changes(home)  # first: what changes meanwhile is another mark
        self.now = now or dt.datetime.now(dt.UTC)
        self.settings = configuration.load(home.path)
        self.reading: LedgerReading = home.read_ledger()

    @cached_property
    def overview(self) -> Overview:
        """The data set and its budget."""
        status = self.reading.status
        account = status.data_set
        return Overview(
            name=self.settings.records.name,
            records=status.records,
            state=status.state.value,
            records_per_person=status.records_per_person,
            promise=promise(account.epsilon, account.delta, records_per_person=status.records_per_person),
            epsilon=account.epsilon,
            delta=account.delta,
            relation=account.relation,
            spent=account.epsilon_spent,
            remaining=account.epsilon_remaining,
            runs=status.runs,
            steps_charged=status.steps_charged,
            steps_used=status.steps_used,
            steps_repeated=status.steps_repeated,
            points=tuple(self._followed.points),
            forecast=self._forecast(),
        )

    @cached_property
    def clients(self) -> tuple[ClientFacts, ...]:
        """Every client that was ever added, in that order."""
        return tuple(self._client(client, account) for client, account in self.reading.status.clients)

    @cached_property
    def runs(self) -> tuple[RunFacts, ...]:
        """Every run that was charged, the oldest first."""
        return tuple(_run_facts(run, *self._followed.increases[run.run_id]) for run in self.reading.runs)

    def run(self, run_id: str) -> RunFacts:
        """One run.

        Raises:
            GrantNotHeld: there is none with this id.
        """
        record = next((run for run in self.runs if run.run_id == run_id), None)
        if record is None:
            raise GrantNotHeld(f"there is no run {run_id!r}; `dpswd-curator runs` shows all")
        return record

    @cached_property
    def history(self) -> tuple[Event, ...]:
        """Charges, refusals, requests, acts and incidents; `operator.history.selected` filters it."""
        return (*self._followed.events, *refused(self._refusals), *met(IncidentBook(self.home.incidents).all()))

    @cached_property
    def requests(self) -> tuple[BudgetRequest, ...]:
        """Requests for budget, the oldest first."""
        return tuple(self.reading.books.requests.values())

    @cached_property
    def health(self) -> Health:
        """The ledger's."""
        reading, status = self.reading, self.reading.status
        holds, words = self._witness()
        notes = self.home.checks.all()
        serving = self.home.address
        return Health(
            place=str(self.home.ledger_location(self.settings.ledger)),
            ledger_id=status.ledger_id,
            public_key=reading.books.public_key,
            entries=status.entries,
            head=status.head,
            head_time=reading.head.time,
            head_signed=reading.head.signed_by(reading.books.keys),
            witness=words,
            witness_holds=holds,
            verified=notes.get("verify"),
            backed_up=notes.get("backup"),
            incidents=len(IncidentBook(self.home.incidents).all()),
            serving=serving.read_text(encoding="ascii").strip() if serving.is_file() else "",
        )

    @cached_property
    def _followed(self) -> Followed:
        return followed(self.reading.entries)

    @cached_property
    def _refusals(self) -> list[Refusals]:
        return self.home.asks.refusals()

    @cached_property
    def _seen(self) -> dict[str, LastUse]:
        return self.home.asks.seen()

    @cached_property
    def _watched(self) -> dict[str, dict[str, Change]]:
        if self.settings.records.labelled is not None:  # of how many the accuracies were no entry says
            return {}
        with self.home.ledger_location(self.settings.ledger).reading() as session:
            return watched(self.reading.runs, partial(first_reply, session))

    def _client(self, client: Client, account: AccountStatus | None) -> ClientFacts:
        books, certificates = self.reading.books, tuple(map(self._certificate, client.fingerprints))
        share = books.shares.get(client.name)
        return ClientFacts(
            name=client.name, state="revoked" if client.revoked else "paused" if client.paused else "active",
            share=None if share is None else share.budget.epsilon,
            share_delta=None if share is None else share.budget.delta,
            spent=books.spent_by(client.name) if account is None else account.epsilon_spent,
            remaining=None if account is None else account.epsilon_remaining,
            runs=books.charged[client.name],
            caps=books.caps_of(client.name, max(books.day, self.now.date().isoformat())),
            certificates=certificates,
            last_seen=max((each.last_seen for each in certificates if each.last_seen), default=None),
            refusals=sum(row.count for row in self._refusals if row.client == client.name),
            waiting=books.open_request(client.name),
            watched=self._watched.get(client.name, {}),
        )  # fmt: skip

    def _certificate(self, fingerprint: str) -> CertificateFacts:
        expires, seen = self.home.authority.expires(fingerprint), self._seen.get(fingerprint)
        return CertificateFacts(
            fingerprint=fingerprint,
            expires=None if expires is None else expires.isoformat(),
            expired=expires is not None and expires < self.now,
            last_seen=None if seen is None else seen.last,
            last_peer="" if seen is None else seen.peer,
        )

    def _forecast(self) -> Forecast:
        account, runs = self.reading.books.account, self.reading.runs
        if not runs or account.filter is None:
            return Forecast(next_spent=None, next_fits=False, exhausted_on=None)
        price = self.reading.books.accounting.price_from_json(runs[-1].receipt.entry.payload["prices"][DATA_SET])
        after = account.filter.epsilon(account.filter.add(account.spent, price))
        fits = after <= account.budget.epsilon and not self.reading.books.closed
        return Forecast(next_spent=after, next_fits=fits, exhausted_on=self._exhausted_on())

    def _exhausted_on(self) -> str | None:
        """By a straight line from the first charge to now, after a week of it; a day after year 9999 is none."""
        account = self.reading.status.data_set
        first = next((point for point in self._followed.points if point.kind == Kind.RUN_OPENED), None)
        if first is None or account.epsilon_spent <= 0.0 or self.reading.books.closed:
            return None
        spending = self.now - dt.datetime.fromisoformat(first.time)
        if spending < _LEAST_SPENDING:
            return None
        try:
            left = spending * (account.epsilon_remaining / account.epsilon_spent)
            return (self.now + left).date().isoformat()
        except OverflowError:
            return None

    def _witness(self) -> tuple[bool | None, str]:
        path = self.home.ledger_witness(self.settings.ledger)
        noted = Witness(path).entry()
        if noted is None:
            return None, f"nothing is noted in {path}"
        # Steps are not in the reading; the newest entries are what a witness notes, and a rollback makes it the longer.
        entry = {entry.seq: entry for entry in (*self.reading.entries, self.reading.head)}.get(noted.seq)
        holds = noted.seq <= self.reading.head.seq and (entry is None or entry.statement == noted.statement)
        says = "which the ledger holds" if holds else "WHICH THE LEDGER LACKS: it was put back to an older state"
        return holds, f"entry {noted.seq} of {noted.time}, {says}"


def changes(home: HomeDirectory) -> str:
    """Another word after anything that a `Record` shows has changed: the ledger's last entry, and the home's files.

    Raises:
        SettingsError, LedgerUnavailable, LedgerCorrupt: see `Record`.
    """
    with home.ledger_location().reading() as session:
        last = head(session)
    stamps = []
    with os.scandir(home.path) as files:
        for file in files:
            with contextlib.suppress(FileNotFoundError):  # a journal of SQLite comes and goes
                if not file.name.startswith("ledger."):  # reading touches them
                    stamps.append((file.name, file.stat().st_mtime_ns, file.stat().st_size))
    return hashlib.sha256(repr((last and last.hash, sorted(stamps))).encode()).hexdigest()


def promise(epsilon: float, delta: float, *, records_per_person: int = 1) -> str:
    """What a budget of a record promises, in a sentence; to a person, where one may have several records."""
    whole, chance = promised_to_person(epsilon, delta, records_per_person)
    one, counted = "record", ""
    if records_per_person > 1:
        one = f"person, with up to {records_per_person} of these records,"
        counted = f"; all other figures count records, each of epsilon {epsilon:.4g}, delta {delta:.4g}"
    return (
        f"Whatever is concluded from all releases together, by anybody, now or later, would have been concluded with "
        f"at most {factor(whole)} times the probability had any one {one} been another one, but for a chance of "
        f"{chance:.6g} (epsilon {whole:.6g}, delta {chance:.6g}{counted})"
    )


def _run_facts(run: Run, increase: float, client_increase: float | None) -> RunFacts:
    declared = pb.RunParameters.FromString(run.parameters)  # as it was admitted
    step, entry = run.event.step, run.receipt.entry
    prices = entry.payload["prices"]
    return RunFacts(
        run_id=run.run_id, client=run.client, opened=entry.time, purpose=run.purpose, mechanism=declared.mechanism,
        release=_in_words(run),
        exactly=" and ".join(_exactly(part) for part in step.parts),
        noise=", ".join(f"{part.sigma:.4g}" for part in step.parts),
        batch=step.batch, records=step.records, steps=run.steps, steps_used=run.steps_used,
        state="closed" if run.pruned else "finished" if run.steps_used == run.steps else "open",
        epsilon=run.epsilon, increase=increase, client_increase=client_increase,
        price={name: prices[name] for name in (DATA_SET, CLIENT) if prices[name] is not None},
        graph=declared.graph_digest, weights=declared.weights_digest,
        request_id=run.request_id, entry=entry.seq, receipt=entry.to_json(),
    )  # fmt: skip


def _in_words(run: Run) -> str:
    """How many numbers leave, for whoever decides; what each is stands in the event."""
    step = run.event.step
    numbers = f"{sum(_numbers(part, step.batch) for part in step.parts):,} noised numbers"
    if run.steps > 1:
        numbers += f" in each of {run.steps:,} steps"
    if any(isinstance(part, RowProjections) for part in step.parts):
        return f"{numbers}, some of each record in the step; no record without noise"
    return f"{numbers}; no record"


def _numbers(part: Part, batch: int) -> int:
    if isinstance(part, RowProjections):
        return batch * part.directions
    if isinstance(part, QuantileCoefficients):
        return part.directions * part.coefficients
    return part.parameters if isinstance(part, SanitizedGradient) else part.values


def _exactly(part: Part) -> str:
    """A part of a step in the words of its event: its kind and its sizes."""
    words = "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in type(part).__name__).strip()
    sizes = [
        f"{field.name.replace('_', ' ')} {getattr(part, field.name):g}"
        for field in fields(part)
        if field.init and field.name not in ("sigma", "grid_step")
    ]
    return f"{words} ({', '.join(sizes)})"
