"""From the certificate of a connection to the client that the ledger knows.

TLS has already verified that the certificate was signed by this curator's authority. What remains, and is decided
here for every single call: the certificate is one that counts for that name (its fingerprint stands in the
ledger), the operator has not revoked the client, and it is still valid (a connection may outlive its certificate).
"""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Callable, Mapping, Sequence

from cryptography import x509

from dpswd.private_curator.core.ledger.statements import Client
from dpswd.shared.certificates import common_name, fingerprint
from dpswd.shared.core.errors import CredentialsInvalid

PEER_CERTIFICATE = "x509_pem_cert"  # gRPC's key for the peer's certificate in the authentication context


def authenticate(
    peer: Mapping[str, Sequence[bytes]], *, find: Callable[[str], Client | None], now: dt.datetime
) -> Client:
    """Identifies the caller.

    Args:
        peer: gRPC's authentication context of the connection.
        find: the ledger's client by the SHA-256 of its certificate, or None.
        now: the present, with a time zone.

    Raises:
        CredentialsInvalid: no certificate, not readable, outside its validity, of a client that the ledger does not
            know under this name and fingerprint, or of a revoked one.
    """
    certificates = peer.get(PEER_CERTIFICATE, ())
    if len(certificates) != 1:
        raise CredentialsInvalid("the connection carries no client certificate; connect with client.crt and client.key")
    try:
        certificate = _read(certificates[0])
    except ValueError as error:
        raise CredentialsInvalid("the client certificate cannot be read; ask the operator for a new one") from error
    name = common_name(certificate.subject)
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if not begins <= now <= ends:
        raise CredentialsInvalid(
            f"the certificate of {name!r} is valid from {begins:%Y-%m-%d} to {ends:%Y-%m-%d} UTC; ask the operator for "
            "a new one"
        )
    client = find(fingerprint(certificate))
    if client is None:
        raise CredentialsInvalid(
            f"this curator's ledger knows no such certificate of {name!r}: it was never added, was withdrawn, or was "
            "replaced by a newer one; ask the operator"
        )
    if client.name != name:
        raise CredentialsInvalid(f"the certificate says {name!r}, but it belongs to another client; ask the operator")
    if client.revoked:
        raise CredentialsInvalid(f"the operator has revoked the client {name!r}")
    return client


def presented(peer: Mapping[str, Sequence[bytes]]) -> tuple[str, str]:
    """The name and the fingerprint of a connection's certificate, whether it counts or not.

    Empty where there is no readable one. TLS has verified that this curator's authority signed it.
    """
    certificates = peer.get(PEER_CERTIFICATE, ())
    if len(certificates) != 1:
        return "", ""
    try:
        certificate = _read(certificates[0])
        return common_name(certificate.subject), fingerprint(certificate)
    except ValueError:
        return "", ""


@functools.lru_cache(maxsize=256)
def _read(pem: bytes) -> x509.Certificate:
    """Parses a certificate; each call of a client brings the same one. What the ledger holds of it is asked each time.

    Raises:
        ValueError: it is none.
    """
    return x509.load_pem_x509_certificate(pem)
