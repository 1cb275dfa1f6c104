"""A team's table is brought to the order of a hospital's columns and classes, or refused with what is lacking."""

from __future__ import annotations

import pytest

from dpswd.public_client.experiments.file import read_experiment
from dpswd.public_client.experiments.start import aligned, declared, load_data, require_alike
from dpswd.public_client.testing.mock import mock_description
from dpswd.shared.core.errors import DataInvalid, SettingsError
from dpswd.shared.protocol.contract import DataContract


@pytest.fixture
def keys(tmp_path):
    (tmp_path / "own.csv").write_text("age,id,chol,ill\n61,7,2.5,no\n50,8,3.5,yes\n43,9,1.5,no\n39,4,2.0,yes\n")
    (tmp_path / "other.csv").write_text("ill,chol,id,age\nyes,1.0,5,2.0\nno,3.0,6,4.0\nyes,1.0,5,2.0\nno,3.0,6,4.0\n")
    return {"data.source": tmp_path / "own.csv", "data.label": "ill", "data.target": tmp_path / "other.csv"}


def described(columns, classes=("yes", "no")):
    contract = DataContract(column_names=columns, class_names=classes)
    description = mock_description(
        records=50, record_shape=(len(columns),), epsilon=1.0, delta=1e-5, classes=2, contract=contract
    )
    return {"": description}


def test_columns_and_classes_come_in_the_hospitals_order(keys):
    experiment = read_experiment(None, keys)
    task = load_data(experiment)
    assert task.target.images[:2].tolist() == [[2.0, 5.0, 1.0], [4.0, 6.0, 3.0]]  # as the source's columns
    assert (task.source.labels.tolist(), task.target.labels.tolist()) == ([0, 1, 0, 1], [1, 0, 1, 0])
    hospital = described(("chol", "age"))
    task = aligned(experiment, task, hospital)
    assert task.source.images[:2].tolist() == [[2.5, 61.0], [3.5, 50.0]]
    assert task.target.images[:2].tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert (task.source.labels.tolist(), task.target.labels.tolist()) == ([1, 0, 1, 0], [0, 1, 0, 1])
    own = declared(experiment, task)
    assert (own.column_names, own.class_names) == (("chol", "age"), ("yes", "no"))
    require_alike(experiment, task, hospital)


def test_what_the_experiment_names_stays_and_is_held_against_the_hospital(keys):
    experiment = read_experiment(None, keys | {"data.columns": ["age", "chol"], "contract.class_names": ["no", "yes"]})
    task = aligned(experiment, load_data(experiment), described(("chol", "age")))
    assert task.columns == ("age", "chol")
    with pytest.raises(DataInvalid, match=r"first 'age' for 'chol' .*first 'no' for 'yes'"):
        require_alike(experiment, task, described(("chol", "age")))


def test_a_trained_model_has_an_order_of_its_own_which_is_compared(keys, tmp_path):
    experiment = read_experiment(
        None, keys | {"network.model": tmp_path / "forest.joblib", "data.columns": ["chol", "age"]}
    )
    task = aligned(experiment, load_data(experiment), described(("chol", "age")))
    assert task.source.labels.tolist() == [0, 1, 0, 1]
    with pytest.raises(DataInvalid, match="class_names differ"):
        require_alike(experiment, task, described(("chol", "age")))


def test_another_shape_is_refused_with_the_columns_that_are_lacking(keys):
    experiment = read_experiment(None, keys)
    hospital = described(("chol", "age", "sex", "pressure"))
    task = aligned(experiment, load_data(experiment), hospital)
    with pytest.raises(DataInvalid, match=r"lacking are .*\['sex', 'pressure'\], and not the hospital's are \['id'\]"):
        require_alike(experiment, task, hospital)


def test_a_source_alone_is_refused_with_where_a_hospital_comes_from(keys):
    del keys["data.target"]
    with pytest.raises(SettingsError, match="needs a hospital: --curator, or --release; for a rehearsal give --target"):
        load_data(read_experiment(None, keys))
