"""Adapted models go out as ONNX and torch.export, and predict the same there; other files are not written."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from click.testing import CliRunner
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[2] / "shared" / "extractor"))  # no package under importlib mode

from test_networks import IMAGES, TEXTS, made

from dpswd.public_client.cli.main import main
from dpswd.public_client.tools import programs
from dpswd.public_client.training.saved_model import load_adapted, save_adapted
from dpswd.shared.core.errors import InvalidValue


def saved(path, extractor, records):
    torch.manual_seed(1)
    head = nn.Linear(extractor(records).shape[1], 3)
    plan = {"epsilon": 1.0, "delta": 1e-5}
    save_adapted(path, extractor=extractor, classifier=head, record_shape=tuple(records.shape[1:]), plan=plan)
    return path


def small():
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten())
    return body.eval(), torch.randn(5, 1, 6, 6)


def export(*words, code=0):
    done = CliRunner().invoke(main, ["export", *map(str, words)])
    assert done.exit_code == code, (done.output, done.exception)
    return done.output


@pytest.mark.long
def test_both_programs_predict_the_same_for_any_number_of_records(tmp_path):
    path = saved(tmp_path / "a.safetensors", *small())
    export(path, "--onnx", tmp_path / "a.onnx", "--program", tmp_path / "a.pt2")
    model, session = load_adapted(path, device="cpu"), onnxruntime.InferenceSession(tmp_path / "a.onnx")
    program = torch.export.load(tmp_path / "a.pt2").module()
    for count in (1, 4, 300):
        records = 3 * torch.randn(count, 1, 6, 6)
        expected = model.scores(records)
        torch.testing.assert_close(program(records), expected, rtol=1e-4, atol=1e-5)
        (scores,) = session.run(["scores"], {"records": records.numpy()})
        np.testing.assert_allclose(scores, expected.numpy(), rtol=1e-4, atol=1e-5)
        assert (scores.argmax(axis=1) == model.predict(records).numpy()).all()
    facts = {each.key: each.value for each in onnx.load(tmp_path / "a.onnx").metadata_props}
    assert (facts["dpswd.epsilon"], facts["dpswd.delta"]) == ("1.0", "1e-05")
    assert len(facts["dpswd.model"]) == 64


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    ["bert", *(pytest.param(each, marks=pytest.mark.exhaustive) for each in ("convnext", "beit", "swin", "text cnn"))],
)
def test_networks_of_libraries_go_out(tmp_path, name):
    assert name in IMAGES | TEXTS
    model = load_adapted(saved(tmp_path / "a.safetensors", *made(name)), device="cpu")
    program = programs.program_of(model)
    assert programs.onnx_bytes(model, program, {})


@pytest.mark.long
def test_what_computes_otherwise_is_not_written(tmp_path, monkeypatch):
    path = saved(tmp_path / "a.safetensors", *small())
    model = load_adapted(path, device="cpu")
    program = programs.program_of(model)
    other = load_adapted(saved(tmp_path / "b.safetensors", small()[0], 2 * small()[1]), device="cpu")
    other.classifier.weights["bias"].add_(0.1)
    with pytest.raises(InvalidValue, match=r"onnxruntime computes other scores, by 0\.1"):
        programs.onnx_bytes(other, program, {})
    monkeypatch.setattr(programs, "_SAME", -1.0)
    assert "nothing was written" in export(path, "--program", tmp_path / "a.pt2", code=9)
    assert not (tmp_path / "a.pt2").exists()


def test_what_cannot_be_exported(tmp_path):
    path = saved(tmp_path / "a.safetensors", *small())
    assert "name what to write" in export(path, code=3)
    assert "exists and is not overwritten" in export(path, "--card", path, code=3)
    (tmp_path / "b.safetensors").write_bytes(b"x")
    assert "is not a safetensors file" in export(tmp_path / "b.safetensors", "--card", tmp_path / "c.md", code=4)
