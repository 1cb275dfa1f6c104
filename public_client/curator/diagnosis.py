"""Why a curator cannot be reached: a refused TLS handshake says nothing, so the causes are looked for from here.

gRPC reports everything that goes wrong before the first request as UNAVAILABLE. The usual causes can be told apart with
what the client has: its own files, a TCP connection, and the certificate that the other side shows.
"""

from __future__ import annotations

import datetime as dt
import socket
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from dpswd.public_client.curator.identity import AUTHORITY, CERTIFICATE, KEY, issued_by

_CONNECT_S = 3.0  # for a TCP connection and a handshake: somebody waits for the answer


def explain(address: str, *, credentials: Path, server_name: str | None = None) -> str:
    """One or more sentences: what is wrong, and what to do; in the order in which to look.

    Args:
        address: ``host:port``.
        credentials: the directory with ca.crt, client.crt and client.key.
        server_name: the name that the curator's certificate must have, where it differs from the address.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        other_side = (host, int(port), credentials, server_name or host)
        return _own_files(credentials) or _other_side(*other_side)
    except (OSError, ValueError) as error:  # files that are no certificates, among others
        return f"the files in {credentials} cannot be read as certificates and a key ({error}); get them anew"


def _own_files(credentials: Path) -> str:
    """What is wrong with the client's own files, or nothing."""
    own = x509.load_pem_x509_certificate((credentials / CERTIFICATE).read_bytes())
    authority = x509.load_pem_x509_certificate((credentials / AUTHORITY).read_bytes())
    key = serialization.load_pem_private_key((credentials / KEY).read_bytes(), password=None)
    now = dt.datetime.now(dt.UTC)
    for name, certificate in ((CERTIFICATE, own), (AUTHORITY, authority)):
        if certificate.not_valid_after_utc < now:
            return (
                f"{name} has expired on {certificate.not_valid_after_utc:%Y-%m-%d}; ask the curator's operator for a "
                "new one"
            )
        if certificate.not_valid_before_utc > now:
            return (
                f"{name} is valid from {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC, this machine's clock "
                f"says {now:%Y-%m-%d %H:%M}; set the clock"
            )
    if own.public_key() != key.public_key():
        return "client.key is not the key of client.crt; put the two that belong together into one directory"
    if not issued_by(own, authority):
        return (
            "client.crt was not issued by the authority in ca.crt; the files come from two curators, or ca.crt is old: "
            "ask the operator for both"
        )
    return ""


def _other_side(host: str, port: int, credentials: Path, name: str) -> str:
    """What a connection shows: nobody there, another authority, another name; else what is left."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Nothing is sent: the certificate is looked at, and the comparison with ca.crt follows below.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.load_cert_chain(credentials / CERTIFICATE, credentials / KEY)
    try:
        connection = socket.create_connection((host, port), timeout=_CONNECT_S)
    except OSError as error:
        return (
            f"TCP port {port} of {host} cannot be reached ({error.strerror or error}); check that the curator runs "
            "(dpswd-curator serve), the host, the port, and firewalls between"
        )
    with connection:
        try:
            with context.wrap_socket(connection, server_hostname=name) as secure:
                shown = secure.getpeercert(binary_form=True)
        except OSError as error:
            return (
                f"TCP port {port} of {host} answers, and its TLS handshake fails ({error}); check that a curator "
                "listens there and not something else"
            )
    certificate = x509.load_der_x509_certificate(shown or b"")
    authority = x509.load_pem_x509_certificate((credentials / AUTHORITY).read_bytes())
    if not issued_by(certificate, authority):
        return (
            f"the server at {host}:{port} shows a certificate of another authority than ca.crt; it is another curator, "
            "or one that was made anew: compare ca.crt with the operator's"
        )
    if certificate.not_valid_after_utc < dt.datetime.now(dt.UTC):
        return (
            f"the curator's own certificate has expired on {certificate.not_valid_after_utc:%Y-%m-%d}; its operator "
            "runs `dpswd-curator certificates --renew-server`"
        )
    stated = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    names = [str(entry.value) for entry in stated]
    if name not in names:
        return (
            f"the curator's certificate is for {', '.join(names)} and not for {name}; connect by one of these names, "
            "or pass it as server_name"
        )
    return (
        f"TCP port {port} of {host} answers with the right certificate, and client.crt looks right from here; the "
        "curator may be too busy or about to stop, or refuse the certificate: try again, then ask its operator"
    )
