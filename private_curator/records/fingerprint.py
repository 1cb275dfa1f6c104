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

from private_curator.serving.certificates import write_private
from private_curator.settings.tree import RecordsSettings
from shared.errors import SettingsError

EVIDENCE_FILE = "records.json"
VERSION = 1

_READING = ("array", "columns", "delimiter", "header", "labels_array", "labels_file")


@dataclass(frozen=True)
class Evidence:
    """One complete check of the records.

    Attributes:
        digest: SHA-256 of the values in order.
        records: n.
        signature: of the file's or folder's size, times and number.
        reading: the settings that say how the file is read.
        checked: when, UTC, ISO 8601.
        reason: why other records were accepted than before, or "".
        version: of this format.
    """

    digest: str
    records: int
    signature: str
    reading: dict[str, Any]
    checked: str
    reason: str = ""
    version: int = VERSION

    @classmethod
    def of(cls, settings: RecordsSettings, path: Path, *, digest: str, records: int, reason: str = "") -> Evidence:
        """The evidence of a check that was just made."""
        return cls(
            digest=digest,
            records=records,
            signature=signature(path),
            reading=_reading(settings),
            checked=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
            reason=reason,
        )

    @classmethod
    def read(cls, home: Path) -> Evidence | None:
        """The evidence in a home directory, or None where there is none yet.

        Raises:
            SettingsError: it is damaged.
        """
        path = home / EVIDENCE_FILE
        if not path.exists():
            return None
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
            if fields.get("version") != VERSION:
                raise SettingsError(f"{path} is of another version of dpswd; remove it, and the records are checked")
            return cls(**fields)
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise SettingsError(
                f"{path} is damaged ({type(error).__name__}); run `dpswd-curator records accept` to check the records "
                "again"
            ) from error

    def write(self, home: Path) -> None:
        """Keeps it in the home directory."""
        write_private(home / EVIDENCE_FILE, json.dumps(asdict(self), indent=1).encode() + b"\n")

    def covers(self, settings: RecordsSettings, path: Path) -> bool:
        """Whether nothing has changed that would make another check necessary."""
        return self.reading == _reading(settings) and self.signature == signature(path)


def signature(path: Path) -> str:
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
