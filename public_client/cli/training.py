"""``train``: one experiment, from a file or from options, against curators, local hospitals or mocks."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dpswd.public_client.cli.options import FILE, echo_json, format_option, key_values, several_curators
from dpswd.public_client.experiments.file import Experiment, read_experiment
from dpswd.shared.core.errors import SettingsError, rounded

if TYPE_CHECKING:
    from dpswd.public_client.experiments.run import Result

_KEYS = {
    "--source": "data.source",
    "--label": "data.label",
    "--network": "network.code",
    "--model": "network.model",
    "--target": "data.target",
    "--data": "data.task",
    "--geometry": "data.geometry",
    "--data-dir": "data.folder",
    "--method": "method.name",
    "--shared": "method.shared",
    "--epsilon": "privacy.epsilon",
    "--delta": "privacy.delta",
    "--budget": "privacy.budget",
    "--yes": "privacy.yes",
    "--evaluate-epsilon": "privacy.evaluate_epsilon",
    "--steps": "privacy.steps",
    "--batch": "privacy.batch_size",
    "--source-epochs": "source.epochs",
    "--seed": "seeds",
    "--purpose": "purpose",
    "--checkpoint": "output.checkpoint",
    "--resume": "output.resume",
    "--save": "output.save",
    "--log-dir": "output.log_dir",
    "--dry-run": "dry_run.enabled",
    "--description": "dry_run.descriptions",
    "--records": "dry_run.records",
    "--device": "device",
}
"""Options that stand for one key of the experiment; one that is not given leaves the file's value alone."""
_FIRST_PAGE = frozenset(
    ("--source", "--label", "--network", "--model", "--epsilon", "--evaluate-epsilon", "--purpose", "--checkpoint")
) | {"--resume", "--save"}
"""Of them and of `train`, what ``--help`` shows."""

EXPERIMENT = click.option(
    "--experiment", "file", type=FILE, help="TOML or YAML file; every other option replaces one of its keys."
)
CHANGES = click.option(
    "--set", "changes", multiple=True, metavar="KEY=VALUE", hidden=True,
    help="Replaces any key, e.g. privacy.delta=1e-6.",
)  # fmt: skip
SETTING_HELP = "One of the method's own, e.g. coefficients=4."
SETTINGS = click.option("--setting", "settings", multiple=True, metavar="KEY=VALUE", help=SETTING_HELP)


def key_options(
    *names: str, shown: frozenset[str] = frozenset(_KEYS)
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """These options of `_KEYS`, or all, in the words of the experiment's schema; values are checked with the file's.

    Args:
        names: of the options.
        shown: those that ``--help`` shows.
    """
    chosen = {name: _KEYS[name] for name in names or _KEYS}
    return lambda command: _key_options(command, chosen, shown)


def _key_options(command: Callable[..., None], keys: dict[str, str], shown: frozenset[str]) -> Callable[..., None]:
    schema = Experiment.model_json_schema()
    for option, key in reversed(keys.items()):
        *section, name = key.split(".")
        owner = schema
        for part in section:
            owner = schema["$defs"][type(Experiment.model_fields[part].default).__name__]
        entry = owner["properties"][name]
        value = entry.get("anyOf", [entry])[0]  # the other is null
        repeated, default = value["type"] == "array", entry.get("default")
        one = value.get("items", value)
        hints = ["Repeat it for several."] * repeated + [f"[default: {default}]"] * (not repeated and bool(default))
        command = click.option(
            option,
            key.replace(".", "__"),
            is_flag=value["type"] == "boolean" or None,  # after an explicit no, click takes -1 for an option
            multiple=repeated,
            hidden=option not in shown,
            type=click.Choice(value["enum"]) if "enum" in value else None,
            metavar=None if "enum" in value else one.get("format", one["type"]).upper(),
            help=" ".join([entry["description"], *hints]),
        )(command)
    return command


def _help_all(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value:
        hidden = [each for each in context.command.params if isinstance(each, click.Option) and each.hidden]
        for each in hidden:
            each.hidden = False
        text = context.get_help()
        for each in hidden:
            each.hidden = True
        click.echo(text)
        context.exit()


@click.command()
@EXPERIMENT
@CHANGES
@click.option("--setting", "settings", multiple=True, metavar="KEY=VALUE", hidden=True, help=SETTING_HELP)
@click.option(
    "--print-experiment",
    is_flag=True,
    hidden=True,
    help="Prints the experiment with all its defaults as YAML, and ends.",
)
@click.option("--print-schema", is_flag=True, hidden=True, help="Prints the file's JSON schema, and ends.")
@click.option("--list-methods", is_flag=True, hidden=True, help="Prints the methods, and ends.")
@several_curators
@click.option(
    "--release",
    "releases",
    multiple=True,
    metavar="[NAME=]FILE",
    help="Instead of a curator: a release that a hospital published; give it several times for several hospitals.",
)
@click.option(
    "--key", "keys", multiple=True, type=FILE, help="The ledger's public key; one for each --release, in their order."
)
@click.option("--explain", is_flag=True, help="Also prints what the answers are made of: odds, nats, misfits.")
@key_options(shown=_FIRST_PAGE)
@format_option
@click.option(
    "--help-all",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_help_all,
    help="Shows all options; the experiment's file has more (--print-schema).",
)
def train(
    file: Path | None,
    changes: tuple[str, ...],
    settings: tuple[str, ...],
    print_experiment: bool,
    print_schema: bool,
    list_methods: bool,
    curators: tuple[str, ...],
    folders: tuple[Path, ...],
    releases: tuple[str, ...],
    keys: tuple[Path, ...],
    explain: bool,
    output: str,
    **options: Any,
) -> None:
    """Adapts a model to private records: of curators, or of a hospital that is started on this machine.

    The model is trained on --source first, unless --model brings one. Without --curator public records are given to a
    curator process that is started for this training (--target FILE, or the digits without --source), and accuracies
    are known. With --curator the hospital's own records are used; with --release what a hospital published of them,
    without a network and at no price.
    """
    from dpswd.public_client.experiments.approaches import approaches, asks_hospital

    if list_methods:
        for name, summary in approaches().items():
            click.echo(f"{name:<12} {summary}")
        return
    if print_schema:
        echo_json(Experiment.model_json_schema())
        return
    given = given_keys(options)
    given |= given_curators(curators, folders, dry_run="dry_run.enabled" in given) | _releases(releases, keys)
    experiment = read_experiment(file, given | changed_keys(changes, settings))
    asks_hospital(experiment.method.name)  # an unknown name is refused before anything else happens
    if print_experiment:
        click.echo(experiment.to_yaml(), nl=False)
        return
    from dpswd.public_client.experiments.run import run

    results = run(experiment, progress=output == "text")
    echo_json(_json(experiment, results)) if output == "json" else _text(experiment, results, explain=explain)
    _require_compared(results)


def _require_compared(results: list[Result]) -> None:
    """Ends with an error, once all is written and told, where models were not compared although it was asked for."""
    for result in results:
        for name, own in (result.trained.climbed or {}).items():
            if own.not_compared is not None:
                own.not_compared.add_note(f"{name}: the models were not compared, the changed one is delivered")
                raise own.not_compared


def given_keys(options: dict[str, Any]) -> dict[str, Any]:
    """The experiment's keys that `key_options` were given for."""
    return {
        name.replace("__", "."): list(value) if isinstance(value, tuple) else value
        for name, value in options.items()
        if value not in (None, False, ())
    }


def changed_keys(changes: tuple[str, ...], settings: tuple[str, ...]) -> dict[str, Any]:
    """The experiment's keys that ``--set`` and ``--setting`` were given for."""
    own = {f"method.settings.{key}": value for key, value in key_values("--setting", settings).items()}
    return key_values("--set", changes) | own


def _releases(files: tuple[str, ...], keys: tuple[Path, ...]) -> dict[str, Any]:
    """The options' releases as the file's key; nothing where none are given."""
    if len(files) != len(keys):
        raise SettingsError(
            f"--release is given {len(files)} times and --key {len(keys)} times; they belong together: a release is "
            "worth what the key is, which the hospital hands over by another way"
        )
    releases = []
    for word, key in zip(files, keys, strict=True):
        name, _, file = word.rpartition("=")
        releases.append({"file": Path(file).absolute(), "key": key.absolute()} | ({"name": name} if name else {}))
    return {"releases": releases} if releases else {}


def given_curators(addresses: tuple[str, ...], credentials: tuple[Path, ...], *, dry_run: bool) -> dict[str, Any]:
    """The options' curators as the file's key; nothing where none are given."""
    if not addresses and not credentials:
        return {}
    if len(addresses) != len(credentials) and not (dry_run and not credentials):
        raise SettingsError(
            f"--curator is given {len(addresses)} times and --credentials {len(credentials)} times; they belong "
            "together, one for each hospital, or neither for a rehearsal"
        )
    curators = []
    for index, word in enumerate(addresses):
        name, _, address = word.rpartition("=")
        # A dry run opens no connection and reads no key.
        own = credentials[index].absolute() if credentials else Path()
        curators.append({"address": address, "credentials": own} | ({"name": name} if name else {}))
    return {"curators": curators}


def _text(experiment: Experiment, results: list[Result], *, explain: bool) -> None:
    last = results[-1]
    if (several := last.trained.climbed) is not None:
        click.echo(several if len(several) > 1 else next(iter(several.values())))
        for own in several.values() if explain else ():
            click.echo(own.explain())
    for report in last.trained.reports:
        if report["state"] != "finished":
            click.echo(
                f"{report['site']} was {report['state']} after {report['steps']} of {report['planned_steps']} steps: "
                f"{report['reason']}"
            )
        elif report["finding"] and not several:
            click.echo(f"{report['site']}: {report['outcome']}; {report['finding' if explain else 'plain']}")
    _accuracies(results, of="control" if experiment.method.name == "control" else "adapted")
    if experiment.dry_run.enabled:
        click.echo("DRY RUN: no server was asked and nothing was spent. The records were synthetic, so accuracy is")
        click.echo("meaningless and not shown. A real run would be charged:")
        for name, charges in last.charges.items():
            for charge in charges or ["nothing: no run was opened"]:
                click.echo(f"  {name}: {charge}")
        return
    for name, budget in last.budgets.items():
        label = "epsilon" if len(last.budgets) == 1 else name
        delta = last.trained.plans[name].delta if name in last.trained.plans else experiment.privacy.delta
        click.echo(
            f"{label:<12} data set {rounded(budget['spent'], up=True)} spent, "
            f"{rounded(budget['remaining'], up=False)} left to you, delta {delta:g}"
        )
    for path in last.files:
        click.echo(f"wrote        {path}")


def _accuracies(results: list[Result], *, of: str) -> None:
    """Where they are known: before, of the control, after; `of` is what the last is called at one site."""
    sites = results[-1].accuracies
    for name in sites:
        rows = {
            "source-only": ([result.source_only for result in results], ""),
            "control": ([result.control for result in results], " (the default's tuning without a release)"),
            of if len(sites) == 1 else name: ([result.accuracies[name] for result in results], ""),
        }
        for label, (own, note) in rows.items():
            if not math.isnan(own[0]) and not math.isnan(results[-1].accuracies[name]):
                click.echo(f"{label:<12} {_mean_and_deviation(own)}{note}")


def _json(experiment: Experiment, results: list[Result]) -> dict[str, Any]:
    """One document; the figures of one seed at one site also stand at its top, by short names."""
    document: dict[str, Any] = {
        "experiment": experiment.name,
        "task": experiment.data.task if experiment.data.source is None else experiment.data.source.stem,
        "dry_run": experiment.dry_run.enabled,
        "runs": [result.to_json() for result in results],
    }
    last = results[-1]
    if len(results) == 1 and len(last.accuracies) == 1:
        run = document["runs"][0]
        document |= {
            "seed": last.seed,
            "source_only": run["source_only"],
            "control": run["control"],
            "seconds": last.seconds,
        }
        document["adapted"] = next(iter(run["accuracy"].values()))
        for name, plan in last.trained.plans.items():
            document |= {"method": plan.method.name, "steps": plan.steps}
            document |= {"epsilon": plan.epsilon, "delta": plan.delta} | last.budgets.get(name, {})
    return document


def _mean_and_deviation(values: list[float]) -> str:
    """Of accuracies in percent."""
    if len(values) == 1:
        return f"{values[0]:.1f}%"
    return f"{statistics.mean(values):.1f}% ± {statistics.stdev(values):.1f} over {len(values)} seeds"
