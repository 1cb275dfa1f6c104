"""What reaches outside while an image is built: through a proxy that reads TLS, with its CA, an index, a mirror.

The proxy is real: pip and apt's own downloader go through it, and it answers for every host under a certificate of its
own CA, as such proxies do. What runs here is the script of the build, `deploy/images/outside.sh`.
"""

from __future__ import annotations

import base64
import datetime as dt
import importlib.util
import os
import shutil
import ssl
import subprocess
import sys
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

ROOT = Path(__file__).resolve().parents[3]
WITHOUT_SYMBOLS = ROOT / "deploy" / "images" / "without_symbols.py"
OUTSIDE = ROOT / "deploy" / "images" / "outside.sh"
HOST = "packages.example"
APT_DOWNLOADER = Path("/usr/lib/apt/apt-helper")


def _certificates(directory: Path) -> tuple[bytes, Path]:
    """A CA's certificate, and a file with key and certificate for `HOST` under it."""
    now, keys = dt.datetime.now(dt.UTC), [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    issuer = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "the hospital's proxy")])
    made = []
    for authority, name, key in ((True, issuer, keys[0]), (False, x509.Name([]), keys[1])):
        builder = x509.CertificateBuilder(
            issuer, name, key.public_key(), x509.random_serial_number(), now, now + dt.timedelta(days=1)
        ).add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        if not authority:
            builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(HOST)]), critical=True)
        made.append(builder.sign(keys[0], hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    private = keys[1].private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (directory / "server.pem").write_bytes(private + made[1])
    return made[0], directory / "server.pem"


class Proxy:
    """Answers CONNECT itself, whatever the host, and serves a folder; `asked` holds the lines of what was asked."""

    def __init__(self, directory: Path) -> None:
        self.authority, served = _certificates(directory)
        self.asked: list[str] = []
        self.folder = directory / "outside"
        self.folder.mkdir()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(served)
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_CONNECT(self) -> None:
                outer.asked.append(f"CONNECT {self.path}")
                self.send_response(200)
                self.end_headers()
                self.close_connection = True
                try:
                    self.connection = context.wrap_socket(self.connection, server_side=True)
                except (ssl.SSLError, ConnectionError):
                    return  # whoever does not trust the CA hangs up
                self.rfile, self.wfile = self.connection.makefile("rb"), self.connection.makefile("wb", 0)
                self.close_connection = False

            def do_GET(self) -> None:
                outer.asked.append(f"GET {self.path}")
                file = outer.folder / self.path.split("#")[0].strip("/")
                file = file / "index.html" if file.is_dir() else file
                body = file.read_bytes() if file.is_file() else b""
                self.send_response(200 if file.is_file() else 404)
                self.send_header("Content-Type", "text/html" if file.suffix == ".html" else "application/octet-stream")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """`asked` keeps what matters."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture(scope="module")
def proxy(tmp_path_factory):
    made = Proxy(tmp_path_factory.mktemp("proxy"))
    index = made.folder / "simple" / "tiny"
    index.mkdir(parents=True)
    name = "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(index / name, "w") as wheel:
        wheel.writestr("tiny.py", "")
        wheel.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        wheel.writestr("tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("tiny-1.0.dist-info/RECORD", "")
    (index / "index.html").write_text(f'<a href="{name}">{name}</a>')
    (made.folder / "debian").mkdir()
    (made.folder / "debian" / "README").write_text("from the mirror\n")
    yield made
    made.server.shutdown()


def outside(proxy: Proxy, *words: object, trusted: bool = True, **arguments: str) -> subprocess.CompletedProcess[str]:
    """The build's script, in an environment with the build's arguments and nothing of this machine's own."""
    given = {"HTTP_PROXY": proxy.url, "HTTPS_PROXY": proxy.url, **arguments}
    if trusted:
        given["CA_CERTIFICATE"] = base64.b64encode(proxy.authority).decode()
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "PIP_CONFIG_FILE": "/dev/null", **given}
    return subprocess.run(
        ["sh", str(OUTSIDE), *map(str, words)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.long
def test_pip_goes_through_the_proxy_to_the_index_and_trusts_its_ca_alone_on_request(proxy, tmp_path):
    pip = ("run", sys.executable, "-m", "pip", "download", "--no-cache-dir", "--no-deps", "--retries", "0")
    asked = (*pip, "--dest", tmp_path, "tiny==1.0")
    index = f"https://{HOST}/simple"
    done = outside(proxy, *asked, PIP_INDEX=index)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "tiny-1.0-py3-none-any.whl").is_file()
    assert f"CONNECT {HOST}:443" in proxy.asked
    assert "GET /simple/tiny/" in proxy.asked
    stranger = outside(proxy, *asked, trusted=False, PIP_INDEX=index)
    assert stranger.returncode != 0
    assert "CERTIFICATE_VERIFY_FAILED" in stranger.stdout + stranger.stderr
    assert "give the build CA_CERTIFICATE" in stranger.stderr


@pytest.mark.skipif(not APT_DOWNLOADER.exists(), reason="no apt here")
def test_apt_goes_through_the_proxy_to_the_mirror_and_trusts_its_ca(proxy, tmp_path):
    """`apt-get` is replaced by what tells its options and downloads by apt's own transport; nothing is installed."""
    programs = tmp_path / "programs"
    programs.mkdir()
    url, target = f"https://{HOST}/debian/README", tmp_path / "README"
    shown = 'eval "$(apt-config "$1" "$2" "$3" "$4" shell LIST Dir::Etc::SourceList/f)"; cat "$LIST"'
    (programs / "apt-get").write_text(
        f'#!/bin/sh\necho "$@"\n[ "$5" = update ] || exit 0\n{shown}\n{APT_DOWNLOADER} download-file {url} {target}\n'
    )
    for name in ("apt-get", "rm"):
        (programs / name).touch(mode=0o755)
    (programs / "rm").write_text('#!/bin/sh\ncase "$*" in */var/lib/apt/*) ;; *) exec /bin/rm "$@" ;; esac\n')
    for program in programs.iterdir():
        program.chmod(0o755)
    path = f"{programs}:{os.environ['PATH']}"
    done = outside(proxy, "packages", PATH=path, APT_MIRROR=f"https://{HOST}/debian")
    assert done.returncode == 0, done.stdout + done.stderr
    assert target.read_text() == "from the mirror\n"
    assert f"deb https://{HOST}/debian " in done.stdout
    assert "install --yes --no-install-recommends python3 python3-venv" in done.stdout
    target.unlink()
    stranger = outside(proxy, "packages", trusted=False, PATH=path, APT_MIRROR=f"https://{HOST}/debian")
    assert stranger.returncode != 0
    assert "give the build CA_CERTIFICATE" in stranger.stderr
    assert not target.exists()


@pytest.mark.long
def test_the_set_up_names_the_setting_of_pip_where_a_proxy_is_not_trusted(proxy, tmp_path):
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PIP_CONFIG_FILE": "/dev/null"}
    environment |= {"HTTPS_PROXY": proxy.url, "PIP_INDEX_URL": f"https://{HOST}/simple", "PIP_RETRIES": "1"}
    command = ["bash", "deploy/set-up.sh", str(tmp_path / "venv")]
    environment |= {"PYTHON": sys.executable}
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 1
    assert "set-up: behind a proxy that reads TLS: export PIP_CERT=" in done.stderr


def test_a_certificate_that_is_none_ends_the_build_in_words(proxy):
    done = outside(proxy, "run", "true", trusted=False, CA_CERTIFICATE="ca.crt")
    assert done.returncode == 1
    assert "CA_CERTIFICATE is no PEM in base64" in done.stderr


def test_the_build_takes_the_arguments_and_keeps_none_in_an_image():
    """The stages that are shipped get them as arguments alone: neither a file nor an environment remains."""
    dockerfile = (ROOT / "deploy" / "images" / "Dockerfile").read_text()
    compose = (ROOT / "docker-compose.yml").read_text()
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "CA_CERTIFICATE", "PIP_INDEX", "APT_MIRROR"):
        assert f"{name}: ${{{name}:-}}" in compose
        assert f"ENV {name}" not in dockerfile
    stages = dockerfile.split("\nFROM ")
    for stage in stages:
        if "outside.sh run" in stage:
            assert "ARG CA_CERTIFICATE=" in stage
            assert "ARG PIP_INDEX=" in stage
    assert sum("outside.sh run" in stage for stage in stages) == 4


def test_a_library_without_its_symbols_is_smaller_and_works(tmp_path):
    module = "markupsafe._speedups"
    whole, cut = Path(importlib.util.find_spec(module).origin), tmp_path / "cut.so"
    shutil.copy(whole, cut)
    done = subprocess.run([sys.executable, WITHOUT_SYMBOLS, cut], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert cut.stat().st_size < 0.9 * whole.stat().st_size
    spec = importlib.util.spec_from_file_location(module, cut)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    assert loaded._escape_inner("a < b") == "a &lt; b"
    done = subprocess.run([sys.executable, WITHOUT_SYMBOLS, OUTSIDE], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "outside.sh: no shared library for 64 bits" in done.stderr
