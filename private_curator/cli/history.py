"""``dpswd-curator history`` and ``report``: what happened, for the operator and for a board."""

from __future__ import annotations

from pathlib import Path

import click

from dpswd.private_curator.cli.common import FILE, home_if_given_option, home_option, needed
from dpswd.private_curator.cli.showing import chosen_format, explain, show, table_options
from dpswd.private_curator.operator.facts import WHY_COUNTS_DIFFER
from dpswd.private_curator.operator.history import Category, selected
from dpswd.private_curator.operator.record import Record
from dpswd.private_curator.operator.report import check_report, print_pdf, report_page, signed_page
from dpswd.private_curator.storage.home_directory import HomeDirectory
from dpswd.shared.core.errors import SettingsError
from dpswd.shared.files import write_private

_SHORT = ("time", "who", "what", "why", "spent")
_since_option = click.option("--since", metavar="YYYY-MM-DD", help="The first day, UTC.")
_until_option = click.option("--until", metavar="YYYY-MM-DD", help="The last day, UTC.")


@click.command()
@home_option
@click.option("--category", "categories", multiple=True, type=click.Choice(list(Category)), help="Only these; repeat.")
@click.option("--client", help="Only what is about this client.")
@click.option("--who", help="Only what this operator did, or this client asked.")
@_since_option
@_until_option
@table_options
def history(
    home: HomeDirectory,
    categories: tuple[str, ...],
    client: str | None,
    who: str | None,
    since: str | None,
    until: str | None,
) -> None:
    """Everything that happened: charges, refusals, requests, and who acted and why. Works on a read-only home.

    Charges, requests and acts stand in the signed ledger. Refusals are counted by client, reason and day.
    """
    events = selected(
        Record(home).history,
        categories=[Category(category) for category in categories],
        client=client,
        who=who,
        since=since,
        until=until,
    )
    rows = [
        {
            "time": event.time[:19] + "Z",
            "category": event.category.value,
            "who": event.who,
            "what": event.text,
            "why": event.why,
            "epsilon": event.epsilon,
            "spent": event.spent,
            "entry": event.entry or None,
        }
        for event in events
    ]
    if chosen_format() == "json":
        rows = [
            row | {"kind": event.kind, "client": event.client, "run": event.run, "count": event.count}
            for row, event in zip(rows, events, strict=True)
        ]
    show(rows, title="History; spent is the data set's epsilon afterwards", short=_SHORT)
    explain(WHY_COUNTS_DIFFER)


@click.command()
@click.argument("file", type=FILE)
@click.option(
    "--pdf", type=FILE, help="Also a PDF, printed by the chromium of this machine; its signature lies beside."
)
@_since_option
@_until_option
@click.option(
    "--check",
    "key",
    metavar="KEY",
    help="Makes none: whether FILE (HTML, or PDF with its signature beside it) is as the holder of the ledger's key "
    "made it; KEY is the ledger's public key, or the file ledger.pub.",
)
@home_if_given_option
def report(
    file: Path, home: HomeDirectory | None, pdf: Path | None, since: str | None, until: str | None, key: str | None
) -> None:
    """Writes a signed report for a board to FILE, an HTML page: the promise, the budget over time, who spent what.

    It holds no value of any record, and needs no other file and no network; any browser opens and prints it.
    """
    if key is not None:
        text = Path(key).read_text(encoding="ascii").strip() if Path(key).is_file() else key
        check_report(file, public_key=text)
        click.echo(f"{file} is as it was signed with this key")
        return
    home = needed(home)
    for path in (file, pdf):
        if path is not None and path.exists():
            raise SettingsError(f"{path} exists, and nothing is ever overwritten; choose another file")
    page = signed_page(report_page(Record(home), since=since, until=until), sign=home.read_ledger_key().sign)
    write_private(file, page)
    click.echo(f"the report is {file}; who checks it needs the ledger's public key over another way")
    if pdf is not None:
        signature = print_pdf(file, pdf, sign=home.read_ledger_key().sign)
        click.echo(f"printed as {pdf}, signed in {signature}")
