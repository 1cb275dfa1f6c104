"""What curator and client read of certificates, and how they write private keys."""

from __future__ import annotations

import hashlib
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from dpswd.shared.core.errors import InvalidValue


def common_name(subject: x509.Name) -> str:
    """The one common name of a subject; empty when there is none or more than one."""
    names = subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if len(names) == 1 else ""


def named(name: str) -> x509.Name:
    """A subject that has a common name and nothing else."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def fingerprint(certificate: x509.Certificate) -> str:
    """SHA-256 of the certificate's DER form, lower-case hexadecimal."""
    return certificate.fingerprint(hashes.SHA256()).hex()


def request_fingerprint(pem: bytes) -> str:
    """SHA-256 of a certificate request's DER form, lower-case hexadecimal: what two persons compare.

    Args:
        pem: PKCS #10, PEM.

    Raises:
        ValueError: it is no request.
    """
    der = x509.load_pem_x509_csr(pem).public_bytes(serialization.Encoding.DER)
    return hashlib.sha256(der).hexdigest()


def check_signed(pem: bytes, signature: bytes, content: bytes) -> x509.Certificate:
    """A certificate whose key made an ECDSA signature with SHA-256, as all do that a hospital certifies.

    Args:
        pem: the certificate.
        signature: DER.
        content: what was signed.

    Raises:
        InvalidValue: the certificate cannot be read, is for another kind of key, or another key signed.
    """
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        key = certificate.public_key()
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InvalidValue("the certificate of whoever signed cannot be read") from error
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise InvalidValue("the certificate of whoever signed is not for an elliptic-curve key, as all of ours are")
    try:
        key.verify(signature, content, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature as error:
        raise InvalidValue("it is not signed by the key of the certificate that it names") from error
    return certificate


def private_pem(key: Any) -> bytes:
    """A private key as PKCS #8, PEM, not encrypted: for a file that only its owner may read."""
    pem: bytes = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return pem


def belong_together(key: Any, certificate: x509.Certificate) -> bool:
    """Whether a certificate is for this private key."""
    form = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    return bool(key.public_key().public_bytes(*form) == certificate.public_key().public_bytes(*form))
