"""From the certificate of a connection to the client that the ledger knows.

TLS has already verified that the certificate was signed by this curator's authority. What remains, and is decided
here for every single call: the certificate is one that counts for that name (its fingerprint stands in the
ledger), the operator has not revoked the client, and it is still valid (a connection may outlive its certificate).
"""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cryptography import x509

from private_curator.ledger.statements import Client
from private_curator.serving.certificates import common_name, fingerprint
from shared.errors import CredentialsInvalid

PEER_CERTIFICATE = "x509_pem_cert"  # gRPC's key for the peer's certificate in the authentication context


@dataclass(frozen=True)
class Principal:
    """An authenticated client.

    Attributes:
        name: under which the operator registered it.
    """

    name: str


def authenticate(
    peer: Mapping[str, Sequence[bytes]], *, find: Callable[[str], Client | None], now: dt.datetime
) -> Principal:
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
    name = certificate.name
    if not certificate.begins <= now <= certificate.ends:
        raise CredentialsInvalid(
            f"the certificate of {name!r} is valid from {certificate.begins:%Y-%m-%d} to "
            f"{certificate.ends:%Y-%m-%d} UTC; ask the operator for a new one"
        )
    client = find(certificate.fingerprint)
    if client is None:
        raise CredentialsInvalid(
            f"this curator's ledger knows no such certificate of {name!r}: it was never added, was withdrawn, or was "
            "replaced by a newer one; ask the operator"
        )
    if client.name != name:
        raise CredentialsInvalid(f"the certificate says {name!r}, but it belongs to another client; ask the operator")
    if client.revoked:
        raise CredentialsInvalid(f"the operator has revoked the client {name!r}")
    return Principal(name=client.name)


@dataclass(frozen=True)
class _Certificate:
    """What a certificate says, whenever it is read."""

    name: str
    fingerprint: str
    begins: dt.datetime
    ends: dt.datetime


@functools.lru_cache(maxsize=256)
def _read(pem: bytes) -> _Certificate:
    """Parses a certificate; each call of a client brings the same one. What the ledger holds of it is asked each time.

    Raises:
        ValueError: it is none.
    """
    certificate = x509.load_pem_x509_certificate(pem)
    return _Certificate(
        name=common_name(certificate.subject),
        fingerprint=fingerprint(certificate),
        begins=certificate.not_valid_before_utc,
        ends=certificate.not_valid_after_utc,
    )
