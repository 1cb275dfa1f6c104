"""The README's and the guide's session runs as written."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import torch
from torch import nn

from dpswd.public_client.data.datasets import Labelled, load_task
from dpswd.public_client.data.source import source_loader, train_source
from dpswd.public_client.testing.local_hospital import LocalHospital
from dpswd.public_client.training.saved_model import load_adapted

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
GUIDE = ROOT / "docs" / "ml-team" / "guide.md"


def session_of(page: Path) -> str:
    """The first Python block of a page."""
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)[0]


def test_the_guides_session_is_the_readmes() -> None:
    """But for its comments; so running one of them is enough."""
    assert ast.dump(ast.parse(session_of(GUIDE))) == ast.dump(ast.parse(session_of(README)))


def test_the_session_runs_as_written_and_prints_what_the_readme_shows(tmp_path, monkeypatch, capsys) -> None:
    session = session_of(README)
    # As a table, of 16 columns: what the session does with images is typed at a shell in `test_operator_pages`, at ten
    # times the cost, and which of 64 columns moved alone took 15 seconds to find out.
    task = load_task("digits")
    torch.manual_seed(0)
    source, target = (nn.functional.avg_pool2d(own.images, 2).flatten(1) for own in (task.source, task.target))
    extractor, classifier = nn.Sequential(nn.Linear(16, 16), nn.Tanh()), nn.Linear(16, 10)
    monkeypatch.chdir(tmp_path)
    with LocalHospital(target.numpy(), epsilon=1.0, delta=1e-5, name="ward", device="cpu") as hospital:
        assert "localhost:50051" in session
        session = session.replace("localhost:50051", hospital.address)
        (tmp_path / "client").symlink_to(hospital.credentials)
        loader = source_loader(Labelled(source, task.source.labels), batch_size=64)
        train_source(extractor, classifier, loader, epochs=5, progress=False)
        given = {"model": nn.Sequential(extractor, classifier), "source_loader": loader}
        exec(compile(session, README.name, "exec"), given)
        assert 0.0 < hospital.budget()["epsilon_spent"] <= 1.0
    adapted = load_adapted(tmp_path / "adapted.safetensors")
    assert adapted is not None
    plan, answer = re.findall(r"```text\n(.*?)\n```", README.read_text(), re.DOTALL)[0].split("Your model")
    printed_plan, printed_answer = capsys.readouterr().out.split("Your model")
    assert re.fullmatch(re.escape(plan).replace(r"\.\.\.", ".*"), printed_plan, re.DOTALL), printed_plan
    # What it says at the end depends on the hospital's noise.
    assert [text.startswith((" was changed for ward: ", " is kept for ward")) for text in (answer, printed_answer)] == [
        True,
        True,
    ]
