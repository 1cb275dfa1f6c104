"""The entry for the registry of deployments: its fields are the published ones, and hold what is known."""

from __future__ import annotations

import copy
import re

import numpy as np
import pytest
import yaml
from charged_home import charged
from declarations import quantiles
from made_home import made_home

from dpswd.private_curator.operator import acts
from dpswd.private_curator.operator.record import Record
from dpswd.private_curator.operator.registry import registry_entry
from dpswd.shared.core.errors import SettingsError

_NAMES, _DAY = "one or more names", "YYYY-MM-DD"
FIELDS = {
    "url_slug": str,
    "status": ("Converted", "Draft", "Pending", "Changes Required", "Approved", "Approved (Update Requested)",
               "Approved (Pending)"),
    "tier": (1, 2, 3),
    "deployment.basic.name": str,
    "deployment.basic.data_curators": _NAMES,
    "deployment.basic.intended_use": str,
    "deployment.basic.data_product_type": ("Summary statistics", "Machine learning model", "Dataset", "Synthetic data",
                                           "Interactive API", "SQL queries"),
    "deployment.basic.data_product_region": str,
    "deployment.basic.description": str,
    "deployment.basic.publication_date": _DAY,
    "deployment.basic.data_product_sector": ("Technology", "Healthcare", "Education", "Government", "Energy",
                                             "Finance"),
    "deployment.dp_variant.variant_name": ("Pure DP", "Approximate DP", "Zero-concentrated DP", "Renyi DP", "Custom"),
    "deployment.dp_variant.data_domain": str,
    "deployment.dp_variant.unprotected_quantities": str,
    "deployment.privacy_loss.privacy_unit": str,
    "deployment.privacy_loss.privacy_unit_details": str,
    "deployment.privacy_loss.privacy_parameters.epsilon": float,
    "deployment.privacy_loss.privacy_parameters.delta": float,
    "deployment.privacy_loss.privacy_parameters_details": str,
    "deployment.deployment_model.model_name": ("Local", "Central", "Shuffle", "Federated", "Varies"),
    "deployment.deployment_model.model_name_details": str,
    "deployment.deployment_model.actors": str,
    "deployment.deployment_model.release_type": ("One release", "Many releases"),
    "deployment.deployment_model.release_type_details": str,
    "deployment.deployment_model.data_source_type": ("Static", "Dynamic"),
    "deployment.deployment_model.data_source_type_details": str,
    "deployment.deployment_model.access_type": ("Interactive", "Non-interactive"),
    "deployment.deployment_model.access_type_details": str,
    "deployment.accounting.post_processing": str,
    "deployment.accounting.composition": str,
    "deployment.implementation.preprocessing_and_hyperparameter_tuning": str,
    "deployment.implementation.mechanisms": str,
    "deployment.implementation.justification": str,
    "deployment.administrative.sources": str,
    "deployment.administrative.notes": str,
    "deployment.administrative.registry_authors": _NAMES,
}  # fmt: skip
"""Of a tier-3 entry, by the registry's schema of 2026-07-15 (opendp/deployments-registry-data at 3e9c812), in our own
words: a type, the values that are allowed, or a form; the registry's ``rho`` is of another variant."""


def leaves_of(value, above=""):
    for name, each in value.items():
        if isinstance(each, dict):
            yield from leaves_of(each, f"{above}{name}.")
        else:
            yield f"{above}{name}", each


def fits(value, allowed):
    if allowed is _NAMES:
        return isinstance(value, list) and bool(value) and all(isinstance(each, str) and each for each in value)
    if allowed is _DAY:
        return isinstance(value, str) and re.fullmatch(r"\d{4}-\d\d-\d\d", value) is not None
    if isinstance(allowed, tuple):
        return value in allowed
    return isinstance(value, allowed) and value != ""


def problems_of(entry):
    """Fields that are missing, unknown, or have another value than they may have."""
    leaves = dict(leaves_of(entry))
    return sorted(
        [f"{name} is missing" for name in FIELDS.keys() - leaves.keys()]
        + [f"{name} is no field" for name in leaves.keys() - FIELDS.keys()]
        + [
            f"{name} is {leaves[name]!r}"
            for name, kind in FIELDS.items()
            if name in leaves and not fits(leaves[name], kind)
        ]
    )


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
    assert problems_of(entry) == []
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
def test_another_entry_would_be_detected(entry, path, value, message):
    changed = copy.deepcopy(entry)
    *above, name = path.split(".")
    place = changed
    for each in above:
        place = place[each]
    place[name] = value
    if value is None:
        del place[name]
    (problem,) = problems_of(changed)
    assert re.search(message, problem)


def test_what_is_missing_is_asked_for(tmp_path):
    bare = made_home(tmp_path, np.zeros((64, 4), np.float32))
    with pytest.raises(SettingsError, match="controller, region, purpose; say it with dpswd-curator report --state"):
        registry_entry(Record(bare))
    for item in ("controller", "region", "purpose"):
        acts.state(bare, item, "x")
    with pytest.raises(SettingsError, match="nothing was released yet"):
        registry_entry(Record(bare))
