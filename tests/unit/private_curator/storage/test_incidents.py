from __future__ import annotations

import stat

import pytest

from dpswd.private_curator.storage.incidents import MOST_ALIKE, MOST_OF_ONE, IncidentBook
from dpswd.shared.core.errors import InvalidValue

CANARY = "patient-4711"


def _fail(secret: str) -> None:
    local = f"{secret}-local"
    try:
        raise ValueError(local)
    except ValueError as error:
        raise RuntimeError(f"while reading {secret}") from error


def _recorded(book: IncidentBook) -> str:
    try:
        _fail(CANARY)
    except RuntimeError as error:
        return book.record(error, operation="AlignTarget", client="ml-team")
    raise AssertionError("unreachable")


def test_an_incident_tells_where_and_never_what(tmp_path, caplog):
    book = IncidentBook(tmp_path / "incidents.jsonl")
    number = _recorded(book)
    incident = book.find(number)
    assert (incident.operation, incident.client) == ("AlignTarget", "ml-team")
    assert [error["type"] for error in incident.errors] == ["builtins.RuntimeError", "builtins.ValueError"]
    assert any("_fail" in frame for frame in incident.errors[0]["frames"])
    assert CANARY not in (tmp_path / "incidents.jsonl").read_text()
    assert CANARY not in caplog.text
    assert number in caplog.text


def test_numbers_differ_and_unknown_ones_are_refused(tmp_path):
    book = IncidentBook(tmp_path / "incidents.jsonl")
    assert book.all() == []
    assert _recorded(book) != _recorded(book)
    assert len(book.all()) == 2
    assert stat.S_IMODE((tmp_path / "incidents.jsonl").stat().st_mode) == 0o600
    with pytest.raises(InvalidValue, match="no incident"):
        book.find("0")


def test_an_unwritable_file_loses_no_incident(tmp_path, caplog):
    book = IncidentBook(tmp_path / "missing" / "incidents.jsonl")
    number = _recorded(book)
    assert "RuntimeError" in caplog.text
    assert number in caplog.text
    assert CANARY not in caplog.text


def test_a_line_cut_short_by_a_crash_is_left_out(tmp_path):
    path = tmp_path / "incidents.jsonl"
    book = IncidentBook(path)
    number = _recorded(book)
    path.write_text(path.read_text() + '\n{"number": "')
    later = _recorded(book)
    assert [incident.number for incident in book.all()] == [number, later]


def test_a_client_cannot_fill_the_book(tmp_path):
    """Attack: a graph that failed at every upload wrote an incident at each."""
    book = IncidentBook(tmp_path / "incidents.jsonl")
    numbers = [_recorded(book) for _ in range(5 * MOST_ALIKE)]
    written = [incident.number for incident in book.all()]
    assert written == numbers[:MOST_ALIKE]
    assert set(numbers) == set(written), "each number that was told is in the book"
    for number in range(2 * MOST_OF_ONE):
        error = type(f"Other{number}", (Exception,), {})()
        own_number = book.record(error, operation="DrawStep", client="ml-team")
        assert number % 100 or book.find(own_number)
    assert len(book.all()) == MOST_OF_ONE
    book.record(ValueError(), operation="DrawStep", client="another-team")
    assert len(book.all()) == MOST_OF_ONE + 1
