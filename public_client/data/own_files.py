"""A team's own labelled records: two arrays of an .npz, or a table with a column of labels."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dpswd.public_client.data.datasets import Labelled
from dpswd.shared.core.errors import DataInvalid, SettingsError
from dpswd.shared.core.wire.limits import MAX_CLASSES, UNLABELLED
from dpswd.shared.records.batches import SUFFIXES, TABLES, Format, Reading
from dpswd.shared.records.problems import RecordsRefused, no_such

_KINDS = "an .npz with the arrays x and y, or a table (.csv, .tsv, .parquet, .arrow) with a column of labels"
_CALLED = {"labels": "--label", "columns": "data.columns", "header": "data.header"}
_SHOWN = 12
"""Labels or names in a message."""


@dataclass(frozen=True)
class Own:
    """What a file holds.

    Attributes:
        data: its records, (n, ...), and their class numbers.
        columns: of a table, in the order of a record's numbers.
        classes: the names of the classes 0, 1, ..., where the labels are names.
    """

    data: Labelled
    columns: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()


def load_own(path: Path, reading: Reading, *, classes: Sequence[str] = (), unlabelled: bool = False) -> Own:
    """Reads labelled records.

    Args:
        path: an .npz of ``x`` (n, ...) and ``y`` (n,), or a table.
        reading: of a table; its `labels` name the column (by default ``label``), or the array of labels (``y``).
        classes: names of the labels, in the order of their numbers; by default names are sorted.
        unlabelled: whether a label may be -1 (in a table, missing), of a record whose class is not known.

    Raises:
        SettingsError: the file is missing, or of no known kind.
        DataInvalid: it does not hold such records and labels; the message names what is wrong, and what is there.
    """
    if not path.is_file():
        raise SettingsError(f"{path} does not exist; needed is {_KINDS}")
    kind = SUFFIXES.get(path.suffix.lower())
    columns: tuple[str, ...] = ()
    if kind is Format.NPZ:
        records, labels = _arrays(path, reading.labels)
    elif kind in TABLES:
        records, labels, columns = _table(path, reading, unlabelled=unlabelled)
    else:
        raise SettingsError(f"{path} ends in {path.suffix or 'nothing'}; needed is {_KINDS}")
    numbers, names = _numbered(labels, tuple(classes), path, unlabelled=unlabelled)
    return Own(Labelled(torch.from_numpy(records), torch.from_numpy(numbers)), columns, names)


def _arrays(path: Path, label: str | None) -> tuple[npt.NDArray[np.float32], npt.NDArray[Any]]:
    name = label or "y"
    try:
        with np.load(path, allow_pickle=False) as archive:
            held = list(archive.files)
            arrays = {key: archive[key] for key in ("x", name) if key in held}
    except (ValueError, OSError, EOFError) as error:
        raise DataInvalid(f"{path} cannot be read as an .npz of plain arrays: {error}") from error
    if missing := [key for key in ("x", name) if key not in held]:
        raise DataInvalid(
            f"{path} holds no array {missing[0]!r}; needed are x, the records, and {name}, the labels (--label names "
            f"another); {no_such(missing[0], held)}"
        )
    x, y = arrays["x"], arrays[name]
    if x.ndim < 2 or y.shape != (len(x),) or not len(x) or x.dtype.kind not in "fiu":
        raise DataInvalid(
            f"{path}: x has shape {x.shape} of {x.dtype} and {name} {y.shape}; needed are numbers (n, ...) and (n,), n "
            "at least 1"
        )
    records = np.ascontiguousarray(x, dtype=np.float32)
    if not np.isfinite(records).all():
        raise DataInvalid(f"{path}: x holds NaN or infinity; fill in what is missing first")
    return records, y


def _table(
    path: Path, reading: Reading, *, unlabelled: bool
) -> tuple[npt.NDArray[np.float32], npt.NDArray[Any], tuple[str, ...]]:
    try:
        from dpswd.shared.records.tables import TableSource

        own = Reading(
            columns=reading.columns,
            labels=reading.labels or "label",
            unlabelled=str(UNLABELLED) if unlabelled else None,
            header=reading.header,
            called=_CALLED.__getitem__,
        )
        missing = "a label is missing; add it, or drop the record"
        source = TableSource(path, SUFFIXES[path.suffix.lower()], own, missing=missing)
        parts = [(batch.records, batch.labels) for batch in source.batches()]
    except ImportError as error:
        raise SettingsError("tables need pyarrow: pip install 'dpswd[client]'") from error
    except RecordsRefused as error:
        hint = "; --label names the column of labels" if "has no column " in str(error) else ""
        raise DataInvalid(error.in_full() + hint) from error
    records = np.concatenate([records for records, _ in parts]).astype(np.float32)
    return records, np.concatenate([labels for _, labels in parts if labels is not None]), source.columns


def _numbered(
    labels: npt.NDArray[Any], names: tuple[str, ...], path: Path, *, unlabelled: bool
) -> tuple[npt.NDArray[np.int64], tuple[str, ...]]:
    """Class numbers, and the classes' names where the labels are names."""
    if labels.dtype.kind not in "biuUS":
        raise DataInvalid(f"{path}: the labels have type {labels.dtype}; needed are whole numbers from 0, or names")
    texts = labels.astype(str)
    distinct = sorted(set(texts.tolist()) - ({str(UNLABELLED)} if unlabelled else set()))
    shown = ", ".join(distinct[:_SHOWN]) + ", ..." * (len(distinct) > _SHOWN)
    numbers = all(re.fullmatch(r"-?\d{1,9}", text) for text in distinct)
    if not names and not numbers:
        if len(distinct) > MAX_CLASSES or 2 * len(distinct) > len(texts):
            raise DataInvalid(
                f"{path}: {len(distinct)} labels differ in {len(texts)} records ({shown}); are they classes?"
            )
        names = tuple(distinct)
    places = {name: number for number, name in enumerate(names)} | ({str(UNLABELLED): UNLABELLED} if unlabelled else {})
    strange = [text for text in distinct if names and text not in places]
    if strange and not (numbers and all(0 <= int(text) < len(names) for text in strange)):
        raise DataInvalid(f"{path}: label {strange[0]!r} is none of the classes {', '.join(names)}; found: {shown}")
    if names and not strange:
        return np.array([places[text] for text in texts.tolist()], dtype=np.int64), names
    whole = texts.astype(np.int64)
    gap = not names and not unlabelled and distinct != sorted(map(str, range(len(distinct))))
    if gap or whole.min(initial=0) < UNLABELLED:
        raise DataInvalid(
            f"{path}: the labels are {shown}; needed are 0, 1, ... without a gap, in the order of the hospital's "
            "classes: number them anew, or name them in that order (contract.class_names)"
        )
    return whole, ()
