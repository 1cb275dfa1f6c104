"""``evaluate``: how good a model is on a hospital's labelled records, noised and charged."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dpswd.public_client.cli.options import DIRECTORY, EXIT_DOES_NOT_FIT, connect, curator_options, format_option, tell
from dpswd.shared.core.errors import SettingsError, rounded

if TYPE_CHECKING:
    from dpswd.public_client.plans.plan import Plan
    from dpswd.public_client.training.run import RequestIds

REQUEST_FILE = "evaluation.json"
REPORT_FILE = "report.json"


@click.command()
@click.argument("model", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@curator_options
@click.option("--epsilon", type=float, required=True, help="What the evaluation may cost, alone.")
@click.option("--confusion/--no-confusion", default=True, show_default=True, help="Release the confusion matrix.")
@click.option("--bins", type=int, default=10, show_default=True, help="Of the reliability diagram; 0: none.")
@click.option("--purpose", default="", help="Why, in one line; it stands in the hospital's ledger and in the receipt.")
@click.option("--price", is_flag=True, help="Only says what it would release and cost; spends nothing.")
@click.option(
    "--directory",
    type=DIRECTORY,
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
    purpose: str,
    price: bool,
    directory: Path | None,
    output: str,
) -> None:
    """Accuracy, confusion matrix and calibration of MODEL (an adapted model's file) on the hospital's labelled records.

    The figures are noised and charged to the same budgets as trainings. What is printed may be published: everything
    in it is differentially private.
    """
    from dpswd.public_client.methods.evaluation import Evaluate, accuracy_error, quoted_for
    from dpswd.public_client.methods.evaluation import evaluate as evaluated
    from dpswd.public_client.training.run import RequestIds
    from dpswd.public_client.training.saved_model import load_adapted

    loaded = load_adapted(model, device="cpu")
    method = Evaluate(confusion=confusion, bins=bins)
    with connect(address, credentials, run_directory=directory, purpose=purpose) as hospital:
        plan = hospital.plan_evaluation(method, epsilon=epsilon)
        if price:
            plan, quote = quoted_for(hospital.curator, loaded, plan)
            costs = {"accuracy_error": accuracy_error(plan), "quote": {"epsilon": quote.epsilon, "fits": quote.fits}}
            counted = f"  {'ledger':<9} counts epsilon {rounded(quote.epsilon, up=True)} alone"
            tell(output, plan.to_json() | costs, f"{plan}\n{counted}")
            if not quote.fits:
                raise click.exceptions.Exit(EXIT_DOES_NOT_FIT)
            return
        begun = None if directory is None else _begun(directory, plan)
        if begun is None:
            plan, ids = quoted_for(hospital.curator, loaded, plan)[0], RequestIds()
            if directory is not None:
                _keep(directory, plan, ids)
        else:
            plan, ids = begun
        if output == "text":
            click.echo(plan, err=True)
        report = evaluated(hospital.curator, loaded, plan, request_ids=ids)
    if directory is not None:
        (directory / REPORT_FILE).write_text(json.dumps(report.to_json(), indent=1), encoding="utf-8")
    tell(output, report.to_json(), report)


def _begun(directory: Path, plan: Plan) -> tuple[Plan, RequestIds] | None:
    """The evaluation that the directory was begun with; None where there is none.

    Raises:
        SettingsError: the directory holds another evaluation.
    """
    from dpswd.public_client.methods.evaluation import Evaluate
    from dpswd.public_client.plans.plan import Plan
    from dpswd.public_client.training.run import RequestIds

    file = directory / REQUEST_FILE
    if not file.exists():
        return None
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


def _keep(directory: Path, plan: Plan, ids: RequestIds) -> None:
    """Writes what a repeat needs, before anything is charged."""
    directory.mkdir(parents=True, exist_ok=True)
    values = {"plan": plan.to_json(), "ids": asdict(ids)}
    (directory / REQUEST_FILE).write_text(json.dumps(values, indent=1, sort_keys=True), encoding="utf-8")
