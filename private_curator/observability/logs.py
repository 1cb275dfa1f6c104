"""The serving curator's log: lines of text, or JSON objects with a fixed set of fields.

What is written is data-independent. Two rules see to that, whatever a caller or a library does: an exception's text and
traceback are never written, because they may quote a record; and of a library's message only its place is, because
nobody here has read what it may hold. This project's own messages are constant texts with public values, which a test
checks in the source.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import sys
import threading
from typing import TextIO

from dpswd.private_curator.settings.groups import LogSettings

FIELDS = (
    "time",  # UTC, ISO 8601, whole seconds: when exactly a step failed would be the records'
    "level",  # INFO, WARNING, ERROR
    "logger",  # the module
    "message",  # a constant text with public values; for a library's message the place where it was logged
    "operation",  # the RPC
    "client",  # the authenticated client's name
    "outcome",  # OK or the reason of the refusal
    "run",  # the run's number
    "epsilon",  # of the run alone
    "release",  # the mechanism that the run declares
    "charge",  # charge, dry run, or no charge
    "purpose",  # why, in the client's words
    "certificate",  # SHA-256 of the client's
    "peer",  # the address that the request came from
    "incident",  # the incident's number
)
"""All fields that a line can have, in their order; the first four are always there."""

OPTIONAL = FIELDS[4:]
OURS = ("dpswd",)
"""Packages whose messages are written in their own words."""

_log = logging.getLogger(__name__)


def fields_of(record: logging.LogRecord) -> dict[str, str]:
    """The allowed fields of one record."""
    time = dt.datetime.fromtimestamp(record.created, tz=dt.UTC).isoformat(timespec="seconds")
    fields = {
        "time": time.replace("+00:00", "Z"),
        "level": record.levelname,
        "logger": record.name,
        "message": _message(record),
    }
    for name in OPTIONAL:
        value = getattr(record, name, "")
        if value:
            fields[name] = str(value)
    return fields


class Lines(logging.Formatter):
    """One line for each record: a JSON object, or time, level, module and message."""

    def __init__(self, settings: LogSettings) -> None:
        super().__init__()
        self._json = settings.format == "json"

    def format(self, record: logging.LogRecord) -> str:
        """The line; newlines inside are escaped by JSON, or left out."""
        fields = fields_of(record)
        if self._json:
            return json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
        message = fields["message"].replace("\n", " ")
        return f"{fields['time']} {fields['level']} {fields['logger']}: {message}"


def configure(settings: LogSettings, *, stream: TextIO | None = None) -> None:
    """Sends everything that is logged in this process through the chosen format, and nowhere else.

    Args:
        settings: format and level.
        stream: standard error by default.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(Lines(settings))
    details = settings.level == "debug"
    logging.basicConfig(handlers=[handler], level="INFO" if details else settings.level.upper(), force=True)
    for name in OURS:  # details of libraries would be lines without words
        logging.getLogger(name).setLevel("DEBUG" if details else logging.NOTSET)


def close_side_doors() -> None:
    """Sends Python's warnings and the ends of threads through the log as well, their texts left out.

    Both would else be printed to standard error as they are.
    """
    logging.captureWarnings(capture=True)
    threading.excepthook = _thread_ended


def _thread_ended(arguments: threading.ExceptHookArgs) -> None:
    if arguments.exc_type is not SystemExit:
        _log.error("a thread was ended by %s", arguments.exc_type.__qualname__)


def _message(record: logging.LogRecord) -> str:
    if record.name.partition(".")[0] in OURS or record.name == "__main__":
        return record.getMessage()
    return f"a message of a library, withheld, from {record.module}:{record.lineno}"
