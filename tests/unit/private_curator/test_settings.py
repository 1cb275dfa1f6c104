from __future__ import annotations

import re
from pathlib import Path

import pytest

from dpswd.private_curator.settings import tree as settings
from dpswd.shared.configuration import explained, settings_of
from dpswd.shared.core.errors import SettingsError

MINIMAL = '[records]\nfile = "records.npz"\n'


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / settings.SETTINGS_FILE).write_text(MINIMAL)
    return tmp_path


def test_a_minimal_file_gives_documented_defaults(home):
    loaded = settings.load(home)
    assert loaded.listen.host == "127.0.0.1"
    assert loaded.compute.device == "auto"
    assert loaded.extractors.approval == "any"
    assert loaded.records_file == home / "records.npz"


def test_later_sources_win(home, monkeypatch):
    (home / settings.SETTINGS_FILE).write_text(MINIMAL + "[listen]\nport = 1\nhost = '0.0.0.0'\nshutdown_seconds = 3\n")
    monkeypatch.setenv("DPSWD_CURATOR_LISTEN__PORT", "2")
    monkeypatch.setenv("DPSWD_CURATOR_LISTEN__HOST", "::1")
    loaded = settings.load(home, {"listen.port": "3"})
    assert (loaded.listen.port, loaded.listen.host, loaded.listen.shutdown_seconds) == (3, "::1", 3.0)


def test_lists_on_the_command_line(home):
    loaded = settings.load(home, {"records.record_shape": "[1, 28, 28]", "records.scale_to": "[-1, 1]"})
    assert loaded.records.record_shape == (1, 28, 28)
    assert loaded.records.scale_to == (-1.0, 1.0)


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ({"compute.device": "tpu"}, "compute.device"),
        ({"listen.port": "70000"}, "listen.port"),
        ({"records.scale_to": "[1, 0]"}, "records.scale_to"),
        ({"records.scale_to": "[1, "}, "records.scale_to"),
        ({"listen.prot": "1"}, "listen.prot"),
        ({"port": "1"}, "port"),
        ({"limits.max_directions": "1000000"}, "limits.max_directions"),
    ],
)
def test_what_cannot_work_is_refused_by_name(home, override, named):
    with pytest.raises(SettingsError, match=named.replace(".", r"\.")):
        settings.load(home, override)


def test_every_problem_is_named_at_once(home):
    with pytest.raises(SettingsError) as caught:
        settings.load(home, {"compute.device": "tpu", "listen.port": "-1"})
    assert "compute.device" in str(caught.value)
    assert "listen.port" in str(caught.value)


def test_a_missing_home_says_what_to_do(tmp_path):
    with pytest.raises(SettingsError, match="dpswd-curator init"):
        settings.load(tmp_path / "nowhere")


def test_broken_toml_is_a_settings_error(home):
    (home / settings.SETTINGS_FILE).write_text("[records\n")
    with pytest.raises(SettingsError, match="TOML"):
        settings.load(home)


def test_every_setting_is_explained(home):
    rows = settings_of(settings.CuratorSettings)
    assert all(row.description and row.allowed for row in rows)
    assert {"listen.port", "records.file", "limits.max_directions"} <= {row.name for row in rows}
    present = explained(settings.CuratorSettings, settings.load(home))
    assert [row["name"] for row in present] == [row.name for row in rows]
    assert all("value" in row for row in present)
    named = {row.name: row for row in rows}
    assert (named["listen.shutdown_seconds"].unit, named["listen.shutdown_seconds"].allowed) == ("seconds", "0 to 600")
    assert named["listen.port"].environment == "DPSWD_CURATOR_LISTEN__PORT"
    assert named["records.file"].required


def test_every_number_that_counts_something_has_a_unit():
    ports = {"listen.port", "metrics.port", "records.classes"}
    for row in settings_of(settings.CuratorSettings):
        number = re.match(r"[0-9]|at least|at most|more than|auto, or", row.allowed)
        if number and "character" not in row.allowed and row.name not in ports:
            assert row.unit, row.name


def test_a_value_may_stand_in_a_file(home, tmp_path, monkeypatch):
    (tmp_path / "port").write_text("1234\n")
    monkeypatch.setenv("DPSWD_CURATOR_LISTEN__PORT_FILE", str(tmp_path / "port"))
    assert settings.load(home).listen.port == 1234
    monkeypatch.setenv("DPSWD_CURATOR_LISTEN__PORT", "1")
    with pytest.raises(SettingsError, match="leave one out"):
        settings.load(home)
    monkeypatch.delenv("DPSWD_CURATOR_LISTEN__PORT")
    monkeypatch.setenv("DPSWD_CURATOR_LISTEN__PORT_FILE", str(tmp_path / "none"))
    with pytest.raises(SettingsError, match="cannot be read"):
        settings.load(home)


def test_a_setting_whose_name_ends_in_file_is_no_file_with_a_value(home, monkeypatch):
    monkeypatch.setenv("DPSWD_CURATOR_RECORDS__FILE", "other.npy")
    assert settings.load(home).records_file == home / "other.npy"


def test_a_misspelt_variable_is_refused_and_those_of_kubernetes_are_not(home, monkeypatch):
    monkeypatch.setenv("DPSWD_CURATOR_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("DPSWD_CURATOR_PORT_50051_TCP", "tcp://10.0.0.1:50051")
    settings.load(home)
    monkeypatch.setenv("DPSWD_CURATOR_LISTEN__PROT", "1")
    with pytest.raises(SettingsError, match="DPSWD_CURATOR_LISTEN__PROT names no setting"):
        settings.load(home)


def test_lists_in_the_environment_are_json(home, monkeypatch):
    monkeypatch.setenv("DPSWD_CURATOR_RECORDS__RECORD_SHAPE", "[1, 28, 28]")
    assert settings.load(home).records.record_shape == (1, 28, 28)
    monkeypatch.setenv("DPSWD_CURATOR_RECORDS__RECORD_SHAPE", "1,28")
    with pytest.raises(SettingsError, match="record_shape"):
        settings.load(home)


def test_one_underscore_in_the_place_of_two_is_refused_with_the_right_name(home, monkeypatch):
    """Attack on an operator's belief: the page says that misspelt variables are refused, and this one was ignored."""
    monkeypatch.setenv("DPSWD_CURATOR_LISTEN_PORT", "50052")
    with pytest.raises(SettingsError, match="write DPSWD_CURATOR_LISTEN__PORT, with two underscores"):
        settings.load(home)
