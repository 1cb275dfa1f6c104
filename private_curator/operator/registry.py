"""An entry for the deployments registry of differential privacy (registry.opendp.org), tier 3.

Its fields are the published ones, as the registry's schema of 2026-07-15 has them; a test holds it to them. Where one
wants what only an operator knows, it holds the operator's statement.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from dpswd.private_curator.operator.officer import TEXTS, items, stated
from dpswd.private_curator.operator.record import Record
from dpswd.shared.accounting.persons import promised_to_person
from dpswd.shared.core.errors import SettingsError

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
    return "\n".join(_yaml(_entry(record))) + "\n"


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


def _yaml(value: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    """Lines of YAML; scalars are JSON, which YAML reads as it is."""
    for name, each in value.items():
        if isinstance(each, dict):
            yield f"{indent}{name}:"
            yield from _yaml(each, f"{indent}  ")
        else:
            text = json.dumps(each, ensure_ascii=False)
            yield f"{indent}{name}: {text.replace('e', '.0e') if isinstance(each, float) and '.' not in text else text}"
