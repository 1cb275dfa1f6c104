"""A PostgreSQL server of the tests' own, in a directory of its own, which ends with them."""

from __future__ import annotations

import contextlib
import datetime as dt
import ipaddress
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import psycopg
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from debian_packages import CannotInstall, install
from free_ports import own_port
from in_memory import memory_directory

DATABASE = "hospital"
ROLE = "curator"
START_S = 60.0
# fsync stays on, as in earnest; the directory is in memory where there is one, so that this costs little.
OPTIONS = {
    "listen_addresses": "127.0.0.1",
    "max_connections": "80",
    "shared_buffers": "32MB",
    "min_wal_size": "32MB",
    "max_wal_size": "64MB",
    "ssl": "on",
}


class NoServer(Exception):
    """No PostgreSQL server is here and none can be installed or started; the text says why."""


class PostgresServer:
    """One cluster and, between `start` and `stop`, its server.

    The role `ROLE` owns the database `DATABASE` and is no superuser; over the socket nobody needs a password, over TCP
    everybody does.
    """

    def __init__(
        self,
        parent: Path | None = None,
        *,
        of: PostgresServer | None = None,
        through: Path | None = None,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Makes the cluster in a new directory under `parent`, by default in memory, and starts its server.

        With `of` it is a standby of that server, and gets the log of its writes, `through` a socket in another
        directory than the server's own.
        """
        self._environment = environment
        self._programs = _programs()
        self._user = _user()
        if parent is None:
            parent = memory_directory()
        self.directory = Path(tempfile.mkdtemp(prefix="dpswd-postgres-", dir=parent))
        self.data = self.directory / "data"
        self.password = secrets.token_hex(8)
        self.process: subprocess.Popen[bytes] | None = None
        self.port = own_port()
        try:
            if self._user is not None:
                shutil.chown(self.directory, self._user)
            if of is not None:
                self._follow(of, through or of.directory)
                return
            self._run("initdb", "--pgdata", str(self.data), "--username", "postgres", "--no-sync", "--encoding", "UTF8",
                      "--locale", "C", "--auth", "trust")  # fmt: skip
            self._write(
                "pg_hba.conf",
                "local all all trust\nlocal replication all trust\nhostssl all all 127.0.0.1/32 scram-sha-256\n",
            )
            key, certificate = _certificate()
            self._write("server.key", key)
            self._write("server.crt", certificate)
            self.start()
            with self.administer("postgres") as connection:
                connection.execute(f"CREATE ROLE {ROLE} LOGIN PASSWORD '{self.password}'")
                connection.execute(f"CREATE DATABASE {DATABASE} OWNER {ROLE}")
        except BaseException:
            self.close()
            raise

    def _follow(self, primary: PostgresServer, through: Path) -> None:
        place = ["--host", str(through), "--port", str(primary.port), "--username", "postgres"]
        self._run("pg_basebackup", *place, "--pgdata", str(self.data), "--write-recovery-conf", "--checkpoint=fast",
                  "--no-sync")  # fmt: skip
        self.password = primary.password
        self.start()
        deadline = time.monotonic() + START_S
        with primary.administer() as connection:
            while not connection.execute("SELECT 1 FROM pg_stat_replication WHERE state = 'streaming'").fetchone():
                assert time.monotonic() < deadline, "the standby does not follow"
                time.sleep(0.02)

    def promote(self) -> None:
        """The standby becomes the server that takes writes."""
        with self.administer() as connection:
            assert connection.execute("SELECT pg_promote(true, 60)").fetchone() == (True,)

    @property
    def socket(self) -> Path:
        """Where it listens."""
        return self.directory / f".s.PGSQL.{self.port}"

    def signal(self, number: signal.Signals) -> None:
        """To every process of the server."""
        assert self.process is not None
        for pid in (self.process.pid, *_children(self.process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    @property
    def root_certificate(self) -> Path:
        """What ``sslrootcert`` names: the server's certificate signs itself."""
        return self.data / "server.crt"

    def url(self, *, tcp: bool = False, **parameters: object) -> str:
        """For the role without privileges; over TCP it needs a password."""
        place = f"127.0.0.1:{self.port}" if tcp else ""
        if not tcp:
            parameters = {"host": self.directory, "port": self.port, **parameters}
        query = "&".join(f"{name}={value}" for name, value in parameters.items())
        return f"postgresql://{ROLE}@{place}/{DATABASE}?{query}"

    def administer(self, database: str = DATABASE) -> psycopg.Connection:
        """A superuser's connection."""
        return psycopg.connect(
            host=str(self.directory), port=self.port, user="postgres", dbname=database, autocommit=True
        )

    def run(self, program: str, *arguments: str) -> None:
        """One of PostgreSQL's own programs, as the superuser, on the database."""
        place = ["--host", str(self.directory), "--port", str(self.port), "--username", "postgres"]
        command = [str(self._programs / program), *place, "--dbname", DATABASE, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    def start(self) -> None:
        options = [argument for name, value in OPTIONS.items() for argument in ("-c", f"{name}={value}")]
        command = [str(self._programs / "postgres"), "-D", str(self.data), "-p", str(self.port),
                   "-k", str(self.directory), *options]  # fmt: skip
        with (self.directory / "log").open("ab") as log:
            # A session of its own: an interrupt at the keyboard is the tests', not the server's.
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, user=self._user, start_new_session=True, cwd=self.directory,
                env={**os.environ, **self._environment},
            )  # fmt: skip
        deadline = time.monotonic() + START_S
        while True:
            try:
                self.administer("postgres").close()
            except psycopg.OperationalError as error:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    words = (self.directory / "log").read_text(errors="replace")[-600:]
                    raise NoServer(f"the server did not start: {words}") from error
                time.sleep(0.02)
            else:
                return

    def stop(self) -> None:
        """A fast shutdown: connections are cut, what is committed is kept."""
        if self.process is not None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(timeout=60)
            self.process = None

    def kill(self) -> None:
        """SIGKILL to every process of the server at once, as when its machine stops.

        Each backend is the leader of a process group of its own: the server's group is the server alone, and a backend
        that has not noticed yet that it is gone would still commit.
        """
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)  # it starts nobody meanwhile
        backends = _children(self.process.pid)
        for pid in (self.process.pid, *backends):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(timeout=60)
        self.process = None
        deadline = time.monotonic() + START_S
        while any(_lives(pid) for pid in backends):
            assert time.monotonic() < deadline, "a killed backend of PostgreSQL lives on"
            time.sleep(0.005)

    def close(self) -> None:
        try:
            self.stop()
        finally:
            shutil.rmtree(self.directory, ignore_errors=True)

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(self._programs / program), *arguments],
            user=self._user, cwd=self.directory, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise NoServer(f"{program} failed: {done.stderr.strip()[-600:]}")

    def _write(self, name: str, text: str) -> None:
        path = self.data / name
        path.write_text(text)
        path.chmod(0o600)
        if self._user is not None:
            shutil.chown(path, self._user)


def _programs() -> Path:
    """The directory of ``initdb`` and ``postgres``; Debian's own package is installed where root may.

    Raises:
        NoServer: they are not there and cannot be installed.
    """
    programs = _find()
    if programs is None:
        _install()
        programs = _find()
    if programs is None:
        raise NoServer("Debian's package postgresql holds no initdb")
    return programs


def _find() -> Path | None:
    here = shutil.which("initdb")
    candidates = [Path(here).resolve().parent] if here else []
    candidates += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((path for path in candidates if (path / "initdb").exists() and (path / "postgres").exists()), None)


def _install() -> None:
    """Without the cluster that the package would make and start by itself."""
    settings = Path("/etc/postgresql-common/createcluster.conf")
    if os.geteuid() == 0 and not settings.exists():
        settings.parent.mkdir(parents=True, exist_ok=True)
        settings.write_text("create_main_cluster = false\n")
    try:
        install(["postgresql"], options=["-o", "Dpkg::Options::=--force-confold"])
    except CannotInstall as error:
        raise NoServer(str(error)) from error


def _user() -> str | None:
    """PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return None
    import pwd

    names = {entry.pw_name for entry in pwd.getpwall()}
    for name in ("postgres", "nobody"):
        if name in names:
            return name
    raise NoServer("PostgreSQL does not run as root, and there is neither a user postgres nor nobody")


def _certificate() -> tuple[str, str]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return private.decode(), certificate.public_bytes(serialization.Encoding.PEM).decode()


def _children(parent: int) -> list[int]:
    return [
        int(entry.name) for entry in Path("/proc").glob("[0-9]*") if _state_and_parent(int(entry.name))[1] == parent
    ]


def _lives(pid: int) -> bool:
    return _state_and_parent(pid)[0] not in ("", "Z")


def _state_and_parent(pid: int) -> tuple[str, int]:
    """What proc(5) says in the fields behind a process's name; no state where there is no such process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return "", 0
    return fields[0], int(fields[1])
