"""Each check of the preflight fails for its own reason, says how to mend it, and leaves the others alone."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import errno
import json
import os
import re
import shutil
import socket
import sqlite3
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from dpswd.private_curator.books.ledger import Ledger
from dpswd.private_curator.cli.main import main
from dpswd.private_curator.core.ledger import store
from dpswd.private_curator.operator import preflight
from dpswd.private_curator.serving.server import CuratorServer
from dpswd.private_curator.settings import tree as configuration
from dpswd.private_curator.settings.groups import RecordsSettings
from dpswd.private_curator.storage import home_directory as home
from dpswd.private_curator.storage.certificates import SERVER_CERTIFICATE, CertificateAuthority
from dpswd.shared.books.chain_checks import Tampering
from dpswd.shared.core.errors import SettingsError
from dpswd.shared.core.ledger.receipts import SignedEntry

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture
def made(tmp_path):
    np.save(tmp_path / "r.npy", np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32))
    return home.create(
        tmp_path / "home",
        records=RecordsSettings(file=tmp_path / "r.npy"),
        epsilon=1.0,
        delta=1e-5,
        names=["localhost"],
    )


@pytest.fixture(autouse=True)
def without_worker(monkeypatch):
    """Starting a worker takes seconds; test_preflight_worker.py has its check."""
    monkeypatch.delitem(preflight.CHECKS, "extraction worker")


def failing(made, **overrides) -> dict[str, str]:
    chosen = {"listen.port": "0", "compute.device": "cpu"} | {k.replace("__", "."): v for k, v in overrides.items()}
    return {finding.check: finding.text for finding in preflight.check(made, chosen) if not finding.ok}


def only(made, check: str, **overrides) -> str:
    findings = failing(made, **overrides)
    assert set(findings) == {check}, findings
    return findings[check]


def test_a_sound_curator_passes_every_check(made):
    findings = preflight.check(made, {"listen.port": "0", "metrics.enabled": "true", "metrics.port": "0"})
    assert [finding.check for finding in findings] == list(preflight.CHECKS)
    assert all(finding.ok and finding.text for finding in findings), findings


def test_settings(made):
    findings = failing(made, listen__port="70000")
    assert "listen.port" in findings["settings"]
    assert "ledger" not in findings  # what does not need the settings is checked all the same


def test_permissions(made, monkeypatch):
    made.path.chmod(0o777)
    assert "chmod o-w" in only(made, "permissions")
    made.path.chmod(0o700)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert failing(made) == {}  # a volume that belongs to another user and can be written to
    allowed = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != made.path and allowed(path, mode))
    assert "chown" in only(made, "permissions")


def test_a_directory_that_is_not_written_to(made, monkeypatch):
    allowed = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != made.certificates and allowed(path, mode))
    assert "chmod u+wx" in only(made, "permissions")


def test_keys_that_do_not_belong_together(made, tmp_path):
    other = CertificateAuthority(tmp_path / "other")
    other.create(names=["localhost"], data_set="x")
    shutil.copy(tmp_path / "other" / "server.key", made.certificates / "server.key")
    assert "certificates --renew-server" in only(made, "keys")
    (made.certificates / "server.key").write_text("no key")
    (made.certificates / "server.key").chmod(0o600)
    assert "damaged" in only(made, "keys")
    shutil.copy(tmp_path / "other" / "server.crt", made.certificates / "server.crt")
    assert "not issued by" in failing(made)["certificates"]


def test_a_missing_key(made):
    made.ledger_key.unlink()
    findings = failing(made)
    assert "backup" in findings["keys"]
    assert "key files" not in findings  # the ledger's may be in a token


def test_key_files_that_others_can_read(made):
    made.ledger_key.chmod(0o640)
    assert "chmod 600" in only(made, "key files")


def test_certificates_that_expire_soon(made):
    later = preflight._Site(made, {}, now=lambda: dt.datetime.now(dt.UTC) + dt.timedelta(days=380))
    with pytest.raises(Exception, match="certificates --renew-server"):
        preflight.CHECKS["certificates"](later)
    much_later = dataclasses.replace(later, now=lambda: dt.datetime.now(dt.UTC) + dt.timedelta(days=3640))
    with pytest.raises(Exception, match=r"certificates --renew-server|new curator"):
        preflight.CHECKS["certificates"](much_later)


def test_a_clock_that_is_slow(made):
    early = preflight._Site(made, {}, now=lambda: dt.datetime.now(dt.UTC) - dt.timedelta(minutes=6))
    with pytest.raises(Exception, match="set-ntp"):
        preflight.CHECKS["clock"](early)
    almost = preflight._Site(made, {}, now=lambda: dt.datetime.now(dt.UTC) - dt.timedelta(minutes=3))
    assert "UTC" in preflight.CHECKS["clock"](almost)


def test_what_the_kernel_says_of_the_clock_is_reported(made, monkeypatch):
    monkeypatch.setattr(preflight, "clock_is_synchronised", lambda: False)
    assert "NTP" in preflight.CHECKS["clock"](preflight._Site(made, {}))
    monkeypatch.undo()
    assert preflight.clock_is_synchronised() in (True, False)


def test_a_damaged_ledger(made):
    data = bytearray(made.ledger.read_bytes())
    place = data.find(b'"epsilon":1.0')
    data[place : place + 13] = b'"epsilon":9.0'
    made.ledger.write_bytes(bytes(data))
    assert failing(made)["ledger"]


def test_records_with_holes(made, tmp_path):
    np.save(tmp_path / "r.npy", np.full((20, 3), np.nan, np.float32))
    text = only(made, "records")
    assert "records inspect" in text
    assert "record 0" not in text
    (tmp_path / "r.npy").unlink()
    assert "does not exist" in only(made, "records")


def test_a_device_that_is_not_there_or_does_not_compute(made, monkeypatch):
    if not torch.cuda.is_available():
        assert "no CUDA device" in only(made, "device", compute__device="cuda")

    def broken(*_, **__):
        raise RuntimeError("CUDA error: an illegal memory access")

    monkeypatch.setattr(torch, "ones", broken)
    assert "compute.device to cpu" in only(made, "device")
    monkeypatch.setattr(torch, "ones", lambda *_, **__: torch.zeros(3))
    assert "wrong sums" in only(made, "device")


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_a_cuda_device_is_named_with_its_free_memory(made):
    text = preflight.CHECKS["device"](preflight._Site(made, {"compute.device": "cuda"}))
    assert torch.cuda.get_device_name() in text
    assert re.search(r"[1-9][0-9]* MiB free", text)


def test_a_full_or_read_only_disk(made, monkeypatch):
    usage = shutil.disk_usage(made.path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    assert "free some space" in only(made, "disk")
    monkeypatch.undo()

    def refuse(**_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    assert "Read-only" in only(made, "disk")


def test_an_address_in_use_or_of_another_machine(made):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert "end what listens there" in only(made, "address", listen__port=str(port))
        assert "metrics.port" in only(made, "watching", metrics__enabled="true", metrics__port=str(port))
        made.address.write_text(f"127.0.0.1:{port}\n")  # as the serving curator writes it
        assert failing(made, listen__port=str(port)) == {}
    assert "listen.host" in only(made, "address", listen__host="no-such-host.invalid")
    assert "cannot be bound" in only(made, "address", listen__host="192.0.2.1")


def test_the_command_ends_with_exit_code_3_and_names_the_remedy(made):
    made.ledger_key.chmod(0o640)
    arguments = ["preflight", "--home", str(made.path), "--set", "listen.port=0", "--format", "json"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 3
    assert [row["check"] for row in json.loads(result.output) if not row["ok"]] == ["key files"]
    made.ledger_key.chmod(0o600)
    assert CliRunner().invoke(main, arguments).exit_code == 0


def test_the_page_lists_every_check():
    page = (ROOT / "docs" / "reference" / "settings.md").read_text()
    for name in (*preflight.CHECKS, "extraction worker"):
        assert f"**{name}**" in page, name


def serving_refused(made) -> str:
    with pytest.raises(SettingsError, match="must not serve like this") as caught:
        preflight.check_before_serving(made)
    return str(caught.value)


def test_serve_starts_on_a_sound_curator(made):
    findings, ledger = preflight.check_before_serving(made)
    assert findings == []
    with ledger:
        assert ledger.verify().ok


def test_serve_refuses_a_home_and_keys_that_others_can_touch(made):
    """Attack: a home of mode 777 with a key of mode 0644 was served."""
    made.path.chmod(0o777)
    made.ledger_key.chmod(0o644)
    refused = serving_refused(made)
    assert "everybody can write" in refused
    assert "ledger.key has mode 0644" in refused


def test_serve_refuses_a_declaration_that_does_not_fit_the_records(made):
    """Attack: a word of `units` was missing; it was served, and every client's Describe failed."""
    wrong = configuration.load(made.path, {"compute.device": "cpu", "records.units": '["mg/dl", "mm"]'})
    with pytest.raises(SettingsError, match=r"records\.units has 2 words; records have shape \(3,\)"):
        CuratorServer(made, wrong)


def test_serve_refuses_an_expired_certificate_and_warns_of_one_that_expires_soon(made, monkeypatch):
    """Attack: an expired certificate was served, and every client saw a handshake that failed."""
    ends = made.authority.read(SERVER_CERTIFICATE).not_valid_after_utc
    for days, refused in ((-10, False), (1, True)):
        at = ends + dt.timedelta(days=days)
        site = dataclasses.replace(preflight._Site(made, {}), now=lambda at=at: at)
        monkeypatch.setattr(preflight, "_Site", lambda *_, site=site: site)
        if refused:
            assert "expires at" in serving_refused(made)
        else:
            (soon,), ledger = preflight.check_before_serving(made)
            ledger.close()
            assert "expires at" in soon.text


def test_serve_refuses_a_clock_behind_the_ledger(made, monkeypatch):
    site = dataclasses.replace(preflight._Site(made, {}), now=lambda: dt.datetime(2020, 1, 1, tzinfo=dt.UTC))
    monkeypatch.setattr(preflight, "_Site", lambda *_: site)
    assert "the ledger ends at" in serving_refused(made)


def approved(made, count):
    """Writes so many entries."""
    with made.open_ledger() as ledger:
        for number in range(count):
            ledger.approve_extractor(f"{number:064x}")


def test_serve_reads_a_ledger_once(made, monkeypatch):
    """A large one was read four times: by two checks, by the verification of one of them, and to serve."""
    approved(made, 40)
    of_steps, parse = [], SignedEntry.parse
    monkeypatch.setattr(store, "_BESIDE_STEPS", "seq > 1e9")  # as if all were of steps, which the books do not read
    monkeypatch.setattr(SignedEntry, "parse", lambda *given: of_steps.append(0) or parse(*given))
    with made.open_ledger(followed=False) as ledger:
        at_least = ledger.head().seq
    of_steps.clear()
    findings, ledger = preflight.check_before_serving(made)
    with ledger:
        assert findings == []
        assert at_least <= len(of_steps) < at_least + 8


def test_serve_refuses_a_ledger_with_a_broken_link(made):
    """One signature is looked at when a curator starts: the chain of hashes vouches for all else."""
    approved(made, 3)
    with contextlib.closing(sqlite3.connect(made.ledger)) as database:
        guards = database.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for name, _ in guards:
            database.execute(f"DROP TRIGGER {name}")
        ((statement,),) = database.execute("SELECT statement FROM entries WHERE seq = 3").fetchall()
        database.execute("UPDATE entries SET statement = ? WHERE seq = 3", (statement.replace(b"0001", b"0002"),))
        for _, sql in guards:
            database.execute(sql)
        database.commit()
    assert "entry 4 (extractor-approved): it does not name the entry before it" in serving_refused(made)


def test_serve_refuses_a_ledger_whose_guards_were_dropped(made):
    """Attack: without its triggers the file lets entries be changed; `verify` said so and `serve` did not ask."""
    with contextlib.closing(sqlite3.connect(made.ledger)) as database:
        database.execute("DROP TRIGGER entries_are_never_changed")
        database.commit()
    assert "entries_are_never_changed" in serving_refused(made)


def test_an_entry_that_is_dated_before_its_predecessor_is_a_finding_and_no_reason_not_to_serve(made):
    """Attack: entries under a clock that was set back verified."""
    key = made.read_ledger_key()
    late, early = (lambda: dt.datetime(2031, 1, 2, tzinfo=dt.UTC)), (lambda: dt.datetime(2031, 1, 1, tzinfo=dt.UTC))
    for clock, digest in ((late, "1" * 64), (early, "2" * 64)):
        with Ledger.open(made.ledger, key=key, clock=clock, witness=made.ledger_witness()) as ledger:
            ledger.approve_extractor(digest)
    with made.open_ledger() as ledger:
        (finding,) = ledger.verify().findings
    assert finding.tampering is Tampering.MISDATED
    assert "before the entry before it" in finding.text
    (outcome,) = (outcome for outcome in preflight.check(made) if outcome.check == "ledger")
    assert outcome.ok
    assert "dated" in outcome.text


def test_the_floor_under_samples_is_reported(made):
    findings = {finding.check: finding.text for finding in preflight.check(made, {"limits.min_batch_size": "2"})}
    assert "samples of 2 records are allowed" in findings["limits"]
