"""The report for a board: one self-contained HTML page, signed with the ledger's key.

The signature stands in the page's last line and covers every byte before it. A page that was edited anywhere, or signed
by another key, is found by `check_report`. What comes from clients is escaped, and the page runs no script.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import html
import importlib.metadata
import importlib.resources
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from dpswd.private_curator.operator.charts import spent_over_time
from dpswd.private_curator.operator.facts import WHY_COUNTS_DIFFER, Health, Overview
from dpswd.private_curator.operator.history import Category, selected
from dpswd.private_curator.operator.record import Record
from dpswd.private_curator.storage.checks import Check
from dpswd.shared.core.errors import DataInvalid, SettingsError, rounded
from dpswd.shared.core.ledger.receipts import Signed, is_signed
from dpswd.shared.files import write_private

_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
_PRINTING_S = 120.0
_SIGNATURE = re.compile(rb"<!-- dpswd-report-1 signature ([0-9a-f]{128}) -->\n")
_STYLE = """
:root { color-scheme: light dark; --line: #767676; --strong: #0b5cad; }
@media (prefers-color-scheme: dark) { :root { --strong: #7ab8ff; } }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { text-align: left; vertical-align: top; padding: .3rem .5rem; border-bottom: 1px solid var(--line);
  overflow-wrap: anywhere; }
.scroll { overflow-x: auto; }
.promise { font-size: 1.15rem; border-left: 4px solid var(--strong); padding-left: 1rem; }
svg { width: 100%; height: auto; } svg text { font-size: 12px; fill: currentColor; }
.grid { stroke: var(--line); stroke-opacity: .4; } path { fill: none; stroke-width: 2; }
.spent { stroke: var(--strong); } .budget { stroke: currentColor; stroke-dasharray: 6 4; }
@media print { body { margin: 0; max-width: none; } h2 { break-after: avoid; } tr { break-inside: avoid; } }
"""


def report_page(record: Record, *, since: str | None = None, until: str | None = None) -> str:
    """The page without its signature.

    Args:
        record: what there is to see.
        since: the first day of runs and acts that are listed, YYYY-MM-DD; sums are always of the whole life.
        until: the last day.

    Raises:
        InvalidValue: a day is none.
    """
    seen, chosen = record.overview, selected(record.history, since=since, until=until)
    days = (since or seen.points[0].time[:10], until or f"{record.now:%Y-%m-%d}")
    listed = {event.run for event in chosen if event.category is Category.CHARGE}
    runs = [run for run in record.runs if run.run_id in listed]
    acts = [event for event in chosen if event.category in (Category.ACT, Category.REQUEST)]
    refusals = [event for event in chosen if event.category is Category.REFUSAL]
    certificates = [(client, each) for client in record.clients for each in client.certificates]
    forecast = seen.forecast
    sections = [
        f"<h1>Privacy report: {html.escape(seen.name)}</h1>",
        f"<p>Made on {record.now:%Y-%m-%d %H:%M} UTC by {html.escape(record.home.operator)}.</p>",
        f"<p>Runs and acts are those from {html.escape(days[0])} to {html.escape(days[1])}.</p>",
        f'<p class="promise">{html.escape(seen.promise)}.</p>',
        _table(
            ("Records", "State", "Budget", "Delta", "Spent", "Left", "Runs"),
            [(seen.records, seen.state, seen.epsilon, seen.delta, seen.spent, seen.remaining, seen.runs)],
        ),
        f"<p>{html.escape(_forecast(forecast.next_spent, forecast.exhausted_on, fits=forecast.next_fits))}</p>",
        "<h2>The budget over time</h2>",
        _chart(seen, now=record.now),
        "<h2>Who spent what</h2>",
        _table(
            ("Client", "State", "Share", "Spent", "Runs", "Daily cap", "Refusals", "Last seen"),
            [(c.name, c.state, c.share, c.spent, c.runs, c.daily_cap, c.refusals, c.last_seen) for c in record.clients],
        ),
        f"<p>{html.escape(WHY_COUNTS_DIFFER)}</p>",
        "<h2>Runs and their purposes</h2>",
        _table(
            (
                "Opened",
                "Client",
                "Purpose",
                "Release",
                "Noise (standard deviation)",
                "Epsilon alone",
                "Adds to the data set",
            ),
            [(r.opened[:16], r.client, r.purpose, r.release, r.noise, r.epsilon, r.increase) for r in runs],
        ),
        "<h2>Acts and requests</h2>",
        _table(("Time", "Who", "What", "Why"), [(e.time[:16], e.who, e.text, e.why) for e in acts]),
        "<h2>Refusals</h2>",
        _table(
            ("Last", "Client", "Reason", "Times", "Epsilon of the last", "Purpose"),
            [(e.time[:16], e.who, e.kind, e.count, e.epsilon, e.why) for e in refusals],
        ),
        "<h2>Certificates</h2>",
        _table(
            ("Client", "Fingerprint", "Expires", "Last seen", "From"),
            [(c.name, k.fingerprint, k.expires, k.last_seen, k.last_peer) for c, k in certificates],
        ),
        "<h2>The ledger</h2>",
        _table(("", ""), _health(record.health)),
    ]
    title = html.escape(f"Privacy report: {seen.name}")
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    head = (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f'<meta name="viewport" content="width=device-width">\n<style>{_STYLE}</style></head><body>\n'
    )
    return head + "\n".join(sections) + "\n</body></html>\n"


def signed_page(page: str, *, sign: Callable[[bytes], bytes]) -> bytes:
    """The page with its signature as its last line."""
    content = page.encode()
    return content + f"<!-- dpswd-report-1 signature {sign(Signed.REPORT.over(content)).hex()} -->\n".encode()


def print_pdf(page: Path, pdf: Path, *, sign: Callable[[bytes], bytes]) -> Path:
    """Prints a report's page as PDF with a chromium of this machine, and signs it in a file beside it.

    Returns:
        The file with the signature.

    Raises:
        SettingsError: there is no chromium, or it does not print.
    """
    browser = next((path for name in _BROWSERS if (path := shutil.which(name))), None)
    if browser is None:
        raise SettingsError(
            f"a PDF needs one of {', '.join(_BROWSERS)} on this machine; or open {page} in any browser and print it "
            "to a PDF there"
        )
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch) / "report.pdf"
        command = [
            browser, "--headless", "--disable-gpu", "--no-pdf-header-footer",
            *(["--no-sandbox"] if os.geteuid() == 0 else []),  # chromium has no sandbox for root
            f"--user-data-dir={scratch}/profile", f"--print-to-pdf={made}", page.resolve().as_uri(),
        ]  # fmt: skip
        try:
            # The machine's browser on our own page, which runs no script.
            subprocess.run(command, check=True, timeout=_PRINTING_S, capture_output=True)  # noqa: S603
            data = made.read_bytes()
        except (OSError, subprocess.SubprocessError) as error:
            raise SettingsError(
                f"{browser} did not print {page} ({type(error).__name__}); open it in any browser and print it there"
            ) from error
    write_private(pdf, data)
    signature = _signature_file(pdf)
    write_private(signature, f"{sign(Signed.PRINTED_REPORT.over(data)).hex()}\n".encode())
    return signature


def check_report(file: Path, *, public_key: str) -> None:
    """Holds a report, HTML or PDF, to the ledger's key.

    Raises:
        DataInvalid: it is none, was changed, or is signed by another key.
        SettingsError: the key is none, or a file cannot be read.
    """
    try:
        data = file.read_bytes()
        beside = _signature_file(file).read_text(encoding="ascii").strip() if file.suffix == ".pdf" else ""
    except OSError as error:
        raise SettingsError(f"{error.filename} cannot be read: {error.strerror}") from error
    content, signed, kind = data, beside, Signed.PRINTED_REPORT
    if not beside:
        *_, last = data.splitlines(keepends=True) or [b""]
        match = _SIGNATURE.fullmatch(last)
        if match is None:
            raise DataInvalid(f"{file} does not end with a report's signature")
        content, signed, kind = data[: -len(last)], match[1].decode(), Signed.REPORT
    try:
        signature, key = bytes.fromhex(signed), bytes.fromhex(public_key)
    except ValueError as error:
        text = "a key has 64 hexadecimal digits, a signature 128; give ledger.pub, or its content"
        raise SettingsError(text) from error
    if not is_signed(kind, content, signature, key):
        raise DataInvalid(f"{file} was changed since it was signed, or another key signed it")


def _signature_file(pdf: Path) -> Path:
    return pdf.with_name(f"{pdf.name}.signature")


def _chart(seen: Overview, *, now: dt.datetime) -> str:
    """Spent epsilon and the budget over time as SVG: no script, no font, readable in black and white."""
    chart = spent_over_time(seen, size=(720.0, 280.0), now=now)
    text = f"epsilon {rounded(seen.spent, up=True)} of {seen.epsilon:g} is spent after {seen.runs} runs"
    lines = [
        f'<svg viewBox="0 0 {chart.width:g} {chart.height + 16:g}" role="img" aria-label="{html.escape(text)}">',
        f"<title>{html.escape(text)}</title>",
    ]
    for tick in chart.across:
        place = f'x1="{chart.left:g}" x2="{chart.right:g}" y1="{tick.at:.1f}" y2="{tick.at:.1f}"'
        lines.append(f'<line class="grid" {place}/>')
        lines.append(f'<text x="{chart.left - 8:g}" y="{tick.at + 4:.1f}" text-anchor="end">{tick.text}</text>')
    for number, tick in enumerate(chart.along):
        anchor = "start" if number == 0 else "end" if number == len(chart.along) - 1 else "middle"
        lines.append(f'<text x="{tick.at:.1f}" y="{chart.height - 8:g}" text-anchor="{anchor}">{tick.text}</text>')
    lines.append(f'<text x="{chart.left:g}" y="{chart.height + 12:g}">line: epsilon spent; dashes: the budget</text>')
    lines += [f'<path class="budget" d="{chart.budget}"/>', f'<path class="spent" d="{chart.spent}"/>']
    return "\n".join([*lines, "</svg>"])


def _forecast(spent: float | None, exhausted: str | None, *, fits: bool) -> str:
    if spent is None:
        return "Nothing was spent yet."
    after = f"One more run like the last would bring the spent epsilon to {rounded(spent, up=True)}"
    after += "." if fits else ", which is not admitted any more."
    return after + (f" At the rate so far the budget ends on {exhausted}." if exhausted else "")


def _health(health: Health) -> Sequence[tuple[str, object]]:
    return [
        ("Entries", health.entries),
        ("Head (SHA-256 of the last entry)", health.head),
        ("Made", health.head_time),
        ("Signed by the ledger's key", health.head_signed),
        ("Public key", health.public_key),
        ("Noted elsewhere", health.witness),
        ("Last verified", _check(health.verified)),
        ("Last backup", _check(health.backed_up)),
        ("Unexpected errors", health.incidents),
        ("Dependencies of this release (SHA-256 of its CycloneDX list)", _dependencies()),
    ]


def _dependencies() -> str:
    """Which list of dependencies the release came with, and what is installed otherwise than it says."""
    data = importlib.resources.files("dpswd").joinpath("dependencies.cdx.json").read_bytes()
    listed = {part["name"]: part["version"] for part in json.loads(data)["components"]}
    installed = {re.sub(r"[-_.]+", "-", d.name).lower(): d.version for d in importlib.metadata.distributions()}
    others = {name: own for name, own in installed.items() if own.partition("+")[0] != listed.get(name, own)}
    versions = "; ".join(f"{name} {version}" for name, version in sorted(others.items()))
    return hashlib.sha256(data).hexdigest() + (f"; installed in other versions: {versions}" if versions else "")


def _check(check: Check | None) -> str:
    if check is None:
        return "not since this was noted"
    result = "well" if check.ok else f"NOT WELL: {check.text}"
    return f"{check.time} by {check.by}, {check.entries} entries: {result}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    if not rows:
        return "<p>None.</p>"
    top = "".join(f'<th scope="col">{html.escape(head)}</th>' for head in heads) if any(heads) else ""
    body = "".join("<tr>" + "".join(f"<td>{_cell(cell)}</td>" for cell in row) + "</tr>\n" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(value: object) -> str:
    if value is None or value == "":
        return "&ndash;"
    if isinstance(value, bool):
        return "yes" if value else "NO"
    return html.escape(f"{value:.4g}" if isinstance(value, float) else str(value))
