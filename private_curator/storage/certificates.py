"""The curator's own certificate authority: mutual TLS without a third party.

Every curator is its own authority. It signs one server certificate, whose subject alternative names are the names
that clients use for it, and one certificate for each client. A private key never has to leave the machine it was made
on: a client makes a key and a request (`dpswd-client init`), the operator signs the request (`sign_request`). For a
first try on one machine the operator may make both (`make_client`).

Keys are EC P-256, files with keys have mode 0600. A credentials directory holds ``ca.crt``, ``client.crt`` and
``client.key``.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from dpswd.shared.certificates import common_name, fingerprint, named, private_pem
from dpswd.shared.core.errors import InvalidValue, SettingsError
from dpswd.shared.files import write_private, write_public

AUTHORITY_DAYS = 3650  # ten years: renewing it means new certificates for everybody
LEAF_DAYS = 397  # the longest that browsers accept; long enough for a study, short enough to be renewed once a year
CLOCK_SKEW = dt.timedelta(minutes=5)  # certificates are valid a little before they are made: clocks differ
MAX_REQUEST_BYTES = 64 * 1024  # a P-256 request has about 500 bytes
DEFAULT_NAMES = ("localhost", "127.0.0.1")

CA_CERTIFICATE = "ca.crt"
CA_KEY = "ca.key"
SERVER_CERTIFICATE = "server.crt"
SERVER_KEY = "server.key"
ISSUED = "issued"  # copies of clients' certificates, by fingerprint: the operator can see when they expire
CLIENT_CERTIFICATE = "client.crt"
CLIENT_KEY = "client.key"
MEMBER_CERTIFICATE = "member.crt"
MEMBER_KEY = "member.key"
SCHEDULER, CURATOR, NODE = "scheduler", "curator", "node"
"""Roles in a cluster."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_HOST = re.compile(r"(?=.{1,253}$)[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*")


@dataclass(frozen=True)
class ClientCertificate:
    """A certificate that the curator has signed for a client.

    Attributes:
        name: the client's name, the certificate's common name.
        fingerprint: SHA-256 of the certificate (DER), lower-case hexadecimal; the ledger knows clients by it.
        expires: end of validity, UTC.
        pem: the certificate.
    """

    name: str
    fingerprint: str
    expires: dt.datetime
    pem: bytes


class CertificateAuthority:
    """The authority kept in a directory.

    Args:
        directory: holds ca.crt, ca.key, server.crt and server.key.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def create(self, *, names: Sequence[str], data_set: str) -> None:
        """Makes the authority and the server's certificate.

        Args:
            names: host names and IP addresses under which clients reach the curator.
            data_set: public name, shown in the authority's common name.

        Raises:
            SettingsError: an authority exists already, or a name is neither a host name nor an address.
        """
        if (self._directory / CA_KEY).exists():
            raise SettingsError(f"{self._directory} already holds a certificate authority; it is never overwritten")
        _alternative_names(names)  # before anything is written
        key = ec.generate_private_key(ec.SECP256R1())
        subject = named(f"dpswd curator of {data_set}"[:64])
        authority = _certificate(subject, key.public_key(), days=AUTHORITY_DAYS, signed_by=key)
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_private(self._directory / CA_KEY, private_pem(key))
        write_public(self._directory / CA_CERTIFICATE, authority.public_bytes(serialization.Encoding.PEM))
        self.renew_server(names=names)

    def renew_server(self, *, names: Sequence[str]) -> None:
        """Makes a new server key and certificate for these names; a running curator takes it after a restart.

        Raises:
            SettingsError: no name, or one that is neither a host name nor an address.
        """
        alternatives = x509.SubjectAlternativeName(_alternative_names(names))
        key = ec.generate_private_key(ec.SECP256R1())
        usage = ExtendedKeyUsageOID.SERVER_AUTH
        certificate = self._signed(named(names[0][:64]), key.public_key(), usage, alternatives, days=LEAF_DAYS)
        write_private(self._directory / SERVER_KEY, private_pem(key))
        write_public(self._directory / SERVER_CERTIFICATE, certificate.public_bytes(serialization.Encoding.PEM))

    def sign_request(self, request_pem: bytes, *, name: str, days: float = LEAF_DAYS) -> ClientCertificate:
        """Signs a client's request.

        Args:
            request_pem: PKCS #10 request, made where the key stays.
            name: the name that the operator gives to this client; the request must carry the same.
            days: validity of the certificate.

        Raises:
            InvalidValue: the request is malformed, for another name, not self-signed, or its key is not P-256.
        """
        check_client_name(name)
        asked, public_key = read_request(request_pem)
        if asked != name:
            raise InvalidValue(f"the request is for {asked!r}, not for {name!r}; the two names must agree")
        # Nothing but name and key is taken over: extensions that the requester wrote are ignored.
        return self._sign_client(public_key, name=name, days=days)

    def make_client(self, *, name: str, days: float = LEAF_DAYS, store: bool = True) -> tuple[ClientCertificate, bytes]:
        """Makes a certificate and its key (PEM), for a first try on one machine.

        Args:
            name: the client's.
            days: validity of the certificate.
            store: whether a copy goes to the issued ones; off for the health check, which makes one every few seconds.

        Raises:
            InvalidValue: the name is not allowed.
        """
        check_client_name(name)
        key = ec.generate_private_key(ec.SECP256R1())
        return self._sign_client(key.public_key(), name=name, days=days, store=store), private_pem(key)

    def credentials(self, certificate_fingerprint: str) -> dict[str, bytes]:
        """A client's certificate and this authority's, as the files that the client keeps.

        Raises:
            SettingsError: no copy was kept.
        """
        copy = self._directory / ISSUED / f"{certificate_fingerprint}.crt"
        if not copy.is_file():
            raise SettingsError(f"no copy of {copy.name} was kept; the team asks for a new certificate")
        authority = (self._directory / CA_CERTIFICATE).read_bytes()
        return {CLIENT_CERTIFICATE: copy.read_bytes(), CA_CERTIFICATE: authority}

    def write_credentials(self, issued: ClientCertificate, directory: Path, *, key_pem: bytes | None = None) -> None:
        """Writes a credentials directory: ca.crt, client.crt and, if the curator made it, client.key.

        Raises:
            SettingsError: the directory holds a key that would be overwritten.
        """
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        if key_pem is not None:
            check_no_key(directory)
            write_private(directory / CLIENT_KEY, key_pem)
        write_public(directory / CLIENT_CERTIFICATE, issued.pem)
        write_public(directory / CA_CERTIFICATE, (self._directory / CA_CERTIFICATE).read_bytes())

    def _sign_client(
        self, public_key: ec.EllipticCurvePublicKey, *, name: str, days: float, store: bool = True
    ) -> ClientCertificate:
        certificate = self._signed(named(name), public_key, ExtendedKeyUsageOID.CLIENT_AUTH, days=days)
        issued = ClientCertificate(
            name=name,
            fingerprint=fingerprint(certificate),
            expires=certificate.not_valid_after_utc,
            pem=certificate.public_bytes(serialization.Encoding.PEM),
        )
        if store:
            copies = self._directory / ISSUED
            copies.mkdir(exist_ok=True)
            write_public(copies / f"{issued.fingerprint}.crt", issued.pem)
        return issued

    def _signed(
        self,
        subject: x509.Name,
        public_key: ec.EllipticCurvePublicKey,
        usage: x509.ObjectIdentifier,
        *further: x509.ExtensionType,
        days: float,
    ) -> x509.Certificate:
        """A certificate of this authority for a server or a client."""
        authority, authority_key = self._load()
        extensions = (x509.ExtendedKeyUsage([usage]), *further)
        issuer = authority.subject
        return _certificate(subject, public_key, *extensions, issuer=issuer, days=days, signed_by=authority_key)

    def read(self, name: str) -> x509.Certificate:
        """The certificate in one of the directory's files.

        Raises:
            OSError, ValueError: it is not there, or is none.
        """
        return x509.load_pem_x509_certificate((self._directory / name).read_bytes())

    def certificate(self) -> x509.Certificate:
        """The authority's own certificate; raises SettingsError: there is none, or it cannot be read."""
        return self._load()[0]

    def expires(self, certificate_fingerprint: str) -> dt.datetime | None:
        """When a certificate that was issued here expires; None where no copy of it was kept."""
        copy = f"{ISSUED}/{certificate_fingerprint}.crt"
        return self.read(copy).not_valid_after_utc if (self._directory / copy).is_file() else None

    def _load(self) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
        try:
            certificate = self.read(CA_CERTIFICATE)
            key = serialization.load_pem_private_key((self._directory / CA_KEY).read_bytes(), password=None)
        except (OSError, ValueError) as error:
            raise SettingsError(
                f"{self._directory} holds no readable {CA_CERTIFICATE} and {CA_KEY}; "
                "restore them from a backup, or make a new curator with `dpswd-curator init`"
            ) from error
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        return certificate, key


def make_cluster_members(out: Path, *, nodes: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    """Makes an authority whose key is thrown away, and a folder with key and certificate for each of its members.

    Members are the scheduler, the curator and the nodes; a certificate's organizational unit is its member's role. The
    scheduler and nodes are clients and servers of each other, the curator serves nobody.

    Args:
        out: holds the folders; must not exist.
        nodes: their names.
        names: host names and addresses under which members reach each other.

    Raises:
        SettingsError: `out` exists, or a name is not allowed.
    """
    alternatives = x509.SubjectAlternativeName(_alternative_names(names))
    members = (SCHEDULER, CURATOR, *nodes)
    for member in members:
        check_client_name(member)
    if out.exists() or len(set(members)) != len(members):
        raise SettingsError(f"{out} exists, or a member is named twice; certificates are never overwritten")
    key, subject = ec.generate_private_key(ec.SECP256R1()), named("dpswd cluster")
    authority = _certificate(subject, key.public_key(), days=LEAF_DAYS, signed_by=key)
    for member in members:
        role = NODE if member in nodes else member
        serves = [] if role == CURATOR else [ExtendedKeyUsageOID.SERVER_AUTH]
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH, *serves])
        unit = x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, role)
        own = ec.generate_private_key(ec.SECP256R1())
        name, extensions = x509.Name([unit, *named(member)]), (usage, alternatives)
        certificate = _certificate(name, own.public_key(), *extensions, issuer=subject, days=LEAF_DAYS, signed_by=key)
        (out / member).mkdir(parents=True, mode=0o700)
        write_private(out / member / MEMBER_KEY, private_pem(own))
        write_public(out / member / MEMBER_CERTIFICATE, certificate.public_bytes(serialization.Encoding.PEM))
        write_public(out / member / CA_CERTIFICATE, authority.public_bytes(serialization.Encoding.PEM))
    return members


def check_no_key(directory: Path) -> None:
    """Keys are never overwritten; raises SettingsError: the directory holds a client's key."""
    if (directory / CLIENT_KEY).exists():
        raise SettingsError(f"{directory / CLIENT_KEY} exists; keys are never overwritten, choose another directory")


def check_client_name(name: str) -> None:
    """Accepts 1 to 63 letters, digits, dots, dashes and underscores, the first a letter or digit.

    Raises:
        InvalidValue: any other name.
    """
    if not _NAME.fullmatch(name):
        raise InvalidValue(
            f"{name!r} is no client name; use 1 to 63 letters, digits, '.', '-' or '_', the first a letter or digit"
        )


def read_request(pem: bytes) -> tuple[str, ec.EllipticCurvePublicKey]:
    """The name and the key that a client's request (PKCS #10) is for.

    Raises:
        InvalidValue: it is malformed, not self-signed, or its key is not P-256.
    """
    if len(pem) > MAX_REQUEST_BYTES:
        raise InvalidValue(f"the request has {len(pem)} bytes; at most {MAX_REQUEST_BYTES} are allowed")
    try:
        request = x509.load_pem_x509_csr(pem)
        valid = request.is_signature_valid
    except (ValueError, InvalidSignature) as error:
        raise InvalidValue("the request is not a PEM certificate request; make it with `dpswd-client init`") from error
    if not valid:
        raise InvalidValue("the request is not signed by its own key; make a new one")
    key = request.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise InvalidValue("the request's key is not EC P-256; make a new one")
    return common_name(request.subject), key


def _certificate(
    subject: x509.Name,
    public_key: ec.EllipticCurvePublicKey,
    *extensions: x509.ExtensionType,
    days: float,
    signed_by: ec.EllipticCurvePrivateKey,
    issuer: x509.Name | None = None,
) -> x509.Certificate:
    """A certificate; without an issuer an authority's own."""
    authority = issuer is None
    signer = signed_by.public_key()
    identifier: x509.ExtensionType = (
        x509.SubjectKeyIdentifier.from_public_key(signer)
        if authority
        else x509.AuthorityKeyIdentifier.from_issuer_public_key(signer)
    )
    now = dt.datetime.now(dt.UTC)
    # A negative number of days makes an expired certificate: tests need one.
    end = now + dt.timedelta(days=days)
    unused = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    off = dict.fromkeys((*unused, "encipher_only", "decipher_only"), False)
    usage = x509.KeyUsage(digital_signature=True, key_cert_sign=authority, crl_sign=authority, **off)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer or subject)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, end) - CLOCK_SKEW)
        .not_valid_after(end)
        .add_extension(x509.BasicConstraints(ca=authority, path_length=0 if authority else None), critical=True)
        .add_extension(usage, critical=True)
    )
    for extension in (identifier, *extensions):
        builder = builder.add_extension(extension, critical=False)
    return builder.sign(signed_by, hashes.SHA256())


def _alternative_names(names: Sequence[str]) -> list[x509.GeneralName]:
    if not names:
        raise SettingsError("a server certificate needs at least one name (--san), for example localhost")
    return [_alternative_name(name) for name in names]


def _alternative_name(name: str) -> x509.GeneralName:
    with contextlib.suppress(ValueError):  # not an address: a host name
        return x509.IPAddress(ipaddress.ip_address(name))
    if not _HOST.fullmatch(name):
        raise SettingsError(f"{name!r} is neither a host name nor an IP address; write for example curator.example.org")
    return x509.DNSName(name)
