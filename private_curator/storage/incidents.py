"""Unexpected errors: a number for the client, the place for the operator, a record's values for nobody.

The text of an exception may quote data (a value that did not parse, a tensor that was not finite), and so may the
local variables of its frames. An incident therefore keeps the types of the exceptions and where they were raised
(file, line, function), and drops messages and locals.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import os
import secrets
import threading
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

from dpswd.private_curator.sandbox.error_chain import MAX_ERRORS, error_chain
from dpswd.private_curator.sandbox.process import WorkerFailed
from dpswd.shared.core.errors import InvalidValue

_NUMBER_BYTES = 6  # 48 random bits: a client cannot count incidents, an operator can still read one out on the phone
_MAX_FRAME_LENGTH = 200  # characters that are kept of a worker's words
MOST_ALIKE = 8
"""Incidents of one client at one place that are written, from start to start; others have the last one's number."""
MOST_OF_ONE = 512
"""Incidents of one client that are written, wherever they happen: what asks again and again does not fill the disk."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Incident:
    """One unexpected error.

    Attributes:
        number: random, told to the client.
        time: UTC, ISO 8601.
        operation: the RPC during which it happened.
        client: the client's name, or empty before authentication.
        errors: for each exception of the chain, the newest first, its type and the frames it passed.
    """

    number: str
    time: str
    operation: str
    client: str
    errors: list[dict[str, object]]


class IncidentBook:
    """Keeps incidents in a file, one JSON object per line.

    Args:
        path: the file; made on the first incident with mode 0600.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._written: Counter[tuple[str, ...]] = Counter()
        self._last: dict[tuple[str, ...], str] = {}

    def record(self, error: BaseException, *, operation: str, client: str = "") -> str:
        """Writes an incident and returns its number; never raises for a full disk, the number still reaches the log.

        Of many alike only the first are written, and the others have a number of these.
        """
        incident = Incident(
            number=secrets.token_hex(_NUMBER_BYTES),
            time=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
            operation=operation,
            client=client,
            errors=_chain(error),
        )
        alike = client, json.dumps([operation, incident.errors])
        with self._lock:
            for key, most in ((alike, MOST_ALIKE), (alike[:1], MOST_OF_ONE)):
                if self._written[key] >= most:
                    return self._last[key]
            for key in (alike, alike[:1]):
                self._written[key] += 1
                self._last[key] = incident.number
        # The newline stands first: a line that a crash cut short then spoils itself alone.
        line = "\n" + json.dumps(asdict(incident), separators=(",", ":"))
        fields = {"incident": incident.number, "operation": operation, "client": client}
        _log.error("incident %s in %s: %s", incident.number, operation, type(error).__qualname__, extra=fields)
        try:
            with self._lock:
                descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
                with os.fdopen(descriptor, "a", encoding="utf-8") as file:
                    file.write(line)
        except OSError as failure:
            _log.error("incident %s could not be written to %s: %s", incident.number, self._path, failure.strerror)
            _log.error("incident %s", line.strip())
        return incident.number

    def find(self, number: str) -> Incident:
        """The incident with this number; raises InvalidValue: there is none."""
        for incident in self.all():
            if incident.number == number:
                return incident
        raise InvalidValue(f"no incident {number!r} in {self._path}; `dpswd-curator incidents` shows what is there")

    def all(self) -> list[Incident]:
        """Every incident, the oldest first; a line cut short by a crash is left out."""
        if not self._path.exists():
            return []
        incidents = []
        for line in self._path.read_text(encoding="utf-8").splitlines():
            if not line:
                continue
            try:
                incidents.append(Incident(**json.loads(line)))
            except (json.JSONDecodeError, TypeError):
                _log.warning("a line of %s is damaged and was left out", self._path)
        return incidents


def _chain(error: BaseException) -> list[dict[str, object]]:
    chain: list[dict[str, object]] = []
    for current, described in error_chain(error):
        if isinstance(current, WorkerFailed):  # first what happened in the worker, then how it came here
            chain += _from_worker(current)
        chain.append(described)
    return chain


def _from_worker(error: WorkerFailed) -> list[dict[str, object]]:
    """A worker's types and frames; it computes with records, so that nothing but short names is taken from it."""
    incidents: list[dict[str, object]] = []
    for link in error.chain[:MAX_ERRORS]:
        frames = link.get("frames")
        named = [f"worker {str(frame)[:_MAX_FRAME_LENGTH]}" for frame in (frames if isinstance(frames, list) else [])]
        incidents.append({"type": str(link.get("type"))[:_MAX_FRAME_LENGTH], "frames": named})
    return incidents
