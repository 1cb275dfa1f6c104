"""A team's own files: what is read, and refusals that list what is there."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from dpswd.public_client.data.own_files import load_own
from dpswd.shared.core.errors import DataInvalid, SettingsError
from dpswd.shared.records.batches import Reading

CSV = "age,chol,ill\n61,2.5,no\n50,3.5,yes\n43,1.5,no\n39,2.25,yes\n"


@pytest.fixture
def csv(tmp_path):
    path = tmp_path / "own.csv"
    path.write_text(CSV)
    return path


def test_a_tables_columns_and_names_of_labels_are_taken_in_their_order(csv):
    own = load_own(csv, Reading(labels="ill"))
    assert own.data.images.tolist() == [[61, 2.5], [50, 3.5], [43, 1.5], [39, 2.25]]
    assert (own.columns, own.classes, own.data.labels.tolist()) == (("age", "chol"), ("no", "yes"), [0, 1, 0, 1])
    own = load_own(csv, Reading(columns=("chol", "age"), labels="ill"), classes=("yes", "no"))
    assert (own.columns, own.data.images[0].tolist()) == (("chol", "age"), [2.5, 61.0])
    assert own.data.labels.tolist() == [1, 0, 1, 0]


def test_parquet_and_npz_give_the_same(csv, tmp_path):
    expected = load_own(csv, Reading(labels="ill")).data
    columns = {"age": [61, 50, 43, 39], "chol": [2.5, 3.5, 1.5, 2.25], "ill": [0, 1, 0, 1]}
    parquet.write_table(pa.table(columns), tmp_path / "own.parquet")
    x = np.stack([columns["age"], columns["chol"]], axis=1)
    np.savez(tmp_path / "own.npz", x=x, ill=np.array(columns["ill"]))
    for name in ("own.parquet", "own.npz"):
        own = load_own(tmp_path / name, Reading(labels="ill"))
        assert own.data.images.equal(expected.images)
        assert own.data.labels.equal(expected.labels)
        assert own.classes == ()


@pytest.mark.parametrize(
    ("text", "reading", "message"),
    [
        (CSV, Reading(labels="il"), "has no column 'il'; it has 'age', 'chol', 'ill'; did you mean 'ill'?"),
        (CSV, Reading(), "has no column 'label'; it has 'age', 'chol', 'ill'; --label names"),
        (CSV, Reading(labels="age"), "column 'ill' holds text that is no number; correct it, name the columns that"),
        (CSV.replace("no", "0").replace("yes", "2"), Reading(labels="ill"), "labels are 0, 2; needed are 0, 1, ..."),
        (CSV.replace("no", "1").replace("yes", "2"), Reading(labels="ill"), "labels are 1, 2; needed are 0, 1, ..."),
        (CSV.replace("3.5", ""), Reading(labels="ill"), "a cell is empty"),
        (CSV.replace("yes", ""), Reading(labels="ill"), "a label is missing; add it, or drop the record (first at"),
        ("a,b\n1,c\n2,d\n3,e\n", Reading(labels="b"), "3 labels differ in 3 records (c, d, e); are they classes?"),
    ],
)
def test_what_is_wrong_with_a_table_is_said_with_what_is_there(csv, text, reading, message):
    csv.write_text(text)
    with pytest.raises(DataInvalid) as refused:
        load_own(csv, reading)
    assert message in str(refused.value)


def test_names_of_classes_are_held_to_the_labels(csv):
    with pytest.raises(DataInvalid, match="label 'no' is none of the classes ill, yes; found: no, yes"):
        load_own(csv, Reading(labels="ill"), classes=("ill", "yes"))
    csv.write_text(CSV.replace("no", "0").replace("yes", "2"))
    own = load_own(
        csv, Reading(labels="ill"), classes=("a", "b", "c")
    )  # numbers of declared classes, one without records
    assert own.data.labels.tolist() == [0, 2, 0, 2]


def test_an_archive_lists_its_arrays_and_unknown_files_what_is_read(tmp_path):
    np.savez(tmp_path / "own.npz", x=np.zeros((4, 2)), labels=np.arange(4))
    with pytest.raises(DataInvalid, match=r"holds no array 'label'.*; it has 'x', 'labels'; did you mean 'labels'"):
        load_own(tmp_path / "own.npz", Reading(labels="label"))
    with pytest.raises(SettingsError, match=r"ends in \.xlsx; needed is an \.npz .* or a table"):
        (tmp_path / "own.xlsx").touch()
        load_own(tmp_path / "own.xlsx", Reading())


def test_unlabelled_records_are_allowed_where_a_caller_asks_for_them(tmp_path):
    np.savez(tmp_path / "own.npz", x=np.zeros((3, 2)), y=np.array([0, -1, 3]))
    own = load_own(tmp_path / "own.npz", Reading(), unlabelled=True)
    assert own.data.labels.tolist() == [0, -1, 3]
    with pytest.raises(DataInvalid, match="labels are -1, 0, 3"):
        load_own(tmp_path / "own.npz", Reading())
