"""autodp answers from a process of its own, which is started again when it ends and refused when it is silent."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dpswd.private_curator.serving import second_accountant
from dpswd.private_curator.serving.second_accountant import SecondAccountant
from dpswd.shared.core.errors import AccountantsDisagree
from dpswd.shared.core.privacy.events import RowProjections, RunEvent, StepEvent

EVENT = RunEvent(StepEvent(7438, 128, (RowProjections(320, 200, 5.0),)), 10)
OTHER = RunEvent(StepEvent(7438, 128, (RowProjections(320, 200, 4.0),)), 10)


@pytest.fixture
def accountant() -> Iterator[SecondAccountant]:
    made = SecondAccountant()
    yield made
    made.close()


@pytest.mark.long
def test_it_checks_in_a_process_without_the_curators_files_and_starts_again(
    accountant: SecondAccountant, tmp_path: Path
) -> None:
    with (tmp_path / "key").open("wb") as key:
        os.set_inheritable(key.fileno(), True)
        assert accountant(EVENT).largest_difference < 1e-6
        process = accountant._process
        assert process is not None
        held = {file.readlink() for file in Path(f"/proc/{process.pid}/fd").iterdir()}
        assert Path(key.name) not in held
    process.kill()
    process.wait()
    assert accountant(OTHER).largest_difference < 1e-6
    assert accountant._process is not process


def test_the_curators_own_process_never_loads_autodp() -> None:
    source = "import sys, dpswd.private_curator.serving.server; sys.exit('autodp' in sys.modules)"
    assert (
        subprocess.run(
            [sys.executable, "-c", source], env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        ).returncode
        == 0
    )


@pytest.mark.parametrize("words", ["", "nonsense", '{"error": "ValueError"}', '{"theorem_27": [1], "theorem_9": [1]}'])
def test_no_figures_refuse_the_run(accountant: SecondAccountant, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = ("/bin/sh", "-c", f"read line; echo '{words}'")
    monkeypatch.setattr(second_accountant, "PROGRAM", program)
    with pytest.raises(AccountantsDisagree, match="second accountant"):
        accountant(EVENT)
