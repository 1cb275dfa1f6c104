"""An entry for the deployments registry of differential privacy (registry.opendp.org), tier 3.

`FIELDS` are the registry's published fields as its schema of 2026-07-15 has them (opendp/deployments-registry-data at
3e9c812), in our own words; its whole text is in no release of ours. Where a field wants what only an operator knows, it
holds the operator's statement.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from dpswd.private_curator.operator.officer import TEXTS, items, stated
from dpswd.private_curator.operator.record import Record
from dpswd.shared.accounting.persons import promised_to_person
from dpswd.shared.core.errors import DataInvalid, SettingsError

_NAMES, _DAY = "one or more names", "YYYY-MM-DD"
FIELDS: Mapping[str, object] = {
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
"""Of a tier-3 entry: a type, the values that are allowed, or a form; the registry's ``rho`` is of another variant."""

_NEEDED = ("controller", "region", "purpose")


def registry_entry(record: Record) -> str:
    """The entry as YAML, a draft for the operator to read before anybody else does.

    Raises:
        SettingsError: nothing was released yet, or what tier 1 asks for is not stated.
    """
    missing = [each for each in _NEEDED if not stated(record, each).source]
    if missing:
        raise SettingsError(
            f"the registry asks for what nobody has stated: {', '.join(missing)}; say it with dpswd-curator report "
            "--state ITEM WORDS"
        )
    if not record.runs:
        raise SettingsError("nothing was released yet, so there is no deployment to register; run it after a release")
    entry = _entry(record)
    check_entry(entry)
    return "\n".join(_yaml(entry)) + "\n"


def check_entry(entry: Mapping[str, Any]) -> None:
    """Holds an entry to `FIELDS`.

    Raises:
        DataInvalid: a field is missing, unknown, or has another value than it may have.
    """
    leaves = dict(_leaves(entry))
    problems = [f"{name} is missing" for name in FIELDS.keys() - leaves.keys()]
    problems += [f"{name} is no field" for name in leaves.keys() - FIELDS.keys()]
    for name, allowed in FIELDS.items():
        value = leaves.get(name)
        if name in leaves and not _fits(value, allowed):
            problems.append(f"{name} is {value!r}")
    if problems:
        raise DataInvalid(f"the entry is none of the registry's: {'; '.join(sorted(problems))}")


def _fits(value: object, allowed: object) -> bool:
    if allowed is _NAMES:
        return isinstance(value, list) and bool(value) and all(isinstance(each, str) and each for each in value)
    if allowed is _DAY:
        return isinstance(value, str) and re.fullmatch(r"\d{4}-\d\d-\d\d", value) is not None
    if isinstance(allowed, tuple):
        return value in allowed
    assert isinstance(allowed, type)
    return isinstance(value, allowed) and value != ""


def _entry(record: Record) -> dict[str, Any]:
    seen, k = record.overview, record.overview.records_per_person
    epsilon, delta = promised_to_person(seen.epsilon, seen.delta, k)
    said = {item.title: " ".join(answer.text for answer in item.answers if answer.source) for item in items(record)}
    own = {name: stated(record, name).text.partition(": ")[2] for name in _NEEDED}
    many = "Many releases" if seen.steps_charged > 1 else "One release"
    interactive = "Teams with certificates that the operator has signed ask; all share one budget and may collude."
    return {
        "url_slug": re.sub(r"[^a-z0-9]+", "_", seen.name.lower()).strip("_") or "data_set",
        "status": "Draft",
        "tier": 3,
        "deployment": {
            "basic": {
                "name": seen.name,
                "data_curators": [own["controller"]],
                "intended_use": own["purpose"],
                "data_product_type": "Machine learning model",
                "data_product_region": own["region"],
                "description": "Noised statistics of records, from which teams adapt or train models (dpswd).",
                "publication_date": record.runs[0].opened[:10],
                "data_product_sector": "Healthcare",
            },
            "dp_variant": {
                "variant_name": "Approximate DP",
                "data_domain": f"All data sets of {seen.records} records of the declared form.",
                "unprotected_quantities": "; ".join(f"{each['name']}: {each['why']}" for each in TEXTS["unprotected"]),
            },
            "privacy_loss": {
                "privacy_unit": said["Unit of privacy"],
                "privacy_unit_details": said["Neighbouring data sets"],
                "privacy_parameters": {"epsilon": epsilon, "delta": delta},
                "privacy_parameters_details": said["Privacy parameters"],
            },
            "deployment_model": {
                "model_name": "Central",
                "model_name_details": "One curator at the hospital; what leaves it is noised before.",
                "actors": said["Trust model"],
                "release_type": many,
                "release_type_details": said["Renewals, and a person who stays"],
                "data_source_type": "Static",
                "data_source_type_details": "Other values than at first are refused until the operator accepts them.",
                "access_type": "Interactive",
                "access_type_details": interactive,
            },
            "accounting": {
                "post_processing": said["Post-processing"],
                "composition": said["Composition, second accountant"],
            },
            "implementation": {
                "preprocessing_and_hyperparameter_tuning": "Ranges and classes are declared by the operator, not taken "
                "from the data; what a team tunes by replies is charged.",
                "mechanisms": " ".join(
                    [f"Gaussian noise on: {', '.join(sorted({run.mechanism for run in record.runs}))}."]
                    + [
                        said[title]
                        for title in ("Floating point", "Times", "Randomness", "Vulnerabilities and versions")
                    ]
                ),
                "justification": said["Proofs"],
            },
            "administrative": {
                "sources": "https://registry.opendp.org",
                "notes": said["Audit"],
                "registry_authors": [record.home.operator],
            },
        },
    }


def _leaves(value: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, each in value.items():
        if isinstance(each, dict):
            yield from _leaves(each, f"{above}{name}.")
        else:
            yield f"{above}{name}", each


def _yaml(value: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    """Lines of YAML; scalars are JSON, which YAML reads as it is."""
    for name, each in value.items():
        if isinstance(each, dict):
            yield f"{indent}{name}:"
            yield from _yaml(each, f"{indent}  ")
        else:
            text = json.dumps(each, ensure_ascii=False)
            yield f"{indent}{name}: {text.replace('e', '.0e') if isinstance(each, float) and '.' not in text else text}"
