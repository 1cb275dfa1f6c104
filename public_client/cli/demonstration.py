"""``demo``: the main job from end to end on data that scikit-learn ships, in about a minute."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import click

from public_client.cli.options import device_option, echo_json, format_option

_DELTA = 1e-5  # well below one over the 898 private records
_METHODS: dict[str, dict[str, Any]] = {
    "DP-SWD by quantiles": {"directions": 100},
    "the same, with adapter": {"directions": 100, "parameters": "adapters", "batch_size": 898},
    "DP-SWD by rows (paper)": {"directions": 100, "release": "rows", "steps": 100, "batch_size": 898},
}


@click.command()
@click.option("--epsilon", type=float, default=2.0, show_default=True, help="Budget that the operator sets.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option(
    "--output",
    "out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("demo-output"),
    show_default=True,
    help="Directory for the plot, the adapted model and the receipts.",
)
@device_option
@format_option
def demo(epsilon: float, seed: int, out: Path, device: str, output: str) -> None:
    """A hospital, its operator and an ML team on this machine: adapt, compare, and run out of budget."""
    from rich.console import Console

    from public_client.data.datasets import load_task
    from public_client.experiments import demo_run as experiment
    from public_client.experiments import report
    from public_client.testing.local_hospital import RehearsalHospital
    from shared.errors import BudgetExhausted

    console = Console(stderr=output == "json")
    progress = output == "text"
    out.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    task = load_task("digits")
    records = task.target.images.numpy()
    console.print(f"[bold]Source[/]: {len(task.source)} public digits of scikit-learn, labelled.")
    console.print(
        f"[bold]Target[/]: {len(task.target)} private digits that the hospital sees turned by 20 degrees, smaller, "
        "off centre and with less contrast."
    )
    console.print(
        f"[bold]Operator[/]: dpswd-curator init --epsilon {epsilon:g} --delta {_DELTA:g}; client add ml-team; serve"
    )
    model = experiment.train_source_model(
        task.source, target=task.target, epochs=40, seed=seed, device=device, batch_size=64, progress=progress
    )
    rows = [report.Row("source-only", model.target, None, None, time.monotonic() - begun)]

    def private(name: str, wishes: dict[str, Any], directory: Path) -> tuple[report.Curve, str]:
        """Trains in a hospital of its own, then asks for one run more."""
        with (
            RehearsalHospital(records, epsilon=epsilon, delta=_DELTA, name="digits", device=device) as hospital,
            hospital.connect(run_directory=directory) as curator,
        ):
            if len(rows) == 1:
                console.print(curator.describe(), highlight=False)
            console.print(f"\n[bold]{name}[/]\nplan: {curator.plan(epsilon=epsilon, **wishes)}", highlight=False)
            outcome, history = experiment.adapt(
                model,
                task,
                curator,
                wishes=wishes | {"epsilon": epsilon},
                seed=seed,
                device=device,
                save=directory / "adapted.safetensors",
                progress=progress,
            )
            rows.append(report.Row(name, outcome.adapted, outcome.spent, outcome.remaining, outcome.seconds))
            try:
                experiment.adapt(
                    model, task, curator, wishes=wishes | {"epsilon": epsilon / 2, "steps": 10}, seed=seed,
                    device=device, progress=False,
                )  # fmt: skip
            except BudgetExhausted as refusal:
                return report.Curve(name, history), f"{type(refusal).__name__}: {refusal}"
        return report.Curve(name, history), ""

    tried = [private(name, wishes, _made(out / f"method-{i + 1}")) for i, (name, wishes) in enumerate(_METHODS.items())]
    refusal = tried[0][1]
    started = time.monotonic()
    reached = experiment.non_private(model, task, steps=400, seed=seed, device=device, progress=progress)
    rows.append(report.Row("non-private SWD", reached, math.inf, None, time.monotonic() - started))

    console.print()
    report.print_table(
        console, f"Accuracy on the hospital's digits; budget: epsilon {epsilon:g}, delta {_DELTA:g}", rows
    )
    figure = out / "accuracy.png"
    report.plot(
        figure,
        title=f"Private adaptation to the hospital's digits, epsilon {epsilon:g}, delta {_DELTA:g}",
        curves=[curve for curve, _ in tried],
        levels=[("source-only", model.target), ("non-private SWD", reached)],
    )
    console.print(f"Plot: {figure}   adapted models and receipts: {out}/method-1 and so on")
    console.print("\n[bold]One more request[/] of half that epsilon, now that the budget is spent:")
    console.print(f"[red]{refusal or 'it was NOT refused; the budget is not spent'}[/]", soft_wrap=True)
    seconds = time.monotonic() - begun
    console.print(f"\nDone in {seconds:.0f} seconds.")
    if output == "json":
        echo_json(
            {
                "rows": [
                    {"method": row.method, "accuracy": row.accuracy, "spent": _finite(row.spent), "left": row.left}
                    for row in rows
                ],
                "refusal": refusal,
                "plot": str(figure),
                "seconds": seconds,
            }
        )
    if not refusal:
        raise click.ClickException("the exhausted budget did not refuse the last request")


def _made(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def _finite(value: float | None) -> float | None:
    return None if value is None or math.isinf(value) else value
