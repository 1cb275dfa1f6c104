"""``describe`` and ``plan``: everything before a training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dpswd.public_client.cli import options
from dpswd.public_client.cli.options import connect, curator_options, format_option, from_settings, key_values, tell
from dpswd.public_client.cli.training import given_curators, given_keys, key_options
from dpswd.public_client.experiments.file import LADDER, read_experiment
from dpswd.shared.core.errors import rounded

if TYPE_CHECKING:
    from dpswd.public_client.curator.description import Description
    from dpswd.public_client.training.method import Method
    from dpswd.public_client.training.sites import Model
    from dpswd.shared.protocol.contract import DataContract

_Site = tuple[str, str, Path]
"""Name, where there are several, address and credentials."""


@click.command()
@curator_options
@format_option
def describe(address: str, credentials: Path, output: str) -> None:
    """What a curator offers, and what is left of the budgets. Free."""
    with connect(address, credentials) as hospital:
        description = hospital.describe()
    tell(output, description.to_json(), description)
    _uncompared(description, output)


@click.command()
@options.several_curators
@click.option(
    "--release", type=options.FILE, help="Instead of a curator: a release that a hospital published; no network."
)
@click.option("--key", type=options.FILE, help="The ledger's public key, which came over another way; with --release.")
@click.option("--epsilon", type=float, help="What the run may cost; needed, but for --release, which is paid for.")
@click.option("--method", "name", default=LADDER, show_default=True, help="One of `train --list-methods`.")
@click.option("--setting", "settings", multiple=True, metavar="KEY=VALUE", help="One of the method's own.")
@click.option("--steps", type=int, default=None, help="T.  [default: the method's]")
@click.option("--batch", "batch_size", type=int, default=None, help="b.  [default: the method's]")
@click.option("--features", type=int, default=None, help="d; with --adapted, shows the noise.")
@click.option("--adapted", type=int, default=0, help="p, the number of adapted parameters.")
@click.option(
    "--evaluate-epsilon", type=float, default=None, help="Also prices the comparison of train --evaluate-epsilon."
)
@click.option("--want", help='The least epsilon for it: "accuracy +2" or "recalibrate", by results of such data.')
@click.option("--ask", is_flag=True, help="Asks the ledger whether it fits, with your network or a ready one.")
@key_options("--source", "--label", "--network", "--model")
@format_option
def plan(
    curators: tuple[str, ...], folders: tuple[Path, ...], release: Path | None, key: Path | None,
    epsilon: float | None, name: str, settings: tuple[str, ...], steps: int | None, batch_size: int | None,
    features: int | None, adapted: int, evaluate_epsilon: float | None, want: str | None, ask: bool, output: str,
    **keys: Any,
) -> None:  # fmt: skip
    """What a run would be and cost. Spends nothing; ends with exit code 8 if it does not fit.

    With --release: what a published file holds, verified, and what it cost the hospital.
    """
    from dpswd.public_client.experiments.approaches import method_of
    from dpswd.public_client.methods.replay import Replay
    from dpswd.public_client.training.method import plan_json

    given = given_keys(keys)
    sites = _sites(curators, folders, release, several=name == LADDER and want is None)
    _, address, credentials = sites[0]
    if want is not None:
        _answer(address, credentials, output, want, spare=epsilon is not None or release is not None)
        return
    if key is not None and release is None:
        raise click.UsageError("--key is the ledger's key for --release; leave it out, or give the published file")
    if name == LADDER and release is None:
        sized = {"steps": steps, "batch": batch_size, "features": features, "adapted": adapted, "setting": settings}
        if named := [option for option, value in sized.items() if value]:
            raise click.UsageError(f"the ladder sizes its runs itself; --{named[0]} needs a --method, such as replay")
        _plan_ladders(sites, output, given, epsilon, evaluate_epsilon, ask=ask)
        return
    chosen = method_of({LADDER: Replay.name}.get(name, name), key_values("--setting", settings))
    if release is not None:
        if ask or adapted or evaluate_epsilon is not None:
            raise click.UsageError("--release goes without --ask, --adapted and --evaluate-epsilon")
        _plan_of_release(release, key, output, chosen, epsilon=epsilon, steps=steps, batch_size=batch_size)
        return
    if evaluate_epsilon is not None:
        raise click.UsageError("--evaluate-epsilon is of the ladder, which compares; leave --method out")
    if epsilon is None:
        raise click.UsageError("Missing option '--epsilon'.")
    with connect(address, credentials) as hospital:
        description = hospital.describe()
        extractor = classifier = declaration = None
        if ask or given:
            own, declaration = _model(given, description)
            extractor, classifier = own.extractor, own.classifier
        made = hospital.plan(
            chosen, epsilon=epsilon, steps=steps, batch_size=batch_size, extractor=extractor, classifier=classifier
        )
    if features is not None and made.noise is None:
        made = made.for_model(feature_dimension=features, gradient_parameters=adapted)
    click.echo(plan_json(made) if output == "json" else made)
    _uncompared(description, output, declaration)
    if made.fits is False:
        raise click.exceptions.Exit(options.EXIT_DOES_NOT_FIT)


def _answer(address: str, credentials: Path, output: str, want: str, *, spare: bool) -> None:
    """What results of such data say of a want."""
    if spare:
        raise click.UsageError("--want asks for the least epsilon: leave --epsilon and --release out")
    from dpswd.public_client.plans import measured, wishes

    sites, shares = wishes.stored()
    with connect(address, credentials) as hospital:
        there = hospital.describe()
    like = wishes.alike(measured.modality_of(there.record_shape), there.classes, there.records, sites)
    answer = wishes.least_epsilon(want, there.records, like)
    right = shares["sites" if like and like[0].labelled else "shifts"]
    values = {**asdict(answer), "epsilon": answer.epsilon if isfinite(answer.epsilon) else None}
    held_out = f"\nheld out by site, {right:.0%} of such answers were within a factor 1.5 where it was reached at all"
    tell(output, values | {"right": right}, f"{answer}{held_out * bool(answer.sites)}")


def _plan_of_release(release: Path, key: Path | None, output: str, method: Method, **wishes: Any) -> None:
    if key is None:
        raise click.UsageError("--release needs --key, the ledger's key, which came over another way")
    from dpswd.public_client.adaptation.published import PublishedHospital
    from dpswd.public_client.training.method import plan_json

    paid = PublishedHospital.read(release, key=key).plan(method, **wishes)
    click.echo(plan_json(paid) if output == "json" else paid)


def _sites(
    curators: tuple[str, ...], folders: tuple[Path, ...], release: Path | None, *, several: bool
) -> list[_Site]:  # fmt: skip
    """Each hospital that was given; the settings' where none was."""
    if release is not None and (curators or folders):
        raise click.UsageError("--curator and --release exclude each other: a release asks no curator")
    if release is not None:
        return [("", "", Path())]
    if len(curators) <= 1 and len(folders) <= 1:
        pairs = (("address", "--curator", curators), ("credentials", "--credentials", folders))
        address, credentials = (from_settings(name, option, own[0] if own else None) for name, option, own in pairs)
        return [("", address.rpartition("=")[2], credentials)]
    if not several:
        raise click.UsageError("--method and --want are of one hospital; give one --curator")
    named = given_curators(curators, folders, dry_run=False)["curators"]
    return [(own.get("name", own["address"]), own["address"], own["credentials"]) for own in named]


def _plan_ladders(
    sites: list[_Site], output: str, given: Mapping[str, Any], epsilon: float | None, evaluate_epsilon: float | None,
    *, ask: bool,
) -> None:  # fmt: skip
    """What the ladder may ask each hospital and cost, for the team's model or the ready network of its records."""
    from dpswd.public_client.ladder.adapt import ladder_for
    from dpswd.public_client.ladder.rungs import admits

    if epsilon is None:
        raise click.UsageError("Missing option '--epsilon'.")
    values, texts = {}, []
    for name, address, credentials in sites:
        with connect(address, credentials) as hospital:
            described = hospital.describe()
            model, declaration = _model(given, described)
            shape = described.record_shape
            ladder = ladder_for(model, hospital, record_shape=shape, epsilon=epsilon, evaluate_epsilon=evaluate_epsilon)
            ladder = replace(ladder, hospital=name or ladder.hospital).timed(model, shape)
            admitted = not ask or admits(hospital.curator, next(iter(ladder.plans.values())), model)
        fits = admitted and epsilon + (evaluate_epsilon or 0.0) <= described.remaining * (1.0 + 1e-9)
        room = f"epsilon {rounded(described.remaining, up=False)} is left now"
        room += "; the curator would admit it now (asked; nothing was spent)" * (fits and ask)
        values[name] = ladder.to_json() | {"fits": fits}
        texts.append(f"{ladder}\n{room}{'' if fits else ': it does NOT fit'}")
        _uncompared(described, output, declaration)
    tell(output, values if len(sites) > 1 else values[""], "\n\n".join(texts))
    if not all(value["fits"] for value in values.values()):
        raise click.exceptions.Exit(options.EXIT_DOES_NOT_FIT)


def _model(given: Mapping[str, Any], described: Description) -> tuple[Model, DataContract | None]:
    """The team's model and its source's names, held to the hospital's records, or the ready network for these."""
    from dpswd.public_client.data.networks import ready_network
    from dpswd.public_client.experiments.start import aligned, declared, load_data, require_alike, untrained
    from dpswd.public_client.training.sites import Model

    own = None
    if not given:
        extractor, classifier = ready_network(described.record_shape, max(2, described.classes))
    else:
        if "data.source" not in given:
            raise click.UsageError("--label, --network and --model need --source, records that the model takes")
        experiment = read_experiment(None, {**given, "dry_run.enabled": True})  # nobody is asked for a run
        task = aligned(experiment, load_data(experiment), {"": described})
        require_alike(experiment, task, {"": described})
        extractor, classifier = untrained(experiment, task)
        own = declared(experiment, task)
    return Model(extractor.eval(), classifier.eval()), own


def _uncompared(description: Description, output: str, own: DataContract | None = None) -> None:
    """What of a team's source is not held to the hospital's, where one of the two declares nothing."""
    for text in description.contract.uncompared(own) if output == "text" else ():
        click.echo(f"note: {text}", err=True)
