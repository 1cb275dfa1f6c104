"""The private records: opened, checked, and read by index.

Formats are those of `dpswd.private_curator.records`; nothing is unpickled. Records that lie as plain values in a file
are read from their places, so a data set may be far larger than memory. Errors name the file and the property that is
wrong, never a value.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dpswd.private_curator.records.arrays import ArraySource
from dpswd.private_curator.records.fingerprint import Fingerprint
from dpswd.private_curator.records.mapped import MappedRecords
from dpswd.private_curator.records.opening import ContentDigest, digested, gather, open_source
from dpswd.private_curator.settings.groups import RecordsSettings
from dpswd.shared.core.errors import DataInvalid, SettingsError
from dpswd.shared.records.batches import Array, Layout, Source

_UINT8_RANGE = (0.0, 255.0)

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Target:
    """The records that the curator protects. May be sent to another process.

    Attributes:
        stored: (n, ...) float32 or uint8, in memory or in their file; private.
        record_shape: the shape of one record as the extractor sees it; public.
        scale: factor from stored to served values; public.
        offset: added after the factor; public.
    """

    stored: Array | MappedRecords
    record_shape: tuple[int, ...]
    scale: float = 1.0
    offset: float = 0.0

    @property
    def count(self) -> int:
        """n, public under replace-one neighbours."""
        return int(self.stored.shape[0])

    def check_count(self, promised: int, file: Path) -> None:
        """Refuses another number of records than the ledger was made for.

        Raises:
            SettingsError: with what to do.
        """
        if self.count != promised:
            raise SettingsError(
                f"{file} holds {self.count} records, the ledger was made for {promised}; a budget belongs to one data "
                "set: restore the file, take its newer state (`records accept --update`), or make a new curator"
            )

    def take(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Records in the order of `indices`, (b, *record_shape). A large sample may be taken in parts.

        Args:
            indices: (b,) distinct record numbers, secret.

        Raises:
            RecordsChanged: the file was cut short while it was served.
        """
        stored = self.stored.take(indices) if isinstance(self.stored, MappedRecords) else self.stored[indices]
        chosen = np.asarray(stored, dtype=np.float32)
        if (self.scale, self.offset) != (1.0, 0.0):
            chosen = chosen * np.float32(self.scale) + np.float32(self.offset)
        return np.ascontiguousarray(chosen).reshape(-1, *self.record_shape)


def load(settings: RecordsSettings, *, home: Path) -> Target:
    """Opens and checks the records that the settings name.

    What was checked before and has not changed since (`dpswd.private_curator.records.fingerprint`) is not read again.

    Raises:
        DataInvalid: no such file or array, a wrong type, fewer than two records, values that are not finite, a
            shape that does not fit, or labels of another length.
        SettingsError: the records are others than those that this curator was made for.
    """
    path = home / settings.file
    source = open_source(settings, home=home)
    checked = Fingerprint.read(home)
    unchanged = checked is not None and checked.covers(settings, path)
    if checked is not None and not unchanged:
        _log.info("the records' file has changed since it was checked; all of it is read once more")
    target, digest = _opened(source, settings, path, check=not unchanged)
    # Another number of records has its own refusal, against the ledger.
    if checked is None or unchanged or target.count != checked.records:
        return target
    if digest != checked.digest:
        raise SettingsError(
            f"{path} holds other records than those checked at {checked.checked}; a budget belongs to one data set: "
            "restore the file, or accept the change with `dpswd-curator records accept`"
        )
    try:
        Fingerprint.of(settings, path, digest=digest, records=target.count, reason=checked.reason).write(home)
    except OSError as error:
        _log.warning("the check of the records cannot be kept (%s); it is made at every start", error.strerror)
    return target


def load_for_the_first_time(settings: RecordsSettings, *, home: Path, reason: str = "") -> tuple[Target, Fingerprint]:
    """`load` that takes nothing as known and returns what it found, for the home directory.

    Raises:
        DataInvalid: see `load`.
    """
    path = home / settings.file
    target, digest = _opened(open_source(settings, home=home), settings, path, check=True)
    return target, Fingerprint.of(settings, path, digest=digest, records=target.count, reason=reason)


def serving(settings: RecordsSettings, layout: Layout, path: Path) -> tuple[tuple[int, ...], float, float]:
    """How stored records are served: their shape, and the scale and offset of their values; public.

    Raises:
        DataInvalid: the declared shape has another number of values.
    """
    shape = settings.record_shape or layout.shape or (1,)
    if math.prod(shape) != math.prod(layout.shape):
        raise DataInvalid(
            f"{path}: one record has shape {layout.shape}, which does not fit records.record_shape {list(shape)}; "
            f"the product must be {math.prod(layout.shape)}"
        )
    declared = settings.scale_from or (_UINT8_RANGE if layout.dtype == np.uint8 else None)
    if declared is None:
        return shape, 1.0, 0.0
    (low, high), (to_low, to_high) = declared, settings.scale_to  # the declared public range is mapped onto scale_to
    scale = (to_high - to_low) / (high - low)
    return shape, scale, to_low - low * scale


def _opened(source: Source, settings: RecordsSettings, path: Path, *, check: bool) -> tuple[Target, str]:
    """The records and their digest; those that stay in their file are read only to be checked."""
    shape, scale, offset = serving(settings, source.layout, path)
    digest = ContentDigest(source.layout)
    stored: Array | MappedRecords | None = source.mapped if isinstance(source, ArraySource) else None
    if stored is None:
        stored = gather(source, digest, limit=settings.memory_bytes)
    elif check:
        for _ in digested(source, digest):
            pass
    return Target(stored=stored, record_shape=shape, scale=scale, offset=offset), digest.hexdigest()
