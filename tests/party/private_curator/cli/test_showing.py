"""What the operator sees on a terminal of 80 columns, through a pipe, and through a pipe that closes early."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading

import pytest
from charged_home import charged
from click.testing import CliRunner
from declarations import quantiles
from made_home import made_home

from dpswd.private_curator.cli.main import main
from dpswd.shared.core.privacy.budget import PrivacyBudget

PURPOSE = "Spring study: adapt the pneumonia screener to the northern site, agreed with the board"


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    import numpy as np

    made = made_home(tmp_path_factory.mktemp("shown"), np.zeros((300, 4), dtype=np.float32), epsilon=3.0, clients={})
    with made.open_ledger() as books:
        issued, _ = made.authority.make_client(name="ml-team.of-the-north")
        books.add_client("ml-team.of-the-north", issued.fingerprint, PrivacyBudget(2.0, 1e-5))
        for _ in range(3):
            charged(books, quantiles(8, 8.0), client="ml-team.of-the-north", batch=300, purpose=PURPOSE)
        books.approve_extractor("ab" * 32)
        books.request_budget(client="ml-team.of-the-north", epsilon=0.5, purpose=PURPOSE)
    return made


def on_a_terminal(home, *words):
    """What a terminal of 80 columns gets, line by line."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    parts = []
    with os.fdopen(follower, "w") as stream, pytest.MonkeyPatch.context() as patch:
        reading = threading.Thread(target=_read, args=(leader, parts))
        reading.start()
        patch.delenv("COLUMNS", raising=False)
        patch.setenv("DPSWD_CURATOR_HOME", str(home.path))
        patch.setattr(sys, "stdout", stream)
        patch.setattr(sys, "__stdout__", stream)
        main(list(words), standalone_mode=False)
    reading.join()
    os.close(leader)
    plain = re.sub(rb"\x1b\[[0-9;]*m", b"", b"".join(parts)).decode()
    return [line.rstrip() for line in plain.replace("\r\n", "\n").splitlines()]


def _read(leader, parts):
    with contextlib.suppress(OSError):  # the other end is closed
        while part := os.read(leader, 65536):
            parts.append(part)


def run(home, *words, status=0):
    result = CliRunner().invoke(main, list(words), env={"DPSWD_CURATOR_HOME": str(home.path)})
    assert result.exit_code == status, result.output
    return result.output


@pytest.mark.parametrize(
    "words", [("budget",), ("clients",), ("runs",), ("requests",), ("certificates",), ("history",), ("extractors",)]
)
def test_a_table_fits_80_columns_and_its_ids_break_nowhere(home, words):
    lines = on_a_terminal(home, *words)
    assert max(map(len, lines)) <= 80
    rows = json.loads(run(home, *words, "--format", "json"))
    for row in rows if isinstance(rows, list) else [rows]:
        for name, value in row.items():
            if name in ("ledger_head", "digest", "client", "name"):
                assert any(value in line for line in lines), (name, value)
            if name in ("run_id", "fingerprint") and words != ("clients",):
                assert any(re.search(rf"\b{value[:8]}[0-9a-f]*\b", line) for line in lines), (name, value)


def test_wide_and_a_pipe_have_all_columns_in_full_on_one_line_each(home):
    wide, piped = on_a_terminal(home, "runs", "--wide"), run(home, "runs")
    for row in json.loads(run(home, "runs", "--format", "json")):
        for text in ("\n".join(wide), piped):
            (line,) = [line for line in text.splitlines() if row["run_id"] in line]
            assert PURPOSE in line
            assert row["mechanism"] in line


def test_the_first_digits_of_an_id_stand_for_it(home):
    first, *_ = json.loads(run(home, "runs", "--format", "json"))
    shown = json.loads(run(home, "runs", first["run_id"][:8], "--format", "json"))
    assert shown["run_id"] == first["run_id"]
    run(home, "runs", first["run_id"][:3], status=7)  # too few to mean one
    run(home, "extractors", "--withdraw", "abab")
    assert json.loads(run(home, "extractors", "--format", "json")) == []
    run(home, "runs", first["run_id"][:8], "--prune", "--reason", "over")
    assert json.loads(run(home, "runs", first["run_id"][:8], "--format", "json"))["state"] == "closed"
    (listed,) = json.loads(run(home, "certificates", "--format", "json"))
    run(home, "clients", listed["name"], "--revoke-certificate", listed["fingerprint"][:16], "--reason", "leaked")
    assert json.loads(run(home, "certificates", "--format", "json")) == []


def test_costs_are_rounded_up_what_is_left_down_and_no_word_is_pythons(home):
    budget = json.loads(run(home, "budget", "--format", "json"))
    shown = dict(re.findall(r"^  (\S[\w ]*?) {2,}(\S+)$", run(home, "budget"), re.MULTILINE))
    assert budget["epsilon_spent"] <= float(shown["epsilon spent"]) < budget["epsilon_spent"] + 1e-4
    assert budget["epsilon_remaining"] - 1e-4 < float(shown["epsilon remaining"]) <= budget["epsilon_remaining"]
    (alone,) = {row["alone"] for row in json.loads(run(home, "runs", "--format", "json"))}
    assert "True" not in (text := run(home, "ledger", "verify"))
    assert re.search(r"ok +yes", text)
    assert re.search(r"findings +none", text)
    spoken = float(re.search(r"epsilon ([\d.]+) alone", run(home, "history"))[1])
    assert alone <= spoken < alone + 1e-4


@pytest.mark.parametrize(
    "words",
    [
        ("dpswd.private_curator.cli", "history"),
        ("dpswd.private_curator.cli", "ledger", "export"),
        ("dpswd.public_client.cli.main", "settings"),
    ],
)
def test_a_pipe_that_closes_early_is_silent(home, words):
    read, written = os.pipe()
    os.close(read)
    environment = os.environ | {"DPSWD_CURATOR_HOME": str(home.path)}
    done = subprocess.run(
        [sys.executable, "-m", *words], stdout=written, stderr=subprocess.PIPE, env=environment, check=False
    )
    os.close(written)
    assert done.stderr == b""
    assert done.returncode == 128 + signal.SIGPIPE  # 1 would be a defect
