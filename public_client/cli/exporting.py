"""``export``: an adapted model for other tools, checked before it is written."""

from __future__ import annotations

from pathlib import Path

import click

from dpswd.public_client.cli.options import FILE


@click.command()
@click.argument("model", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option("--onnx", type=FILE, help="ONNX, checked by onnxruntime; needs dpswd[onnx].")
@click.option("--program", type=FILE, help="A program of torch.export (.pt2).")
@click.option("--card", type=FILE, help="A Hugging Face model card (README.md), with what the certificate says.")
def export(model: Path, **files: Path | None) -> None:
    """Writes MODEL (an adapted model's file) for other tools, if it computes the same there on drawn records."""
    from dpswd.public_client.tools.programs import export as written

    click.echo(f"written: {', '.join(map(str, written(model, **files)))}")
