"""``train``: one adaptation on known data, against a real curator or a rehearsal hospital on this machine."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click

from public_client.commands.options import curator_options, device_option, echo_json, format_option
from shared.errors import SettingsError

_SOURCE_EPOCHS = {"digits": 40, "mnist-usps": 2, "usps-mnist": 16}  # about 900 updates each


@click.command()
@click.option("--data", type=click.Choice(["digits", "mnist-usps", "usps-mnist"]), default="digits", show_default=True)
@click.option("--geometry", type=click.Choice(["stretched", "framed"]), default="stretched", show_default=True)
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=None,
    help="Folder with mnist.npz and usps16.npz.  [default: OpenML]",
)
@curator_options(required=False)
@click.option("--epsilon", type=float, default=1.0, show_default=True, help="What the run may cost.")
@click.option("--delta", type=float, default=1e-5, show_default=True, help="Of the rehearsal hospital's budget.")
@click.option("--budget", type=float, default=None, help="Epsilon of the rehearsal hospital.  [default: --epsilon]")
@click.option("--release", type=click.Choice(["quantiles", "rows"]), default="quantiles", show_default=True)
@click.option("--parameters", type=click.Choice(["none", "adapters", "all"]), default=None, help="What is adapted.")
@click.option("--steps", type=int, default=None, help="T.  [default: by the recipe]")
@click.option("--batch", "batch_size", type=int, default=None, help="b.  [default: by the recipe]")
@click.option("--directions", type=int, default=200, show_default=True, help="k.")
@click.option("--source-epochs", type=int, default=None, help="Passes of source-only training.")
@click.option("--non-private-steps", type=int, default=0, help="Also trains non-private SWD for so many steps.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option(
    "--checkpoint", type=click.Path(path_type=Path), default=None, help="Directory that survives a killed client."
)
@click.option("--resume", is_flag=True, help="Continues the run in --checkpoint, without spending a step twice.")
@click.option("--save", type=click.Path(path_type=Path, dir_okay=False), default=None, help="Writes the adapted model.")
@device_option
@format_option
def train(
    data: str,
    geometry: str,
    data_dir: Path | None,
    address: str | None,
    credentials: Path | None,
    epsilon: float,
    delta: float,
    budget: float | None,
    release: str,
    parameters: str | None,
    steps: int | None,
    batch_size: int | None,
    directions: int,
    source_epochs: int | None,
    non_private_steps: int,
    seed: int,
    checkpoint: Path | None,
    resume: bool,
    save: Path | None,
    device: str,
    output: str,
) -> None:
    """Adapts a digits network to a private target, by default in a rehearsal hospital on this machine.

    Without --curator the target's public original is given to a curator process that is started for this training,
    and accuracies are known. With --curator the hospital's own records are used.
    """
    from public_client import experiment
    from public_client.curator import Curator
    from public_client.datasets import Geometry, load_task  # noqa: F401 - the type is for the reader
    from public_client.rehearsal import RehearsalHospital

    if (address is None) != (credentials is None):
        raise SettingsError("--curator and --credentials belong together; give both, or neither for a rehearsal")
    if resume and checkpoint is None:
        raise SettingsError("--resume needs --checkpoint with the directory of the run")
    if checkpoint is not None and (checkpoint / "run.json").exists() != resume:
        state = "holds no run to resume" if resume else "holds a run already; continue it with --resume"
        raise SettingsError(f"{checkpoint} {state}, or choose another directory")
    task = load_task(data, geometry=geometry, data_dir=data_dir)  # type: ignore[arg-type]
    rehearsal = address is None
    progress = output == "text"
    model = experiment.train_source_model(
        task.source,
        target=task.target if rehearsal else None,
        epochs=_SOURCE_EPOCHS[data] if source_epochs is None else source_epochs,
        seed=seed,
        device=device,
        batch_size=64 if data == "digits" else 128,
        progress=progress,
    )
    wishes: dict[str, Any] = {
        "epsilon": epsilon,
        "release": release,
        "parameters": parameters,
        "directions": directions,
    }
    wishes |= {"steps": steps, "batch_size": batch_size}

    def run(curator: Curator) -> experiment.Outcome:
        if progress:
            click.echo(curator.describe(), err=True)
            click.echo(f"plan: {curator.plan(**wishes)}", err=True)
        outcome, _ = experiment.adapt(
            model, task, curator, wishes=wishes, seed=seed, device=device, evaluated=rehearsal,
            checkpoint=checkpoint, save=save, progress=progress,
        )  # fmt: skip
        return outcome

    if address is not None and credentials is not None:
        with Curator.connect(address, credentials=credentials, run_directory=checkpoint) as curator:
            outcome = run(curator)
    else:
        records = task.target.images.numpy()
        with (
            RehearsalHospital(
                records, epsilon=budget or epsilon, delta=delta, name=data, device=device,
                directory=None if checkpoint is None else checkpoint / "hospital",
            ) as hospital,
            hospital.connect(run_directory=checkpoint) as curator,
        ):  # fmt: skip
            outcome = run(curator)
    figures = outcome.to_json()
    if non_private_steps:
        if not rehearsal:
            raise SettingsError("--non-private-steps needs the target itself; it is for rehearsals without --curator")
        figures["non_private"] = experiment.non_private(
            model, task, steps=non_private_steps, seed=seed, device=device, progress=progress
        )
    if output == "json":
        echo_json(figures)
        return
    if not math.isnan(outcome.source_only):
        click.echo(f"source-only  {outcome.source_only:.1f}%")
        click.echo(f"adapted      {outcome.adapted:.1f}%")
    if non_private_steps:
        click.echo(f"non-private  {figures['non_private']:.1f}%")
    click.echo(f"epsilon      {outcome.spent:.4f} spent, {outcome.remaining:.4f} left, delta {outcome.delta:g}")
