"""``evaluate``: how good a model is on a hospital's labelled records, noised and charged."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from public_client.cli.options import connect, curator_options, echo_json, format_option
from shared.errors import SettingsError

if TYPE_CHECKING:
    from public_client.methods.evaluation import EvaluationIds, EvaluationPlan

REQUEST_FILE = "evaluation.json"
REPORT_FILE = "report.json"


@click.command()
@click.argument("model", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@curator_options(required=True)
@click.option("--epsilon", type=float, required=True, help="What the evaluation may cost, alone.")
@click.option("--confusion/--no-confusion", default=True, show_default=True, help="Release the confusion matrix.")
@click.option("--bins", type=int, default=10, show_default=True, help="Of the reliability diagram; 0: none.")
@click.option("--price", is_flag=True, help="Only says what it would release and cost; spends nothing.")
@click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False),
    default=None,
    help="Keeps request, receipts and report; repeated with the same directory, the evaluation is not charged again.",
)
@format_option
def evaluate(
    model: Path,
    address: str,
    credentials: Path,
    epsilon: float,
    confusion: bool,
    bins: int,
    price: bool,
    directory: Path | None,
    output: str,
) -> None:
    """Accuracy, confusion matrix and calibration of MODEL (an adapted model's file) on the hospital's labelled records.

    The figures are noised and charged to the same budgets as trainings. What is printed may be published: everything
    in it is differentially private.
    """
    from public_client.methods import evaluation as private_evaluation
    from public_client.training.saved_model import load_adapted

    loaded = load_adapted(model, device="cpu")
    with connect(address, credentials, run_directory=directory) as curator:
        plan = curator.plan_evaluation(epsilon=epsilon, confusion=confusion, bins=bins)
        if price:
            quoted = private_evaluation.quoted(curator, loaded, plan)
            echo_json(quoted.to_json()) if output == "json" else click.echo(quoted)
            return
        ids = private_evaluation.EvaluationIds.fresh()
        if directory is not None:
            plan, ids = _kept(directory, plan, ids)
        if output == "text":
            click.echo(plan, err=True)
        report = private_evaluation.evaluate(curator, loaded, plan, request_ids=ids)
    if directory is not None:
        (directory / REPORT_FILE).write_text(json.dumps(report.to_json(), indent=1), encoding="utf-8")
    echo_json(report.to_json()) if output == "json" else click.echo(report)


def _kept(directory: Path, plan: EvaluationPlan, ids: EvaluationIds) -> tuple[EvaluationPlan, EvaluationIds]:
    """The evaluation that the directory was begun with, or this one, written before anything is charged.

    Raises:
        SettingsError: the directory holds another evaluation.
    """
    from public_client.methods.evaluation import EvaluationIds
    from shared.protocol.messages import Evaluation

    file = directory / REQUEST_FILE
    wished = {"epsilon": plan.epsilon, "bins": plan.declared.bins, "confusion": plan.declared.confusion_sigma > 0}
    if not file.exists():
        directory.mkdir(parents=True, exist_ok=True)
        values = {"wished": wished, "declared": asdict(plan.declared), "ids": asdict(ids)}
        file.write_text(json.dumps(values, indent=1, sort_keys=True), encoding="utf-8")
        return plan, ids
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        declared, known = Evaluation(**values["declared"]), EvaluationIds(**values["ids"])
    except (ValueError, KeyError, TypeError) as error:
        raise SettingsError(f"{file} cannot be read; choose another --directory") from error
    if values.get("wished") != wished:
        raise SettingsError(
            f"{directory} holds an evaluation with other options ({values.get('wished')}); repeat it with its own, or "
            "choose another --directory"
        )
    return replace(plan, declared=declared), known
