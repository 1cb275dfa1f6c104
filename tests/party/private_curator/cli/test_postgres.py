"""The operator's commands with the ledger in PostgreSQL, among them every one of docs/operator/replicas.md."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from dpswd.private_curator.cli.main import main
from dpswd.private_curator.operator import preflight
from dpswd.private_curator.storage.home_directory import HomeDirectory
from dpswd.shared.core.errors import SettingsError

DOCUMENT = Path(__file__).parents[4] / "docs" / "operator" / "replicas.md"
RECORDS = np.random.default_rng(2).normal(size=(40, 3)).astype(np.float32)
ACCEPTANCE = "The disk of 3 May is lost; the ethics board has accepted this, minutes of 5 May."
_SCHEMAS = itertools.count()


class Operator:
    """Runs commands in this process, in a directory with records."""

    def __init__(self, server, directory: Path) -> None:
        self.server = server
        self.directory = directory
        self.home = HomeDirectory(directory / "hospital")
        self.schema = f"cli_{next(_SCHEMAS)}"
        self.url = server.url(tcp=True, sslmode="verify-full", sslrootcert=server.root_certificate)
        np.savez(directory / "records.npz", records=RECORDS)
        (directory / "db-password").write_text(f"{server.password}\n")

    def run(self, *arguments: object, status: int = 0) -> str:
        environment = {"DPSWD_CURATOR_HOME": str(self.home.path)}
        result = CliRunner().invoke(main, [str(argument) for argument in arguments], env=environment)
        assert result.exit_code == status, (result.output, result.exception)
        return result.output

    def json(self, *arguments: object):
        return json.loads(self.run(*arguments, "--format", "json"))

    def init(self, *arguments: object, url: str | None = None, status: int = 0) -> str:
        common = ("init", "--records", self.directory / "records.npz", "--epsilon", 2, "--delta", 1e-5)
        secret = self.directory / "db-password"
        database = ("--ledger-url", url or self.url, "--ledger-schema", self.schema, "--ledger-password-file", secret)
        return self.run(*common, *(arguments or database), status=status)


@pytest.fixture
def bare(postgres, tmp_path):
    return Operator(postgres, tmp_path)


@pytest.fixture
def operator(bare):
    bare.init()
    return bare


@pytest.mark.long
def test_every_command_of_the_page_runs_as_written(bare, monkeypatch):
    """The session of docs/operator/replicas.md, with this server's address and paths of this test."""
    monkeypatch.chdir(bare.directory)
    text = DOCUMENT.read_text()
    lines = re.findall(r"^\s*\$ dpswd-curator ([^#\n]*)", text, flags=re.MULTILINE)
    assert len(lines) == 6
    done = []
    for line in lines:
        words = shlex.split(line)
        if words[0] == "serve":  # tests/story/test_replica_servers.py serves
            continue
        if words[:2] == ["ledger", "move"]:
            # The curator that had its ledger in a file: its settings get what the page says.
            (toml,) = re.findall(r"```toml\n(.*?)```", text, flags=re.DOTALL)
            bare.home.path.rename(bare.directory / "made-with-init")
            bare.run("init", "--home", "hospital", "--records", "records.npz", "--epsilon", 1, "--delta", 1e-5)
            settings = re.sub(r'url = ".*"', f'url = "{bare.url}"', re.sub(r"^\s+", "", toml, flags=re.MULTILINE))
            settings = settings.replace("/etc/dpswd/db-password", str(bare.directory / "db-password"))
            with bare.home.settings.open("a") as file:
                file.write(f'{settings}schema_name = "{bare.schema}"\n')
        words = [bare.url if word.startswith("postgresql://") else word for word in words]
        done.append(bare.run(*words))
    assert "is kept as" in done[1]
    assert bare.json("ledger", "verify")["ok"] is True
    assert not bare.home.ledger.exists()
    assert bare.home.ledger.with_name("ledger.db.moved").exists()


def test_the_operators_work(operator):
    assert not operator.home.ledger.exists()
    shown = operator.json("budget")
    assert (shown["records"], shown["epsilon"], shown["epsilon_spent"]) == (40, 2.0, 0.0)
    operator.run("add", "ml-team", "--out", operator.directory / "for-ml-team")
    operator.run("budget", "--extend", 3, "--reason", "second consent")
    operator.run("budget", "--freeze", "--reason", "an inquiry")
    assert operator.json("budget")["state"] == "frozen"
    assert operator.json("ledger", "verify")["ok"] is True
    findings = {row["check"]: row["ok"] for row in operator.json("preflight")}
    assert findings["ledger"]
    assert operator.server.password not in operator.run("settings")


def test_init_leaves_nothing_behind_when_the_database_does_not_serve(bare):
    bare.init(url=bare.url.replace(f":{bare.server.port}/", ":1/"), status=5)
    assert not bare.home.path.exists()
    bare.init("--ledger-schema", "alone", status=3)
    bare.init(url="postgresql://curator:secret@127.0.0.1/hospital", status=3)
    assert not bare.home.path.exists()
    bare.init()
    second = Operator(bare.server, bare.directory)
    second.home, second.schema = HomeDirectory(bare.directory / "second"), bare.schema
    assert "belongs to another curator" in second.init(status=3)
    assert not second.home.path.exists()


def test_settings_in_the_environment_count_for_init_as_well(bare, monkeypatch):
    monkeypatch.setenv("DPSWD_CURATOR_LEDGER__URL", bare.url)
    monkeypatch.setenv("DPSWD_CURATOR_LEDGER__SCHEMA_NAME", bare.schema)
    monkeypatch.setenv("DPSWD_CURATOR_LEDGER__PASSWORD_FILE", str(bare.directory / "db-password"))
    bare.init("--device", "cpu")
    assert not bare.home.ledger.exists()
    assert bare.json("ledger", "verify")["ok"] is True


def test_a_restore_that_would_forget_is_refused(operator):
    backup = operator.directory / "backup.db"
    operator.run("ledger", "backup", backup)
    operator.run("budget", "--lower", 1, "--reason", "policy")
    assert "would be forgotten" in operator.run("ledger", "restore", backup, status=6)
    assert operator.json("budget")["epsilon"] == 1.0
    operator.run("ledger", "restore", backup, "--accept-loss", ACCEPTANCE)
    assert operator.json("budget")["epsilon"] == 2.0


def test_a_database_that_was_put_back_is_refused_until_the_loss_is_accepted(operator):
    dump, backup = operator.directory / "dump.sql", operator.directory / "backup.db"
    operator.server.run("pg_dump", "--schema", operator.schema, "--file", str(dump))
    operator.run("budget", "--lower", 1, "--reason", "policy")
    with operator.server.administer() as administrator:
        administrator.execute(f"DROP SCHEMA {operator.schema} CASCADE")
    operator.server.run("psql", "--quiet", "--set", "ON_ERROR_STOP=1", "--file", str(dump))
    assert "put back to an older state" in operator.run("budget", "--lower", 0.5, "--reason", "policy", status=6)
    assert "put back to an older state" in operator.run("budget")  # looking is allowed, and warned of
    operator.run("ledger", "backup", backup)
    assert "1 entries would be forgotten" in operator.run("ledger", "restore", backup, status=6)
    operator.run("ledger", "restore", backup, "--accept-loss", ACCEPTANCE)
    assert operator.json("budget")["epsilon"] == 2.0


@pytest.mark.parametrize("days", [3, -3])
def test_a_replica_whose_clock_is_wrong_does_not_start(operator, days):
    """The database's clock decides: the right replicas start whatever the wrong one has done."""
    wrong = dt.datetime.now(dt.UTC) + dt.timedelta(days=days)
    site = preflight._Site(operator.home, {}, now=lambda: wrong)
    with site.opened, pytest.raises(SettingsError) as caught:
        preflight.CHECKS["clock"](site)
    assert f"this machine's clock says {wrong:%Y-%m-%d}" in str(caught.value)
    assert "that of the ledger's database, which decides" in str(caught.value)
    site = preflight._Site(operator.home, {})
    with site.opened:
        assert "not before the ledger" in preflight.CHECKS["clock"](site)


def test_a_file_that_was_put_back_is_refused_too(bare):
    """The note is kept for a ledger in a file as well."""
    bare.init("--device", "cpu")
    old = bare.home.ledger.read_bytes()
    bare.run("budget", "--lower", 1, "--reason", "policy")
    bare.home.ledger.write_bytes(old)
    assert "put back to an older state" in bare.run("budget", "--lower", 0.5, "--reason", "policy", status=6)
    assert "put back to an older state" in bare.run("budget")  # looking is allowed, and warned of
