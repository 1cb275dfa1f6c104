"""A program that is forked for a test is the process that it would be otherwise."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from forked_starts import REPORT_BYTES, possible, suspended

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "story"))

from curator_process import CuratorProcess

SCRIPT = Path(__file__).with_name("what_it_is.py")


def started(*words, truly=False, **options):
    with suspended() if truly else nullcontext():
        return subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


def test_nothing_here_changes_what_is_read_at_start():
    """Else every later program would load torch again."""
    import sklearn  # sets variables of its own

    assert sklearn.__version__
    process = started(SCRIPT, "7", stdin=subprocess.PIPE)
    assert loaded_torch(process) == possible()
    process.communicate()


def loaded_torch(process):
    return any("libtorch" in line for line in Path(f"/proc/{process.pid}/maps").read_text().splitlines())


@pytest.mark.parametrize("session", [True, False])
def test_it_tells_the_same_of_itself(tmp_path, session):
    reading, writing = os.pipe()
    reports = []
    for truly in (True, False):
        process = started(
            SCRIPT, "7", truly=truly, cwd=tmp_path, env={**os.environ, "PYTHONPATH": "/nowhere", "ONE": "2"},
            stdin=subprocess.PIPE, pass_fds=(reading,), start_new_session=session,
        )  # fmt: skip
        out, words = process.communicate(b"something")
        assert process.returncode == 7
        reports.append({**json.loads(out), "error": words.decode()})
    os.close(reading)
    os.close(writing)
    assert reports[0] == reports[1]
    assert reports[1]["parent"] == os.getpid()


@pytest.fixture
def _heard():
    """A test run that was started in the background ignores SIGINT, and so would its children."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_heard")
def test_it_is_forked_and_can_be_killed_interrupted_and_start_others():
    waiting = started(SCRIPT, "waits"), started(SCRIPT, "waits"), started(SCRIPT, "waits", truly=True)
    for process in waiting:
        assert process.stdout.readline() == b"waiting\n"
    if possible():
        assert [loaded_torch(process) for process in waiting] == [True, True, False]
    for process, number in zip(waiting, (signal.SIGKILL, signal.SIGINT, signal.SIGINT), strict=True):
        process.send_signal(number)
    assert [process.wait(timeout=30) for process in waiting] == [-signal.SIGKILL, -signal.SIGINT, -signal.SIGINT]
    assert b"KeyboardInterrupt" in waiting[1].stderr.read()
    raising = started(SCRIPT, "raises")
    assert b"ValueError: told to" in raising.communicate()[1]
    assert raising.returncode == 1
    assert json.loads(started(SCRIPT, "starts another").communicate()[0]) == [7, True]


def test_a_curator_and_its_worker_are_forked(tmp_path):
    """Variables of theirs kept them from it once, and each test that starts a curator waited for torch."""
    curator = CuratorProcess(tmp_path, np.zeros((100, 1, 4, 4)), epsilon=1.0)
    curator.start()
    try:
        numbers = family(curator.process.pid)
        programs = [Path(f"/proc/{number}/cmdline").read_bytes() for number in numbers]
    finally:
        curator.stop()
    for name in (b"private_curator.cli", b"private_curator.sandbox"):
        (words,) = {words for words in programs if name in words}
        assert (len(words) > REPORT_BYTES) == possible(), name


def family(number):
    """A process and all that it has started."""
    children = " ".join(file.read_text() for file in Path(f"/proc/{number}/task").glob("*/children"))
    return [number, *(member for child in children.split() for member in family(int(child)))]


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (["-c", "pass"], {}),
        ([SCRIPT, "waits"], {"env": {**os.environ, "OMP_NUM_THREADS": "3"}}),
        ([SCRIPT, "waits"], {"preexec_fn": lambda: None}),
    ],
    ids=["another program", "a variable that torch reads", "something before it begins"],
)
@pytest.mark.long
def test_what_a_fork_cannot_do_begins_the_usual_way(words, options):
    process = started(*words, **options)
    assert not loaded_torch(process)
    process.kill()
    process.wait()
