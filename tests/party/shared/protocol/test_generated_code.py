"""The checked-in generated code is what the contract generates today, and the contract keeps its style."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from deploy.protocol import generate

ROOT = Path(__file__).resolve().parents[4]
PROTO = ROOT / "proto" / "dpswd" / "curator" / "v1" / "curator.proto"


def test_generated_code_does_not_drift(tmp_path, monkeypatch):
    pytest.importorskip("grpc_tools")
    import sys

    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    generate(tmp_path)
    fresh = sorted((tmp_path / "dpswd/shared/core/wire/v1").iterdir())
    assert len(fresh) == 4
    for file in fresh:
        checked_in = ROOT / "shared/core/wire/v1" / file.name
        assert checked_in.read_text() == file.read_text(), f"run `make proto`: {file.name} is stale"


def test_buf_standard_style():
    """The rules of buf's STANDARD category that this one-file contract can break."""
    text = PROTO.read_text()
    assert re.search(r"^package dpswd\.curator\.v1;$", text, re.MULTILINE)
    assert str(PROTO.parent.relative_to(ROOT / "proto")) == "dpswd/curator/v1"
    assert re.findall(r"^service (\w+)", text, re.MULTILINE) == ["CuratorService"]
    rpcs = re.findall(r"rpc (\w+)\((\w+)\) returns \((\w+)\)", text)
    assert rpcs
    for name, request, response in rpcs:
        assert (request, response) == (f"{name}Request", f"{name}Response")
    for name, body in re.findall(r"enum (\w+) \{(.*?)\}", text, re.DOTALL):
        values = re.findall(r"^\s+(\w+) = (\d+);", body, re.MULTILINE)
        prefix = re.sub(r"(?<!^)(?=[A-Z])", "_", name).upper() + "_"
        assert values[0] == (f"{prefix}UNSPECIFIED", "0")
        assert all(value.startswith(prefix) for value, _ in values)
    for field in re.findall(r"^\s+(?:repeated |optional )?[\w.]+ (\w+) = \d+;", text, re.MULTILINE):
        assert re.fullmatch(r"[a-z][a-z0-9_]*|[A-Z][A-Z0-9_]*", field), field
