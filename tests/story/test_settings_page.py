"""docs/reference/settings.md is made from both parties' trees, and is current."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner

from dpswd.private_curator.cli.main import main
from dpswd.private_curator.settings.tree import CuratorSettings
from dpswd.public_client.settings import ClientSettings
from dpswd.shared.configuration import settings_of

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_is_current():
    made = subprocess.run(
        [sys.executable, "deploy/settings_page.py"],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=True,
        text=True,
    )
    assert (ROOT / "docs" / "reference" / "settings.md").read_text() == made.stdout, "run `make settings-page`"


def test_the_help_of_serve_explains_every_setting():
    shown = re.sub(r"\s+", "", CliRunner().invoke(main, ["serve", "--help"]).output)  # however the lines break
    for setting in settings_of(CuratorSettings):
        assert setting.name in shown
        for fact in (setting.description, setting.unit, setting.allowed, f"default: {setting.default}"):
            assert setting.required or re.sub(r"\s+", "", fact) in shown, (setting.name, fact)


def test_every_setting_of_both_parties_has_its_own_row():
    page = (ROOT / "docs" / "reference" / "settings.md").read_text()
    for tree in (CuratorSettings, ClientSettings):
        for setting in settings_of(tree):
            assert page.count(f"\n| `{setting.name}` |") == 1, setting.name
            assert setting.allowed, setting.name
