"""``verify`` and ``audit``: the client's own check of what it holds, offline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from dpswd.public_client.cli.options import DIRECTORY, FILE, echo_json, format_option, tell
from dpswd.shared.books.chain_checks import Finding
from dpswd.shared.core.errors import SettingsError, rounded

if TYPE_CHECKING:
    from dpswd.public_client.curator.verify import VerifyReport

EXIT_FINDINGS = 13


@click.command()
@click.argument("receipts", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--ledger", "ledger", type=FILE, default=None, help="The operator's `ledger export --client NAME`.")
@click.option("--earlier", "earlier", type=FILE, multiple=True, help="An export that was kept from before; repeat.")
@click.option("--key", "key", type=FILE, default=None, help="The pinned ledger key.  [default: ledger.pub as found]")
@click.option("--credentials", type=DIRECTORY, help="Directory with ledger.pub.")
@click.option("--source", type=FILE, help="Derives an adapted model again from it; a generator needs none.")
@click.option("--label", help="As of train.")
@click.option("--network", help="As of train.")
@click.option("--model", type=click.Path(path_type=Path), help="As of train.")
@click.option("--partial", is_flag=True, help="These receipts are not all: answers without one are no finding.")
@format_option
@click.pass_context
def verify(
    context: click.Context, receipts: tuple[Path, ...], ledger: Path | None, earlier: tuple[Path, ...], key: Path |
    None, credentials: Path | None, source: Path | None, label: str | None, network: str | None, model: Path | None,
    partial: bool, output: str,
) -> None:  # fmt: skip
    """Checks RECEIPTS (files or run directories) by themselves and against an export of the ledger. Offline.

    A release that a hospital published is checked like them: its signature, its two receipts and all digests.

    So is an adapted model or a generator (.safetensors).

    Finds edits, deletions, reordering, truncation, a rollback to an older backup, and answers that nobody here
    received. Ends with exit code 13 when something is wrong.
    """
    from dpswd.public_client.curator import verify as verification
    from dpswd.shared.protocol.publications import is_publication

    if earlier and ledger is None:
        raise SettingsError("--earlier needs --ledger: an earlier export is held against a later one")
    public_key = verification.pinned_key(given=key, credentials=credentials, receipts=receipts)
    published = [path for path in receipts if is_publication(path)]
    models = [path for path in receipts if path.suffix == ".safetensors"]
    others = [path for path in receipts if path not in (*published, *models)]
    entries, unreadable = verification.read_receipts(others)
    files = []
    for path in models:
        from dpswd.public_client.experiments.deriving import check_adapted

        checked = check_adapted(path, key=public_key, source=source, label=label, network=network, model=model)
        entries, unreadable = entries + checked.entries, unreadable + checked.findings
        if output == "text" and not checked.findings:
            files.append(f"{path}: {checked}")
    for path in published:
        own, wrong = verification.read_release(path, public_key)
        entries, unreadable = entries + own, unreadable + wrong
        if output == "text" and not wrong:
            files.append(_words_for(path))
    report = verification.verify(
        entries,
        public_key=public_key,
        ledger=None if ledger is None else _lines(ledger),
        earlier=[_lines(path) for path in earlier],
        complete=not partial,
    )
    findings = (*unreadable, *report.findings)
    if output == "json":
        counts = {name: getattr(report, name) for name in ("receipts", "runs", "steps", "last")}
        rows = [{"kind": finding.tampering.value, "entry": finding.seq, "text": finding.text} for finding in findings]
        echo_json({"ok": not findings, **counts, "ledger_entries": report.entries, "findings": rows})
    else:
        _tell(report, findings, files)
    if findings:
        context.exit(EXIT_FINDINGS)


@click.command()
@click.argument("path", type=FILE)
@click.option("--key", "key", type=FILE, default=None, help="The pinned ledger key.  [default: ledger.pub as found]")
@click.option("--credentials", type=DIRECTORY, help="Directory with ledger.pub.")
@format_option
@click.pass_context
def audit(context: click.Context, path: Path, key: Path | None, credentials: Path | None, output: str) -> None:
    """Attacks the mechanisms of PATH's releases here, at their noise, with 2,000 canaries each. Offline.

    PATH is an adapted model or a generator. What is proved is written into its certificate, beside what was charged.

    Ends with exit code 13 when PATH does not verify, or a charge is refuted (false alarms: one in a million).
    """
    from dpswd.public_client.curator.verify import pinned_key
    from dpswd.public_client.ladder.check import check
    from dpswd.public_client.testing.audit import audited, in_words, write_audit

    checked = check(path, key=pinned_key(given=key, credentials=credentials, receipts=[path]))
    rows = [] if checked.findings else audited(checked.evidence)
    refuted = any(row.get("refuted") for row in rows)
    if rows and not refuted:
        write_audit(path, checked.certificate, rows)
    texts = [finding.text for finding in checked.findings]
    if isinstance(before := checked.certificate.get("audited"), list) and rows and before != rows:
        texts.append("an audit that stood there says otherwise; it is replaced")
    tell(output, {"audited": rows, "findings": texts}, "\n".join([*texts, *map(in_words, rows)]))
    if texts or refuted:
        context.exit(EXIT_FINDINGS)


def _tell(report: VerifyReport, findings: tuple[Finding, ...], files: list[str]) -> None:
    """The verdict first, then what was found, and what each file is."""
    click.echo(f"{len(findings)} FINDINGS; keep every file and tell the operator" if findings else "all of it verifies")
    for text in (*(f"{finding.tampering.value}: {finding.text}" for finding in findings), *files):
        click.echo(text)
    against = "" if report.entries is None else f", held against a ledger of {report.entries} entries"
    click.echo(f"{report.receipts} receipts: {report.runs} runs charged, {report.steps} steps answered{against}")


def _words_for(path: Path) -> str:
    from dpswd.shared.protocol.publications import Publication

    message = Publication.read(path).message
    price = f"epsilon {rounded(message.run.epsilon, up=True)} at delta {message.description.data_set_budget.delta:g}"
    return (
        f"{path}: one release of all {message.description.records} records of {message.description.data_set!r}, {price}"
        f"\n  asked for: {message.proposal.purpose}\n  published for: {message.purpose}"
    )


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}") from error
