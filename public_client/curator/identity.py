"""A client's private key and its certificate: made, renewed, installed, checked; the key never leaves the client.

``dpswd-client init`` writes client.key and client.csr; the operator signs the request (``dpswd-curator approve``) and
hands back client.crt, ca.crt and ledger.pub. Later ``certificate --renew`` makes a new key beside the old one and a
request that the old key signs; ``certificate --install`` puts the new pair in the old one's place.
The old certificate counts at the curator until it expires or is withdrawn, so nothing is interrupted.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from dpswd.shared.certificates import belong_together, common_name, fingerprint, named, private_pem
from dpswd.shared.core.errors import CredentialsInvalid, SettingsError
from dpswd.shared.files import create_private, write_private, write_public
from dpswd.shared.renewal import Renewal

KEY, CERTIFICATE, AUTHORITY = "client.key", "client.crt", "ca.crt"
REQUEST, RENEWAL = "client.csr", "client.renewal"
NEXT = ".next"  # of files that wait for `certificate --install`
PREVIOUS = ".previous"  # of the pair that was replaced last
RENEW_BEFORE = dt.timedelta(days=30)


@dataclass(frozen=True)
class Identity:
    """What a client's certificate says.

    Attributes:
        name: the common name.
        fingerprint: SHA-256 of the certificate, hexadecimal: what the operator sees in `certificates`.
        begins: start of validity, UTC.
        expires: end of validity, UTC.
    """

    name: str
    fingerprint: str
    begins: dt.datetime
    expires: dt.datetime

    def check(self, now: dt.datetime) -> None:
        """Refuses a certificate outside its validity before a connection fails without a reason.

        Raises:
            CredentialsInvalid: it is not valid now.
        """
        if not self.begins <= now <= self.expires:
            raise CredentialsInvalid(
                f"the certificate of {self.name!r} is valid from {self.begins:%Y-%m-%d} to {self.expires:%Y-%m-%d} "
                "UTC; send the operator what `dpswd-client certificate --renew` makes, and check this machine's clock"
            )


def make_identity(name: str, directory: Path) -> Path:
    """Writes client.key (mode 600) and client.csr, and returns the request's path.

    Args:
        name: the common name; the operator decides whether to accept it.
        directory: the credentials directory.

    Raises:
        SettingsError: a key exists already; it is never overwritten.
    """
    key_path, request_path = directory / KEY, directory / REQUEST
    if not 1 <= len(name) <= 64:
        raise SettingsError(f"the client's name has {len(name)} characters; a certificate holds 1 to 64")
    if key_path.exists():
        raise SettingsError(f"{key_path} exists already; it is not overwritten, choose another directory")
    directory.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    request = _request(name, key)
    _write_key(key_path, key)
    request_path.write_bytes(request)
    return request_path


def read_identity(directory: Path) -> Identity:
    """The certificate in a credentials directory.

    Raises:
        SettingsError: there is none, or it cannot be read.
    """
    certificate = read_certificate(directory / CERTIFICATE)
    return Identity(
        name=common_name(certificate.subject), fingerprint=fingerprint(certificate),
        begins=certificate.not_valid_before_utc, expires=certificate.not_valid_after_utc,
    )  # fmt: skip


def renew(directory: Path) -> Path:
    """Makes a new key beside the old one, and a request signed under the old identity.

    A second call before `install` keeps the new key and writes the request again.

    Returns:
        client.renewal for the operator; client.csr holds the plain request, for an identity that has expired.

    Raises:
        SettingsError: the directory holds no complete identity.
    """
    identity = read_identity(directory)
    old_key = read_key(directory / KEY)
    new_path = directory / (KEY + NEXT)
    if not new_path.exists():
        _write_key(new_path, ec.generate_private_key(ec.SECP256R1()))
    request = _request(identity.name, read_key(new_path))
    renewal = Renewal.make(request=request, certificate=(directory / CERTIFICATE).read_bytes(), old_key=old_key)
    (directory / REQUEST).write_bytes(request)
    path = directory / RENEWAL
    path.write_bytes(renewal.to_bytes())
    return path


def install(certificate: Path, directory: Path) -> Identity:
    """Puts the renewed certificate and its key in the place of the old pair, which stays beside it.

    May be repeated after a crash: the new key waits until its certificate stands.

    Args:
        certificate: the new client.crt from the operator.
        directory: the credentials directory in which `renew` was called.

    Raises:
        SettingsError: no renewal waits here, or the certificate is for another key or from another authority.
    """
    new_key = directory / (KEY + NEXT)
    if not new_key.exists():
        raise SettingsError(f"no renewal waits in {directory}; begin with `dpswd-client certificate --renew`")
    issued = read_certificate(certificate)
    if not belong_together(read_key(new_key), issued):
        raise SettingsError(f"{certificate} is not for the key that `certificate --renew` made in {directory}")
    if not issued_by(issued, read_certificate(directory / AUTHORITY)):
        raise SettingsError(
            f"{certificate} was not issued by the authority in {directory / AUTHORITY}; get it from the same curator"
        )
    pem = issued.public_bytes(serialization.Encoding.PEM)
    if (directory / CERTIFICATE).read_bytes() != pem:  # else a crash came between the next two lines: all is kept
        for name in (KEY, CERTIFICATE):
            write_private(directory / (name + PREVIOUS), (directory / name).read_bytes())
    # The certificate first: while the new key still waits, a repeat of this command finishes what a crash left.
    write_public(directory / CERTIFICATE, pem)
    new_key.replace(directory / KEY)
    for name in (RENEWAL, REQUEST):
        (directory / name).unlink(missing_ok=True)
    return read_identity(directory)


def issued_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    """Whether the authority's key signed the certificate, and the authority's name is that of its issuer."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _request(name: str, key: ec.EllipticCurvePrivateKey) -> bytes:
    return (
        x509.CertificateSigningRequestBuilder()
        .subject_name(named(name))
        .sign(key, hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
    )


def read_certificate(path: Path) -> x509.Certificate:
    """A certificate in a file.

    Raises:
        SettingsError: there is none, or it cannot be read.
    """
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path} is no readable certificate; get it from the curator's operator") from error


def read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """A private key in a file.

    Raises:
        SettingsError: there is none, or it cannot be read.
    """
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise SettingsError(f"{path} is no readable private key; without it a new request must be made") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise SettingsError(f"{path} is no EC key; make a new identity with `dpswd-client init`")
    return key


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    with create_private(path) as file:
        file.write(private_pem(key))
