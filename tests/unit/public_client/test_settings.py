from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from dpswd.public_client import settings
from dpswd.public_client.cli.main import main
from dpswd.shared.configuration import settings_of
from dpswd.shared.core.errors import SettingsError


@pytest.fixture(autouse=True)
def nowhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("DPSWD_CLIENT_SETTINGS", "DPSWD_CLIENT_CURATOR__ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_without_a_file_there_are_documented_defaults():
    loaded = settings.load()
    assert (loaded.curator.address, loaded.connection.timeout_seconds) == (None, 120.0)
    assert all(row.description and row.allowed for row in settings_of(settings.ClientSettings))


def test_later_sources_win(nowhere, monkeypatch):
    (nowhere / "dpswd-client.toml").write_text(
        '[curator]\naddress = "a:1"\nserver_name = "n"\n[connection]\ntimeout_seconds = 5\n'
    )
    monkeypatch.setenv("DPSWD_CLIENT_CURATOR__ADDRESS", "b:2")
    loaded = settings.load({"connection.timeout_seconds": "7"})
    assert (loaded.curator.address, loaded.curator.server_name, loaded.connection.timeout_seconds) == ("b:2", "n", 7)


def test_a_file_may_be_named_and_must_then_be_there(nowhere, monkeypatch):
    monkeypatch.setenv("DPSWD_CLIENT_SETTINGS", str(nowhere / "other.toml"))
    with pytest.raises(SettingsError, match="does not exist"):
        settings.load()
    (nowhere / "other.toml").write_text('[curator]\naddress = "a:1"\n')
    assert settings.load().curator.address == "a:1"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('[curator]\naddress = "nowhere"\n', r"curator\.address"),
        ("[connection]\ntimeout_seconds = 0\n", r"connection\.timeout_seconds"),
        ("[conection]\n", "conection"),
        ("[curator\n", "TOML"),
        (b"\xff\xfe", "cannot be read|TOML"),
    ],
)
def test_what_cannot_work_is_refused_by_name(nowhere, text, named):
    (nowhere / "dpswd-client.toml").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(SettingsError, match=named):
        settings.load()


def test_commands_take_the_curator_from_the_settings_and_the_command_line_wins(nowhere, monkeypatch):
    missing = CliRunner().invoke(main, ["describe"])
    assert missing.exit_code == 2
    assert "--curator" in missing.output
    (nowhere / "dpswd-client.toml").write_text('[curator]\naddress = "settings.invalid:1"\ncredentials = "here"\n')
    refused = CliRunner().invoke(main, ["describe"])
    assert refused.exit_code == 3  # the credentials directory is not there
    assert "here" in refused.output
    overridden = CliRunner().invoke(main, ["describe", "--credentials", "there"])
    assert "there" in overridden.output


def test_the_command_shows_values_and_explains_them(nowhere):
    (nowhere / "dpswd-client.toml").write_text('[curator]\naddress = "a:1"\n')
    rows = {row["name"]: row for row in json.loads(CliRunner().invoke(main, ["settings", "--format", "json"]).output)}
    assert rows["curator.address"]["value"] == "a:1"
    assert rows["connection.timeout_seconds"]["unit"] == "seconds"
    assert rows["connection.timeout_seconds"]["environment"] == "DPSWD_CLIENT_CONNECTION__TIMEOUT_SECONDS"
    shown = CliRunner().invoke(main, ["settings"]).output
    assert all(name in shown for name in rows)
