"""A person's number among the values is noticed, and one record a person is kept on request."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from private_curator.cli.main import main
from private_curator.records.persons import person_columns

ROWS = {"patient_id": [7, 3, 7, 9, 3], "age": [50, 61, 51, 20, 62], "sick": [0, 1, 1, 0, 1]}


def run(*arguments, status=0):
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == status, (result.output, result.exception)
    return result.output


@pytest.mark.parametrize("kind", ["csv", "parquet", "text"])
def test_the_first_record_of_each_person_is_kept(tmp_path, kind):
    rows = ROWS | ({"patient_id": ["g", "c", "g", "i", "c"]} if kind == "text" else {})
    path = tmp_path / ("r.parquet" if kind == "parquet" else "r.csv")
    if kind == "parquet":
        pq.write_table(pa.table(rows), path)
    else:
        lines = [",".join(map(str, row)) for row in zip(*rows.values(), strict=True)]
        path.write_text("\n".join([",".join(rows), *lines]))
    told = run(
        "records", "convert", path, "--out", tmp_path / "r.npy", "--person", "patient_id", "--labels-array", "sick"
    )
    assert np.load(tmp_path / "r.npy").tolist() == [[50.0], [61.0], [20.0]]
    assert np.load(tmp_path / "r.labels.npy").tolist() == [0, 1, 0]
    assert "left out" in told


def test_a_persons_number_among_the_values_is_noticed(tmp_path):
    path = tmp_path / "r.csv"
    lines = [",".join(map(str, row)) for row in zip(*ROWS.values(), strict=True)]
    path.write_text("\n".join([",".join(ROWS), *lines]))
    home = tmp_path / "home"
    for told in (
        run("records", "inspect", path),
        run("init", "--home", home, "--records", path, "--epsilon", 1, "--delta", 1e-5),
    ):
        words = " ".join(told.split())
        assert "for records, not persons" in words
        assert "records convert --person patient_id" in words
    assert "not persons" not in run("records", "inspect", path, "--columns", "age,sick")


def test_what_cannot_be_grouped(tmp_path):
    np.save(tmp_path / "r.npy", np.zeros((4, 2), np.float32))
    assert "column of a table" in run(
        "records", "convert", tmp_path / "r.npy", "--out", tmp_path / "o.npy", "--person", "x", status=4
    )


@pytest.mark.parametrize(
    ("name", "is_one"),
    [("patient_id", True), ("PatientNr", True), ("subject", True), ("study-participant-no", True), ("MRN", True),
     ("age", False), ("person_count", False), ("impatient", False), ("pathology", False), ("rapid", False)],
)  # fmt: skip
def test_names_of_persons_columns(name, is_one):
    assert person_columns([name]) == ([name] if is_one else [])
