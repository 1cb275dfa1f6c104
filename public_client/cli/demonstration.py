"""``demo``: the main job from end to end on data that scikit-learn ships, in about two minutes."""

from __future__ import annotations

import contextlib
import itertools
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dpswd.public_client.cli.options import DIRECTORY, echo_json, format_option
from dpswd.shared.core.errors import BudgetExhausted, rounded

if TYPE_CHECKING:
    from rich.table import Table

    from dpswd.public_client.experiments.run import Result

_DELTA = 1e-5  # well below one over the 898 private records
_SETTINGS: dict[str, Any] = {"source.epochs": 40, "privacy.delta": _DELTA}
_DIRECTIONS = {"method.settings.directions": 100}
_CONTROL = "control: the default's tuning without a release"
_METHODS: dict[str, dict[str, Any]] = {
    "the ladder (the default)": {},
    "DP-SWD by rows (paper)": {"method.name": "rows", "privacy.batch_size": 898, "privacy.steps": 100, **_DIRECTIONS},
}


@click.command()
@click.option("--epsilon", type=float, default=2.0, show_default=True, help="Budget that the operator sets.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option(
    "--output",
    "out",
    type=DIRECTORY,
    default=Path("demo-output"),
    show_default=True,
    help="Directory; each demo makes a new folder in it for the adapted models and the receipts.",
)
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@format_option
@click.pass_context
def demo(context: click.Context, epsilon: float, seed: int, out: Path, device: str, output: str) -> None:
    """A hospital, its operator and an ML team on this machine: adapt, compare, and run out of budget."""
    from rich.console import Console

    from dpswd.public_client.experiments.connect import connected_hospitals
    from dpswd.public_client.experiments.file import read_experiment
    from dpswd.public_client.experiments.run import adapt, check, control_accuracy
    from dpswd.public_client.experiments.start import load_data, train_source_model
    from dpswd.public_client.testing.local_hospital import console_of
    from dpswd.public_client.training.sites import ALONE

    console = Console(stderr=output == "json")
    progress = output == "text"
    begun = time.monotonic()
    settings = _SETTINGS | {"device": device, "privacy.epsilon": epsilon}
    experiment = read_experiment(None, settings)
    folder = _new_folder(out)
    task = load_data(experiment)
    console.print(f"[bold]Source[/]: {len(task.source)} public digits of scikit-learn, labelled.")
    console.print(
        f"[bold]Target[/]: {len(task.target)} private digits that the hospital sees turned by 20 degrees, smaller, "
        "off centre and with less contrast."
    )
    console.print(f"[bold]Operator[/]: dpswd-curator init --epsilon {epsilon:g} --delta {_DELTA:g}; add ml-team; serve")
    source = train_source_model(experiment, task, seed=seed, progress=progress)
    source_seconds = time.monotonic() - begun
    control_begun = time.monotonic()
    control = control_accuracy(experiment, task, source, seed=seed, progress=progress)
    control_seconds = time.monotonic() - control_begun
    results: dict[str, Result] = {}
    refusal = ""
    consoles = contextlib.ExitStack()
    context.call_on_close(consoles.close)
    for number, (name, changes) in enumerate(_METHODS.items(), start=1):
        own = folder / f"method-{number}"
        files = {"output.checkpoint": own, "output.save": own / "adapted.safetensors"}
        trial = read_experiment(None, settings | changes | files)
        check(trial)
        with connected_hospitals(trial, task) as hospitals:
            assert hospitals is not None, "each of these methods asks one"
            if not results:
                console.print(str(hospitals.describe()[ALONE]), highlight=False)
                address = consoles.enter_context(console_of(own / "hospital" / "home"))
                console.print(f"[bold]Operator's console[/], until the demo ends: {address}", soft_wrap=True)
            console.print(f"\n[bold]{name}[/]")
            results[name] = result = adapt(trial, task, source, hospitals, seed=seed, progress=progress)
            for each in (result.trained.climbed or result.trained.plans).values():
                console.print(str(each), highlight=False)
            if not refusal:
                again = read_experiment(None, settings | changes | {"privacy.epsilon": epsilon / 2})
                try:
                    adapt(again, task, source, hospitals, seed=seed, progress=False)
                except BudgetExhausted as error:
                    refusal = f"{type(error).__name__}: {error}"

    rows: list[dict[str, Any]] = [
        {"method": "source-only", "accuracy": source.accuracy, "spent": None, "left": None, "seconds": source_seconds},
        {"method": _CONTROL, "accuracy": control, "spent": None, "left": None, "seconds": control_seconds},
    ]
    for name, result in results.items():
        (reached,), budget = result.accuracies.values(), result.budgets.get(ALONE, {})
        spent, left = budget.get("spent"), budget.get("remaining")
        rows.append({"method": name, "accuracy": reached, "spent": spent, "left": left, "seconds": result.seconds})
    console.print()
    console.print(_table(f"Accuracy on the hospital's digits; budget: epsilon {epsilon:g}, delta {_DELTA:g}", rows))
    console.print(f"Adapted models and receipts: {folder}/method-1 and so on", soft_wrap=True)
    looked = folder / "method-1" / "hospital" / "home"
    console.print(f"To look at a hospital afterwards: dpswd-curator console --home {looked}", soft_wrap=True)
    console.print("\n[bold]One more request[/] of half that epsilon, now that the budget is spent:")
    console.print(f"[red]{refusal or 'it was NOT refused; the budget is not spent'}[/]", soft_wrap=True)
    seconds = time.monotonic() - begun
    console.print(f"\nDone in {seconds:.0f} seconds.")
    if output == "json":
        echo_json({"rows": rows, "refusal": refusal, "folder": str(folder), "seconds": seconds})
    if not refusal:
        raise click.ClickException("the exhausted budget did not refuse the last request")


def _new_folder(out: Path) -> Path:
    """The first of run-1, run-2 and so on that is free: an earlier demo's receipts belong to another hospital."""
    out.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(1):
        try:
            (out / f"run-{number}").mkdir()
        except FileExistsError:
            continue
        break
    return out / f"run-{number}"


def _table(title: str, rows: list[dict[str, Any]]) -> Table:
    """The comparison; what was spent is rounded up, what is left down."""
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("method")
    for name in ("accuracy", "epsilon spent", "epsilon left", "seconds"):
        table.add_column(name, justify="right")
    for row in rows:
        spent, left = "none needed", ""
        if row["spent"] is not None:
            spent, left = rounded(row["spent"], up=True), rounded(row["left"], up=False)
        table.add_row(row["method"], f"{row['accuracy']:.1f}%", spent, left, f"{row['seconds']:.0f}")
    return table
