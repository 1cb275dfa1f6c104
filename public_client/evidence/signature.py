"""Who signs a certificate: the team, by the key that a hospital certified for its connection.

Privacy and releases follow from the evidence; gain, software and audit do not, so nobody may change them unseen. The
digest of each line is signed, so that a changed line is named. A team without credentials has no key that anybody could
know it by, and its certificate says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from dpswd.public_client.curator.identity import AUTHORITY, CERTIFICATE, KEY, issued_by, read_certificate, read_key
from dpswd.shared.certificates import check_signed, common_name, fingerprint
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.ledger.receipts import SignedEntry, canonical_json, sha256

SIGNED = "signed"
NOBODY = "by nobody: it was made without a hospital's credentials"
DRY_RUN = "dry run"
"""The client of a mock's receipts; no hospital certifies a name with a space."""
_MEANING = b"dpswd-certificate-signature-1\n"


def signed(content: Mapping[str, Any], credentials: Path | None) -> bytes:
    """A certificate as canonical JSON, signed.

    Args:
        content: its lines; of an earlier signature nothing stays.
        credentials: directory with client.crt and client.key; None for a team that has none.

    Raises:
        SettingsError: one of them cannot be read.
    """
    lines = _digests(content)
    if credentials is None:
        return canonical_json({**content, SIGNED: NOBODY})
    pem = read_certificate(credentials / CERTIFICATE).public_bytes(serialization.Encoding.PEM).decode("ascii")
    signature = read_key(credentials / KEY).sign(_statement(lines, pem), ec.ECDSA(hashes.SHA256()))
    return canonical_json({**content, SIGNED: {"certificate": pem, "lines": lines, "signature": signature.hex()}})


def signer_of(content: Mapping[str, Any]) -> x509.Certificate | None:
    """The certificate of whoever signed; None for nobody.

    Raises:
        InvalidValue: what stands there is no signature, or that of another key or of other digests.
    """
    stated: Any = content.get(SIGNED)
    if stated == NOBODY:
        return None
    try:
        pem, statement = stated["certificate"], _statement(stated["lines"], stated["certificate"])
        return check_signed(pem.encode("ascii"), bytes.fromhex(stated["signature"]), statement)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidValue(f"its signature does not hold: {error}") from error


def signature_problems(
    content: Mapping[str, Any], client: str | None, credentials: Path | None, ledger: Sequence[SignedEntry]
) -> Iterator[str]:
    """What of a certificate's signature does not hold, as far as is at hand.

    Args:
        content: its lines.
        client: whose receipts its evidence holds, where that client has a key.
        credentials: directory with ca.crt, the hospital's authority; None where there is none.
        ledger: entries of the client's view that the ledger signed; empty where there is none.
    """
    try:
        signer = signer_of(content)
        lines = {} if signer is None else content[SIGNED]["lines"]
        now = {} if signer is None else _digests(content)
    except InvalidValue as error:
        yield f"of the certificate, {error}"
        return
    if changed := sorted(name for name in {*lines, *now} if lines.get(name) != now.get(name)):
        yield f"the certificate was changed after it was signed: {', '.join(changed)}"
    if signer is None:
        if client is not None:
            yield f"the receipts are those of {client!r}, who signs what it delivers, and nobody signed the certificate"
        return
    name = common_name(signer.subject)
    if client not in (None, name):
        yield f"{name!r} signed the certificate, and the receipts are those of {client!r}"
    path = None if credentials is None else credentials / AUTHORITY
    if path is not None and path.is_file() and not issued_by(signer, read_certificate(path)):
        yield f"the key of {name!r}, who signed, was not certified by the authority in {path}"
    bound = {entry.payload.get("fingerprint") for entry in ledger if entry.payload.get("client") == name}
    if ledger and fingerprint(signer) not in bound:
        yield f"the ledger never bound {name!r} to the key that signed (certificate {fingerprint(signer)})"


def signer_in_words(content: Mapping[str, Any]) -> str:
    """Who signed a certificate whose signature holds."""
    signer = signer_of(content)
    if signer is None:
        return f"signed {NOBODY}"
    return f"signed by {common_name(signer.subject)!r} (certificate {fingerprint(signer)[:16]})"


def signs_again(content: Mapping[str, Any], credentials: Path | None) -> bool:
    """Whether these credentials are the signer's; where nobody signed, nobody needs to."""
    signer = signer_of(content)
    if signer is None or credentials is None or not (credentials / KEY).is_file():
        return signer is None
    return signer.subject == read_certificate(credentials / CERTIFICATE).subject


def _digests(content: Mapping[str, Any]) -> dict[str, str]:
    return {name: sha256(canonical_json(value)) for name, value in content.items() if name != SIGNED}


def _statement(lines: Mapping[str, str], pem: str) -> bytes:
    """What is signed: the words before it keep the signature from meaning anything else."""
    return _MEANING + canonical_json([dict(lines), pem])
