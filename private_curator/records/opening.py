"""From the settings to an opened source, and what was checked about it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from dpswd.private_curator.records.arrays import ArraySource
from dpswd.private_curator.records.persons import with_person_note
from dpswd.private_curator.settings.groups import RecordsSettings
from dpswd.shared.core.errors import SettingsError
from dpswd.shared.records.batches import SUFFIXES, TABLES, Array, Batch, Format, Layout, Reading, Source
from dpswd.shared.records.problems import RecordsRefused


def open_source(settings: RecordsSettings, *, home: Path) -> Source:
    """Opens the records and checks all that can be told without reading them.

    Args:
        settings: the file or folder, and how the operator wants it read.
        home: where paths of the settings that are not absolute start.

    Raises:
        RecordsRefused: it cannot be served as it is.
        SettingsError: a library for this format is not installed.
    """
    path = home / settings.file
    kind = format_of(path)
    check_choice(kind, settings)
    try:
        match kind:
            case Format.NPY | Format.NPZ:
                labels_file = None if settings.labels_file is None else home / settings.labels_file
                return ArraySource(path, array=settings.array, labels=settings.labels_array, labels_file=labels_file)
            case Format.IMAGES:
                from dpswd.private_curator.records.images import ImageSource

                return ImageSource(path)
            case _:
                from dpswd.shared.records.tables import TableSource

                return with_person_note(TableSource(path, kind, reading(settings)))
    except ImportError as error:
        library = "Pillow" if kind is Format.IMAGES else "pyarrow"
        raise SettingsError(f"{kind} records need {library}; install dpswd[curator]") from error


def reading(settings: RecordsSettings) -> Reading:
    """How the settings want a table read."""
    return Reading(
        settings.columns, settings.labels_array, settings.unlabelled, settings.delimiter, settings.header,
        called=lambda field: f"records.{'labels_array' if field == 'labels' else field}",
    )  # fmt: skip


def format_of(path: Path) -> Format:
    """The format of a file or folder.

    Raises:
        RecordsRefused: it does not exist, or its name has none of the known endings.
    """
    if path.is_dir():
        return Format.IMAGES
    if not path.is_file():
        raise RecordsRefused(f"{path} does not exist; set records.file to a file of records or a folder of images")
    kind = SUFFIXES.get(path.suffix.lower())
    if kind is None:
        raise RecordsRefused(
            f"{path}: files ending in {', '.join(SUFFIXES)} and folders of images are read; "
            f"{path.suffix or 'a name without an ending'} is none of them"
        )
    return kind


def check_choice(kind: Format, settings: RecordsSettings) -> None:
    """A setting that this format does not know is a misunderstanding, and is not passed over.

    Raises:
        RecordsRefused: there is one.
    """
    tables = kind in TABLES
    wrong = {
        "array": settings.array is not None and kind not in (Format.NPZ, Format.NPY),
        "columns": settings.columns is not None and not tables,
        "delimiter": settings.delimiter is not None and kind is not Format.CSV,
        "header": settings.header != "auto" and kind is not Format.CSV,
        "labels_array": settings.labels_array is not None and not tables and kind is not Format.NPZ,
        "labels_file": settings.labels_file is not None and kind not in (Format.NPZ, Format.NPY),
    }
    named = [f"records.{name}" for name, is_wrong in wrong.items() if is_wrong]
    if named:
        raise RecordsRefused(f"{', '.join(named)} {'have' if len(named) > 1 else 'has'} no meaning for {kind} records")


class ContentDigest:
    """SHA-256 of the records' values in order, whatever file they stand in.

    Args:
        layout: of the source.
    """

    def __init__(self, layout: Layout) -> None:
        head = json.dumps({"type": layout.dtype.str, "shape": list(layout.shape)}, sort_keys=True)
        self._hash = hashlib.sha256(head.encode() + b"\n")
        self.count = 0

    def add(self, records: Array) -> None:
        """Takes the next records."""
        self._hash.update(np.ascontiguousarray(records).data.cast("B"))
        self.count += len(records)

    def hexdigest(self) -> str:
        """The digest of what was added."""
        return self._hash.hexdigest()


def digested(source: Source, digest: ContentDigest) -> Iterator[Batch]:
    """The source's batches, each added to the digest; fewer than two records are refused at the end."""
    for batch in source.batches():
        digest.add(batch.records)
        yield batch
    if digest.count < 2:
        raise RecordsRefused(f"the file holds {digest.count} records; needed are at least two")


def gather(source: Source, digest: ContentDigest, *, limit: int) -> Array:
    """All records in memory, (n, ...).

    Args:
        source: the opened file.
        digest: takes the records as they are read.
        limit: bytes that they may take.

    Raises:
        RecordsRefused: they take more, or the source refuses them.
    """
    layout = source.layout
    if layout.count is not None:
        _check_memory(layout.count * layout.record_bytes, limit)
        # Filled in place: joining parts at the end would take the memory twice.
        whole = np.empty((layout.count, *layout.shape), dtype=layout.dtype)
        start = 0
        for batch in digested(source, digest):
            end = start + len(batch.records)
            if end <= layout.count:
                whole[start:end] = batch.records
            start = end
        if start != layout.count:
            raise RecordsRefused(f"the file holds {start} records and says that it holds {layout.count}; write it anew")
        return whole
    parts: list[Array] = []
    used = 0
    for batch in digested(source, digest):
        used += batch.records.nbytes
        _check_memory(2 * used, limit)
        parts.append(batch.records)
    return np.concatenate(parts)


def _check_memory(needed: int, limit: int) -> None:
    if needed > limit:
        raise RecordsRefused(
            f"the records take more than the {limit >> 20} MiB of memory that are allowed for a format that is read as "
            "a whole (records.memory_bytes); convert them once with `dpswd-curator records convert`: an npy file is "
            "read from its place and takes none"
        )
