"""What a records file can be, told by its name: nothing is guessed from the content."""

from __future__ import annotations

import enum
from pathlib import Path

from private_curator.records.problems import RecordsRefused


class Format(enum.StrEnum):
    """The formats that are read."""

    NPY = "npy"
    NPZ = "npz"
    PARQUET = "parquet"
    ARROW = "arrow"
    CSV = "csv"
    IMAGES = "images"


SUFFIXES: dict[str, Format] = {
    ".npy": Format.NPY,
    ".npz": Format.NPZ,
    ".parquet": Format.PARQUET,
    ".pq": Format.PARQUET,
    ".arrow": Format.ARROW,
    ".feather": Format.ARROW,
    ".ipc": Format.ARROW,
    ".csv": Format.CSV,
    ".tsv": Format.CSV,
}


def format_of(path: Path) -> Format:
    """The format of a file or folder.

    Raises:
        RecordsRefused: it does not exist, or its name has none of the known endings.
    """
    if path.is_dir():
        return Format.IMAGES
    if not path.is_file():
        raise RecordsRefused(f"{path} does not exist; set records.file to a file of records or a folder of images")
    found = SUFFIXES.get(path.suffix.lower())
    if found is None:
        raise RecordsRefused(
            f"{path}: files ending in {', '.join(SUFFIXES)} and folders of images are read; "
            f"{path.suffix or 'a name without an ending'} is none of them"
        )
    return found
