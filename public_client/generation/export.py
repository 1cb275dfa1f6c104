"""Drawn records as files: .npz, Parquet or a folder of images, each with a data card that goes with them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpswd.public_client.generation.generator import Generator
from dpswd.public_client.generation.pictures import grey_values
from dpswd.shared.core.errors import SettingsError, rounded
from dpswd.shared.files import whole_file, write_public

SUFFIXES = (".npz", ".parquet", "")
"""By the name's ending; none is a folder of images."""
_CARD = "card.md"


def check_export(path: Path) -> None:
    """Finds what would end an export, before anything is spent.

    Raises:
        SettingsError: the ending is unknown, something stands there, or a package is missing.
    """
    if path.suffix not in SUFFIXES:
        raise SettingsError(f"{path} must end in .npz or .parquet, or be a folder for images (no ending)")
    if path.exists() or card_of(path).exists():
        raise SettingsError(f"{path} or its card exists, and nothing is ever overwritten; choose another name")
    if path.suffix == ".parquet":
        try:
            import pyarrow as pa  # noqa: F401 - only whether it is there
        except ImportError as error:
            raise SettingsError("Parquet needs pyarrow: pip install 'dpswd[client]', or write .npz") from error


def export(generator: Generator, path: str | Path, *, rows: int, seed: int = 0) -> list[Path]:
    """Draws records and writes them with their data card. Free.

    Args:
        generator: what is drawn from.
        path: ends in .npz (arrays x, y, probabilities, of a table columns), .parquet (columns x0, x1, ..., label and
            the classes' probabilities) or nothing: a folder with an image of each record in a folder of its class.
        rows: how many.
        seed: of the draw.

    Returns:
        The file or folder, and the card.

    Raises:
        SettingsError: see `check_export`.
        InvalidValue: rows is out of range, or images were asked of records that are none.
    """
    path = Path(path)
    check_export(path)
    x, y, p = (part.numpy() for part in generator.draw(rows, seed))
    names = [] if generator.schema is None else [own.name for own in generator.schema.columns]
    if path.suffix == ".npz":
        with whole_file(path, mode=0o644) as file:
            own: dict[str, Any] = {"columns": np.array(names)} if names else {}
            np.savez_compressed(file, x=x, y=y, probabilities=p, **own)
    elif path.suffix == ".parquet":
        _write_parquet(path, names, x, y, p)
    else:
        _write_images(path, generator, x, y)
    card = card_of(path)
    write_public(card, card_text(generator.facts, rows=rows, seed=seed).encode("utf-8"))
    return [path, card]


def card_of(path: Path) -> Path:
    """Where the card of an export stands: beside a file, inside of a folder."""
    return path.with_name(f"{path.name}.{_CARD}") if path.suffix else path / _CARD


def card_text(facts: Mapping[str, Any], *, rows: int, seed: int) -> str:
    """The data card of so many rows, in Markdown."""
    stated = [f"- {name}: {text}" for name, text in origin(facts).items()]
    lines = [
        f"# {rows} synthetic records in the likeness of {facts.get('data_set', 'an unnamed data set')}",
        "",
        "No row is a record of anybody. All rows were drawn from a generator that was fitted to noised releases.",
        "",
        "## Guarantee, and how they were made",
        "",
        *(stated or ["- none is stated in the generator's file: treat the rows as private"]),
        "- more rows, and whatever is computed from them, cost nothing further",
        f"- seed of this draw: {seed}",
    ]
    lines += ["", "## Not to be used for", "", *(f"- {text}" for text in facts.get("not_for", ())), ""]
    return "\n".join(lines)


def origin(facts: Mapping[str, Any]) -> dict[str, str]:
    """What a generator's facts say of its price and fit, by name; nothing where they state no guarantee."""
    cost = facts.get("guarantee")
    if not cost:
        return {}
    method, receipts = dict(facts["method"]), facts["receipts"]
    return {
        "guarantee": f"epsilon {rounded(cost['epsilon'], up=True)} at delta {cost['delta']:g}, {cost['neighbours']}: "
        f"one record of the {facts['records']} replaced by any other",
        "covers": cost["covers"],
        "accountant": cost["accountant"],
        "released": f"{facts['releases']}, in {facts['steps']} step(s)",
        "receipts": f"run {receipts['run']}, signed by ledger {receipts['ledger_public_key']}",
        "method": f"{method.pop('name')} {json.dumps(method, sort_keys=True)}",
        "seed of the fit": str(facts["seeds"]["fit"]),
        "purpose": facts["purpose"] or "none was given",
    }


def _write_parquet(
    path: Path, names: list[str], x: npt.NDArray[np.float32], y: npt.NDArray[np.int64], p: npt.NDArray[np.float32]
) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    flat = x.reshape(len(x), -1)
    names = names or [f"x{i}" for i in range(flat.shape[1])]
    columns = {name: flat[:, i] for i, name in enumerate(names)} | {"label": y}
    columns |= {f"probability_{c}": p[:, c] for c in range(p.shape[1])}
    with whole_file(path, mode=0o644) as file:
        parquet.write_table(pa.table(columns), file)


def _write_images(path: Path, generator: Generator, x: npt.NDArray[np.float32], y: npt.NDArray[np.int64]) -> None:
    from PIL import Image

    values = grey_values(generator, x)  # refuses what is no image before a folder is made
    for c in range(generator.classes):
        (path / str(c)).mkdir(parents=True)
    for number, (image, label) in enumerate(zip(values, y, strict=True)):
        Image.fromarray(image).save(path / str(label) / f"{number:07d}.png")
