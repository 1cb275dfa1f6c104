"""A person's number among the values is noticed, and one record a person is kept on request."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from dpswd.private_curator.cli.main import main
from dpswd.private_curator.records.persons import person_columns
from dpswd.public_client.curator.description import Description
from dpswd.shared.accounting.persons import allowed_for_record

ROWS = {"patient_id": [7, 3, 7, 9, 3], "age": [50, 61, 51, 20, 62], "sick": [0, 1, 1, 0, 1]}


def run(*arguments, status=0):
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == status, (result.output, result.exception)
    return result.output


@pytest.mark.parametrize("kind", ["csv", "parquet", "text"])
def test_the_first_record_of_each_person_stays(tmp_path, kind):
    rows = ROWS | ({"patient_id": ["g", "c", "g", "i", "c"]} if kind == "text" else {})
    path = tmp_path / ("r.parquet" if kind == "parquet" else "r.csv")
    if kind == "parquet":
        pq.write_table(pa.table(rows), path)
    else:
        lines = [",".join(map(str, row)) for row in zip(*rows.values(), strict=True)]
        path.write_text("\n".join([",".join(rows), *lines]))
    text = run(
        "records", "convert", path, "--out", tmp_path / "r.npy", "--person", "patient_id", "--labels-array", "sick"
    )
    assert np.load(tmp_path / "r.npy").tolist() == [[50.0], [61.0], [20.0]]
    assert np.load(tmp_path / "r.labels.npy").tolist() == [0, 1, 0]
    assert "left out" in text


def test_a_persons_number_among_the_values_is_noticed(tmp_path):
    path = tmp_path / "r.csv"
    lines = [",".join(map(str, row)) for row in zip(*ROWS.values(), strict=True)]
    path.write_text("\n".join([",".join(ROWS), *lines]))
    home = tmp_path / "home"
    for text in (
        run("records", "inspect", path),
        run("init", "--home", home, "--records", path, "--epsilon", 1, "--delta", 1e-5),
    ):
        words = " ".join(text.split())
        assert "for records, not persons" in words
        assert "records convert --person patient_id" in words
    assert "not persons" not in run("records", "inspect", path, "--columns", "age,sick")


def test_up_to_k_records_of_a_person_stay_and_are_priced_together(tmp_path):
    """The operator states what a person is promised; the ledger counts records, each with as much less."""
    path, home = tmp_path / "r.csv", tmp_path / "home"
    rows = ROWS | {"patient_id": [7, 7, 7, 9, 3], "age": [50, 61, 51, 20, 62]}
    path.write_text("\n".join([",".join(rows), *(",".join(map(str, row)) for row in zip(*rows.values(), strict=True))]))
    text = run("records", "convert", path, "--out", tmp_path / "r.npy", "--person", "patient_id", "--most", 2)
    assert np.load(tmp_path / "r.npy").tolist() == [[50.0, 0.0], [61.0, 1.0], [20.0, 0.0], [62.0, 1.0]]
    assert "init --records-per-person 2" in " ".join(text.split())
    # The bound that was asked for, whatever the data hold: k is public.
    text = run("records", "convert", path, "--out", tmp_path / "r4.npy", "--person", "patient_id", "--most", 4)
    assert len(np.load(tmp_path / "r4.npy")) == 5
    assert "init --records-per-person 4" in " ".join(text.split())
    own = ("--records", tmp_path / "r.npy", "--delta", 1e-5, "--records-per-person")
    run("init", "--home", home, *own, 2, "--epsilon", 1, "--name", "visits")
    each, its_delta = allowed_for_record(1.0, 1e-5, 2)

    def shown() -> dict:
        return json.loads(run("budget", "--home", home, "--format", "json"))

    now = shown()
    assert (now["records_per_person"], now["epsilon"], now["delta"]) == (2, each, its_delta)
    promise = " ".join(run("budget", "--home", home).split())
    assert "had any one person, with up to 2 of these records, been another one" in promise
    assert "(epsilon 1, delta 1e-05; all other figures count records, each of epsilon 0.5, delta 3.775e-06)" in promise
    # What is stated afterwards is a person's too: more than double has to be typed out, and a record gets half of it.
    state = ("--home", home, "--reason", "a second study")
    assert "epsilon 2.2 lets what is concluded" in run("budget", "--extend", 2.2, *state, status=3)
    run("budget", "--extend", 1.2, *state)
    assert shown()["epsilon"] == pytest.approx(0.6)
    assert shown()["delta"] == its_delta
    run("budget", "--lower", 0.8, *state)
    assert shown()["epsilon"] == pytest.approx(0.4)
    # So is what team and board are told.
    run("add", "spring", "--home", home, "--out", tmp_path / "spring")
    run("describe", "--home", home, "--client", "spring", "--out", tmp_path / "hospital.json")
    described = Description.from_json(json.loads((tmp_path / "hospital.json").read_text()))
    assert "one has at most 2 of the records" in str(described)
    assert "promises a person epsilon 0.8 at delta" in str(described)
    words = run("init", "--home", tmp_path / "h", *own, 1001, "--epsilon", 1, status=9)
    assert "a person has 1 to 1000 records" in words
    assert "above 10: hardly a promise" in run("init", "--home", tmp_path / "h", *own, 5, "--epsilon", 11, status=3)
    assert "name the column" in run("records", "convert", path, "--out", tmp_path / "o.npy", "--most", 2, status=3)


def test_columns_of_text_beside_the_records_are_no_hindrance(tmp_path):
    """Classes in words, and a column that --columns leaves out."""
    path = tmp_path / "r.csv"
    path.write_text("patient,age,bp,ward,dx\np1,50,80,east,yes\np2,61,90,west,\np1,51,81,east,no\np3,20,70,east,no\n")
    values = ("--person", "patient", "--columns", "age,bp")
    declared = ("--labels-array", "dx", "--classes", "yes,no", "--unlabelled", "unknown")
    text = run("records", "convert", path, "--out", tmp_path / "r.npy", *values, *declared)
    assert np.load(tmp_path / "r.npy").tolist() == [[50.0, 80.0], [61.0, 90.0], [20.0, 70.0]]
    assert np.load(tmp_path / "r.labels.npy").tolist() == [0, -1, 1]
    assert json.loads((tmp_path / "r.classes.json").read_text()) == ["yes", "no"]
    assert "init --unlabelled -1" in " ".join(text.split())
    run("records", "convert", path, "--out", tmp_path / "unlabelled.npy", *values)
    assert np.load(tmp_path / "unlabelled.npy").tolist() == np.load(tmp_path / "r.npy").tolist()
    path.write_text(path.read_text().replace("p2", ""))
    refused = run("records", "convert", path, "--out", tmp_path / "o.npy", *values, *declared, status=4)
    assert "a record names no person" in " ".join(refused.split())  # not all of them one, nor one called unknown


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
