"""The page about publishing, typed as written by an operator and a team who share no network."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # under importlib mode a test directory is no package

from pages import ROOT, Command, Meanwhile, Shell, steps

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(900)]

OPERATOR = ROOT / "docs" / "operator"
ALONE = "unshare -rn "
"""A network namespace without interfaces, not even a loopback that is up."""


def no_network() -> bool:
    """Whether a process can be started where there is no network."""
    return subprocess.run([*ALONE.split(), "true"], capture_output=True, check=False).returncode == 0


def test_the_page(tmp_path):
    hospital, team = Shell(tmp_path / "hospital-site", port=0), Shell(tmp_path / "team-site", port=0)

    def carry(name: str, there: str, *, to_team: bool) -> None:
        source, target = (hospital, team) if to_team else (team, hospital)
        shutil.copy(source.directory / name, target.directory / there)

    meanwhile = {
        "hospital.json and the key go to the team": [
            ("hospital.json", "hospital.json", True), ("for-spring/ledger.pub", "ledger.pub", True)
        ],
        "the proposal goes to the hospital": [("proposal.dpswd", "proposal.dpswd", False)],
        "the release goes to the team": [("spring.dpswd", "spring.dpswd", True)],
    }  # fmt: skip
    closed = no_network()
    for heading in ("1. The records", "2. The budget"):
        for step in steps(OPERATOR / "first-hour.md", heading):
            hospital.do(step, {}, where="first-hour.md")
    for step in steps(OPERATOR / "publish.md"):
        if isinstance(step, Meanwhile):
            for name, there, to_team in meanwhile.pop(step.name):
                carry(name, there, to_team=to_team)
            continue
        assert isinstance(step, Command)
        of_team = step.line.startswith("dpswd-client")
        if closed:
            step.line = ALONE + step.line
        (team if of_team else hospital).do(step, {}, where="publish.md")
    assert not meanwhile
    shown = hospital.do(Command("dpswd-curator budget --format json"), {}, where="test")
    status = json.loads(shown)
    assert (status["runs"], status["steps_used"]) == (1, 1)
    assert 0.9 < status["epsilon_spent"] <= 1.01
    assert not (hospital.directory / "hospital" / "address").exists()  # nothing ever listened
    assert (team.directory / "adapted.safetensors").stat().st_size > 10_000
    if not closed:
        pytest.skip("ALL OF IT WORKED, BUT NOT WITHOUT A NETWORK: this machine allows no network namespace")
