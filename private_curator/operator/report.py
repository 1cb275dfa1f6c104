"""The report for a board and its officers: one self-contained HTML page, signed with the ledger's key.

The signature stands in the page's last line and covers every byte before it. A page that was edited anywhere, or signed
by another key, is found by `check_report`. What comes from clients is escaped, and the page runs no script.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from dpswd.private_curator.operator.charts import spent_over_time
from dpswd.private_curator.operator.facts import WHY_COUNTS_DIFFER, ClientFacts, ahead
from dpswd.private_curator.operator.history import selected
from dpswd.private_curator.operator.officer import items
from dpswd.private_curator.operator.record import Record
from dpswd.private_curator.operator.rendering import environment
from dpswd.shared.core.errors import DataInvalid, SettingsError, rounded
from dpswd.shared.core.ledger.keys import LedgerKeys
from dpswd.shared.core.ledger.receipts import Signed, is_signed
from dpswd.shared.files import write_private

_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
_PRINTING_S = 120.0
_SIGNATURE = re.compile(rb"<!-- dpswd-report-1 signature ([0-9a-f]{128}) -->\n")


def report_page(record: Record, *, since: str | None = None, until: str | None = None) -> str:
    """The page without its signature: two printed sheets with what officers look for, and an annex for the screen.

    Args:
        record: what there is to see.
        since: the first day of runs and acts that the annex lists, YYYY-MM-DD; sums are always of the whole life.
        until: the last day.

    Raises:
        InvalidValue: a day is none.
    """
    seen = record.overview
    page = environment("dpswd.private_curator.operator").get_template("signed-report.html")
    content = page.render(
        seen=seen,
        now=record.now,
        operator=record.home.operator,
        items=items(record),
        days=(since or seen.points[0].time[:10], until or f"{record.now:%Y-%m-%d}"),
        ahead=" ".join(ahead(seen)),
        chart=spent_over_time(seen, size=(720.0, 280.0), now=record.now),
        chart_text=f"Epsilon {rounded(seen.spent, up=True)} of {seen.epsilon:g} is spent after {seen.runs} runs",
        why=WHY_COUNTS_DIFFER,
        record=record,
        chosen=selected(record.history, since=since, until=until),
        caps=_caps,
    )
    return f"{content}\n"  # the signature is a line of its own


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
        signature, keys = bytes.fromhex(signed), LedgerKeys.from_text(public_key)
    except ValueError as error:  # InvalidValue too
        text = "a key has 64 hexadecimal digits, a signature 128; give ledger.pub, or its content"
        raise SettingsError(text) from error
    if not any(is_signed(kind, content, signature, key) for key in keys.every):
        raise DataInvalid(f"{file} was changed since it was signed, or another key signed it")


def _signature_file(pdf: Path) -> Path:
    return pdf.with_name(f"{pdf.name}.signature")


def _caps(client: ClientFacts) -> str:
    return ", ".join(f"{epsilon:g} a {each}" for each, (epsilon, _) in client.caps.items())
