"""What was checked about the records file, kept in the home directory, so that a large file is not read at each start.

Reading 80 GB for NaN takes minutes. It is done once, when the curator is made, together with a digest of the values;
the file ``records.json`` keeps both beside the file's size, times and number. While these stay the same the file is
taken as checked; when they change it is read again, and other values than before are refused until the operator accepts
them. This guards against mistakes, not against whoever can write the curator's files; the privacy promise does not
rest on it, because what is not finite is neutralised before the clip in any case.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dpswd.private_curator.settings.groups import RecordsSettings
from dpswd.shared.core.errors import SettingsError
from dpswd.shared.files import write_private

FINGERPRINT_FILE = "records.json"

_READING = ("array", "columns", "delimiter", "header", "labels_array", "labels_file")


@dataclass(frozen=True)
class Fingerprint:
    """One complete check of the records.

    Attributes:
        digest: SHA-256 of the values in order.
        records: n.
        state: of the file's or folder's size, times and number.
        reading: the settings that say how the file is read.
        checked: when, UTC, ISO 8601.
        reason: why other records were accepted than before, or "".
        contract: digest of the declaration that the values were found to keep, or "".
    """

    digest: str
    records: int
    state: str
    reading: dict[str, Any]
    checked: str
    reason: str = ""
    contract: str = ""

    @classmethod
    def of(cls, settings: RecordsSettings, path: Path, *, digest: str, records: int, reason: str = "") -> Fingerprint:
        """The fingerprint of records that were just checked."""
        return cls(
            digest=digest,
            records=records,
            state=file_state(path),
            reading=_reading(settings),
            checked=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
            reason=reason,
        )

    @classmethod
    def read(cls, home: Path) -> Fingerprint | None:
        """The fingerprint in a home directory, or None where there is none yet.

        Raises:
            SettingsError: it is damaged.
        """
        path = home / FINGERPRINT_FILE
        if not path.exists():
            return None
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise SettingsError(
                f"{path} is damaged ({type(error).__name__}); run `dpswd-curator records accept` to check the records "
                "again"
            ) from error

    def write(self, home: Path) -> None:
        """Keeps it in the home directory."""
        write_private(home / FINGERPRINT_FILE, json.dumps(asdict(self), indent=1).encode() + b"\n")

    def covers(self, settings: RecordsSettings, path: Path) -> bool:
        """Whether nothing has changed that would make another check necessary."""
        return self.reading == _reading(settings) and self.state == file_state(path)


def file_state(path: Path) -> str:
    """SHA-256 over names, sizes, times and numbers of a file, or of everything in a folder."""
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    digest = hashlib.sha256()
    for file in files:
        stat = file.stat()
        name = "" if file == path else str(file.relative_to(path))
        digest.update(f"{name}\0{stat.st_size}\0{stat.st_mtime_ns}\0{stat.st_ino}\n".encode())
    return digest.hexdigest()


def _reading(settings: RecordsSettings) -> dict[str, Any]:
    return settings.model_dump(mode="json", include=set(_READING))
