"""Which key signs, wherever it is; and that whatever ends a change of it leaves a ledger that goes on."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from made_home import made_home

from dpswd.private_curator.cli.main import main
from dpswd.private_curator.keys.places import KeyPlaces, open_place
from dpswd.private_curator.operator import preflight
from dpswd.private_curator.storage.home_directory import HomeDirectory
from dpswd.shared.core.errors import InvalidValue, LedgerUnavailable, SettingsError
from dpswd.shared.core.ledger.keys import LedgerKeys

SERVICE = Ed25519PrivateKey.from_private_bytes(b"s" * 32)


class Service:
    """A key of a service: what a hospital would write."""

    def public_key(self):
        return SERVICE.public_key()

    def sign(self, data: bytes, /) -> bytes:
        return SERVICE.sign(data)


class Wrong(Service):
    def sign(self, data: bytes, /) -> bytes:
        return bytes(64)


class Away(Service):
    def sign(self, data: bytes, /) -> bytes:
        raise TimeoutError


class Other(Service):
    def public_key(self):
        return ec.generate_private_key(ec.SECP256R1()).public_key()


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """This file by a name of its own, as the hospital's module."""
    monkeypatch.setitem(sys.modules, "hospital_keys", sys.modules[__name__])


def databases():
    return pytest.mark.parametrize("database", ["sqlite", "postgres"])


@pytest.fixture
def home(database, request, tmp_path) -> HomeDirectory:
    groups = {}
    if database == "postgres":
        server = request.getfixturevalue("postgres")
        (tmp_path / "password").write_text(f"{server.password}\n")
        url = server.url(tcp=True, sslmode="verify-full", sslrootcert=server.root_certificate)
        name = f"keys_{abs(hash(tmp_path)) % 10**9}"
        groups["ledger"] = {"url": url, "schema_name": name, "password_file": str(tmp_path / "password")}
    return made_home(tmp_path, np.zeros((64, 3), dtype=np.float32), groups=groups)


def run(home: HomeDirectory, *arguments: object, status: int = 0) -> str:
    result = CliRunner().invoke(main, [*map(str, arguments), "--home", str(home.path)])
    assert result.exit_code == status, (result.output, result.exception)
    return result.output


def keep_on(home: HomeDirectory) -> list[bytes]:
    """The ledger takes an act, verifies, and its whole chain does under each of its keys; returns the keys."""
    with home.open_ledger() as books:
        books.freeze(reason="a look")
        books.unfreeze(reason="looked")
        lines, keys = list(books.export()), books.keys.every
    run(home, "ledger", "verify")
    from dpswd.public_client.curator.verify import _read_ledger

    for key in keys:
        ring = LedgerKeys.of(key, [line for line in lines if "key-changed" in line])
        assert _read_ledger(lines, ring, [], client="ml-team")[1] == []
    return list(keys)


@databases()
def test_the_key_is_rotated_and_everything_goes_on(home):
    old = home.read_ledger_key().public_key().public_bytes_raw()
    with home.open_ledger() as serving:  # another program, which holds the old key
        assert "backup" in run(home, "certificates", "--rotate-ledger-key", "yearly")
        serving.freeze(reason="signed by the new key, without a restart")
        serving.unfreeze(reason="on")
    assert [key == old for key in keep_on(home)] == [True, False]
    assert not home.ledger_key.with_name("ledger.key.next").exists()
    assert home.read_ledger_key().public_key().public_bytes_raw() == home.read_ledger().books.keys.newest != old
    run(home, "certificates", "--rotate-ledger-key", "again")
    assert len(keep_on(home)) == 3
    assert "changed the ledger's key" in run(home, "history", "--format", "json")
    run(home, "certificates", "--rotate-ledger-key", status=2)
    run(home, "add", "second-team", "--out", home.path.parent / "theirs")
    pinned = LedgerKeys.from_text((home.path.parent / "theirs" / "ledger.pub").read_text())
    assert (pinned.pinned, len(pinned.every)) == (pinned.newest, 3)


POINTS = ("made", "change_key:begun", "change_key:key-changed", "change_key:written", "change_key:durable", "taken")


@databases()
@pytest.mark.parametrize("point", POINTS)
def test_a_kill_between_any_two_steps_loses_nothing(home, point):
    """A process of its own, killed as by SIGKILL, and then the same command again."""
    before = home.read_ledger_key().public_key().public_bytes_raw()
    child = os.fork()
    if child == 0:
        try:
            places = home.key_places()
            with home.open_ledger() as read:
                new = places.successor(read.keys.every)

            def reached(now: str) -> None:
                if now == point:
                    os.kill(os.getpid(), signal.SIGKILL)

            reached("made")
            with home.open_ledger(checkpoint=reached) as books:
                books.change_key(new, reason="yearly")
            places.find(new.public_key().public_bytes_raw().hex())
            reached("taken")
        finally:
            os._exit(1)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    changed = POINTS.index(point) > POINTS.index("change_key:written")
    assert len(keep_on(home)) == 1 + changed
    run(home, "certificates", "--rotate-ledger-key", "yearly")
    keys = keep_on(home)
    assert (len(keys), keys[0]) == (2 + changed, before)


@databases()
def test_a_service_of_the_hospitals_own_signs_by_two_methods(home):
    settings = home.settings.read_text()
    assert "[ledger]" not in settings or "url" in settings
    line = 'keys = ["hospital_keys:Service"]\n'
    home.settings.write_text(
        settings.replace("[ledger]\n", f"[ledger]\n{line}")
        if "[ledger]" in settings
        else f"{settings}\n[ledger]\n{line}"
    )
    assert len(keep_on(home)) == 1  # the file's key still signs
    run(home, "certificates", "--rotate-ledger-key", "into the service")
    home.ledger_key.unlink()
    assert keep_on(home)[-1] == SERVICE.public_key().public_bytes_raw()
    assert [each.text for each in preflight.check(home) if not each.ok] == []
    home.settings.write_text(home.settings.read_text().replace(line, 'keys = ["hospital_keys:Away"]\n'))
    length = home.read_ledger().head.seq
    with home.open_ledger() as books, pytest.raises(LedgerUnavailable, match="did not sign"):
        books.freeze(reason="the service is away")
    home.settings.write_text(home.settings.read_text().replace(":Away", ":Wrong"))
    with home.open_ledger() as books, pytest.raises(LedgerUnavailable, match="not its key's"):
        books.freeze(reason="the service errs")
    assert home.read_ledger().head.seq == length
    home.settings.write_text(home.settings.read_text().replace(":Wrong", ":NoSuch"))
    with pytest.raises(SettingsError, match="gives no key"):
        home.open_ledger()
    with pytest.raises(SettingsError, match="Ed25519"):
        open_place("hospital_keys:Other")


@pytest.mark.parametrize("database", ["sqlite"])
def test_a_backup_from_before_is_restored_with_the_key_of_its_time_and_knows_what_it_forgets(home, tmp_path):
    run(home, "ledger", "backup", tmp_path / "before.db")
    former = home.ledger_key.read_bytes()
    run(home, "certificates", "--rotate-ledger-key", "yearly")
    with home.open_ledger() as books:
        books.freeze(reason="an entry that the new key signs")
    said = run(home, "ledger", "verify", "--file", tmp_path / "before.db", "--format", "json", status=6)
    assert {each["kind"] for each in json.loads(said)["findings"]} == {"truncated"}  # its key is one that was changed
    assert "does not verify" in run(home, "ledger", "restore", tmp_path / "before.db", status=6)
    home.ledger_key.write_bytes(former)
    run(home, "ledger", "freeze", status=2)
    refused = run(home, "ledger", "restore", tmp_path / "before.db", status=6)
    assert "2 entries would be forgotten" in refused  # the change of the key, and what came behind it


@pytest.mark.parametrize("database", ["sqlite"])
def test_a_ledger_whose_key_is_nowhere_says_which_one_is_missing(home, tmp_path):
    run(home, "certificates", "--rotate-ledger-key", "yearly")
    newest = home.read_ledger().books.public_key
    places = KeyPlaces(tmp_path / "other.key", ["hospital_keys:Service"])
    with pytest.raises(LedgerUnavailable, match=newest[:16]):
        places.find(newest)
    with home.open_ledger() as books, pytest.raises(InvalidValue, match="already"):
        books.change_key(home.read_ledger_key(), reason="to itself")
    assert Path(tmp_path / "home" / "ledger.key").exists()
