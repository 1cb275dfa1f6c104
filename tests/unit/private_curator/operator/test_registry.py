"""The entry for the registry of deployments: its fields are the published ones, and hold what is known."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest
import yaml
from charged_home import charged
from declarations import quantiles
from made_home import made_home

from dpswd.private_curator.operator import acts, registry
from dpswd.private_curator.operator.record import Record
from dpswd.private_curator.operator.registry import registry_entry
from dpswd.shared.core.errors import SettingsError

FIELDS = tomllib.loads((Path(registry.__file__).parent / "registry.toml").read_text(encoding="utf-8"))["fields"]


def leaves_of(value, above=""):
    for name, each in value.items():
        if isinstance(each, dict):
            yield from leaves_of(each, f"{above}{name}.")
        else:
            yield f"{above}{name}", each


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    made = made_home(tmp_path_factory.mktemp("home"), np.zeros((64, 4), np.float32), epsilon=2.0)
    for item, words in (
        ("controller", 'The "North" hospital'),
        ("region", "Norway: GDPR"),
        ("purpose", "a triage model"),
    ):
        acts.state(made, item, words)
    with made.open_ledger() as books:
        charged(books, quantiles(8, 5.0), batch=64, purpose="spring")
    return made


@pytest.fixture(scope="module")
def entry(home):
    return yaml.safe_load(registry_entry(Record(home)))


def test_it_is_yaml_of_tier_3_with_what_the_operator_stated(entry):
    assert list(dict(leaves_of(entry))) == [field["name"] for field in FIELDS]
    basic, loss = entry["deployment"]["basic"], entry["deployment"]["privacy_loss"]
    assert (entry["tier"], entry["status"], basic["data_curators"]) == (3, "Draft", ['The "North" hospital'])
    assert (basic["intended_use"], basic["data_product_region"]) == ("a triage model", "Norway: GDPR")
    assert loss["privacy_parameters"] == {"epsilon": 2.0, "delta": 1e-5}
    assert "The number of records" in entry["deployment"]["dp_variant"]["unprotected_quantities"]
    assert entry["deployment"]["deployment_model"]["release_type"] == "One release"


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("tier", 4, "tier is 4"),
        ("deployment.basic.publication_date", "May 2026", "publication_date is 'May 2026'"),
        ("deployment.basic.data_curators", [], r"data_curators is \[\]"),
        ("deployment.basic.data_product_type", "A model", "data_product_type is"),
        ("deployment.privacy_loss.privacy_parameters.epsilon", "1", "epsilon is '1'"),
        ("deployment.basic.colour", "blue", "deployment.basic.colour is no field"),
        ("deployment.accounting.composition", None, "deployment.accounting.composition is missing"),
    ],
)
def test_another_entry_is_refused(entry, path, value, message):
    flat = dict(leaves_of(entry))
    assert yaml.safe_load(registry.written(flat)) == entry
    changed = flat | {path: value} if value is not None else {name: each for name, each in flat.items() if name != path}
    with pytest.raises(
        SettingsError, match=rf"would not take this entry: \S*{message}[^;]*(; it takes [^;]*)?\. State"
    ):
        registry.written(changed)


def test_what_is_missing_is_asked_for(tmp_path):
    bare = made_home(tmp_path, np.zeros((64, 4), np.float32))
    with pytest.raises(SettingsError, match="controller, region, purpose; say it with dpswd-curator report --state"):
        registry_entry(Record(bare))
    for item in ("controller", "region", "purpose"):
        acts.state(bare, item, "x")
    with pytest.raises(SettingsError, match="nothing was released yet"):
        registry_entry(Record(bare))
