"""Any format to an npy file, in batches: once, and then samples are read from their places."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from dpswd.private_curator.records.labels import class_count, class_names, class_numbers, label_text
from dpswd.private_curator.records.opening import ContentDigest, digested
from dpswd.private_curator.records.schema import MAX_CLASSES
from dpswd.private_curator.settings.groups import RecordsSettings
from dpswd.shared.core.errors import SettingsError
from dpswd.shared.core.wire.limits import UNLABELLED
from dpswd.shared.files import whole_file
from dpswd.shared.records.batches import Array, Layout, Source
from dpswd.shared.records.problems import RecordsRefused

Numbers = np.ndarray[tuple[int], np.dtype[np.int64]]


@dataclass(frozen=True)
class Converted:
    """What a conversion wrote.

    Attributes:
        records: n.
        digest: SHA-256 of the values; the same as of the file that was read.
        out: the npy file of records.
        labels: the npy file of labels, or None; `UNLABELLED` for a record without one.
        classes: the labels' names in the order of the numbers in that file.
    """

    records: int
    digest: str
    out: Path
    labels: Path | None
    classes: tuple[str, ...]


def convert(
    source: Source, out: Path, settings: RecordsSettings, *, progress: Callable[[int, int], object] = lambda *_: None
) -> Converted:
    """Writes the records to `out`, and labels beside it as whole numbers; complete or not at all, never over a file.

    Args:
        source: the opened file.
        out: must end in .npy and not exist.
        settings: the source's. Labels get the numbers of the declared classes; without any, those of the sorted names
            that were found.
        progress: is told how many records are done, and of how many, 0 where that is not known.

    Raises:
        SettingsError: `out` exists or has another ending, or something is declared of labels and none are named.
        DataInvalid: what the source refuses, more than `MAX_CLASSES` labels, or one that is none of the classes.
    """
    if out.suffix != ".npy":
        raise SettingsError(f"{out}: the converted records are an npy file; choose a name that ends in .npy")
    layout = source.layout
    if not layout.labels and (settings.classes is not None or settings.unlabelled is not None):
        raise SettingsError(
            "classes or a label for none are declared, but no labels are named; name them with --labels-array or "
            "--labels-file, or leave --classes and --unlabelled out"
        )
    labels_path = out.with_name(f"{out.stem}.labels.npy") if layout.labels else None
    classes_path = out.with_name(f"{out.stem}.classes.json") if layout.labels else None
    for path in (out, labels_path, classes_path):
        if path is not None and path.exists():
            raise SettingsError(f"{path} exists and is not overwritten; choose another name")
    digest = ContentDigest(layout)
    numbering = _Declared(settings) if settings.classes is not None else _Observed(settings.unlabelled)
    labels: list[Numbers] = []
    with _new_file(out) as file:
        _write_header(file, layout, 0)
        for batch in digested(source, digest):
            file.write(np.ascontiguousarray(batch.records).data.cast("B"))
            progress(digest.count, layout.count or 0)
            if batch.labels is not None:
                labels.append(numbering.numbers(batch.labels))
        file.seek(0)
        _write_header(file, layout, digest.count)
    if labels_path is None or classes_path is None:
        return Converted(digest.count, digest.hexdigest(), out, None, ())
    classes, final = numbering.classes(np.concatenate(labels))
    with _new_file(labels_path) as file:
        np.save(file, final)
    with _new_file(classes_path) as file:
        file.write(json.dumps(classes).encode() + b"\n")
    return Converted(digest.count, digest.hexdigest(), out, labels_path, classes)


class _Declared:
    """Numbers labels by the classes that the operator declares, as they are served."""

    def __init__(self, settings: RecordsSettings) -> None:
        self._settings = settings

    def numbers(self, labels: Array) -> Numbers:
        """(m,) numbers of these labels."""
        return class_numbers(labels, self._settings, self._settings.file).astype(np.int64)

    def classes(self, numbers: Numbers) -> tuple[tuple[str, ...], Numbers]:
        """The classes' names, and all labels by their places."""
        return class_names(self._settings) or tuple(map(str, range(class_count(self._settings)))), numbers


class _Observed:
    """Numbers labels by the names that are found, sorted, but for the one that says that there is none."""

    def __init__(self, unlabelled: str | None) -> None:
        self._unlabelled = unlabelled
        self._codes: dict[object, int] = {}  # in the order in which they are met

    def numbers(self, labels: Array) -> Numbers:
        """(m,) codes of these labels."""
        coded = np.array([self._code(label) for label in labels.tolist()], dtype=np.int64)
        if len(self._codes) > MAX_CLASSES:
            raise RecordsRefused(
                f"the labels have more than {MAX_CLASSES} different values; name another column or array, or none"
            )
        return coded

    def classes(self, numbers: Numbers) -> tuple[tuple[str, ...], Numbers]:
        """The names, and all labels by their places."""
        order = sorted(self._codes, key=lambda name: (isinstance(name, str), name))
        places = np.full(len(order) + 1, UNLABELLED, dtype=np.int64)  # the last place is that of UNLABELLED, -1
        places[[self._codes[name] for name in order]] = np.arange(len(order))
        return tuple(map(label_text, order)), places[numbers]

    def _code(self, label: object) -> int:
        if self._unlabelled is not None and label_text(label) == self._unlabelled:
            return UNLABELLED
        return self._codes.setdefault(label, len(self._codes))


def _write_header(file: IO[bytes], layout: Layout, count: int) -> None:
    """An npy header; numpy leaves room for n to grow, so that it can be written again when n is known."""
    fields = {"descr": layout.dtype.str, "fortran_order": False, "shape": (count, *layout.shape)}
    np.lib.format.write_array_header_1_0(file, fields)


@contextlib.contextmanager
def _new_file(path: Path) -> Iterator[IO[bytes]]:
    """A file of mode 0600 that appears under its name when it is complete and on the disk; never over another."""
    with whole_file(path) as file:
        yield file
        if path.exists():
            raise SettingsError(f"{path} exists and is not overwritten; choose another name")
