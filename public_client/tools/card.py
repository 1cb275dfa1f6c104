"""A Hugging Face model card (README.md) of an adapted model: what its certificate says, in its own figures."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import yaml
from safetensors import safe_open

from dpswd.public_client.evidence.certificate import CONDITIONS
from dpswd.shared.core.errors import rounded
from dpswd.shared.models.adapted import CERTIFICATE, AdaptedModel


def certificate_in(path: Path) -> dict[str, Any] | None:
    """The certificate that an adapted model's file holds, if it has one."""
    with safe_open(path, framework="pt") as file:
        text = (file.metadata() or {}).get(CERTIFICATE)
    return None if text is None else json.loads(text)


def facts_of(path: Path, model: AdaptedModel) -> dict[str, str]:
    """What an export says of the file that it was made of."""
    certificate = certificate_in(path)
    facts = {"dpswd.model": hashlib.sha256(path.read_bytes()).hexdigest()}
    privacy = (certificate or {}).get(
        "privacy", {"epsilon": model.plan.get("epsilon"), "delta": model.plan.get("delta")}
    )
    return facts | {f"dpswd.{name}": str(privacy[name]) for name in ("epsilon", "delta")}


def card_of(path: Path, model: AdaptedModel) -> str:
    """The card of the model at a path: a YAML head that hubs read, and what a reader should know."""
    certificate, facts = certificate_in(path), facts_of(path, model)
    tags = ["differential-privacy", "domain-adaptation", "dpswd"]
    head: dict[str, Any] = {"library_name": "dpswd", "tags": tags}
    sizes = " x ".join(map(str, model.record_shape))
    text = f"Takes records of {sizes} float32 numbers, gives scores of {model.classes} classes. "
    rows: dict[str, object] = {}
    if certificate is None:
        text += "The file has no certificate: no signed receipt states what it cost. "
        text += f"Its plan says epsilon {model.plan.get('epsilon')}."
    else:
        privacy, gain, audited = (certificate[name] for name in ("privacy", "gain", "audited"))
        person, data_set = privacy["person"], certificate["hospital"]["data_set"]
        head["privacy"] = {name: privacy[name] for name in ("epsilon", "delta", "unit", "neighbours")}
        text += f"Adapted to the records of **{data_set}** by differentially private releases alone."
        rows = {
            f"{privacy['unit']}, neighbours by {privacy['neighbours']}": _pair(privacy),
            f"a person with at most {person['records_at_most']} of them": _pair(person),
            "releases": len(certificate["releases"]),
            "audited": audited if isinstance(audited, str) else f"{len(audited)} attacks",
            "gain": gain if isinstance(gain, str) else json.dumps(gain, sort_keys=True),
        }
    parts = [
        f"# {path.stem}", text, "## Privacy" if rows else "",
        "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())]) if rows else "",
        "## Conditions", "\n".join(f"- {each}" for each in (certificate or {}).get("conditions", CONDITIONS)),
        "## Check it", f"    dpswd-client check {path.name} --key ledger.pub",
        f"SHA-256 of `{path.name}`: `{facts['dpswd.model']}`. Its certificate is inside, the evidence lies beside it.",
    ]  # fmt: skip
    return f"---\n{yaml.safe_dump(head, sort_keys=False)}---\n\n" + "\n\n".join(filter(None, parts)) + "\n"


def _pair(privacy: dict[str, Any]) -> str:
    return f"epsilon {rounded(privacy['epsilon'], up=True)}, delta {privacy['delta']:.4g}"
