"""``prepare``: the small file that a hospital needs which nobody can connect to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dpswd.public_client.cli.options import FILE, format_option, tell
from dpswd.public_client.cli.training import CHANGES, EXPERIMENT, SETTINGS, changed_keys, given_keys, key_options
from dpswd.public_client.experiments.file import read_experiment
from dpswd.shared.core.errors import SettingsError, rounded
from dpswd.shared.files import write_public


@click.command()
@click.option("--out", type=FILE, required=True, help="The proposal's file.")
@click.option("--purpose", required=True, help="Why, in one line, for the operator.")
@click.option(
    "--extractor", type=FILE, help="Takes the extractor of this proposal or release, instead of training one."
)
@EXPERIMENT
@CHANGES
@SETTINGS
@key_options(
    "--source",
    "--label",
    "--network",
    "--model",
    "--data",
    "--geometry",
    "--data-dir",
    "--method",
    "--epsilon",
    "--delta",
    "--budget",
    "--source-epochs",
    "--seed",
    "--description",
    "--records",
    "--device",
)
@format_option
def prepare(
    out: Path,
    purpose: str,
    extractor: Path | None,
    file: Path | None,
    changes: tuple[str, ...],
    settings: tuple[str, ...],
    output: str,
    **options: Any,
) -> None:
    """Trains on the public source and writes what a hospital publishes one release of. Asks nobody, spends nothing.

    The hospital is described by a file of `dpswd-curator describe`, or by --records and --delta. The operator reads
    the proposal with `dpswd-curator publish`.
    """
    from dpswd.public_client.experiments.preparing import prepared

    if out.exists():
        raise SettingsError(f"{out} exists, and nothing is ever overwritten; choose another file")
    given = given_keys(options) | {"dry_run.enabled": True} | changed_keys(changes, settings)
    made = prepared(read_experiment(file, given), purpose=purpose, extractor=extractor, progress=output == "text")
    data = made.to_file()
    write_public(out, data)
    facts = {
        "file": str(out),
        "bytes": len(data),
        "digest": made.digest,
        "graph_digest": made.parameters.graph_digest,
        "mechanism": made.parameters.mechanism,
        "records": made.parameters.batch_size,
        "epsilon": made.epsilon,
        "delta": made.delta,
    }
    text = (
        f"{out}: {len(data)} bytes for the operator, one release ({made.parameters.mechanism}) of all "
        f"{made.parameters.batch_size} records\n"
        f"expected price: epsilon {rounded(made.epsilon, up=True)} at delta {made.delta:g}; the hospital's ledger "
        f"has the last word\ngraph {made.parameters.graph_digest}, for an operator who lists extractors"
    )
    tell(output, facts, text)
