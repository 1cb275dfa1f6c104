"""One key signs entries, views, reports and publications: no signature of one kind is ever one of another."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dpswd.private_curator.keys.checking import SignatureCheck
from dpswd.private_curator.operator.report import check_report, print_pdf, signed_page
from dpswd.shared.books.view import read_view, write_view
from dpswd.shared.core.errors import DataInvalid, InvalidValue
from dpswd.shared.core.ledger.keys import LedgerKeys
from dpswd.shared.core.ledger.receipts import (
    Signed,
    SignedEntry,
    canonical_json,
    is_signed,
    read_signed_line,
    signed_line,
)
from dpswd.shared.core.wire.v1 import curator_pb2 as pb
from dpswd.shared.protocol.publications import Publication

ROOT = Path(__file__).resolve().parents[4]
KEY = Ed25519PrivateKey.generate()
PUBLIC = KEY.public_key().public_bytes_raw()
TIME = "2026-01-31T12:00:00.000000Z"


def entry() -> SignedEntry:
    return SignedEntry.following(None, kind="frozen", payload={"reason": "x", "by": "me"}, time=TIME, sign=KEY.sign)


@pytest.fixture
def made(tmp_path, monkeypatch) -> dict[Signed, tuple[bytes, bytes]]:
    """Content and signature of each kind, as the programs make them."""
    chromium = tmp_path / "chromium"
    chromium.write_text(
        '#!/bin/sh\nfor word; do case $word in --print-to-pdf=*) printf %s %PDF- >"${word#*=}"; esac; done\n'
    )
    chromium.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    page, pdf = tmp_path / "report.html", tmp_path / "report.pdf"
    page.write_bytes(signed_page("<p>page</p>\n", sign=KEY.sign))
    signature = print_pdf(page, pdf, sign=KEY.sign)
    content, written = re.fullmatch(rb"(.*\n)<!--.* ([0-9a-f]{128}) -->\n", page.read_bytes(), re.DOTALL).groups()
    published = Publication.signed(pb.Publication(purpose="x"), sign=KEY.sign)
    return {
        Signed.ENTRY: (entry().statement, entry().signature),
        Signed.VIEW: read_signed_line(write_view([entry()], client="a", time=TIME, sign=KEY.sign)[0], field="view"),
        Signed.REPORT: (content, bytes.fromhex(written.decode())),
        Signed.PRINTED_REPORT: (pdf.read_bytes(), bytes.fromhex(signature.read_text())),
        Signed.PUBLICATION: (published.content, published.signature),
        Signed.KEY: (b"{}", KEY.sign(Signed.KEY.over(b"{}"))),
    }


def holds(kind: Signed, content: bytes, signature: bytes, directory: Path) -> bool:
    """What the program that reads this kind says of a signature; it may well refuse the content for its own reasons."""
    page, pdf = directory / "read.html", directory / "read.pdf"
    if kind is Signed.ENTRY:
        with SignatureCheck(LedgerKeys(PUBLIC), processes=0) as checking:
            checking.take(1, content, signature)
            return not checking.wrong()
    if kind is Signed.KEY:
        return is_signed(kind, content, signature, PUBLIC)
    if kind is Signed.VIEW:
        try:
            lines = [signed_line(content, signature, field="view"), entry().to_json()]
            return not any("header is not signed" in finding.text for finding in read_view(lines, PUBLIC)[1])
        except (InvalidValue, UnicodeDecodeError):
            return False
    if kind is Signed.PUBLICATION:
        message = pb.Publication(description=pb.DescribeResponse(ledger_public_key=PUBLIC))
        return not any("not signed" in text for text in Publication(message, content, signature).problems(PUBLIC))
    if kind is Signed.REPORT:
        page.write_bytes(content + f"<!-- dpswd-report-1 signature {signature.hex()} -->\n".encode())
    else:
        pdf.write_bytes(content)
        pdf.with_name("read.pdf.signature").write_text(signature.hex())
    try:
        check_report(page if kind is Signed.REPORT else pdf, public_key=PUBLIC.hex())
    except DataInvalid:
        return False
    return True


@pytest.mark.parametrize(("of", "as_kind"), list(itertools.product(Signed, Signed)))
def test_a_signature_is_of_its_own_kind_alone(made, tmp_path, of, as_kind):
    """With the content that was signed, and with whatever of it another kind could take for its own start."""
    content, signature = made[of]
    assert holds(as_kind, content, signature, tmp_path) == (of is as_kind)
    for other in (of.over(content), b"dpswd-publication-1\n" + content, as_kind.over(content), content + b"\n"):
        assert not holds(as_kind, other, signature, tmp_path)


def test_no_kind_s_prefix_begins_another_s():
    prefixes = [kind.over(b"") for kind in Signed]
    assert len(set(prefixes)) == len(Signed)
    for one, other in itertools.permutations(prefixes, 2):
        assert not one.startswith(other)
    assert not any(canonical_json({}).startswith(prefix[:1]) for prefix in prefixes)


def test_nothing_is_signed_by_the_ledgers_key_without_its_kind():
    """Every call of a signing function in the product names the kind. Certificates and operators have other keys."""
    calls = [
        (file.relative_to(ROOT), line.strip())
        for side in ("shared", "private_curator", "public_client")
        for file in (ROOT / side).rglob("*.py")
        for line in file.read_text().splitlines()
        if re.search(r"(?<![\w.])(?:self\._)?sign\(|\b(?:key\(?\)?|new)\.sign\(", line)
        and "old_key" not in line
        and not line.strip().startswith("def ")
        and file.name != "operators.py"
    ]
    calls = [(file, line) for file, line in calls if "hashes.SHA256" not in line]
    assert len(calls) >= len(Signed)
    assert not [call for call in calls if not re.search(r"sign\((?:chain\.)?Signed\.[A-Z_]+\.over\(", call[1])]
