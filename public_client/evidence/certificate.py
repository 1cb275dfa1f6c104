"""The certificate of a delivered file: what it follows from, what was proved of that, and what it is good for.

It is canonical JSON, of public values alone. Most of it anybody can make again from the evidence, whose receipts the
hospital signed; for the rest whoever delivers it signs (`signature`).
"""

from __future__ import annotations

import hashlib
import logging
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata, resources
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpswd.public_client.curator.description import Description
from dpswd.public_client.evidence.evidence import Evidence
from dpswd.public_client.evidence.signature import SIGNED, signed
from dpswd.public_client.methods.comparison import Comparison
from dpswd.shared.accounting.persons import promised_to_person
from dpswd.shared.accounting.pricing import filter_for
from dpswd.shared.core.errors import BudgetExhausted, DpswdError, InvalidValue, SettingsError
from dpswd.shared.core.ledger.receipts import sha256
from dpswd.shared.core.privacy.budget import PrivacyBudget
from dpswd.shared.core.privacy.event_json import event_from_json
from dpswd.shared.core.privacy.events import NeighbouringRelation, RunEvent
from dpswd.shared.core.privacy.filter import PrivacyFilter
from dpswd.shared.files import write_public

_log = logging.getLogger(__name__)
FORMAT = "dpswd-certificate-4"
CERTIFICATE_SUFFIX, EVIDENCE_SUFFIX = ".certificate.json", ".evidence"
NOT_MEASURED, NOT_AUDITED = "not measured", "not audited"
CONDITIONS = (
    "Do not try to identify persons with this model.",
    "Epsilon counts the releases that are listed here; others of the same persons add to it.",
    "The guarantee is of the model; what it predicts of a new patient is as private as that patient's record.",
)
_LIBRARIES = ("dpswd", "torch", "numpy", "scipy", "safetensors", "protobuf", "scikit-learn")
_ROOM = 2.0  # of the filter that composes, beyond the sum of the runs' own epsilons


def certificate_of(
    evidence: Evidence, *, model: bytes, comparison: Comparison | None, credentials: Path | None = None
) -> bytes:
    """The certificate of a model or a generator.

    Args:
        evidence: of it.
        model: bytes of its file without a certificate.
        comparison: with the team's own model on the hospital's labels, where there was one.
        credentials: whose key signs; see `signed`.

    Raises:
        InvalidValue: the exchanges hold no description, or a receipt is none.
        SettingsError: the key cannot be read.
    """
    description = described(evidence)
    start = hashlib.sha256()
    for name, tensor in sorted(evidence.weights.items()):
        start.update(name.encode() + tensor.detach().cpu().contiguous().numpy().tobytes())
    content = {
        "format": FORMAT,
        "made_by": evidence.settings["kind"],
        "model": sha256(model),
        "team_model": {"weights": start.hexdigest()}
        | {part: sha256(graph.encode()) for part, graph in evidence.graphs.items()},
        "source": evidence.source,
        "evidence": sha256(evidence.to_bytes()),
        "hospital": {"data_set": description.data_set, "ledger_key": description.ledger_public_key},
        "privacy": _privacy(evidence, description),
        "releases": _releases(evidence),
        "audited": NOT_AUDITED,  # until `audit` attacks its mechanisms
        "gain": gain_of(comparison),
        "conditions": list(CONDITIONS),
        "software": software(str(evidence.settings["device"])),
        "derivable": evidence.settings.get("apart") or "from the evidence and the source",
    }
    return signed(content, credentials)


def certified(
    path: Path, evidence: Evidence, credentials: Path | None, comparison: Comparison | None = None
) -> Callable[[bytes], str]:
    """What makes the certificate of a file's bytes, and writes it and its evidence beside the file.

    Where receipts do not state what was charged, or the key is gone, it makes none, and warns: what was paid for is not
    lost with it.

    Args:
        path: of the file.
        evidence: of it.
        credentials: see `certificate_of`.
        comparison: see `certificate_of`.
    """

    def certify(model: bytes) -> str:
        try:
            certificate = certificate_of(evidence, model=model, comparison=comparison, credentials=credentials)
        except (InvalidValue, SettingsError) as error:
            _log.warning("%s has no certificate: %s", path, error)
            return ""
        write_public(path.with_suffix(CERTIFICATE_SUFFIX), certificate)
        write_public(path.with_suffix(EVIDENCE_SUFFIX), evidence.to_bytes())
        return certificate.decode("ascii")

    return certify


def gain_of(comparison: Comparison | None) -> Any:
    """What a private comparison said of the gain, as JSON has it."""
    if comparison is None:
        return NOT_MEASURED
    gain: dict[str, Any] = {name: getattr(comparison, name) for name in ("error", "winner", "epsilon")}
    return gain | {"accuracies": {name: repr(value) for name, value in comparison.accuracies.items()}}  # NaN is no JSON


def disagreements(certificate: Mapping[str, Any], again: Mapping[str, Any]) -> Iterator[str]:
    """What of a certificate is not as its evidence has it; gain, software and audit are as they stand, and signed.

    Args:
        certificate: as it stands.
        again: made from the evidence.
    """
    ours = {**again, **{name: certificate.get(name) for name in ("gain", "software", "audited", SIGNED)}}
    differing = [name for name in {**ours, **certificate} if ours.get(name) != certificate.get(name)]
    claims, whole = {each["run"]: each["epsilon_alone"] for each in again["releases"]}, again["privacy"]["epsilon"]
    audit = [] if ours["audited"] == NOT_AUDITED else ours["audited"]
    try:
        differing += [] if set(ours["software"]) == set(again["software"]) else ["software"]
        said = [whole if "attack" in row else claims[row["run"]] for row in audit]
        sound = said == [row["claim"] for row in audit] and not any(row.get("refuted") for row in audit)
    except (KeyError, TypeError, AttributeError):
        sound = False
    if differing:
        yield f"the certificate says otherwise than its evidence: {', '.join(differing)}"
    if not sound:
        yield "its audit is of other runs, or of another epsilon than was charged, or refutes it"


def described(evidence: Evidence) -> Description:
    """What the curator said of its data set.

    Raises:
        InvalidValue: nothing.
    """
    for one in evidence.stored():
        if one.method == "Describe":
            return Description.from_message(one.exchange().reply)
    raise InvalidValue("the exchanges hold no description of a data set")


def software(device: str) -> dict[str, str]:
    """What bits depend on, beside the evidence.

    Args:
        device: that was computed on.
    """
    installed = {name: _version(name) for name in _LIBRARIES}
    locked = resources.files("dpswd").joinpath("dependencies.cdx.json").read_bytes()  # versions and digests of all
    return installed | {
        "dependencies": sha256(locked),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "instructions": f"torch {torch.backends.cpu.get_cpu_capability()}, numpy {_numpy_instructions()}",
        "threads": "1",
        "device": device,
        "repeats": "bit for bit" if device == "cpu" else "but for the order of sums: CUDA promises none",
    }


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "none"


def _numpy_instructions() -> str:
    build: Any = np.show_config(mode="dicts")
    return ",".join(build.get("SIMD Extensions", {}).get("found", []))


def _releases(evidence: Evidence) -> list[dict[str, Any]]:
    listed = []
    for run in evidence.runs():
        opening, *answers = run.entries
        replies = [sha256(step.reply.step_release) for step in run.steps]
        each = {"run": run.opening.reply.run_id, "mechanism": run.parameters.mechanism, "receipt": opening.hash}
        each["epsilon_alone"] = opening.payload.get("epsilon")
        each["replies"] = [
            {"reply": reply, "receipt": answer.hash} for reply, answer in zip(replies, answers, strict=True)
        ]
        listed.append(each)
    return listed


def _privacy(evidence: Evidence, description: Description) -> dict[str, Any]:
    """As the receipts state it; composed by the ledger's own accountant."""
    delta, relation = description.data_set_budget.delta, NeighbouringRelation(description.neighbouring_relation)
    openings = [run.entries[0].payload for run in evidence.runs()]
    try:
        events = [event_from_json(str(opening["event"])) for opening in openings]
        alone = sum(float(opening["epsilon"]) for opening in openings)
        asked = float(evidence.settings["epsilon"])
        rooms = (asked, asked + float(evidence.settings["evaluate_epsilon"] or 0.0), _ROOM * alone)
        filters = (filter_for(PrivacyBudget(room, delta, relation), events[0]) for room in rooms)
        epsilon = next(each for each in (composed(own, events) for own in filters) if each is not None)
    except (DpswdError, KeyError, ValueError, IndexError, TypeError, StopIteration) as error:
        raise InvalidValue(f"the receipts do not state what was charged: {error!r}") from error
    count = description.records_per_person
    person = promised_to_person(epsilon, delta, count)
    return {
        "epsilon": epsilon,
        "delta": delta,
        "unit": "one record",
        "person": {"records_at_most": count, "epsilon": person[0], "delta": person[1]},
        "neighbours": relation.value,
        "composition": "of all releases below, by filters of Renyi and Gaussian lanes",
    }


def composed(own: PrivacyFilter, events: Sequence[RunEvent]) -> float | None:
    """Epsilon of runs, one after the other, by a budget's filter; None where that admits them not."""
    spent = own.zero()
    try:
        for event in events:
            spent = own.admit(spent, own.price(event))
    except BudgetExhausted:
        return None
    return own.epsilon(spent)
