"""The README and the guides say what the programs do: their commands exist, the README's session runs as written."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
import torch

from private_curator.cli import main as curator_cli
from public_client.cli import main as client_cli
from public_client.data.datasets import load_task
from public_client.data.networks import digits_network
from public_client.data.source import source_loader
from public_client.testing.local_hospital import RehearsalHospital
from public_client.training.saved_model import load_adapted

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "operator").glob("*.md")),
    ROOT / "deploy" / "kubernetes" / "README.md",
]
PROGRAMS: dict[str, click.Group] = {"dpswd-curator": curator_cli, "dpswd-client": client_cli}


def commands() -> list[tuple[str, str]]:
    """(page, command line) for every ``$ dpswd-...`` line, continuation lines joined."""
    found = []
    for page in PAGES:
        text = page.read_text().replace("\\\n", " ")
        found += [
            (page.name, line) for line in re.findall(r"^\s*\$ (dpswd-(?:curator|client) [^#\n]*)", text, re.MULTILINE)
        ]
    return found


@pytest.mark.parametrize(("page", "line"), commands())
def test_a_documented_command_exists_with_its_options(page: str, line: str) -> None:
    program, *words = shlex.split(line)
    command: click.Command = PROGRAMS[program]
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name = words.pop(0)
        inner = command.get_command(click.Context(command), name)
        assert inner is not None, f"{page}: {program} has no command {name!r}"
        command = inner
    options = {name for parameter in command.params for name in parameter.opts} | {"--help", "-h", "--version"}
    for word in words:
        if word.startswith("-"):
            assert word.split("=")[0] in options, f"{page}: {line!r}: there is no option {word}"


def test_pages_that_are_linked_are_there() -> None:
    for page in [*PAGES, *sorted((ROOT / "docs").glob("*/*.md"))]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} links to {target}"


def test_the_calibration_of_the_readme_prints_the_published_row() -> None:
    line = next(line for page, line in commands() if page == "README.md" and " calibrate " in line)
    done = subprocess.run(
        [sys.executable, "-m", "public_client.cli.main", *shlex.split(line)[1:]],
        capture_output=True,
        check=True,
        text=True,
    )
    assert json.loads(done.stdout)["sigma"] == pytest.approx(1.25, abs=0.005)  # M-U, d = 320, epsilon 10, Theorem 27


@pytest.mark.end_to_end
def test_the_session_of_the_readme_runs_as_written(tmp_path, monkeypatch) -> None:
    (session,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    task = load_task("digits")
    torch.manual_seed(0)
    extractor, classifier = digits_network(task.image_shape)
    monkeypatch.chdir(tmp_path)
    with RehearsalHospital(task.target.images.numpy(), epsilon=1.0, delta=1e-5, device="cpu") as hospital:
        assert "localhost:50051" in session
        session = session.replace("localhost:50051", hospital.address)
        (tmp_path / "client").symlink_to(hospital.credentials)
        given = {
            "extractor": extractor,
            "classifier": classifier,
            "source_loader": source_loader(task.source, batch_size=64),
        }
        exec(compile(session, "README.md", "exec"), given)
        assert hospital.budget()["epsilon_spent"] == pytest.approx(1.0, rel=1e-3)
    adapted = load_adapted(tmp_path / "adapted.safetensors")
    assert adapted is not None
