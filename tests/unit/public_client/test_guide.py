"""What the page of methods shows runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

from dpswd import Hospital
from dpswd.public_client.testing.mock import MockCurator, mock_description
from dpswd.public_client.training.saved_model import load_adapted
from dpswd.shared.core.errors import RunFinished

GUIDE = Path(__file__).parents[3] / "docs" / "ml-team" / "methods.md"


def snippet(section):
    part = GUIDE.read_text(encoding="utf-8").split(f"\n## {section}\n")[1].split("\n## ")[0]
    return re.search(r"```python\n(.*?)```", part, re.DOTALL)[1]


def test_the_session_with_a_labelled_hospital(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    description = mock_description(records=600, record_shape=(6,), epsilon=3.0, delta=1e-5, classes=3)
    hospital = Hospital(MockCurator(description))
    source = torch.utils.data.TensorDataset(torch.randn(96, 6), torch.arange(96) % 3)
    names = {
        "hospital": hospital,
        "extractor": nn.Sequential(nn.Linear(6, 5), nn.Tanh()),
        "classifier": nn.Linear(5, 3),
        "source_loader": torch.utils.data.DataLoader(source, batch_size=32),
        "records": torch.randn(4, 6),
    }
    exec(compile(snippet("Labelled hospitals"), str(GUIDE), "exec"), names)
    assert len(hospital.curator.charges) == 1
    assert load_adapted("labelled.safetensors", device="cpu").classes == 3


def test_the_loop_of_ones_own():
    torch.manual_seed(0)
    extractor, classifier = nn.Sequential(nn.Linear(6, 5), nn.Tanh()), nn.Linear(5, 3)
    hospital = Hospital(MockCurator(mock_description(records=600, record_shape=(6,), epsilon=3.0, delta=1e-5)))
    code = snippet("In your own loop")
    assert "steps=200" in code
    code = code.replace("steps=200", "steps=5")
    before = [value.clone() for value in extractor.parameters()]
    names = {
        "hospital": hospital,
        "extractor": extractor,
        "classifier": classifier,
        "source_loader": [(torch.randn(32, 6), torch.randint(3, (32,))) for _ in range(2)],
        "optimizer": torch.optim.Adam([*extractor.parameters(), *classifier.parameters()]),
    }
    exec(compile(code, str(GUIDE), "exec"), names)
    assert len(hospital.curator.charges) == 1
    assert any(not torch.equal(old, new) for old, new in zip(before, extractor.parameters(), strict=True))
    with pytest.raises(RunFinished):
        names["run"].loss(names["source_features"].detach())
