"""``dpswd-curator ledger | runs | extractors | incidents``: what was done, and what may be done."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from dpswd.private_curator.books.audit import verify_file
from dpswd.private_curator.books.backup import move as move_ledger
from dpswd.private_curator.books.backup import restore as restore_backup
from dpswd.private_curator.books.ledger import Ledger
from dpswd.private_curator.books.operators import Enrolled
from dpswd.private_curator.books.reading import read_ledger
from dpswd.private_curator.books.sqlite_file import SqliteFile
from dpswd.private_curator.books.witness import Witness
from dpswd.private_curator.cli.common import FILE, chosen_act, full_id, home_option, reason_option, record_of, verifying
from dpswd.private_curator.cli.showing import explain, format_option, show, table_options
from dpswd.private_curator.operator.acts import check_enrolled, verify_ledger
from dpswd.private_curator.operator.facts import WHY_COUNTS_DIFFER
from dpswd.private_curator.operator.seconding import seconded
from dpswd.private_curator.storage.home_directory import HomeDirectory
from dpswd.private_curator.storage.incidents import IncidentBook
from dpswd.shared.books.chain_checks import read_export
from dpswd.shared.books.view import write_view
from dpswd.shared.core.errors import GrantNotHeld, LedgerError, SettingsError
from dpswd.shared.core.ledger.keys import LedgerKeys
from dpswd.shared.core.ledger.receipts import SignedEntry, sha256

_EXIT_CORRUPT = 6
_SHORT = ("run_id", "client", "opened", "alone", "adds_to_data_set", "steps", "purpose")
_receipts_option = click.option(
    "--receipts", type=FILE, help="Signed entries that a client or the operator kept elsewhere, one per line."
)


@click.group()
def ledger() -> None:
    """The signed record of everything that was spent."""


@ledger.command("verify")
@home_option
@click.option("--file", type=FILE, help="A backup instead.")
@_receipts_option
@click.option(
    "--last-signature",
    is_flag=True,
    help="Checks the last signature alone, as serve does: the chain of hashes makes it vouch for all entries.",
)
@format_option
@click.pass_context
def verify(
    context: click.Context, home: HomeDirectory, file: Path | None, receipts: Path | None, *, last_signature: bool
) -> None:
    """Finds every edit, deletion, reordering, truncation and unlawful entry."""
    every = not last_signature
    with verifying() as progress:
        if file is None:
            report = verify_ledger(home, receipts=_given(receipts), every_signature=every, progress=progress)
        else:
            keys = LedgerKeys.of(home.read_ledger_key().public_key().public_bytes_raw())
            with contextlib.suppress(LedgerError):  # the backup may be from before a change of the key
                keys = keys.joined(home.read_ledger_keys().changes)
            held = _read_receipts(receipts, home)
            report = verify_file(file, public_key=keys, receipts=held, every_signature=every, progress=progress)
    show(
        {
            "ok": report.ok,
            "entries": report.entries,
            "head": report.head,
            "epsilon_spent": report.epsilon_spent,
            "findings": [{"kind": f.tampering.value, "entry": f.seq, "text": f.text} for f in report.findings],
        },
        title="The ledger verifies" if report.ok else "THE LEDGER DOES NOT VERIFY",
    )
    if not report.ok:
        context.exit(_EXIT_CORRUPT)


@ledger.command("backup")
@click.argument("destination", type=FILE)
@home_option
def backup(destination: Path, home: HomeDirectory) -> None:
    """Copies the ledger, also while it is served, to a new file. The key ledger.key is not in it."""
    # Also of a ledger that was put back to an older state: that copy is what a restore accepts in writing.
    with home.open_ledger(witnessed=False, here=False) as books:
        books.backup(destination)
        entries = books.head().seq
    home.checks.note("backup", ok=True, entries=entries, by=home.operator, text=str(destination))
    click.echo(f"backup written to {destination}; keep ledger.key and certificates/ in another safe place")


@ledger.command("restore")
@click.argument("backup_file", required=False, type=click.Path(path_type=Path, dir_okay=False, exists=True))
@home_option
@_receipts_option
@click.option("--accept-loss", help="A sentence that accepts, in writing, the charges that are forgotten.")
@click.option(
    "--as-it-is",
    is_flag=True,
    help="Puts nothing in its place: serves the ledger as it is although it may be an older state, or a copy of it was "
    "served. With --receipts, what they prove is charged, whatever the budget is, and nothing else is forgotten; "
    "without, what was written before and is lost: look for a newer backup first, and lower the budget.",
)
@click.option("--reason", help="Why, for --as-it-is; it stands in the ledger for good.")
def restore(
    backup_file: Path | None,
    home: HomeDirectory,
    receipts: Path | None,
    accept_loss: str | None,
    as_it_is: bool,
    reason: str | None,
) -> None:
    """Puts a backup in the ledger's place; refused when charges would be forgotten.

    What clients' receipts prove was spent, and a budget that is lowered by that much keeps the promise.
    """
    if as_it_is == (backup_file is not None):
        raise click.UsageError("name the backup's file; or give --as-it-is where there is none")
    if chosen_act(as_it_is=as_it_is, reason=reason) and reason is not None:
        _accept(home, receipts, reason)
    elif backup_file is not None:
        _restore(backup_file, home, receipts, accept_loss)


def _accept(home: HomeDirectory, receipts: Path | None, reason: str) -> None:
    proven = None if receipts is None else _read_receipts(receipts, home)
    arguments = {"receipts": None if receipts is None else sha256(receipts.read_bytes())}
    with seconded(home, "restore", arguments, reason=reason) as acting:
        counted = acting.accept_ledger(reason=reason, receipts=proven)
    lower = "lower the budget by what the lost charges may have spent"
    click.echo(f"accepted, in writing; {lower if proven is None else f'{counted} runs were charged'}")


def _restore(backup_file: Path, home: HomeDirectory, receipts: Path | None, accept_loss: str | None) -> None:
    arguments = {"backup": sha256(backup_file.read_bytes()), "accept_loss": accept_loss}

    def enrolled() -> Enrolled:
        try:
            return home.read_ledger().books.operators
        except LedgerError:  # what is restored knows them as well
            return read_ledger(SqliteFile(backup_file)).books.operators

    check_enrolled(home, enrolled())
    reason = accept_loss or "restore a backup"
    with seconded(home, "restore", arguments, reason=reason, enrolled=enrolled) as acting:
        loss = restore_backup(
            backup_file,
            acting.ledger_location(),
            key=acting.read_ledger_key(),
            receipts=_read_receipts(receipts, home),
            accept_loss=accept_loss,
            by=acting.acting,
        )
    # What was noted is in the ledger now, or was accepted as forgotten.
    with home.open_ledger(witnessed=False) as books:
        Witness(home.ledger_witness()).note(books.head())
    click.echo("restored; nothing was forgotten" if loss is None else f"restored with a loss: {loss}")


@ledger.command("move")
@home_option
@reason_option
def move(home: HomeDirectory, reason: str) -> None:
    """Moves ledger.db into the database that ledger.url names; or says that a home which was moved stands here now.

    Stop the curator first. The ledger in its old place must never be served again.
    """
    location, source = home.ledger_location(), SqliteFile(home.ledger)
    into = not isinstance(location, SqliteFile) and source.exists()

    def enrolled() -> Enrolled:
        return (read_ledger(source) if into else home.read_ledger()).books.operators

    check_enrolled(home, enrolled())
    with seconded(home, "restore", {"into": str(location)}, reason=reason, enrolled=enrolled) as acting:
        if into:
            moved = move_ledger(source, location, key=acting.read_ledger_key(), by=acting.acting, reason=reason)
            click.echo(f"the ledger stands in {location}; its file is kept as {moved}")
            return
        with acting.open_ledger(here=False) as books:
            books.move(reason=reason)
    click.echo(f"the ledger stands in {location}, and nowhere else")


@ledger.command("export")
@home_option
@click.option("--out", type=FILE, help="[default: standard output]")
@click.option("--client", "name", help="A signed view for this client: its own entries, hashes of all others.")
def export(home: HomeDirectory, out: Path | None, name: str | None) -> None:
    """Every entry with its signature, one JSON object per line, for an auditor; or, with --client, a client's view.

    A client holds its receipts against its view with `dpswd-client check --ledger FILE`. The whole export names every
    client and every reason that the operator gave; it is not meant for clients.
    """
    if out is not None and out.exists():
        raise SettingsError(f"{out} exists; nothing is overwritten, choose another file")
    with home.open_ledger(here=name is not None) as books:
        lines = books.export() if name is None else iter(client_view(home, books, name))
        if out is None:
            for line in lines:
                click.echo(line)
            return
        with out.open("w", encoding="ascii") as file:
            file.writelines(f"{line}\n" for line in lines)
    click.echo(f"exported to {out}")


@click.command()
@click.argument("run_id", required=False)
@click.option(
    "--prune",
    is_flag=True,
    help="Closes it and discards its stored replies, which take room; charges and receipts stay.",
)
@reason_option
@home_option
@table_options
def runs(run_id: str | None, home: HomeDirectory, prune: bool, reason: str | None) -> None:
    """Shows every run, or RUN_ID with its noise, price and signed receipt. The id's first digits will do."""
    if chosen_act(prune=prune, reason=reason) and reason is not None:
        if run_id is None:
            raise click.UsageError("--prune needs the run's RUN_ID")
        with home.open_ledger() as books:
            run_id = full_id(run_id, (run.run_id for run in home.read_ledger().runs))
            discarded = books.prune_replies(run_id, reason=reason)
        click.echo(f"run {run_id} is closed; {discarded} replies were discarded")
        return
    record = record_of(home)
    if run_id is not None:
        show(
            asdict(record.run(full_id(run_id, (run.run_id for run in record.runs)))),
            title="A run; noise is the standard deviation",
        )
    else:
        rows = [
            {
                "run_id": charged.run_id, "client": charged.client, "opened": charged.opened[:19] + "Z",
                "mechanism": charged.mechanism, "noise": charged.noise, "alone": charged.epsilon,
                "adds_to_data_set": charged.increase, "adds_to_share": charged.client_increase, "steps": charged.steps,
                "steps_used": charged.steps_used, "batch": charged.batch, "state": charged.state,
                "purpose": charged.purpose,
            }
            for charged in record.runs
        ]  # fmt: skip
        show(
            rows,
            title="Runs: what each cost alone, and added to the data set's epsilon and to its client's share",
            short=_SHORT,
        )
    explain(WHY_COUNTS_DIFFER)


@click.command()
@click.argument("digest", required=False)
@click.option("--approve", is_flag=True, help="Lets the graph with this SHA-256 run.")
@click.option("--withdraw", is_flag=True, help="Withdraws an approval: the graph's runs get no further step.")
@home_option
@table_options
def extractors(digest: str | None, home: HomeDirectory, approve: bool, withdraw: bool) -> None:
    """Shows the extractor graphs that may see records, where extractors.approval is "listed"; or changes them."""
    act = chosen_act(approve=approve, withdraw=withdraw)
    if act is None:
        approved = sorted(record_of(home).reading.books.extractors)
        rows = [{"digest": each} for each in approved if each.startswith(digest or "")]
        show(rows, title="Approved extractor graphs")
        return
    if digest is None:
        raise click.UsageError(f"{act} needs the graph's DIGEST")
    with home.open_ledger() as books:
        if approve:
            books.approve_extractor(digest)
        else:
            digest = full_id(digest, books.approved_extractors())
            books.revoke_extractor(digest)
    click.echo(f"{digest} is {'approved' if approve else 'no longer approved'}")


@click.command()
@click.argument("number", required=False)
@home_option
@table_options
def incidents(number: str | None, home: HomeDirectory) -> None:
    """Shows unexpected errors, the oldest first, or where NUMBER happened, of which a client was told.

    What it was about is kept nowhere.
    """
    book = IncidentBook(home.incidents)
    if number is not None:
        show(asdict(book.find(number)))
        return
    rows = [
        {"number": i.number, "time": i.time, "operation": i.operation, "client": i.client, "error": i.errors[0]["type"]}
        for i in book.all()
    ]
    show(rows, title="Incidents")


def client_view(home: HomeDirectory, books: Ledger, name: str) -> Sequence[str]:
    """The lines of a client's view, signed with the ledger's key.

    Raises:
        GrantNotHeld: no client of this name was ever added.
    """
    if name not in {client.name for client in books.clients()}:
        raise GrantNotHeld(f"no client {name!r} was ever added; `dpswd-curator clients` shows who was")
    return write_view(
        books.history(),
        client=name,
        time=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        sign=home.read_ledger_key().sign,
    )


def _read_receipts(path: Path | None, home: HomeDirectory) -> list[SignedEntry]:
    """What somebody kept, and what this curator noted itself."""
    noted = Witness(home.ledger_witness()).entry()
    return [*([] if noted is None else [noted]), *_given(path)]


def _given(path: Path | None) -> list[SignedEntry]:
    if path is None:
        return []
    if not path.is_file():
        raise SettingsError(f"{path} does not exist; give the file in which receipts were kept")
    with path.open(encoding="ascii", errors="replace") as lines:
        entries, findings = read_export(lines)
    if findings:
        raise SettingsError(f"{path} holds lines that are no receipts: {findings[0].text}")
    return entries
