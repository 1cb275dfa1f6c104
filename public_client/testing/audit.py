"""Attacks on the releases that a delivered file was made of: each mechanism's lower bound, beside what was charged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors.torch import load

from dpswd.public_client.evidence.certificate import CERTIFICATE_SUFFIX, described
from dpswd.public_client.evidence.evidence import Evidence
from dpswd.public_client.evidence.signature import signed, signer_of
from dpswd.public_client.testing.canaries import CANARIES, CERTAIN, CONFIDENCE, DESIGNS, one_run, rounded_down
from dpswd.shared.accounting.calibration import epsilon as epsilon_of
from dpswd.shared.core.ledger.receipts import sha256
from dpswd.shared.core.privacy.event_json import event_from_json
from dpswd.shared.files import write_public
from dpswd.shared.models.adapted import CERTIFICATE
from dpswd.shared.models.model_file import metadata_of, model_bytes

_LEAST, _MOST = 0.01, 10.0  # epsilon of the release that is attacked


def audited(evidence: Evidence) -> list[dict[str, Any]]:
    """What canaries prove of each run's mechanism, at its own noise; the same evidence gives the same figures.

    Args:
        evidence: of a file, checked.

    Returns:
        Of each run what was charged for it alone, lower bounds at `CONFIDENCE` by the mechanism's law and whatever it
        is, and whether one of them refutes the claim; no bounds where there are no canaries for it. A sampled run is
        attacked with all records in the batch.
    """
    delta, seed = described(evidence).data_set_budget.delta, int(sha256(evidence.to_bytes())[:15], 16)
    rows = []
    for number, run in enumerate(evidence.runs()):
        name, payload = run.parameters.mechanism, run.entries[0].payload
        claim = float(payload["epsilon"])
        row: dict[str, Any] = {"run": run.opening.reply.run_id, "mechanism": name, "claim": claim}
        if name in DESIGNS:
            event = event_from_json(str(payload["event"]))
            whole = replace(event, step=replace(event.step, batch=event.step.records), steps=1)
            alone = min(max(epsilon_of(whole, delta), _LEAST), _MOST)
            reply = one_run(name, epsilon=alone, delta=delta, seed=seed + number)
            least, surely = (
                (reply.least(event, delta, confidence), reply.guessed(delta, confidence))
                for confidence in (CONFIDENCE, CERTAIN)
            )
            row |= {"lower_bound": rounded_down(least[0]), "whatever_it_is": rounded_down(least[1])}
            row |= {"confidence": CONFIDENCE, "canaries": CANARIES, "refuted": max(surely) > claim}
        rows.append(row)
    return rows


def write_audit(
    path: Path, certificate: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], credentials: Path | None = None
) -> None:
    """Writes an audit into a file's certificate: beside it and inside; all else stays, and it is signed again.

    Args:
        path: of the model or the generator.
        certificate: as it stands there.
        rows: see `audited` and `attacked`.
        credentials: of whoever signed it; where nobody did, nobody does.
    """
    signer = None if signer_of(certificate) is None else credentials
    content = signed({**certificate, "audited": list(rows)}, signer)
    data = path.read_bytes()
    metadata = metadata_of(data) | {CERTIFICATE: content.decode("ascii")}
    write_public(path, model_bytes(load(data), metadata))
    write_public(path.with_suffix(CERTIFICATE_SUFFIX), content)


def with_earlier(before: Any, rows: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], bool]:
    """Rows with those that stood there of what was not attacked now, and whether one that was said otherwise.

    Args:
        before: what stands in the certificate.
        rows: see `audited` and `attacked`.
    """
    stood = before if isinstance(before, list) else []
    now = {_subject(row): row for row in rows}
    otherwise = any(_figures(row) != _figures(now[_subject(row)]) for row in stood if _subject(row) in now)
    return [*rows, *(row for row in stood if _subject(row) not in now)], otherwise


def _subject(row: Mapping[str, Any]) -> tuple[Any, Any]:
    return row.get("run"), row.get("attack")


def _figures(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in ("seconds", "day")}


def in_words(row: Mapping[str, Any]) -> str:
    """One run's line, or that of an attack on the file."""
    if "attack" in row:
        law = f"{row['lower_bound']:.3g} by a Gaussian's law, " if "lower_bound" in row else ""
        tail = f"{row['whatever_it_is']:.3g} whatever it is{'; REFUTED' if row['refuted'] else ''}"
        of = f"{3 * row['trials']} files of stand-ins ({row['stand_in']}) prove {law}{tail}"
        return f"{row['attack']} in the file: epsilon {row['claim']:.3g} claimed; {of}"
    claim = f"{row['mechanism']}: epsilon {row['claim']:.3g} charged"
    if "lower_bound" not in row:
        return f"{claim}, not audited: no canaries are made for it"
    proved = (
        f"{row['canaries']} canaries prove {row['lower_bound']:.3g} by its law, {row['whatever_it_is']:.3g} whatever"
    )
    return f"{claim}; {proved} it is{'; REFUTED' if row['refuted'] else ''}"
