"""docs/operator/records.md and docs/reference/settings.md: every command runs as written, in the page's order."""

from __future__ import annotations

import hashlib
import re
import shlex
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from onnx import ModelProto, TensorProto

from dpswd.private_curator.cli.main import main as curator
from dpswd.private_curator.operator import preflight
from dpswd.public_client.cli.main import main as client

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = {"dpswd-curator": curator, "dpswd-client": client}
OMOP = {
    "person": "person_id,year_of_birth,gender_concept_id\n1,1950,8507\n2,1960,8532\n",
    "measurement": "measurement_id,person_id,measurement_concept_id,measurement_date,value_as_number,unit_concept_id\n"
    "1,1,3004249,2020-01-01,120,8876\n2,2,3004249,2020-01-01,130,8876\n",
    "condition_occurrence": "person_id,condition_concept_id\n2,201826\n",
}


def commands(page: str) -> list[str]:
    return re.findall(r"^    \$ (dpswd-(?:curator|client) [^#\n]*)", (ROOT / "docs" / page).read_text(), re.MULTILINE)


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder with patients, as the pages call them."""
    generator = np.random.default_rng(1)
    columns = {name: generator.normal(size=40) for name in ("age", "pressure", "sugar")}
    table = pa.table(columns | {"diagnosis": generator.choice(["well", "ill"], size=40)})
    pq.write_table(table, tmp_path / "patients.parquet")
    pc.write_csv(table, tmp_path / "patients.csv")
    (tmp_path / "omop").mkdir()
    for name, text in OMOP.items():
        (tmp_path / "omop" / f"{name}.csv").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPSWD_CURATOR_LISTEN__PORT", "0")  # another test may listen on the default one
    monkeypatch.delitem(preflight.CHECKS, "extraction worker")  # takes seconds; tested beside the worker
    return tmp_path


def run(line: str, status: int = 0) -> str:
    program, *words = shlex.split(line)
    result = CliRunner().invoke(PROGRAMS[program], words)
    assert result.exit_code == status, (line, result.output, result.exception)
    return result.output


def backbone(folder: Path) -> str:
    """Scans with labels, and an ONNX model of them; its digest."""
    np.save(folder / "scans.npy", np.arange(60, dtype=np.uint8).reshape(10, 6))
    np.save(folder / "scans.labels.npy", np.arange(10) % 2)
    model = ModelProto(ir_version=8, opset_import=[{"domain": "", "version": 13}])
    model.graph.name = "backbone"
    raw = np.eye(6, dtype=np.float32)
    model.graph.initializer.add(name="W", dims=raw.shape, data_type=TensorProto.FLOAT, raw_data=raw.tobytes())
    for values, name in ((model.graph.input, "x"), (model.graph.output, "f")):
        sizes = [{"dim_param": "n"}, {"dim_value": 6}]
        values.add(name=name, type={"tensor_type": {"elem_type": TensorProto.FLOAT, "shape": {"dim": sizes}}})
    model.graph.node.add(op_type="MatMul", input=["x", "W"], output=["f"])
    (folder / "backbone.onnx").write_bytes(model.SerializeToString())
    return hashlib.sha256(model.SerializeToString()).hexdigest()


def test_the_commands_about_records(site):
    lines = commands("operator/records.md")
    assert {shlex.split(line)[1] for line in lines} == {"records", "init"}
    digest = backbone(site)
    pytest.importorskip("onnxruntime")
    for line in lines:
        shown = line.startswith("dpswd-curator records embed") and "--approve" not in line
        run(re.sub(r"--approve \w+", f"--approve {digest[:16]}", line), status=9 if shown else 0)
    (of_systems,) = commands("reference/sources.md")
    assert "omop.notes.json" in run(of_systems)
    assert (site / "patients.classes.json").read_text() == '["ill", "well"]\n'


def test_the_commands_about_settings(site, monkeypatch):
    monkeypatch.setenv("DPSWD_CURATOR_HOME", "hospital")
    made = "--records patients.parquet --labels-array diagnosis --epsilon 1 --delta 1e-5"
    run(f"dpswd-curator init {made}")
    lines = commands("reference/settings.md")
    assert len(lines) == 3
    for line in lines:
        assert run(line)
