"""``dpswd-curator history`` and ``report``: what happened, for the operator and for a board."""

from __future__ import annotations

from pathlib import Path

import click

from dpswd.private_curator.cli.common import FILE, chosen_act, home_if_given_option, home_option, needed
from dpswd.private_curator.cli.showing import chosen_format, explain, show, table_options
from dpswd.private_curator.operator.acts import state
from dpswd.private_curator.operator.facts import WHY_COUNTS_DIFFER
from dpswd.private_curator.operator.history import Category, selected
from dpswd.private_curator.operator.officer import Answer, items
from dpswd.private_curator.operator.record import Record
from dpswd.private_curator.operator.registry import registry_entry
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
    home: HomeDirectory, categories: tuple[str, ...], client: str | None, who: str | None, since: str | None,
    until: str | None,
) -> None:  # fmt: skip
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
@click.argument("what", required=False, type=click.Choice(["page", "registry"]))
@click.argument("file", required=False, type=FILE)
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
@click.option(
    "--state", "words", nargs=2, metavar="ITEM WORDS", help="States what no program knows, such as the legal-basis."
)
@home_if_given_option
@table_options
def report(
    what: str | None, file: Path | None, home: HomeDirectory | None, pdf: Path | None, since: str | None,
    until: str | None, key: str | None, words: tuple[str, str] | None,
) -> None:  # fmt: skip
    """Shows the 23 items that officers look for, or writes them to FILE: a signed page, or an entry for the registry.

    A page is HTML, prints to two sheets, and has runs, acts and refusals in its annex. The entry is YAML for the
    deployments registry, tier 3. Neither holds a value of a record.
    """
    act = chosen_act(check=key, state=words)
    if words is not None:
        state(needed(home), *words)
        click.echo(f"stated in the ledger: {words[0]}")
    elif what is None and act is None:
        _show_items(needed(home))
    elif what is None or file is None:
        raise click.UsageError("name what to write, page or registry, and its FILE")
    elif key is not None:
        text = Path(key).read_text(encoding="ascii").strip() if Path(key).is_file() else key
        check_report(file, public_key=text)
        click.echo(f"{file} is as it was signed with this key")
    else:
        _write(what, file, needed(home), pdf, since=since, until=until)


def _show_items(home: HomeDirectory) -> None:
    rows = [
        {"item": item.number, "title": item.title, "answer": answer.text, "from": answer.source or None}
        for item in items(Record(home))
        for answer in (*item.answers, *(Answer(": ".join(row), item.answers[0].source) for row in item.rows))
    ]
    show(rows, title="What officers look for, and where each answer comes from")


def _write(
    what: str, file: Path, home: HomeDirectory, pdf: Path | None, *, since: str | None, until: str | None
) -> None:
    for path in (file, pdf):
        if path is not None and path.exists():
            raise SettingsError(f"{path} exists, and nothing is ever overwritten; choose another file")
    if what == "registry":
        write_private(file, registry_entry(Record(home)).encode())
        click.echo(f"the entry is {file}: read it, it is meant for the public")
        return
    key = home.read_ledger_key()
    write_private(file, signed_page(report_page(Record(home), since=since, until=until), sign=key.sign))
    click.echo(f"the report is {file}; who checks it needs the ledger's public key over another way")
    if pdf is not None:
        click.echo(f"printed as {pdf}, signed in {print_pdf(file, pdf, sign=key.sign)}")
