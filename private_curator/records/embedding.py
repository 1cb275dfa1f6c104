"""Records turned into features of a frozen backbone, one by one; they are then served like any records."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dpswd.private_curator.records.target import serving
from dpswd.private_curator.settings.groups import RecordsSettings
from dpswd.shared.core.errors import InvalidValue, SettingsError
from dpswd.shared.records.batches import BATCH_BYTES, Batch, Layout, Source
from dpswd.shared.records.problems import RecordsRefused

FloatArray = npt.NDArray[np.float32]
SHORT_DIGEST = 16
"""Hexadecimal digits of a SHA-256 that are enough to approve a model: 64 bits, for somebody compares them by eye."""


def read_model(path: Path, *, most: int) -> tuple[bytes, str]:
    """The file's bytes, read once, and their SHA-256: what is approved is what is evaluated.

    Args:
        path: of the model.
        most: bytes that it may have.

    Raises:
        SettingsError: it cannot be read.
        InvalidValue: it is larger than `most`.
    """
    try:
        if path.stat().st_size > most:
            raise InvalidValue(
                f"{path} has {path.stat().st_size} bytes; at most {most} are read: take a smaller backbone"
            )
        data = path.read_bytes()
    except OSError as error:
        raise SettingsError(f"{path} cannot be read ({error.strerror}); name an ONNX model with --model") from error
    return data, hashlib.sha256(data).hexdigest()


def check_approved(digest: str, approved: str | None) -> None:
    """Refuses a model that the operator has not approved by its digest.

    Args:
        digest: SHA-256 of the model, 64 hexadecimal digits.
        approved: what the operator wrote: all of them, or the first `SHORT_DIGEST` or more.

    Raises:
        InvalidValue: nothing was written, or something else.
    """
    if approved is None:
        raise InvalidValue(
            "the model is not approved, and nothing was computed. Compare its SHA-256 with the one that the team told "
            f"you another way; then repeat the command with --approve {digest[:SHORT_DIGEST]}"
        )
    if not re.fullmatch(rf"[0-9a-f]{{{SHORT_DIGEST},64}}", approved.lower()):
        raise InvalidValue(
            f"--approve is {approved!r}; write the first {SHORT_DIGEST} to 64 digits of the model's SHA-256"
        )
    if not digest.startswith(approved.lower()):
        raise InvalidValue(
            f"--approve {approved} is another model's digest; this file's SHA-256 is {digest}. It is not the one that "
            "was approved: ask the team, and evaluate nothing that you do not know"
        )


class Backbone(Protocol):
    """Evaluates a model record by record."""

    features: int

    def open(self, record_shape: tuple[int, ...], *, feature: str | None) -> int:
        """Makes ready for records of this shape; returns d."""

    def evaluate(self, records: FloatArray) -> FloatArray:
        """(m, d) features of (m, *record_shape) records."""


class EmbeddedRecords:
    """A source whose records are another's features, with its labels; in batches of bounded size.

    Args:
        source: the records; labels and who is left out are its own.
        settings: how its values are served: the model sees what an extractor would see.
        backbone: the model, approved.
        feature: the model's output, None if it has one.
        progress: is told how many records are done, and of how many, 0 where that is not known.

    Raises:
        DataInvalid: the declared shape does not fit the records.
        InvalidValue: the model does not take such records.
    """

    def __init__(
        self,
        source: Source,
        settings: RecordsSettings,
        backbone: Backbone,
        *,
        feature: str | None = None,
        progress: Callable[[int, int], None] = lambda _done, _total: None,
    ) -> None:
        self._source, self._backbone, self._progress = source, backbone, progress
        self._path = settings.file
        self.record_shape, self._scale, self._offset = serving(settings, source.layout, settings.file)
        self._features = backbone.open(self.record_shape, feature=feature)
        # Names and units of the columns are the old records', not the features'.
        self.layout: Layout = replace(
            source.layout, dtype=np.dtype(np.float32), shape=(self._features,), columns=(), mapped=False, notes=()
        )

    def batches(self) -> Iterator[Batch]:
        """See `Source`."""
        # What is in memory together: the records as they are served, and their features.
        numbers = max(1, 4 * (int(np.prod(self.record_shape)) + self._features))
        most, start = max(1, BATCH_BYTES // numbers), 0
        for batch in self._source.batches():
            for first in range(0, len(batch.records), most):
                chosen = slice(first, first + most)
                served = batch.records[chosen].astype(np.float32)
                if (self._scale, self._offset) != (1.0, 0.0):
                    served = served * np.float32(self._scale) + np.float32(self._offset)
                features = self._backbone.evaluate(served.reshape(-1, *self.record_shape))
                finite = np.isfinite(features).all(axis=1)
                if not finite.all():
                    raise RecordsRefused(
                        f"{self._path}: the model gives NaN or infinite numbers for a record; is it made for records "
                        "on this scale? Nothing was written",
                        location=f"record {start + int(np.argmin(finite))}, counted from 0",
                    )
                start += len(features)
                self._progress(start, self.layout.count or 0)
                yield Batch(features, None if batch.labels is None else batch.labels[chosen])
