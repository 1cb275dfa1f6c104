"""``evaluate``: how good a model is on a hospital's labelled records, noised and charged; once, or again and again."""

from __future__ import annotations

from pathlib import Path

import click

from dpswd.public_client.cli.options import (
    DIRECTORY,
    EXIT_DOES_NOT_FIT,
    FILE,
    connect,
    curator_options,
    format_option,
    tell,
)
from dpswd.shared.core.errors import rounded

WATCHING = "a round of watching a delivered model"
"""The purpose of a round, where none is given: the operator sees it in the console."""


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
@click.option(
    "--every",
    type=click.IntRange(1, 3660),
    metavar="DAYS",
    help="With --directory: one round so often. For a daily job: it asks nothing before one is due, and goes on with a "
    "killed one. Says whether MODEL has become worse.",
)
@click.option("--appended", is_flag=True, help="With --every: earlier records all stay; the added ones are compared.")
@click.option("--then", "experiment", type=FILE, help="With --every: an experiment that is run if MODEL became worse.")
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
    every: int | None,
    appended: bool,
    experiment: Path | None,
    output: str,
) -> None:
    """Accuracy, confusion matrix and calibration of MODEL (an adapted model's file) on the hospital's labelled records.

    The figures are noised and charged to the same budgets as trainings. What is printed may be published: everything
    in it is differentially private.
    """
    from dpswd.public_client.methods.evaluation import Evaluate, accuracy_error, quoted_for
    from dpswd.public_client.methods.evaluation import evaluate as evaluated
    from dpswd.public_client.training.saved_model import load_adapted
    from dpswd.public_client.watching.repeating import begun_or_new, write_report

    if every is None and (appended or experiment):
        raise click.UsageError("--appended and --then are of --every")
    if every is not None and not price:
        if directory is None:
            raise click.UsageError("--every needs a --directory of its own, which knows what was done")
        from dpswd.public_client.watching.watch import watch

        method = Evaluate(confusion=confusion, bins=bins)
        with connect(address, credentials, run_directory=directory, purpose=purpose or WATCHING) as hospital:
            watched = watch(
                directory, model, hospital, method,
                epsilon=epsilon, every=every, appended=appended, experiment=experiment, progress=output == "text",
            )  # fmt: skip
        tell(output, watched.to_json(), watched)
        return
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
        plan, ids = begun_or_new(directory, hospital, loaded, plan)
        if output == "text":
            click.echo(plan, err=True)
        report = evaluated(hospital.curator, loaded, plan, request_ids=ids)
    write_report(directory, report)
    tell(output, report.to_json(), report)
