"""``check`` and ``audit``: the client's own check of what it holds, offline."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dpswd.public_client.cli.options import DIRECTORY, FILE, echo_json, format_option, tell
from dpswd.shared.books.chain_checks import Finding
from dpswd.shared.core.errors import SettingsError, rounded

if TYPE_CHECKING:
    from dpswd.public_client.curator.verify import VerifyReport

EXIT_FINDINGS = 13
_KEY_HELP = "The pinned ledger key.  [default: ledger.pub as found]"


def _derivation_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--source --label --network --model``: with what an adapted model began."""
    for option in (
        click.option("--model", type=click.Path(path_type=Path), help="As of train."),
        click.option("--network", help="As of train."),
        click.option("--label", help="As of train."),
        click.option("--source", type=FILE, help="Derives an adapted model again from it; a generator needs none."),
    ):
        command = option(command)
    return command


@click.command()
@click.argument("receipts", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--ledger", "ledger", type=FILE, default=None, help="The operator's `ledger export --client NAME`.")
@click.option("--earlier", "earlier", type=FILE, multiple=True, help="An export that was kept from before; repeat.")
@click.option("--key", "key", type=FILE, default=None, help=_KEY_HELP)
@click.option("--credentials", type=DIRECTORY, help="Directory with ledger.pub, and ca.crt of whoever signed.")
@_derivation_options
@click.option("--partial", is_flag=True, help="These receipts are not all: answers without one are no finding.")
@format_option
@click.pass_context
def check(
    context: click.Context, /, receipts: tuple[Path, ...], ledger: Path | None, earlier: tuple[Path, ...], key: Path |
    None, credentials: Path | None, partial: bool, output: str, **given: Any,
) -> None:  # fmt: skip
    """Checks RECEIPTS (files or run directories) by themselves and against an export of the ledger. Offline.

    A release that a hospital published is checked like them: its signature, its two receipts and all digests.

    So is an adapted model or a generator (.safetensors): who signed its certificate, and what was changed since.

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
    files, view = [], None if ledger is None else _lines(ledger)
    for path in models:
        from dpswd.public_client.experiments.deriving import check_adapted

        checked = check_adapted(path, key=public_key, credentials=credentials, ledger=view or (), **given)
        entries, unreadable = entries + checked.entries, unreadable + checked.findings
        if output == "text" and not checked.findings:
            files.append(f"{path}: {checked}")
    for path in published:
        own, wrong = verification.read_release(path, public_key)
        entries, unreadable = entries + own, unreadable + wrong
        if output == "text" and not wrong:
            files.append(_words_for(path))
    report = verification.verify(
        entries, public_key=public_key, ledger=view, earlier=[_lines(path) for path in earlier], complete=not partial
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
@click.option("--key", "key", type=FILE, default=None, help=_KEY_HELP)
@click.option("--credentials", type=DIRECTORY, help="Of whoever signed the certificate, to sign it again.")
@_derivation_options
@click.option("--trials", type=click.IntRange(8), help="Files of each stand-in.  [default: 200; 100 if they take long]")
@format_option
@click.pass_context
def audit(
    context: click.Context, /, path: Path, key: Path | None, credentials: Path | None, trials: int | None, output: str,
    **given: Any,
) -> None:  # fmt: skip
    """Attacks the mechanisms of PATH's releases here, at their noise, with 2,000 canaries each. Offline.

    PATH is an adapted model or a generator. With --source, or of a generator, PATH itself is attacked as well: by
    membership and attribute inference on files that are made like it, of hospitals that stand in.

    What is proved is written into its certificate, beside what was charged, and signed again.

    Ends with exit code 13 when PATH does not hold, or a charge is refuted (false alarms: one in a million).
    """
    from dpswd.public_client.curator.verify import pinned_key
    from dpswd.public_client.evidence.signature import signs_again
    from dpswd.public_client.experiments.deriving import begun_with
    from dpswd.public_client.ladder.check import check as check_file
    from dpswd.public_client.testing.artefacts import attacked
    from dpswd.public_client.testing.audit import audited, in_words, with_earlier, write_audit

    keys = pinned_key(given=key, credentials=credentials, receipts=[path])
    checked = check_file(path, key=keys, credentials=credentials)
    rows = [] if checked.findings else audited(checked.evidence)
    if rows and (needed := begun_with(checked, **given)) is not None and not checked.evidence.settings.get("apart"):
        model, source = needed
        rows += attacked(
            path, checked, model=model, source=source, trials=trials, progress=output == "text", announce=_say
        )
    refuted = any(row.get("refuted") for row in rows)
    texts, notes = [finding.text for finding in checked.findings], []
    if rows:
        whole, otherwise = with_earlier(checked.certificate["audited"], rows)
        texts += ["an audit that stood there says otherwise; it is replaced"] if otherwise else []
        if not refuted and signs_again(checked.certificate, credentials):
            write_audit(path, checked.certificate, whole, credentials)
        elif not refuted:
            notes.append("not written into the certificate: whoever signed it signs it again, with --credentials")
    tell(output, {"audited": rows, "findings": texts}, "\n".join([*texts, *map(in_words, rows), *notes]))
    if texts or refuted:
        context.exit(EXIT_FINDINGS)


def _say(text: str) -> None:
    click.echo(text, err=True)


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
