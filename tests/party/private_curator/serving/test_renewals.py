"""Requests, renewals and expiry on both sides: the operator's commands, the client's, a live server between them."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path

import grpc
import numpy as np
import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives.asymmetric import ec

from dpswd.private_curator.cli.main import main as operator_main
from dpswd.private_curator.serving import renewals, server
from dpswd.private_curator.settings import tree as settings
from dpswd.private_curator.settings.groups import RecordsSettings
from dpswd.private_curator.storage import home_directory as home
from dpswd.private_curator.storage.certificates import CertificateAuthority
from dpswd.private_curator.storage.home_directory import HomeDirectory
from dpswd.public_client.cli.main import main as client_main
from dpswd.public_client.curator import identity
from dpswd.public_client.curator.stub import Curator
from dpswd.shared.certificates import belong_together, common_name, request_fingerprint
from dpswd.shared.core import errors
from dpswd.shared.renewal import Renewal

RECORDS = np.random.default_rng(4).normal(size=(60, 5)).astype(np.float32)


def _now() -> dt.datetime:
    """At each use: a suite may last longer than the five minutes by which certificates are dated back."""
    return dt.datetime.now(dt.UTC)


class Sites:
    """A hospital that serves, and a client's directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        np.save(directory / "records.npy", RECORDS)
        self.home = home.create(
            directory / "home",
            records=RecordsSettings(file=directory / "records.npy"),
            epsilon=5.0,
            delta=1e-5,
            names=["localhost"],
        )

    def operator(self, *arguments, status=0):
        return self._run(operator_main, arguments, status, DPSWD_CURATOR_HOME=str(self.home.path))

    def client(self, *arguments, status=0):
        return self._run(client_main, arguments, status)

    def _run(self, command, arguments, status, **environment):
        result = CliRunner().invoke(command, [str(argument) for argument in arguments], env=environment)
        assert result.exit_code == status, (result.output, result.exception)
        return result.output

    def join(self, name, *options) -> Path:
        """request, approve; the client's directory."""
        directory = self.directory / name
        self.client("init", name, "--out", directory)
        fingerprint = ("--fingerprint", request_fingerprint((directory / "client.csr").read_bytes()))
        self.operator("approve", directory / "client.csr", "--out", directory, *fingerprint, *options)
        return directory

    def renew(self, directory) -> Path:
        self.client("certificate", "--renew", "--credentials", directory)
        answer = self.directory / f"{directory.name}-answer"
        self.operator("approve", directory / "client.renewal", "--out", answer)
        return answer / "client.crt"

    def rows(self):
        return json.loads(self.operator("certificates", "--format", "json"))


@pytest.fixture
def sites(tmp_path):
    return Sites(tmp_path)


@pytest.fixture
def live(sites):
    chosen = settings.load(sites.home.path, {"listen.host": "localhost", "listen.port": "0", "compute.device": "cpu"})
    with server.CuratorServer(sites.home, chosen) as running:
        sites.address = running.start()
        yield sites


def _connect(sites, directory):
    return Curator.connect(sites.address, credentials=directory, patience_s=0.2)


def test_request_approve_renew_install_on_a_live_server(live):
    directory = live.join("ml-team", "--epsilon", "0.5")
    old_pair = {name: (directory / name).read_bytes() for name in ("client.crt", "client.key")}
    before = live.directory / "old"
    before.mkdir()
    for name in ("ca.crt", "client.crt", "client.key"):
        (before / name).write_bytes((directory / name).read_bytes())
    with _connect(live, directory) as connection:
        assert connection.describe().client_budget.epsilon == 0.5
        certificate = live.renew(directory)
        assert connection.describe().client_name == "ml-team"  # nothing is interrupted
    live.client("certificate", "--install", certificate, "--credentials", directory)
    assert (directory / "client.key").read_bytes() != old_pair["client.key"]
    assert (directory / "client.key.previous").read_bytes() == old_pair["client.key"]
    assert not (directory / "client.key.next").exists()
    with _connect(live, directory) as new, _connect(live, before) as old:
        assert new.describe().client_name == old.describe().client_name == "ml-team"
        assert new.describe().client_budget.epsilon == 0.5  # one account, two certificates
        rows = live.rows()
        assert [row["state"] for row in rows] == ["valid", "valid"]
        fingerprint = identity.read_identity(before).fingerprint
        assert rows[0]["fingerprint"] == fingerprint
        live.operator("clients", "ml-team", "--revoke-certificate", fingerprint, "--reason", "replaced")
        with pytest.raises(errors.CredentialsInvalid, match="withdrawn"):
            old.describe()
        assert new.describe().client_name == "ml-team"
        assert [row["fingerprint"] for row in live.rows()] == [identity.read_identity(directory).fingerprint]
        live.operator("clients", "--revoke", "ml-team", "--reason", "the study has ended")
        with pytest.raises(errors.CredentialsInvalid, match="revoked"):
            new.describe()
    live.operator("clients", "ml-team", "--revoke-certificate", fingerprint, "--reason", "again", status=7)


def test_an_expired_certificate_is_refused_on_both_sides_and_renewed_by_the_operators_word(live):
    directory = live.join("late")
    issued = live.home.authority.sign_request(
        identity._request("late", identity.read_key(directory / "client.key")), name="late", days=-1
    )
    with live.home.open_ledger() as ledger:
        ledger.add_certificate("late", issued.fingerprint)
    (directory / "client.crt").write_bytes(issued.pem)
    with pytest.raises(errors.CredentialsInvalid, match="certificate --renew"):  # the client's own check
        _connect(live, directory)
    with pytest.raises(grpc.RpcError) as refused:  # and the server's, for a client that does not check
        _call(live, directory)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    assert {row["state"] for row in live.rows()} == {"valid", "expired"}
    live.client("certificate", "--renew", "--credentials", directory)
    # An expired identity proves nothing; a plain request for a known name neither, unless the operator says so.
    out = live.directory / "answer"
    assert "proves nothing" in live.operator("approve", directory / "client.renewal", "--out", out, status=9)
    assert "already" in live.operator("approve", directory / "client.csr", "--out", out, status=10)
    assert not out.exists()
    fingerprint = ("--fingerprint", request_fingerprint((directory / "client.csr").read_bytes()))
    live.operator("approve", directory / "client.csr", "--out", out, "--renew", *fingerprint)
    live.client("certificate", "--install", out / "client.crt", "--credentials", directory)
    with _connect(live, directory) as connection:
        assert connection.describe().client_name == "late"
    assert json.loads(live.client("certificate", "--credentials", directory, "--format", "json"))["days_left"] > 300


def _call(sites, directory, *, certificate=True, authority=None, name_override=None):
    from dpswd.shared.core.wire.v1 import curator_pb2 as pb
    from dpswd.shared.core.wire.v1 import curator_pb2_grpc as pb_grpc

    read = {name: (directory / name).read_bytes() for name in ("ca.crt", "client.crt", "client.key")}
    credentials = grpc.ssl_channel_credentials(
        authority or read["ca.crt"],
        private_key=read["client.key"] if certificate else None,
        certificate_chain=read["client.crt"] if certificate else None,
    )
    options = [] if name_override is None else [("grpc.ssl_target_name_override", name_override)]
    with grpc.secure_channel(sites.address, credentials, options=options) as channel:
        return pb_grpc.CuratorServiceStub(channel).Describe(pb.DescribeRequest(), timeout=60)


def test_wrong_name_wrong_authority_none_and_unknown(live):
    directory = live.join("ml-team")
    assert _call(live, directory).client_name == "ml-team"
    other = CertificateAuthority(live.directory / "other")
    other.create(names=["localhost"], data_set="elsewhere")
    stranger = live.directory / "stranger"
    issued, key = other.make_client(name="ml-team")
    other.write_credentials(issued, stranger, key_pem=key)
    own = (directory / "ca.crt").read_bytes()
    attempts = {
        "the server's certificate is for another name": {"name_override": "curator.example.org"},
        "the client trusts another authority": {"authority": (stranger / "ca.crt").read_bytes()},
        "no certificate": {"certificate": False},
    }
    for what, options in attempts.items():
        with pytest.raises(grpc.RpcError) as refused:
            _call(live, directory, **options)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE, what
    with pytest.raises(grpc.RpcError) as refused:
        _call(live, stranger, authority=own)  # signed by another authority
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    # Signed by the right authority for another client's name, and never added: TLS lets it in, the ledger does not.
    issued, key = live.home.authority.make_client(name="ml-team")
    live.home.authority.write_credentials(issued, live.directory / "forged", key_pem=key)
    with pytest.raises(errors.CredentialsInvalid, match="no such certificate"):
        _connect(live, live.directory / "forged")
    # Bound to one client in the ledger, in the name of another: refused as well.
    issued, key = live.home.authority.make_client(name="mallory")
    live.home.authority.write_credentials(issued, live.directory / "mallory", key_pem=key)
    with live.home.open_ledger() as ledger:
        ledger.add_certificate("ml-team", issued.fingerprint)
    with pytest.raises(errors.CredentialsInvalid, match="another client"):
        _connect(live, live.directory / "mallory")


def test_a_certificate_that_expires_during_a_connection_is_refused_at_the_next_call(live):
    """`authenticate` looks at the clock for each call; TLS did so only when the connection was made."""
    from dpswd.private_curator.serving.authentication import PEER_CERTIFICATE, authenticate

    directory = live.join("ml-team")
    peer = {PEER_CERTIFICATE: [(directory / "client.crt").read_bytes()]}
    with live.home.open_ledger() as ledger:
        find = ledger.client_by_fingerprint
        assert authenticate(peer, find=find, now=_now()).name == "ml-team"
        with pytest.raises(errors.CredentialsInvalid, match="valid from"):
            authenticate(peer, find=find, now=_now() + dt.timedelta(days=500))


def test_a_renewal_must_be_signed_under_the_identity_that_it_renews(sites):
    directory = sites.join("ml-team")
    mallory = sites.join("mallory")
    sites.client("certificate", "--renew", "--credentials", directory)
    good = Renewal.from_bytes((directory / "client.renewal").read_bytes())
    stolen = Renewal.from_bytes(Path(identity.renew(mallory)).read_bytes())
    authority = sites.home.authority
    assert (
        renewals.read(good.to_bytes(), authority, now=_now()).proven_by == identity.read_identity(directory).fingerprint
    )
    key = identity.read_key(mallory / "client.key")
    for wrong, problem in (
        (Renewal(stolen.request, good.certificate, stolen.signature), "not signed"),
        (Renewal(stolen.request, good.certificate, good.signature), "not signed"),
        (Renewal.make(request=stolen.request, certificate=good.certificate, old_key=key), "not signed"),
        (Renewal.make(request=good.request, certificate=stolen.certificate, old_key=key), "belongs to 'mallory'"),
        (Renewal(good.request, b"no certificate", good.signature), "cannot be read"),
    ):
        with pytest.raises(errors.InvalidValue, match=problem):
            renewals.read(wrong.to_bytes(), authority, now=_now())
    other = CertificateAuthority(sites.directory / "other")
    other.create(names=["localhost"], data_set="elsewhere")
    issued, pem = other.make_client(name="ml-team")
    (sites.directory / "k").write_bytes(pem)
    foreign = Renewal.make(
        request=good.request, certificate=issued.pem, old_key=identity.read_key(sites.directory / "k")
    )
    with pytest.raises(errors.InvalidValue, match="authority"):
        renewals.read(foreign.to_bytes(), authority, now=_now())
    for data in (b"", b"{}", b"[1]", b"\xff", b'{"format":"dpswd-renewal-2"}', b"x" * 300_000):
        with pytest.raises(errors.InvalidValue):
            renewals.read(data, authority, now=_now())
    # A withdrawn certificate renews nothing, though its signature holds.
    sites.operator(
        "clients",
        "ml-team",
        "--revoke-certificate",
        identity.read_identity(directory).fingerprint,
        "--reason",
        "leaked",
    )
    output = sites.operator("approve", directory / "client.renewal", "--out", sites.directory / "x", status=10)
    assert "withdrawn" in output
    assert [row["name"] for row in sites.rows()] == ["mallory"]


def test_install_takes_only_the_renewed_certificate_and_survives_a_crash(sites, monkeypatch):
    directory = sites.join("ml-team")
    stranger = sites.join("other")
    old = (directory / "client.crt").read_bytes()
    sites.client("certificate", "--install", directory / "client.crt", "--credentials", directory, status=3)
    certificate = sites.renew(directory)
    sites.client("certificate", "--install", stranger / "client.crt", "--credentials", directory, status=3)
    assert (directory / "client.crt").read_bytes() == old

    def crash(self, target):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        original = Path.replace
        patch.setattr(
            Path, "replace", lambda self, to: crash(self, to) if self.name == "client.key.next" else original(self, to)
        )
        with pytest.raises(KeyboardInterrupt):
            identity.install(certificate, directory)
    installed = identity.install(certificate, directory)  # again, and all is well
    assert installed.fingerprint == identity.read_identity(directory).fingerprint
    assert (directory / "client.crt.previous").read_bytes() == old
    private = identity.read_key(directory / "client.key")
    assert belong_together(private, identity.read_certificate(directory / "client.crt"))
    previous = identity.read_key(directory / "client.key.previous")
    assert belong_together(previous, identity.read_certificate(directory / "client.crt.previous"))


def test_a_second_renewal_before_the_answer_keeps_the_new_key(sites):
    directory = sites.join("ml-team")
    certificate = sites.renew(directory)
    sites.client("certificate", "--renew", "--credentials", directory)
    identity.install(certificate, directory)


def test_cert_init_makes_an_authority_only_where_there_is_none(sites):
    assert "never overwritten" in sites.operator("certificates", "--make", status=3)
    for path in sorted(sites.home.certificates.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    sites.operator("certificates", "--make", "--san", "curator.example.org")
    server_certificate = identity.read_certificate(sites.home.certificates / "server.crt")
    assert "curator.example.org" in str(server_certificate.extensions)
    sites.operator("certificates", "--renew-server")
    assert isinstance(sites.home.authority.certificate().public_key(), ec.EllipticCurvePublicKey)


def test_shares_belong_to_new_clients(sites):
    directory = sites.join("ml-team")
    sites.client("certificate", "--renew", "--credentials", directory)
    arguments = ("approve", directory / "client.renewal", "--out", sites.directory / "x")
    assert "clients --share" in sites.operator(*arguments, "--epsilon", "1", status=3)
    sites.operator("approve", sites.directory / "nothing", "--out", sites.directory / "x", status=3)
    request = identity.make_identity("new", sites.directory / "new")
    sites.operator("approve", request, "--out", sites.directory / "x", "--renew", status=3)
    assert common_name(identity.read_certificate(directory / "client.crt").subject) == "ml-team"
    assert HomeDirectory(sites.home.path).authority.expires("0" * 64) is None
