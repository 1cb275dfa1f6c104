"""Every usual cause of a connection that is never made is named, with what to do."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from pathlib import Path

import numpy as np
import pytest

from dpswd.private_curator.settings.groups import RecordsSettings
from dpswd.private_curator.storage import home_directory as home
from dpswd.public_client.curator.connection import Patience, call, open_channel
from dpswd.public_client.curator.diagnosis import explain
from dpswd.public_client.curator.stub import Curator
from dpswd.shared.core.errors import CuratorUnavailable
from dpswd.shared.core.wire.v1 import curator_pb2 as pb
from dpswd.shared.core.wire.v1 import curator_pb2_grpc as pb_grpc


def _made(directory: Path, *, names=("localhost",)):
    directory.mkdir()
    np.save(directory / "records.npy", np.zeros((5, 2), np.float32))
    return home.create(
        directory / "home",
        records=RecordsSettings(file=directory / "records.npy"),
        epsilon=1.0,
        delta=1e-5,
        names=list(names),
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    return _made(tmp_path_factory.mktemp("site") / "ours")


@pytest.fixture
def credentials(site, tmp_path):
    return _credentials(site, tmp_path / "credentials")


def _credentials(site, directory, **options):
    issued, key = site.authority.make_client(name="ml-team", **options)
    site.authority.write_credentials(issued, directory, key_pem=key)
    return directory


@contextlib.contextmanager
def _listening(site):
    """The curator's certificate behind a real socket that demands a client's."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(site.certificates / "server.crt", site.certificates / "server.key")
    context.load_verify_locations(site.certificates / "ca.crt")
    context.verify_mode = ssl.CERT_REQUIRED
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError), context.wrap_socket(connection, server_side=True) as secure:
                secure.recv(1)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield f"localhost:{listener.getsockname()[1]}"
    listener.close()


def _explained(address, directory, **options):
    return explain(address, credentials=directory, **options)


def test_an_expired_certificate(site, tmp_path):
    text = _explained("localhost:1", _credentials(site, tmp_path / "late", days=-1))
    assert "client.crt has expired on" in text
    assert "ask the curator's operator" in text


def test_a_certificate_of_another_authority(site, credentials, tmp_path):
    other = _made(tmp_path / "other")
    (credentials / "ca.crt").write_bytes((other.certificates / "ca.crt").read_bytes())
    assert "client.crt was not issued by the authority in ca.crt" in _explained("localhost:1", credentials)


def test_a_key_of_another_certificate(site, credentials, tmp_path):
    another = _credentials(site, tmp_path / "another")
    (credentials / "client.key").write_bytes((another / "client.key").read_bytes())
    assert "client.key is not the key of client.crt" in _explained("localhost:1", credentials)


def test_files_that_are_no_certificates(credentials):
    (credentials / "client.crt").write_text("nothing")
    assert "cannot be read as certificates" in _explained("localhost:1", credentials)


def test_nobody_listens(credentials):
    assert "TCP port 1 of localhost cannot be reached (Connection refused)" in _explained("localhost:1", credentials)


def test_something_else_listens(credentials):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def answer():
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        assert "its TLS handshake fails" in _explained(f"localhost:{port}", credentials)


def test_another_curator_listens(credentials, tmp_path):
    with _listening(_made(tmp_path / "other")) as address:
        assert "a certificate of another authority than ca.crt" in _explained(address, credentials)


def test_the_curator_has_another_name(tmp_path):
    hospital = _made(tmp_path / "named", names=("hospital.example",))
    own = _credentials(hospital, tmp_path / "credentials")
    with _listening(hospital) as address:
        assert "is for hospital.example and not for localhost" in _explained(address, own)
        assert "looks right from here" in _explained(address, own, server_name="hospital.example")


def test_connecting_says_the_cause(credentials, tmp_path):
    other, expected = _made(tmp_path / "other"), pytest.raises(CuratorUnavailable, match="another authority than ca")
    with _listening(other) as address, expected:
        Curator.connect(address, credentials=credentials, patience_s=0.1)


def test_a_lost_connection_says_where_to_look(credentials):
    with (
        open_channel("localhost:1", credentials=credentials) as channel,
        pytest.raises(CuratorUnavailable, match=r"^the curator does not run.*TLS handshake was refused .*dpswd-client"),
    ):
        call(
            pb_grpc.CuratorServiceStub(channel).Describe,
            pb.DescribeRequest(),
            pb.DescribeResponse,
            patience=Patience(timeout_s=5.0, total_s=0.0),
        )
