from __future__ import annotations

from pathlib import Path

import pytest

from private_curator import settings
from shared.errors import SettingsError

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


def test_every_setting_is_described(home):
    rows = settings.describe(settings.load(home))
    assert all(row["description"] for row in rows)
    assert {"listen.port", "records.file", "limits.max_directions"} <= {row["name"] for row in rows}
