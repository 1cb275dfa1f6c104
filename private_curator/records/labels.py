"""The records' labels as class numbers, for evaluations. Private, like the records; only the classes are public.

Labels are whole numbers from 0 to C - 1, or texts (or numbers) that the operator names in ``records.classes``. A label
outside of them is refused here, when the curator is made or starts, so that no request depends on it; but for the one
that ``records.unlabelled`` names, of records without a label. Errors name the file and the rule, never a label.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpswd.private_curator.records.arrays import ArraySource
from dpswd.private_curator.records.mapped import MappedRecords
from dpswd.private_curator.records.opening import open_source
from dpswd.private_curator.settings.groups import RecordsSettings
from dpswd.shared.core.errors import DataInvalid, SettingsError
from dpswd.shared.core.wire.limits import UNLABELLED
from dpswd.shared.records.problems import RecordsRefused

_AT_A_TIME = 1 << 20  # labels in memory while they are checked


class LabelsInFile:
    """Class numbers that stay in their npy file, for data sets whose labels alone would fill the memory.

    Args:
        stored: the checked labels, whole numbers.
    """

    def __init__(self, stored: MappedRecords) -> None:
        self._stored = stored

    def __len__(self) -> int:
        return len(self._stored)

    def __getitem__(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.integer[Any]]:
        """(b,) class numbers of these records, as stored.

        Raises:
            RecordsChanged: the file was cut short while it was served.
        """
        taken: npt.NDArray[np.integer[Any]] = self._stored.take(rows)  # type: ignore[assignment]
        return taken


Labels = npt.NDArray[np.integer[Any]] | LabelsInFile


def class_names(settings: RecordsSettings) -> tuple[str, ...]:
    """The declared names; empty where the operator declares a number of classes, or none."""
    return settings.classes if isinstance(settings.classes, tuple) else ()


def class_count(settings: RecordsSettings) -> int:
    """C; 0 where the operator declares no classes."""
    if settings.classes is None:
        return 0
    return len(settings.classes) if isinstance(settings.classes, tuple) else settings.classes


NO_CLASSES = (
    "clients are offered nothing that reads labels (evaluation, comparison), since no classes are declared: declare "
    "records.classes; `records inspect` lists what was found"
)
"""What an operator should know whose records have labels, without `records.classes`."""


def load_labels(settings: RecordsSettings, *, home: Path, records: int) -> Labels | None:
    """The class number of each record, in the file's order.

    Args:
        settings: where the labels are and which classes there are.
        home: where paths of the settings that are not absolute start.
        records: n.

    Returns:
        (n,), `UNLABELLED` for a record without one; or None where no classes are declared. Whole numbers in an npy
        file stay there and are read with their records; others take one or two bytes each.

    Raises:
        SettingsError: classes are declared and no labels are named, or a number of labelled records is declared and
            no label stands for none.
        DataInvalid: a label is none of the classes, there is not one for each record, or not so many as declared.
    """
    count = class_count(settings)
    if settings.labelled is not None and (settings.unlabelled is None or not count):
        raise SettingsError(
            "records.labelled says how many of the records have a label; set records.classes and records.unlabelled, "
            "or leave it out"
        )
    if not count:
        return None
    path = home / settings.file
    source = open_source(settings, home=home)
    if not source.layout.labels:
        raise SettingsError(
            f"records.classes declares {count} classes, but no labels are named; set records.labels_array or "
            "records.labels_file, or leave records.classes out"
        )
    labels: npt.NDArray[np.generic]
    if isinstance(source, ArraySource) and source.labels is not None:
        labels = source.labels  # read without the records
        as_stored = not class_names(settings) and settings.unlabelled is None
        if isinstance(labels, np.memmap) and labels.dtype.kind in "biu" and as_stored:
            return _in_their_file(labels, settings, path, records)
    else:
        labels = np.concatenate([batch.labels for batch in source.batches() if batch.labels is not None])
    if len(labels) != records:
        raise DataInvalid(f"{path}: {len(labels)} labels for {records} records; needed is one for each")
    numbers = class_numbers(labels, settings, path)
    if settings.labelled is not None and int((numbers != UNLABELLED).sum()) != settings.labelled:
        raise DataInvalid(
            f"{path}: records.labelled says that {settings.labelled} records have a label, and not so many have one. "
            "Correct it, or leave it out: their number is private then"
        )
    return numbers


def _in_their_file(labels: np.memmap[Any, Any], settings: RecordsSettings, path: Path, records: int) -> LabelsInFile:
    """Checks labels that stay in their file, part by part."""
    assert labels.filename is not None
    stored = MappedRecords(Path(labels.filename), offset=labels.offset, dtype=labels.dtype, shape=labels.shape)
    if len(stored) != records:
        raise DataInvalid(f"{path}: {len(stored)} labels for {records} records; needed is one for each")
    for part in stored.slices(_AT_A_TIME):
        class_numbers(part, settings, path)
    return LabelsInFile(stored)


def class_numbers(
    labels: npt.NDArray[np.generic], settings: RecordsSettings, path: Path
) -> npt.NDArray[np.integer[Any]]:
    """The declared classes' numbers of labels.

    Args:
        labels: (n,), as they stand in the file.
        settings: with declared classes.
        path: of the file, for errors.

    Returns:
        (n,), `UNLABELLED` for the label that says that there is none.

    Raises:
        SettingsError: the label for none is one of the classes.
        DataInvalid: a label is none of the classes.
    """
    names, count, none = class_names(settings), class_count(settings), settings.unlabelled
    # One or two bytes a label; -1 stands for what is no class.
    numbers: npt.NDArray[np.integer[Any]] = np.empty(len(labels), dtype=np.int8 if count <= 128 else np.int16)
    places = {name: number for number, name in enumerate(names)}
    counted = {text: number for number in range(count) for text in (f"{number}", f"{number}.0")}
    allowed = (
        f"one of the {count} names in records.classes, nor " * bool(names) + f"a whole number from 0 to {count - 1}"
    )
    first = next((text for label in labels if (text := label_text(label)) != none), "")
    if not names or (first in counted and not counted.keys() & {*names, none}):
        places = counted
    if none is not None:
        allowed += f", nor {none!r} for none (records.unlabelled)"
        if none in (names or map(str, range(count))):
            raise SettingsError(
                f"records.unlabelled is {none!r}, one of records.classes; choose another label for none"
            )
    for start in range(0, len(labels), _AT_A_TIME):
        part = labels[start : start + _AT_A_TIME]
        if places is not counted or labels.dtype.kind not in "biu":
            numbers[start : start + len(part)] = [places.get(label_text(label), UNLABELLED) for label in part.tolist()]
        else:
            # Compared before the cast, so that no large number of another type wraps into the range.
            inside = (part >= 0) & (part < count)  # type: ignore[operator]
            numbers[start : start + len(part)] = np.where(inside, part, UNLABELLED)
    texts = {label_text(label) for label in np.unique(labels[numbers == UNLABELLED]).tolist()}
    if texts - {none}:
        raise RecordsRefused(
            f"{path}: a label is not {allowed}; correct the labels, or name the classes in order in records.classes",
            values=[label_text(label) for label in np.unique(labels).tolist()],
        )
    return numbers


def label_text(label: object) -> str:
    """A label as the settings name it."""
    return label.decode("utf-8", "replace") if isinstance(label, bytes) else str(label)
