"""An entry for the deployments registry of differential privacy (registry.opendp.org), tier 3.

Its fields are the published ones (``registry.toml``), and an entry that is not of them is refused. Where one wants what
only an operator knows, it holds the operator's statement.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from dpswd.private_curator.operator.officer import TEXTS, items, stated
from dpswd.private_curator.operator.record import Record
from dpswd.private_curator.operator.rendering import texts
from dpswd.shared.accounting.persons import promised_to_person
from dpswd.shared.core.errors import SettingsError

_NEEDED = ("controller", "region", "purpose")
_FIELDS: Mapping[str, Any] = {each["name"]: each for each in texts("registry.toml")["fields"]}
_FORMS: Mapping[str, Callable[[Any], bool]] = {
    "text": lambda value: isinstance(value, str) and value != "",
    "number": lambda value: isinstance(value, float),
    "day": lambda value: isinstance(value, str) and re.fullmatch(r"\d{4}-\d\d-\d\d", value) is not None,
    "names": lambda value: isinstance(value, list) and bool(value) and all(map(_FORMS["text"], value)),
}
"""What a field takes, where it is not one of some values."""


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
    return written(_entry(record))


def written(entry: Mapping[str, Any]) -> str:
    """An entry, by its fields' names with dots, as YAML.

    Raises:
        SettingsError: a field is missing, unknown, or has another value than it may have.
    """
    wrong = [f"{name} is missing" for name in _FIELDS if name not in entry]
    wrong += [f"{name} is no field" for name in entry if name not in _FIELDS]
    for name, field in _FIELDS.items():
        takes = field["takes"]
        if name in entry and not (entry[name] in takes if isinstance(takes, list) else _FORMS[takes](entry[name])):
            wrong.append(f"{name} is {entry[name]!r}; it takes {takes}")
    if wrong:
        raise SettingsError(
            f"the registry would not take this entry: {'; '.join(wrong)}. State anew what is an operator's, or write "
            "it by hand"
        )
    return "\n".join(_yaml(entry)) + "\n"


def _entry(record: Record) -> dict[str, Any]:
    seen, k = record.overview, record.overview.records_per_person
    epsilon, delta = promised_to_person(seen.epsilon, seen.delta, k)
    said = {item.title: " ".join(answer.text for answer in item.answers if answer.source) for item in items(record)}
    own = {name: stated(record, name).text.partition(": ")[2] for name in _NEEDED}
    mechanisms = [f"Gaussian noise on: {', '.join(sorted({run.mechanism for run in record.runs}))}."]
    mechanisms += [said[one] for one in ("Floating point", "Times", "Randomness", "Vulnerabilities and versions")]
    entry = {name: field["says"] for name, field in _FIELDS.items() if "says" in field}
    entry |= {name: said[field["item"]] for name, field in _FIELDS.items() if "item" in field}
    return entry | {
        "url_slug": re.sub(r"[^a-z0-9]+", "_", seen.name.lower()).strip("_") or "data_set",
        "deployment.basic.name": seen.name,
        "deployment.basic.data_curators": [own["controller"]],
        "deployment.basic.intended_use": own["purpose"],
        "deployment.basic.data_product_region": own["region"],
        "deployment.basic.publication_date": record.runs[0].opened[:10],
        "deployment.dp_variant.data_domain": f"All data sets of {seen.records} records of the declared form.",
        "deployment.dp_variant.unprotected_quantities": "; ".join(
            f"{each['name']}: {each['why']}" for each in TEXTS["unprotected"]
        ),
        "deployment.privacy_loss.privacy_parameters.epsilon": epsilon,
        "deployment.privacy_loss.privacy_parameters.delta": delta,
        "deployment.deployment_model.release_type": "Many releases" if seen.steps_charged > 1 else "One release",
        "deployment.implementation.mechanisms": " ".join(mechanisms),
        "deployment.administrative.registry_authors": [record.home.operator],
    }


def _yaml(entry: Mapping[str, Any]) -> Iterator[str]:
    """Lines of YAML, in the fields' order; scalars are JSON, which YAML reads as it is."""
    above: list[str] = []
    for path in _FIELDS:
        *folders, name = path.split(".")
        for depth, folder in enumerate(folders):
            if above[: depth + 1] != folders[: depth + 1]:
                yield f"{'  ' * depth}{folder}:"
        above = folders
        each = entry[path]
        text = json.dumps(each, ensure_ascii=False)
        text = text.replace("e", ".0e") if isinstance(each, float) and "." not in text else text
        yield f"{'  ' * len(folders)}{name}: {text}"
