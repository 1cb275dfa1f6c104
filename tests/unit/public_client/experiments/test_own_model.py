"""A network from a file of the team's, weights for it, and a fitted estimator."""

from __future__ import annotations

import sys

import joblib
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from sklearn.tree import DecisionTreeClassifier

from dpswd.public_client.experiments.own_model import network_of, own_model
from dpswd.shared.core.errors import DataInvalid, InvalidValue, SettingsError

CODE = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))

def pair():
    return nn.Linear(3, 4), nn.Linear(4, 2)

made = Net()
needs = lambda size: nn.Linear(size, 2)
number = lambda: 3
"""
RECORDS = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def code(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(CODE)
    return path


@pytest.mark.parametrize("name", ["Net", "pair", "made"])
def test_a_class_a_function_and_a_network_come_in_two_parts(code, name):
    model = own_model(f"{code}:{name}", None, RECORDS)
    assert model.extractor(RECORDS).shape == (20, 4)
    assert model.whole()(RECORDS).shape == (20, 2)


def test_what_was_made_in_the_file_is_not_shared_and_a_changed_file_is_read_again(code):
    one, two = (network_of(f"{code}:made") for _ in range(2))
    assert one is not two
    code.write_text("from torch import nn\nmade = nn.Linear(3, 7)\n")
    assert network_of(f"{code}:made").out_features == 7


def test_a_module_of_the_current_folder_is_taken_and_imports_what_lies_beside_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "nets_beside.py").write_text(CODE)
    (tmp_path / "nets_here.py").write_text("from nets_beside import Net\n")
    assert network_of("nets_here:Net")[2].out_features == 2
    assert network_of("nets_here.py:Net")[2].out_features == 2


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Nett", "has no Nett; it has Net, pair, made, needs, number; did you mean Net?"),
        ("needs", "without arguments that makes one or (extractor, classifier): .*missing 1 required"),
        ("number", "gives a int; needed is a network"),
    ],
)
def test_what_is_wrong_with_a_name_is_said(code, name, message):
    with pytest.raises(SettingsError) as refused:
        network_of(f"{code}:{name}")
    assert all(part in str(refused.value) for part in message.split(".*"))


def test_what_is_wrong_with_files_is_said(code, tmp_path):
    with pytest.raises(SettingsError, match="does not exist"):
        network_of(f"{tmp_path / 'none.py'}:Net")
    with pytest.raises(DataInvalid, match=r"Net takes no records of shape \(5,\)"):
        own_model(f"{code}:Net", None, torch.zeros(4, 5))
    (tmp_path / "net.pb").touch()
    with pytest.raises(SettingsError, match=r"ends in .pb; needed is one of .joblib, .pkl, .onnx, .safetensors"):
        own_model(None, tmp_path / "net.pb", RECORDS)
    (tmp_path / "bad.joblib").write_bytes(b"no")
    with pytest.raises(DataInvalid, match="cannot be loaded"):
        own_model(None, tmp_path / "bad.joblib", RECORDS)
    joblib.dump({"not": "a model"}, tmp_path / "dict.joblib")
    with pytest.raises(InvalidValue, match="a dict cannot be adapted"):
        own_model(None, tmp_path / "dict.joblib", RECORDS)


@pytest.mark.parametrize("ending", [".safetensors", ".pt"])
@pytest.mark.parametrize("name", ["Net", "pair"])
def test_weights_are_put_into_the_network(code, tmp_path, ending, name):
    made = network_of(f"{code}:{name}")
    whole = torch.nn.ModuleDict({"extractor": made[0], "classifier": made[1]}) if name == "pair" else made
    file = tmp_path / f"net{ending}"
    save_file(whole.state_dict(), file) if ending == ".safetensors" else torch.save(whole.state_dict(), file)
    expected = made[1](made[0](RECORDS)) if name == "pair" else made(RECORDS)
    assert torch.equal(own_model(f"{code}:{name}", file, RECORDS).whole()(RECORDS), expected)
    with pytest.raises(SettingsError, match="name the network that they belong to"):
        own_model(None, file, RECORDS)
    with pytest.raises(DataInvalid, match="holds no weights of this network"):
        own_model(f"{code}:{'Net' if name == 'pair' else 'pair'}", file, RECORDS)


def test_a_fitted_tree_says_what_it_says(code, tmp_path):
    labels = (RECORDS.numpy() @ np.array([1.0, -1.0, 0.5]) > 0).astype(int)
    tree = DecisionTreeClassifier(max_depth=3, random_state=0).fit(RECORDS.numpy(), labels)
    joblib.dump(tree, tmp_path / "tree.joblib")
    model = own_model(None, tmp_path / "tree.joblib", RECORDS)
    assert model.whole()(RECORDS).argmax(1).tolist() == tree.predict(RECORDS.numpy()).tolist()
    with pytest.raises(SettingsError, match="is a model by itself"):
        own_model(f"{code}:Net", tmp_path / "tree.joblib", RECORDS)
