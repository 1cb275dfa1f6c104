from __future__ import annotations

import numpy as np
import pytest

from dpswd.private_curator.records.labels import LabelsInFile, class_count, class_names, load_labels
from dpswd.private_curator.settings.groups import RecordsSettings
from dpswd.shared.core.errors import DataInvalid, SettingsError
from dpswd.shared.records.problems import RecordsRefused

RECORDS = np.zeros((5, 3), dtype=np.float32)


def _load(path, **fields):
    return load_labels(RecordsSettings(file=path, **fields), home=path.parent, records=5)


def _npz(tmp_path, labels):
    np.savez(tmp_path / "r.npz", x=RECORDS, y=labels)
    return tmp_path / "r.npz"


def test_numbers_are_classes_as_they_stand(tmp_path):
    path = _npz(tmp_path, np.array([0, 2, 1, 2, 0], dtype=np.uint8))
    labels = _load(path, array="x", labels_array="y", classes=3)
    assert labels is not None
    assert labels.dtype == np.int8  # one byte each
    np.testing.assert_array_equal(labels, [0, 2, 1, 2, 0])


def test_names_stand_for_their_places(tmp_path):
    for values in (["b", "a", "b", "b", "c"], [b"b", b"a", b"b", b"b", b"c"]):
        labels = _load(_npz(tmp_path, np.array(values)), array="x", labels_array="y", classes=("a", "b", "c"))
        np.testing.assert_array_equal(labels, [1, 0, 1, 1, 2])


@pytest.mark.parametrize("written", ["{}", "{}.0"])
def test_numbers_of_a_csv_are_classes_by_number_and_by_name(tmp_path, written):
    lines = [f"{i}.5,{written.format(i % 2)}" for i in range(5)]
    (tmp_path / "r.csv").write_text("\n".join(["u,sick", *lines]))
    for classes in (2, ("healthy", "ill")):
        labels = _load(tmp_path / "r.csv", labels_array="sick", classes=classes)
        np.testing.assert_array_equal(labels, [0, 1, 0, 1, 0])
    named = _load(_npz(tmp_path, np.array([0, 1, 1, 0, 1])), array="x", labels_array="y", classes=("healthy", "ill"))
    np.testing.assert_array_equal(named, [0, 1, 1, 0, 1])


def test_a_name_that_is_a_number_is_the_name(tmp_path):
    own = {"array": "x", "labels_array": "y"}
    labels = _load(_npz(tmp_path, np.array([1, 0, 0, 1, 1])), **own, classes=("1", "0"))
    np.testing.assert_array_equal(labels, [0, 1, 1, 0, 0])
    for mixed in (["0", "ill", "0", "1", "1"], ["ill", "0", "0", "1", "1"]):
        with pytest.raises(DataInvalid, match="one of the 2 names"):
            _load(_npz(tmp_path, np.array(mixed)), **own, classes=("healthy", "ill"))


def test_a_table_and_a_separate_file_have_labels_too(tmp_path):
    (tmp_path / "r.csv").write_text("u,sick\n" + "\n".join(f"{i}.5,{'yes' if i % 2 else 'no'}" for i in range(5)))
    labels = _load(tmp_path / "r.csv", labels_array="sick", classes=("no", "yes"))
    np.testing.assert_array_equal(labels, [0, 1, 0, 1, 0])
    np.save(tmp_path / "r.npy", RECORDS)
    np.save(tmp_path / "y.npy", np.array([1, 1, 0, 0, 1]))
    labels = _load(tmp_path / "r.npy", labels_file=tmp_path / "y.npy", classes=2)
    assert isinstance(labels, LabelsInFile)  # they stay there
    np.testing.assert_array_equal(labels[np.array([4, 0, 2])], [1, 1, 0])


def test_without_declared_classes_nothing_is_read(tmp_path):
    settings = RecordsSettings(file=tmp_path / "absent.npz")
    assert load_labels(settings, home=tmp_path, records=5) is None
    assert (class_count(settings), class_names(settings)) == (0, ())


def test_a_record_may_have_no_label_where_the_operator_says_so(tmp_path):
    own = {"array": "x", "labels_array": "y"}
    numbers = np.array([0, -1, 1, 1, -1])
    np.testing.assert_array_equal(_load(_npz(tmp_path, numbers), **own, classes=2, unlabelled="-1"), numbers)
    path = _npz(tmp_path, np.array(["a", "?", "b", "", "?"]))
    with pytest.raises(DataInvalid, match=r"nor '\?' for none \(records\.unlabelled\)"):
        _load(path, **own, classes=("a", "b"), unlabelled="?")
    path = _npz(tmp_path, np.array(["a", "?", "b", "b", "?"]))
    np.testing.assert_array_equal(_load(path, **own, classes=("a", "b"), unlabelled="?"), numbers)
    np.testing.assert_array_equal(_load(path, **own, classes=("a", "b"), unlabelled="?", labelled=3), numbers)
    with pytest.raises(DataInvalid, match=r"says that 4 records have a label, and not so many have one"):
        _load(path, **own, classes=("a", "b"), unlabelled="?", labelled=4)
    with pytest.raises(SettingsError, match=r"set records\.classes and records\.unlabelled"):
        _load(_npz(tmp_path, np.zeros(5, dtype=int)), **own, classes=2, labelled=5)
    for classes, none in ((("a", "b"), "b"), (2, "1")):
        with pytest.raises(SettingsError, match=r"one of records\.classes"):
            _load(path if none == "b" else _npz(tmp_path, numbers), **own, classes=classes, unlabelled=none)


CANARY = 77


@pytest.mark.parametrize(
    ("labels", "classes", "match"),
    [
        (np.array([0, 1, CANARY, 1, 0]), 2, "0 to 1"),
        (np.array([0, 1, -CANARY, 1, 0]), 2, "0 to 1"),
        (np.array([0, 1, 2**63 + CANARY, 1, 0], dtype=np.uint64), 2, "0 to 1"),
        (np.array(["a", "b", f"patient {CANARY}", "a", "a"]), ("a", "b"), "2 names"),
        (np.array(["a", "b", f"patient {CANARY}", "a", "a"]), 2, "name the classes"),
    ],
)
def test_a_label_outside_the_classes_is_refused_and_shown_on_the_terminal_alone(tmp_path, labels, classes, match):
    with pytest.raises(RecordsRefused, match=match) as refused:
        _load(_npz(tmp_path, labels), array="x", labels_array="y", classes=classes)
    assert str(CANARY) not in str(refused.value).replace(str(tmp_path), "")  # pytest numbers its directories
    assert str(CANARY) in refused.value.in_full()


def test_classes_without_labels_are_a_wrong_setting(tmp_path):
    with pytest.raises(SettingsError, match="labels_array"):
        _load(_npz(tmp_path, np.zeros(5, dtype=np.int64)), array="x", classes=2)


@pytest.mark.parametrize("classes", [1, 0, 1001, ("a",), ("a", "a"), ("a", ""), ()])
def test_classes_that_are_none_are_refused(tmp_path, classes):
    with pytest.raises(ValueError, match="classes"):
        RecordsSettings(file=tmp_path / "r.npz", classes=classes)
