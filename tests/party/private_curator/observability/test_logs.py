"""A line of the log has fields of a fixed set; what a library or an exception says is never written."""

from __future__ import annotations

import ast
import io
import json
import logging
import threading
import warnings
from pathlib import Path

import pytest

from dpswd.private_curator.observability import logs
from dpswd.private_curator.settings.groups import LogSettings

ROOT = Path(__file__).resolve().parents[4]
SOURCES = sorted((ROOT / "private_curator").rglob("*.py"))
CANARY = "987654"


@pytest.fixture
def written():
    """Configures the log for one test and gives back what was written before."""
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    stream = io.StringIO()

    def configure(**settings):
        logs.configure(LogSettings(**settings), stream=stream)
        return stream

    yield configure
    root.handlers[:] = before
    root.setLevel(level)


@pytest.mark.long
def test_the_log_of_a_session_has_the_allowed_fields_only(watched):
    lines = [json.loads(line) for line in watched.log.getvalue().splitlines()]
    assert lines
    for line in lines:
        assert list(line) == [name for name in logs.FIELDS if name in line]  # allowed, and in order
        assert set(logs.FIELDS[:4]) <= line.keys()
    requests = [(line.get("operation"), line.get("client"), line.get("outcome")) for line in lines]
    assert ("OpenRun", "ml-team", "BUDGET_EXHAUSTED") in requests
    # One line for the charged run: its uploads, its description and its three steps are details.
    (charged,) = [line for line in lines if line.get("outcome") == "OK"]
    with watched.home.open_ledger() as ledger:
        (run,) = ledger.runs()
        (client,) = ledger.clients()
    assert charged["operation"] == "OpenRun"
    assert (charged["run"], charged["charge"], charged["release"]) == (run.run_id, "charge", "quantiles")
    assert float(charged["epsilon"]) == pytest.approx(run.epsilon, rel=1e-3)
    assert charged["certificate"] == client.fingerprint
    assert charged["peer"] in ("127.0.0.1", "::1")
    (refused,) = [line for line in lines if line.get("outcome") == "BUDGET_EXHAUSTED"]
    assert (refused["charge"], refused["release"]) == ("no charge", "quantiles")
    assert float(refused["epsilon"]) > 5.0
    (incident,) = [line for line in lines if "incident" in line]
    assert (incident["level"], incident["operation"]) == ("ERROR", "DrawStep")
    assert CANARY not in watched.log.getvalue()


@pytest.mark.parametrize("style", ["json", "text"])
def test_neither_a_librarys_message_nor_an_exceptions_text_is_written(written, style):
    stream = written(format=style)
    try:
        raise ValueError(CANARY)
    except ValueError as error:
        logging.getLogger("grpc._server").exception("Exception calling application: %s", error)
        logging.getLogger("dpswd.private_curator.serving.service").error("our own words", exc_info=True)
    assert CANARY not in stream.getvalue()
    assert "Traceback" not in stream.getvalue()
    assert "test_logs" in stream.getvalue()  # where the library's message came from
    assert "our own words" in stream.getvalue()
    assert len(stream.getvalue().splitlines()) == 2


def test_fields_that_are_not_on_the_list_are_not_written(written):
    stream = written(format="json")
    extra = {"outcome": "OK", "record": CANARY, "client": ""}
    logging.getLogger("dpswd.private_curator.x").info("done", extra=extra)
    line = json.loads(stream.getvalue())
    assert list(line) == ["time", "level", "logger", "message", "outcome"]
    assert line["time"].endswith("Z")


def test_a_line_is_one_line_whatever_a_name_holds(written):
    for style in ("json", "text"):
        stream = written(format=style)
        logging.getLogger("dpswd.private_curator.x").info("for %s", "a\nb")
    assert len(stream.getvalue().splitlines()) == 2


def test_the_level_is_a_setting(written):
    stream = written(level="error")
    logging.getLogger("dpswd.private_curator.x").warning("not shown")
    assert stream.getvalue() == ""


def test_warnings_and_dying_threads_go_through_the_log_without_their_texts(written, monkeypatch, capsys):
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)  # put back at the end
    stream = written(format="json")
    logging.captureWarnings(capture=False)  # whatever ran before in this process
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            logs.close_side_doors()
            warnings.warn(f"cannot use {CANARY}", stacklevel=1)
        dying = threading.Thread(target=lambda: int(f"x{CANARY}"))
        dying.start()
        dying.join()
    finally:
        logging.captureWarnings(capture=False)
    messages = [json.loads(line)["message"] for line in stream.getvalue().splitlines()]
    assert len(messages) == 2
    assert "withheld" in messages[0]
    assert messages[1] == "a thread was ended by ValueError"
    assert CANARY not in stream.getvalue() + "".join(capsys.readouterr())


def _calls():
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            if isinstance(node.func.value, ast.Name) and node.func.value.id in ("_log", "log", "logger", "logging"):
                yield path.relative_to(ROOT), node


def test_every_message_of_ours_is_a_constant_text():
    messages = 0
    for path, call in _calls():
        if call.func.attr in (
            "getLogger",
            "StreamHandler",
            "basicConfig",
            "captureWarnings",
            "LogRecord",
            "makeLogRecord",
        ):
            continue
        messages += 1
        where = f"{path}:{call.lineno}"
        assert call.func.attr in ("debug", "info", "warning", "error"), where  # not exception(), which adds a traceback
        assert isinstance(call.args[0], ast.Constant), where
        assert {keyword.arg for keyword in call.keywords} <= {"extra"}, where
        for argument in call.args[1:]:
            # An exception's text may quote a record; its type, its number or its errno's text do not.
            assert not (isinstance(argument, ast.Name) and argument.id in ("error", "failure", "exception")) or (
                ast.unparse(call) in ALLOWED
            ), where
    assert messages >= 8


ALLOWED = {
    # Made of public values alone, and the operator must know: the independent accountant disagrees.
    "_log.error('%s for %s: %s', operation, caller, error)",
    # The ledger's own words, of paths, hosts and the system's reasons: the client gets them without the places.
    "_log.warning('%s for %s: %s', operation, caller, error)",
    # Our own words of an address, a certificate's file and a time, before any record is read.
    "_log.error('the cluster is not there: %s', error)",
    # Our own words of a database's place and the kind of its refusal; no record is in it.
    "_log.error('the ledger is not watched: %s', error)",
}


def test_nothing_of_the_curator_prints_but_its_commands():
    allowed = {"cluster/node.py", "cluster/engine.py"}  # the line that says that it is there
    for path in SOURCES:
        if "cli" in path.parts or "/".join(path.parts[-2:]) in allowed:
            continue
        names = {node.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name)}
        assert "print" not in names, path
