"""An evaluation that is charged once, however often its command is repeated: a directory holds what a repeat needs."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dpswd.public_client.adaptation.hospital import Hospital
from dpswd.public_client.methods.evaluation import Evaluate, quoted_for
from dpswd.public_client.methods.evaluation_report import Report
from dpswd.public_client.plans.plan import Plan
from dpswd.public_client.training.run import RequestIds
from dpswd.shared.core.errors import SettingsError
from dpswd.shared.files import write_public

REQUEST_FILE = "evaluation.json"
REPORT_FILE = "report.json"


def begun_or_new(directory: Path | None, hospital: Hospital, model: Any, plan: Plan) -> tuple[Plan, RequestIds]:
    """The evaluation that a directory was begun with; else a new one, written there before anything is charged.

    Raises:
        SettingsError: the directory holds another evaluation.
    """
    if directory is not None and (directory / REQUEST_FILE).exists():
        return _begun(directory, plan)
    plan, ids = quoted_for(hospital.curator, model, plan)[0], RequestIds()
    if directory is not None:
        directory.mkdir(parents=True, exist_ok=True)
        values = {"plan": plan.to_json(), "ids": asdict(ids)}
        write_public(directory / REQUEST_FILE, json.dumps(values, indent=1, sort_keys=True).encode())
    return plan, ids


def write_report(directory: Path | None, report: Report, **more: Any) -> None:
    """Keeps what came of it, whole or not at all."""
    if directory is not None:
        write_public(directory / REPORT_FILE, json.dumps(report.to_json() | more, indent=1).encode())


def _begun(directory: Path, plan: Plan) -> tuple[Plan, RequestIds]:
    file = directory / REQUEST_FILE
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        begun, ids = Plan.from_json(values["plan"], method=Evaluate), RequestIds(**values["ids"])
    except (ValueError, KeyError, TypeError) as error:
        raise SettingsError(f"{file} cannot be read; choose another --directory") from error
    if (begun.method, begun.epsilon) != (plan.method, plan.epsilon):
        raise SettingsError(
            f"{directory} holds an evaluation with other options (epsilon {begun.epsilon}, {begun.method}); repeat it "
            "with its own, or choose another --directory"
        )
    return begun, ids
