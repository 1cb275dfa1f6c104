from __future__ import annotations

import datetime as dt

import pytest

from dpswd.private_curator.core.ledger.statements import Client
from dpswd.private_curator.serving.authentication import PEER_CERTIFICATE, authenticate
from dpswd.private_curator.storage.certificates import CertificateAuthority
from dpswd.shared.core.errors import CredentialsInvalid


def _now() -> dt.datetime:
    """At each use: a suite may last longer than the five minutes by which certificates are dated back."""
    return dt.datetime.now(dt.UTC)


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    made = CertificateAuthority(tmp_path_factory.mktemp("certificates"))
    made.create(names=["localhost"], data_set="digits")
    return made


@pytest.fixture
def issued(authority):
    certificate, _ = authority.make_client(name="ml-team")
    return certificate


def _ledger(*clients):
    return {client.fingerprint: client for client in clients}.get


def _client(issued, **changes):
    fields = {"name": issued.name, "fingerprint": issued.fingerprint, "share": None, "revoked": False}
    return Client(**{**fields, **changes})


def test_the_registered_certificate_is_its_client(issued):
    principal = authenticate({PEER_CERTIFICATE: [issued.pem]}, find=_ledger(_client(issued)), now=_now())
    assert principal.name == "ml-team"


def test_no_certificate(issued):
    with pytest.raises(CredentialsInvalid, match="no client certificate"):
        authenticate({}, find=_ledger(_client(issued)), now=_now())


def test_an_unreadable_certificate(issued):
    with pytest.raises(CredentialsInvalid, match="cannot be read"):
        authenticate({PEER_CERTIFICATE: [b"-----BEGIN"]}, find=_ledger(_client(issued)), now=_now())


def test_a_revoked_client(issued):
    with pytest.raises(CredentialsInvalid, match="revoked"):
        authenticate({PEER_CERTIFICATE: [issued.pem]}, find=_ledger(_client(issued, revoked=True)), now=_now())


def test_a_certificate_that_the_ledger_never_saw_or_that_was_renewed(authority, issued):
    newer, _ = authority.make_client(name="ml-team")
    with pytest.raises(CredentialsInvalid, match="no such certificate"):
        authenticate({PEER_CERTIFICATE: [issued.pem]}, find=_ledger(_client(newer)), now=_now())


def test_a_name_that_belongs_to_another_client(issued):
    with pytest.raises(CredentialsInvalid, match="another client"):
        authenticate({PEER_CERTIFICATE: [issued.pem]}, find=_ledger(_client(issued, name="other")), now=_now())


@pytest.mark.parametrize("days", [-1, 400])
def test_outside_of_its_validity(issued, days):
    """A connection may outlive its certificate: every call is checked against the clock."""
    with pytest.raises(CredentialsInvalid, match="valid from"):
        authenticate(
            {PEER_CERTIFICATE: [issued.pem]}, find=_ledger(_client(issued)), now=_now() + dt.timedelta(days=days)
        )
