"""DICOM images and NIfTI volumes: a file is a record, of the size that most files have."""

from __future__ import annotations

import csv
import importlib
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dpswd.private_curator.settings.groups import RecordsSettings
from dpswd.private_curator.sources import First, words_of
from dpswd.shared.core.errors import SettingsError
from dpswd.shared.records.batches import Array, Batch, Format, Layout, rows_per_batch
from dpswd.shared.records.problems import RecordsRefused

FOLDER = "folder"
"""As --labels-array: the label is the name of the first folder below PATH."""
FILE = "file"
"""As the first column of a table of labels: names of files, as they lie below PATH."""
_COLOURS = {"RGB", "YBR_FULL", "YBR_FULL_422", "YBR_ICT", "YBR_RCT"}
_NUMBERS = ("NumberOfFrames", "SamplesPerPixel", "BitsAllocated", "Rows", "Columns")
_NIFTI = (".nii", ".nii.gz")


class Unfit(Exception):
    """A file that becomes no record; the words say why, and nothing of its content."""


class ScanSource:
    """The files of a folder, or one file, in the order of their names.

    Args:
        path: the folder.
        settings: `labels_array` names a DICOM keyword, a part of a BIDS name, or `FOLDER`; of `labels_file`, a table
            whose first column is `FILE` or one of the former, it names the column of labels.
        dicom: whether they are DICOM; else NIfTI.
        person: a DICOM keyword such as PatientID, or a part of a BIDS name such as sub.
        most: files of each person that stay.

    Raises SettingsError where scans cannot be read so, RecordsRefused where no file becomes a record.
    """

    def __init__(self, path: Path, settings: RecordsSettings, *, dicom: bool, person: str | None, most: int) -> None:
        if settings.unlabelled or settings.columns:
            raise SettingsError("--unlabelled and --columns have no meaning for scans; leave them out")
        head, self._values = (_dicom_head, _dicom_values) if dicom else (_nifti_head, _nifti_values)
        self.origin: dict[str, Any] = {"path": str(path)}
        lost = Counter[str]()
        by, key, labels, used = settings.labels_array, settings.labels_array, dict[str, str](), set[str]()
        if settings.labels_file is not None:
            by = by or "label"
            key, labels = _labels_of(path.parent / settings.labels_file, by)
        words = tuple(each for each in (person, key) if each not in (None, FOLDER, FILE))
        heads: list[tuple[Path, tuple[int, ...], str, str]] = []
        for file in [path] if path.is_file() else sorted(path.rglob("[!.]*")):
            if not (file.is_file() and (dicom or file.name.lower().endswith(_NIFTI))):
                continue
            try:
                shape, text = head(file, words)
            except Unfit as error:
                lost[f"files {error}"] += 1
                continue
            inside = file.relative_to(path)
            text |= {FOLDER: inside.parts[0] if len(inside.parts) > 1 else "", FILE: inside.as_posix()}
            label = text.get(key or "", "")
            if settings.labels_file is not None:
                used.add(label)
                label = labels.get(label, "")
            if (by and not label) or (person and not text[person]):
                lost[f"files without a {'label' if by and not label else 'person'}"] += 1
            else:
                heads.append((file, shape, text.get(person or "", ""), label))
        lost["rows of labels without a file"] = len(labels.keys() - used)
        if not heads:
            raise RecordsRefused(f"{path} holds no file that becomes a record ({words_of(lost) or 'it is empty'})")
        first, (usual, _) = First(most), Counter(shape for _, shape, _, _ in heads).most_common(1)[0]
        self._chosen: list[tuple[Path, str]] = []
        for file, shape, whose, label in heads:
            if shape != usual:
                lost["files of another size"] += 1
            elif person is not None and not first.take(whose):
                lost["further files of a person"] += 1
            else:
                self._chosen.append((file, label))
        self.lost = self._lost_before = lost
        self.layout = Layout(Format.NPY, np.dtype(np.uint8 if dicom else np.float32), usual, labels=by or "")

    def batches(self) -> Iterator[Batch]:
        """See `Source`."""
        lost = Counter(self._lost_before)
        rows = rows_per_batch(self.layout.record_bytes)
        for start in range(0, len(self._chosen), rows):
            records, labels = [], []
            for file, label in self._chosen[start : start + rows]:
                try:
                    records.append(self._values(file))
                    labels.append(label)
                except Unfit as error:
                    lost[f"files {error}"] += 1
            self.lost = lost
            if records:
                yield Batch(np.stack(records), np.array(labels) if self.layout.labels else None)


def _labels_of(path: Path, column: str) -> tuple[str, dict[str, str]]:
    """The first column of a table of labels, and the label for each of its values."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(file)
            key, *others = rows.fieldnames or [""]
            if column not in others:
                raise SettingsError(f"{path}: needed are a first column that tells scans apart, and {column!r}")
            labels: dict[str, str] = {}
            for row in rows:
                if labels.setdefault(row[key] or "", row[column] or "") != (row[column] or ""):
                    raise RecordsRefused(f"{path} has two labels for one {key}; keep one of them")
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SettingsError(f"{path} cannot be read ({type(error).__name__}); needed is CSV in UTF-8") from error
    return key, labels


def _dicom_head(path: Path, words: tuple[str, ...]) -> tuple[tuple[int, ...], dict[str, str]]:
    import pydicom
    from pydicom.datadict import tag_for_keyword

    for word in words:
        if tag_for_keyword(word) is None:
            raise SettingsError(f"{word!r} is no DICOM keyword; write one such as PatientID or BodyPartExamined")
    read = [*_NUMBERS, "PhotometricInterpretation", "ModalityLUTSequence", "VOILUTSequence", "WindowCenter", *words]
    data = _quiet(lambda: pydicom.dcmread(path, stop_before_pixels=True, specific_tags=list(read)))
    kind = str(data.get("PhotometricInterpretation", ""))
    frames, samples, bits, rows, columns = _quiet(lambda: [int(data.get(name) or 0) for name in _NUMBERS])
    if not rows or not columns:
        raise Unfit("that are no DICOM image")
    if frames > 1:
        raise Unfit("of several frames")
    if "ModalityLUTSequence" in data or ("VOILUTSequence" in data and "WindowCenter" not in data):
        raise Unfit("with a lookup table in the place of rescale and window")
    if (samples, bits) != (3, 8) if kind in _COLOURS else (samples, kind[:-1]) != (1, "MONOCHROME"):
        raise Unfit("neither MONOCHROME1, MONOCHROME2 nor 8-bit colour")
    return (samples, rows, columns), {word: str(data.get(word) or "") for word in words}


def _dicom_values(path: Path) -> Array:
    """(channels, rows, columns) uint8: the file's window, or its whole range, in 256 steps; white is large."""
    import pydicom
    from pydicom.pixels.processing import apply_rescale, apply_windowing
    from pydicom.pixels.utils import pixel_array

    data = _quiet(lambda: pydicom.dcmread(path))
    stored = _quiet(lambda: pixel_array(data))
    if stored.ndim == 3:
        return np.ascontiguousarray(stored.transpose(2, 0, 1))
    bits, signed = int(data.BitsStored), int(data.PixelRepresentation)
    ends = np.array([-signed * 2 ** (bits - 1), 2 ** (bits - signed) - 1], dtype=np.float64)
    low, high = _quiet(lambda: apply_rescale(ends, data))
    shown = _quiet(lambda: apply_windowing(apply_rescale(stored, data), data))
    grey: Array = np.rint(np.clip((shown - low) / (high - low), 0.0, 1.0) * 255.0).astype(np.uint8)[None]
    return np.uint8(255) - grey if data.PhotometricInterpretation == "MONOCHROME1" else grey  # type: ignore[operator]


def _quiet(read: Callable[[], Any]) -> Any:
    """What pydicom reads, without its warnings and errors, which may quote a patient."""
    from pydicom import config
    from pydicom.errors import InvalidDicomError

    config.settings.reading_validation_mode, config.logger.disabled = config.IGNORE, True
    try:
        with warnings.catch_warnings(action="ignore"):
            return read()
    except InvalidDicomError:
        raise Unfit("that are no DICOM image") from None
    except Exception:  # noqa: BLE001 - of a damaged file, or of a codec that is not installed
        raise Unfit("that pydicom cannot decode") from None


def _nifti(path: Path) -> tuple[Any, tuple[int, ...]]:
    """The image and its sides, the first of its three axes to the right, the second to the front, the third up."""
    nibabel: Any = importlib.import_module("nibabel")
    try:
        image = nibabel.load(path)
        sides = image.shape[:3] + tuple(each for each in image.shape[3:] if each > 1)
        axes = nibabel.io_orientation(image.affine)[:, 0]
    except Exception:  # noqa: BLE001 - of a damaged file
        raise Unfit("that nibabel cannot read") from None
    if len(sides) != 3 or np.isnan(axes).any():
        raise Unfit("that are no volume of three dimensions")
    return image, tuple(sides[list(axes.astype(int)).index(place)] for place in range(3))


def _nifti_head(path: Path, words: tuple[str, ...]) -> tuple[tuple[int, ...], dict[str, str]]:
    parts = {word: re.search(rf"(?:^|_){re.escape(word)}-([A-Za-z0-9]+)", path.name) for word in words}
    return _nifti(path)[1][::-1], {word: part[1] if part else "" for word, part in parts.items()}


def _nifti_values(path: Path) -> Array:
    """(slices, rows, columns) float32, scaled as the file says."""
    image, sides = _nifti(path)
    nibabel: Any = importlib.import_module("nibabel")
    try:
        values: Array = nibabel.as_closest_canonical(image).get_fdata(dtype=np.float32).reshape(sides).T
    except Exception:  # noqa: BLE001 - of a damaged file
        raise Unfit("that nibabel cannot read") from None
    if not np.isfinite(values).all():
        raise Unfit("with NaN or infinite values")
    return np.ascontiguousarray(values)
