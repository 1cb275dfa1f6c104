"""Any format to an npy file, in batches: once, and then samples are read from their places."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from private_curator.records.batches import Layout, Source
from private_curator.records.opening import ContentDigest, digested
from private_curator.records.problems import RecordsRefused
from private_curator.records.schema import MAX_CLASSES
from shared.errors import SettingsError
from shared.files import whole_file


@dataclass(frozen=True)
class Converted:
    """What a conversion wrote.

    Attributes:
        records: n.
        digest: SHA-256 of the values; the same as of the file that was read.
        out: the npy file of records.
        labels: the npy file of labels, or None.
        classes: the labels' names in the order of the numbers in that file.
    """

    records: int
    digest: str
    out: Path
    labels: Path | None
    classes: tuple[str, ...]


def convert(source: Source, out: Path) -> Converted:
    """Writes the records to `out`, and labels beside it as whole numbers; complete or not at all, never over a file.

    Args:
        source: the opened file.
        out: must end in .npy and not exist.

    Raises:
        SettingsError: `out` exists or has another ending.
        RecordsRefused: what the source refuses, or more than `MAX_CLASSES` labels.
    """
    if out.suffix != ".npy":
        raise SettingsError(f"{out}: the converted records are an npy file; choose a name that ends in .npy")
    layout = source.layout
    labels_path = out.with_name(f"{out.stem}.labels.npy") if layout.labels else None
    classes_path = out.with_name(f"{out.stem}.classes.json") if layout.labels else None
    for path in (out, labels_path, classes_path):
        if path is not None and path.exists():
            raise SettingsError(f"{path} exists and is not overwritten; choose another name")
    digest = ContentDigest(layout)
    codes: dict[object, int] = {}
    labels: list[np.ndarray[tuple[int], np.dtype[np.int64]]] = []
    with _new_file(out) as file:
        _write_header(file, layout, 0)
        for batch in digested(source, digest):
            file.write(np.ascontiguousarray(batch.records).data.cast("B"))
            if batch.labels is not None:
                labels.append(_coded(batch.labels.tolist(), codes))
        file.seek(0)
        _write_header(file, layout, digest.count)
    if labels_path is None or classes_path is None:
        return Converted(digest.count, digest.hexdigest(), out, None, ())
    order = sorted(codes, key=lambda name: (isinstance(name, str), name))
    # Numbers in the order of the sorted names, whatever the order in which they were met.
    final = np.empty(len(codes), dtype=np.int64)
    final[[codes[name] for name in order]] = np.arange(len(order))
    with _new_file(labels_path) as file:
        np.save(file, final[np.concatenate(labels)])
    with _new_file(classes_path) as file:
        file.write(json.dumps([str(name) for name in order]).encode() + b"\n")
    return Converted(digest.count, digest.hexdigest(), out, labels_path, tuple(str(name) for name in order))


def _coded(labels: list[object], codes: dict[object, int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    coded = np.array([codes.setdefault(label, len(codes)) for label in labels], dtype=np.int64)
    if len(codes) > MAX_CLASSES:
        raise RecordsRefused(
            f"the labels have more than {MAX_CLASSES} different values; name another column or array, or none"
        )
    return coded


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
