"""A client's private key and its request for a certificate; the key never leaves the client.

``dpswd-client init`` writes client.key and client.csr; the operator signs the request
(``dpswd-curator client add --request``) and hands back client.crt and ca.crt.
"""

from __future__ import annotations

import os
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from shared.errors import SettingsError


def make_identity(name: str, directory: Path) -> Path:
    """Writes client.key (mode 600) and client.csr, and returns the request's path.

    Args:
        name: the common name; the operator decides whether to accept it.
        directory: the credentials directory.

    Raises:
        SettingsError: a key exists already; it is never overwritten.
    """
    key_path, request_path = directory / "client.key", directory / "client.csr"
    if not 1 <= len(name) <= 64:
        raise SettingsError(f"the client's name has {len(name)} characters; a certificate holds 1 to 64")
    if key_path.exists():
        raise SettingsError(f"{key_path} exists already; it is not overwritten, choose another directory")
    directory.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    request = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .sign(key, hashes.SHA256())
    )
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    with os.fdopen(os.open(key_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(pem)
    request_path.write_bytes(request.public_bytes(serialization.Encoding.PEM))
    return request_path
