"""A model card says what the certificate says, and a hub can read it."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import yaml
from click.testing import CliRunner
from torch import nn

from dpswd import Hospital, adapt
from dpswd.public_client.cli.main import main
from dpswd.public_client.testing.mock import MockCurator, mock_description
from dpswd.public_client.training.saved_model import save_adapted


def card(path, out):
    done = CliRunner().invoke(main, ["export", str(path), "--card", str(out)])
    assert done.exit_code == 0, (done.output, done.exception)
    _, head, body = out.read_text().split("---\n", 2)
    return yaml.safe_load(head), body


def test_a_certified_models_card(tmp_path):
    generator = np.random.default_rng(0)
    records = generator.normal(size=(2000, 6)).astype(np.float32)
    curator = MockCurator(mock_description(records=2000, record_shape=(6,), epsilon=8.0, delta=1e-5), records=records)
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU()).eval()
    source = torch.randn(300, 6), torch.arange(300) % 3
    path = tmp_path / "adapted.safetensors"
    adapt((body, nn.Linear(8, 3)), source, Hospital(curator), epsilon=2.0, device="cpu", progress=False).save(path)
    certificate = json.loads(path.with_suffix(".certificate.json").read_text())
    head, text = card(path, tmp_path / "README.md")
    privacy = certificate["privacy"]
    assert head["privacy"] == {name: privacy[name] for name in ("epsilon", "delta", "unit", "neighbours")}
    assert "differential-privacy" in head["tags"]
    assert f"**{certificate['hospital']['data_set']}**" in text
    assert f"| releases | {len(certificate['releases'])} |" in text
    assert all(condition in text for condition in certificate["conditions"])
    hub = pytest.importorskip("huggingface_hub.repocard")
    assert hub.ModelCard.load(tmp_path / "README.md").data.to_dict()["privacy"]["epsilon"] == privacy["epsilon"]


def test_a_model_without_a_certificate_says_so(tmp_path):
    path = tmp_path / "a.safetensors"
    plan = {"epsilon": 0.5, "delta": 1e-5}
    save_adapted(path, extractor=nn.Tanh(), classifier=nn.Linear(4, 2), record_shape=(4,), plan=plan)
    head, text = card(path, tmp_path / "README.md")
    assert "privacy" not in head
    assert "The file has no certificate: no signed receipt states what it cost. Its plan says epsilon 0.5." in text
