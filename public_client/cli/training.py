"""``train``: one experiment, from a file or from options, against curators, rehearsal hospitals or mocks."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from public_client.cli.options import echo_json, format_option
from shared.errors import SettingsError

if TYPE_CHECKING:
    from public_client.experiments.file import Experiment
    from public_client.experiments.run import Result

# Options that stand for one key of the experiment; an option that is not given leaves the file's value alone.
_KEYS = {
    "data": "data.task",
    "geometry": "data.geometry",
    "data_dir": "data.folder",
    "method": "method.name",
    "shared": "method.shared",
    "epsilon": "privacy.epsilon",
    "delta": "privacy.delta",
    "budget": "privacy.budget",
    "release": "privacy.release",
    "parameters": "privacy.parameters",
    "steps": "privacy.steps",
    "batch_size": "privacy.batch_size",
    "directions": "privacy.directions",
    "adapter": "privacy.adapter",
    "source_epochs": "source.epochs",
    "seed": "seeds",
    "device": "device",
    "checkpoint": "output.checkpoint",
    "resume": "output.resume",
    "save": "output.save",
    "log_dir": "output.log_dir",
    "plots": "output.plots",
    "dry_run": "dry_run.enabled",
    "descriptions": "dry_run.descriptions",
    "records": "dry_run.records",
}


@click.command()
@click.option(
    "--experiment",
    "file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="TOML or YAML file; every other option replaces one of its keys.",
)
@click.option(
    "--set", "changes", multiple=True, metavar="KEY=VALUE", help="Replaces any key, e.g. privacy.clip_norm=1."
)
@click.option("--print-experiment", is_flag=True, help="Prints the experiment with all its defaults as YAML, and ends.")
@click.option("--print-schema", is_flag=True, help="Prints the file's JSON schema, and ends.")
@click.option("--data", help="digits, mnist-usps or usps-mnist.  [default: digits]")
@click.option("--geometry", type=click.Choice(["stretched", "framed"]), help="Of USPS.  [default: stretched]")
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder with mnist.npz and usps16.npz.  [default: OpenML]",
)
@click.option(
    "--curator",
    "curators",
    multiple=True,
    metavar="[NAME=]HOST:PORT",
    help="A hospital; give it several times to train for several.  [default: a rehearsal on this machine]",
)
@click.option(
    "--credentials",
    multiple=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory with ca.crt, client.crt, client.key; one for each --curator, in their order.",
)
@click.option("--method", help="How to adapt; see --list-methods.  [default: replay]")
@click.option("--list-methods", is_flag=True, help="Prints the methods, and ends.")
@click.option("--shared", is_flag=True, help="Several curators train one model instead of one each.")
@click.option("--epsilon", type=float, help="What the run may cost at each curator.  [default: 1]")
@click.option("--delta", type=float, help="Of a rehearsal hospital's budget.  [default: 1e-05]")
@click.option("--budget", type=float, help="Epsilon of a rehearsal hospital.  [default: --epsilon]")
@click.option("--release", type=click.Choice(["quantiles", "rows"]), help="Instead of the method's.")
@click.option("--parameters", type=click.Choice(["none", "adapters", "all"]), help="Instead of the method's.")
@click.option("--adapter", help="auto, warp, channels, features, low-rank or monotone.  [default: auto]")
@click.option("--steps", type=int, help="T.  [default: by the recipe]")
@click.option("--batch", "batch_size", type=int, help="b.  [default: by the recipe]")
@click.option("--directions", type=int, help="k.  [default: 200]")
@click.option("--source-epochs", type=int, help="Passes of source-only training.  [default: about 900 updates]")
@click.option("--non-private-steps", type=int, default=0, help="Also trains non-private SWD for so many steps.")
@click.option("--seed", type=int, multiple=True, help="Give it several times for several trainings.  [default: 0]")
@click.option("--checkpoint", type=click.Path(path_type=Path), help="Directory that survives a killed client.")
@click.option("--resume", is_flag=True, help="Continues the run in --checkpoint, without spending a step twice.")
@click.option("--save", type=click.Path(path_type=Path, dir_okay=False), help="Writes the adapted model.")
@click.option("--log-dir", type=click.Path(path_type=Path, file_okay=False), help="TensorBoard and CSV logs.")
@click.option("--plots", type=click.Path(path_type=Path, file_okay=False), help="Directory for PNG plots.")
@click.option("--dry-run", is_flag=True, help="Mock curators: no server, no certificate, nothing spent, no accuracy.")
@click.option(
    "--description",
    "descriptions",
    multiple=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="For --dry-run: output of describe --format json, one for each curator.",
)
@click.option("--records", type=int, help="For --dry-run without --description: n.")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), help="Where to compute.  [default: auto]")
@format_option
@click.pass_context
def train(
    context: click.Context,
    /,
    file: Path | None,
    changes: tuple[str, ...],
    print_experiment: bool,
    print_schema: bool,
    list_methods: bool,
    curators: tuple[str, ...],
    credentials: tuple[Path, ...],
    non_private_steps: int,
    output: str,
    **options: Any,
) -> None:
    """Adapts a model to private records: of curators, or of a rehearsal hospital on this machine.

    Without --curator the target's public original is given to a curator process that is started for this training,
    and accuracies are known. With --curator the hospital's own records are used.
    """
    from public_client.experiments.file import Experiment, read_experiment
    from public_client.methods.catalogue import method, method_names

    if list_methods:
        for name in method_names():
            click.echo(f"{name:<12} {method(name).summary}")
        return
    if print_schema:
        echo_json(Experiment.model_json_schema())
        return
    given = {
        _KEYS[name]: list(value) if isinstance(value, tuple) else value
        for name, value in options.items()
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    given |= _curators(curators, credentials, dry_run=options["dry_run"])
    wanted = read_experiment(file, given | _changes(changes))
    method(wanted.method_name)  # an unknown name is refused before anything else happens
    if print_experiment:
        click.echo(wanted.to_yaml(), nl=False)
        return
    _run(wanted, non_private_steps, output)


def _run(wanted: Experiment, non_private_steps: int, output: str) -> None:
    from public_client.experiments import run as running

    if non_private_steps and (wanted.curators or wanted.dry_run.enabled):
        raise SettingsError("--non-private-steps needs the target itself; it is for rehearsals without --curator")
    progress = output == "text"
    results = running.run(wanted, progress=progress)
    baselines = []
    if non_private_steps:
        swd = wanted.model_copy(
            update={
                "method": wanted.method.model_copy(update={"name": "swd", "steps": non_private_steps}),
                "output": type(wanted.output)(),
            }
        )
        baselines = running.run(swd, progress=progress)
    if output == "json":
        echo_json(_json(wanted, results, baselines))
    else:
        _text(wanted, results, baselines)


def _curators(addresses: tuple[str, ...], credentials: tuple[Path, ...], *, dry_run: bool) -> dict[str, Any]:
    """The options' curators as the file's key; nothing where none are given."""
    if not addresses and not credentials:
        return {}
    if len(addresses) != len(credentials) and not (dry_run and not credentials):
        raise SettingsError(
            f"--curator is given {len(addresses)} times and --credentials {len(credentials)} times; they belong "
            "together, one for each hospital, or neither for a rehearsal"
        )
    found = []
    for index, word in enumerate(addresses):
        name, _, address = word.rpartition("=")
        # A dry run opens no connection and reads no key.
        own = credentials[index] if credentials else Path()
        found.append({"address": address, "credentials": own} | ({"name": name} if name else {}))
    return {"curators": found}


def _changes(words: tuple[str, ...]) -> dict[str, Any]:
    """KEY=VALUE words; a value that is JSON is read as such."""
    found: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise SettingsError(f"--set {word!r} must be KEY=VALUE, such as privacy.clip_norm=1.0")
        try:
            found[key] = json.loads(value)
        except json.JSONDecodeError:
            found[key] = value
    return found


def _text(wanted: Experiment, results: list[Result], baselines: list[Result]) -> None:
    from public_client.experiments.run import mean_and_deviation

    last = results[-1]
    for name in last.accuracies:
        reached = [result.accuracies[name] for result in results]
        if not math.isnan(reached[0]):
            label = "adapted" if len(last.accuracies) == 1 else name
            click.echo(f"source-only  {mean_and_deviation([result.source_only for result in results])}")
            click.echo(f"{label:<12} {mean_and_deviation(reached)}")
    if baselines:
        values = [accuracy for result in baselines for accuracy in result.accuracies.values()]
        click.echo(f"non-private  {mean_and_deviation(values)}")
    for report in last.trained.reports:
        if report["state"] != "finished":
            click.echo(
                f"{report['site']} was {report['state']} after {report['steps']} of {report['planned_steps']} steps: "
                f"{report['reason']}"
            )
        elif not report["convinced"]:
            click.echo(f"{report['site']}: its release speaks for no shift; the model is the source-trained one")
    if wanted.dry_run.enabled:
        click.echo("DRY RUN: no server was asked and nothing was spent. The records were synthetic, so accuracy is")
        click.echo("meaningless and not shown. A real run would be charged:")
        for name, charges in last.charges.items():
            for charge in charges or ["nothing: no run was opened"]:
                click.echo(f"  {name}: {charge}")
        return
    for name, budget in last.budgets.items():
        label = "epsilon" if len(last.budgets) == 1 else name
        delta = last.trained.plans[name].delta if name in last.trained.plans else wanted.privacy.delta
        click.echo(
            f"{label:<12} {math.ceil(budget['spent'] * 1e4) / 1e4:.4f} spent, "
            f"{math.floor(budget['remaining'] * 1e4) / 1e4:.4f} left, delta {delta:g}"
        )
    for path in last.files:
        click.echo(f"wrote        {path}")


def _json(wanted: Experiment, results: list[Result], baselines: list[Result]) -> dict[str, Any]:
    """One document; the figures of one seed at one site also stand at its top, by short names."""
    found: dict[str, Any] = {
        "experiment": wanted.name,
        "task": wanted.data.task if wanted.data.source is None else wanted.data.source.stem,
        "dry_run": wanted.dry_run.enabled,
        "runs": [result.to_json() for result in results],
    }
    last = results[-1]
    if len(results) == 1 and len(last.accuracies) == 1:
        run = found["runs"][0]
        found |= {"seed": last.seed, "source_only": run["source_only"], "seconds": last.seconds}
        found["adapted"] = next(iter(run["accuracy"].values()))
        for name, plan in last.trained.plans.items():
            found |= {"release": plan.release, "parameters": plan.parameters, "steps": plan.steps}
            found |= {"epsilon": plan.epsilon, "delta": plan.delta} | last.budgets.get(name, {})
    if baselines:
        values = [accuracy for result in baselines for accuracy in result.accuracies.values()]
        found["non_private"] = values[0] if len(values) == 1 else values
    return found
