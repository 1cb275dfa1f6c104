"""What the operator approves: a first request, or a renewal under the old identity."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature

from dpswd.private_curator.storage.certificates import CertificateAuthority, read_request
from dpswd.shared.certificates import common_name, fingerprint
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.renewal import Renewal


@dataclass(frozen=True)
class SigningRequest:
    """What a file asks for.

    Attributes:
        name: the client's name in the request.
        request: PKCS #10, PEM.
        proven_by: fingerprint of the certificate under whose key the request was signed; None for a plain request,
            which proves nothing about who made it.
    """

    name: str
    request: bytes
    proven_by: str | None


def read(data: bytes, authority: CertificateAuthority, *, now: dt.datetime) -> SigningRequest:
    """Reads a certificate request or a renewal, and checks whatever can be checked without the ledger.

    Args:
        data: the file.
        authority: must have issued the certificate that a renewal names.
        now: the present, with a time zone.

    Raises:
        InvalidValue: it is neither, its signature is wrong, the old certificate is another authority's or has expired,
            or the names differ.
    """
    if data.lstrip().startswith(b"-----BEGIN CERTIFICATE REQUEST"):
        return SigningRequest(name=read_request(data)[0], request=data, proven_by=None)
    renewal = Renewal.from_bytes(data)
    old = renewal.check_signature()
    try:
        old.verify_directly_issued_by(authority.certificate())
    except (ValueError, TypeError, InvalidSignature) as error:
        raise InvalidValue("the renewal's old certificate was not issued by this curator's authority") from error
    if not old.not_valid_before_utc <= now <= old.not_valid_after_utc:
        raise InvalidValue(
            f"the renewal's old certificate is valid from {old.not_valid_before_utc:%Y-%m-%d} to "
            f"{old.not_valid_after_utc:%Y-%m-%d} UTC and proves nothing now; make sure who asks, and approve the plain "
            "request (client.csr) with --renew"
        )
    name, before = read_request(renewal.request)[0], common_name(old.subject)
    if name != before:
        raise InvalidValue(f"the renewal asks for {name!r}, but the old certificate belongs to {before!r}")
    return SigningRequest(name=name, request=renewal.request, proven_by=fingerprint(old))
