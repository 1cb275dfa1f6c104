"""``verify``: the client's own audit, offline."""

from __future__ import annotations

from pathlib import Path

import click

from public_client.cli.options import echo_json, format_option
from shared.errors import SettingsError
from shared.ledger.chain_checks import Finding

EXIT_FINDINGS = 13

_file = click.Path(path_type=Path, dir_okay=False)


@click.command()
@click.argument("receipts", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--ledger", "ledger", type=_file, default=None, help="The operator's `ledger export --client NAME`.")
@click.option("--earlier", "earlier", type=_file, multiple=True, help="An export that was kept from before; repeat.")
@click.option("--key", "key", type=_file, default=None, help="The pinned ledger key.  [default: ledger.pub as found]")
@click.option(
    "--credentials", type=click.Path(path_type=Path, file_okay=False), default=None, help="Directory with ledger.pub."
)
@click.option("--partial", is_flag=True, help="These receipts are not all: answers without one are no finding.")
@format_option
@click.pass_context
def verify(
    context: click.Context,
    receipts: tuple[Path, ...],
    ledger: Path | None,
    earlier: tuple[Path, ...],
    key: Path | None,
    credentials: Path | None,
    partial: bool,
    output: str,
) -> None:
    """Checks RECEIPTS (files or run directories) by themselves and against an export of the ledger. Offline.

    Finds edits, deletions, reordering, truncation, a rollback to an older backup, and answers that nobody here
    received. Ends with exit code 13 when something is wrong.
    """
    from public_client.curator import verify as verification

    if earlier and ledger is None:
        raise SettingsError("--earlier needs --ledger: an earlier export is held against a later one")
    public_key = verification.pinned_key(given=key, credentials=credentials, receipts=receipts)
    entries, unreadable = verification.read_receipts(receipts)
    report = verification.verify(
        entries,
        public_key=public_key,
        ledger=None if ledger is None else _lines(ledger),
        earlier=[_lines(path) for path in earlier],
        complete=not partial,
    )
    findings = (*unreadable, *report.findings)
    if output == "json":
        echo_json(
            {
                "ok": not findings,
                "receipts": report.receipts,
                "runs": report.runs,
                "steps": report.steps,
                "last": report.last,
                "ledger_entries": report.entries,
                "findings": [{"kind": f.tampering.value, "entry": f.seq, "text": f.text} for f in findings],
            }
        )
    else:
        _tell(report, findings)
    if findings:
        context.exit(EXIT_FINDINGS)


def _tell(report: object, findings: tuple[Finding, ...]) -> None:
    from public_client.curator.verify import VerifyReport

    assert isinstance(report, VerifyReport)
    against = "" if report.entries is None else f", held against a ledger of {report.entries} entries"
    click.echo(f"{report.receipts} receipts: {report.runs} runs charged, {report.steps} steps answered{against}")
    for finding in findings:
        click.echo(f"{finding.tampering.value}: {finding.text}")
    click.echo(f"{len(findings)} FINDINGS; keep every file and tell the operator" if findings else "all of it verifies")


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}") from error
