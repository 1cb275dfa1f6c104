from __future__ import annotations

import datetime as dt
import stat

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID
from cryptography.x509.verification import PolicyBuilder, Store

from dpswd.private_curator.storage import certificates
from dpswd.private_curator.storage.certificates import CertificateAuthority
from dpswd.shared.certificates import common_name, fingerprint
from dpswd.shared.core.errors import InvalidValue, SettingsError


@pytest.fixture
def authority(tmp_path):
    made = CertificateAuthority(tmp_path / "certificates")
    made.create(names=["localhost", "127.0.0.1", "curator.example.org"], data_set="digits")
    return made


def _read(path):
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_the_server_certificate_verifies_for_its_names_only(authority, tmp_path):
    directory = tmp_path / "certificates"
    store = Store([_read(directory / "ca.crt")])
    server = _read(directory / "server.crt")
    for name in ("localhost", "curator.example.org"):
        PolicyBuilder().store(store).build_server_verifier(x509.DNSName(name)).verify(server, [])
    with pytest.raises(x509.verification.VerificationError):
        PolicyBuilder().store(store).build_server_verifier(x509.DNSName("other.example.org")).verify(server, [])


def test_a_client_certificate_verifies_and_carries_its_name(authority, tmp_path):
    issued, key = authority.make_client(name="ml-team")
    authority.write_credentials(issued, tmp_path / "client", key_pem=key)
    certificate = _read(tmp_path / "client" / "client.crt")
    assert fingerprint(certificate) == issued.fingerprint
    assert common_name(certificate.subject) == "ml-team"
    certificate.verify_directly_issued_by(_read(tmp_path / "certificates" / "ca.crt"))
    assert issued.expires > dt.datetime.now(dt.UTC) + dt.timedelta(days=300)


def test_keys_are_readable_by_their_owner_only(authority, tmp_path):
    issued, key = authority.make_client(name="ml-team")
    authority.write_credentials(issued, tmp_path / "client", key_pem=key)
    keys = [
        tmp_path / "certificates" / "ca.key",
        tmp_path / "certificates" / "server.key",
        tmp_path / "client" / "client.key",
    ]
    assert [stat.S_IMODE(path.stat().st_mode) for path in keys] == [0o600] * 3


def test_a_signed_request_keeps_the_key_where_it_was_made(authority, tmp_path):
    key = ec.generate_private_key(ec.SECP256R1())
    issued = authority.sign_request(_request("ml-team", key=key), name="ml-team")
    certificate = x509.load_pem_x509_certificate(issued.pem)
    assert certificate.public_key() == key.public_key()
    assert certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca is False


def _request(name: str, *, key, extensions=()):
    builder = x509.CertificateSigningRequestBuilder().subject_name(
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    )
    for extension in extensions:
        builder = builder.add_extension(extension, critical=True)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def test_extensions_that_a_requester_wrote_are_ignored(authority):
    request = _request(
        "mallory",
        key=ec.generate_private_key(ec.SECP256R1()),
        extensions=[x509.BasicConstraints(ca=True, path_length=3)],
    )
    issued = x509.load_pem_x509_certificate(authority.sign_request(request, name="mallory").pem)
    assert issued.extensions.get_extension_for_class(x509.BasicConstraints).value.ca is False


@pytest.mark.parametrize(
    ("request_pem", "message"),
    [
        (b"not a request", "not a PEM"),
        (b"x" * 100_000, "at most"),
        (_request("someone-else", key=ec.generate_private_key(ec.SECP256R1())), "someone-else"),
        (_request("ml-team", key=ec.generate_private_key(ec.SECP384R1())), "P-256"),
        (_request("ml-team", key=rsa.generate_private_key(public_exponent=65537, key_size=2048)), "P-256"),
    ],
)
def test_bad_requests_are_refused(authority, request_pem, message):
    with pytest.raises(InvalidValue, match=message):
        authority.sign_request(request_pem, name="ml-team")


@pytest.mark.parametrize("name", ["", "../up", "a b", "-x", "x" * 64, "a/b", "naïve", "a\n"])
def test_names_that_could_be_paths_or_markup_are_refused(authority, name):
    with pytest.raises(InvalidValue, match="client name"):
        certificates.check_client_name(name)


def test_nothing_is_overwritten(authority, tmp_path):
    with pytest.raises(SettingsError, match="never overwritten"):
        authority.create(names=["localhost"], data_set="digits")
    issued, key = authority.make_client(name="ml-team")
    authority.write_credentials(issued, tmp_path / "client", key_pem=key)
    with pytest.raises(SettingsError, match="never overwritten"):
        authority.write_credentials(issued, tmp_path / "client", key_pem=key)
    authority.write_credentials(issued, tmp_path / "client")
    assert (tmp_path / "client" / "client.key").read_bytes() == key


@pytest.mark.parametrize("name", ["", "has space", "http://x", "under_score.example"])
def test_a_server_needs_proper_names(authority, name):
    with pytest.raises(SettingsError, match="host name"):
        authority.renew_server(names=[name])


def test_a_server_needs_at_least_one_name(authority):
    with pytest.raises(SettingsError, match="--san"):
        authority.renew_server(names=[])
