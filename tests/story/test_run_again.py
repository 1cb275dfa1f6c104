"""The main commands a second time, after Ctrl-C, without a place to write: they work, or say what to do.

What is interrupted, or limited, is a process of its own; so are the curators. What is typed in the first hours is typed
twice in `test_operator_pages`, and `docker compose up` in `test_containers`.
"""

from __future__ import annotations

import contextlib
import csv
import errno
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from forked_starts import suspended

from dpswd.public_client.cli.main import main as client
from dpswd.public_client.testing.local_hospital import LocalHospital
from dpswd.public_client.training.checkpoint import Checkpoint
from dpswd.public_client.training.saved_model import load_adapted

pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("extractors_in_process")]

DEMO = [sys.executable, str(Path(__file__).parent / "quick_demo.py")]
CLIENT = [sys.executable, "-m", "dpswd.public_client.cli.main"]
NOBODYS = "/sys/dpswd"  # where nobody may make a file, root neither
WAIT_S = 300.0


def finished(command, *, cwd):
    """A command's exit code and all that it printed."""
    done = subprocess.run(
        [*map(str, command)], cwd=cwd, text=True, timeout=WAIT_S, check=False, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "400"},
    )  # fmt: skip
    return done.returncode, done.stdout


def typed(command, *, cwd):
    """The same of one of the client's commands, in this process: starting another one would take most of the time."""
    with contextlib.chdir(cwd):
        done = CliRunner().invoke(client, list(map(str, command[len(CLIENT) :])), env={"COLUMNS": "400"})
    return done.exit_code, done.output


def interrupted(command, *, cwd, when):
    """A command's exit code and output after Ctrl-C, which reaches everything that the terminal runs."""
    with (cwd / "interrupted.log").open("w+") as log:
        with hears_ctrl_c():
            running = subprocess.Popen([*map(str, command)], cwd=cwd, stdout=log, stderr=log, start_new_session=True)
        deadline = time.monotonic() + WAIT_S
        while not when():
            assert running.poll() is None, (cwd / "interrupted.log").read_text()
            assert time.monotonic() < deadline, "the moment to interrupt did not come"
            time.sleep(0.01)
        os.killpg(running.pid, signal.SIGINT)
        code = running.wait(timeout=WAIT_S)
    left = [p for p in Path("/proc").glob("[0-9]*/cmdline") if str(cwd).encode() in _read(p)]
    assert not left, "a process outlived Ctrl-C"
    return code, (cwd / "interrupted.log").read_text()


@contextlib.contextmanager
def hears_ctrl_c():
    """A test run that was started in the background ignores SIGINT, and so would what is started in it."""
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)


def _read(path):
    try:
        return path.read_bytes()
    except OSError:  # it ended meanwhile
        return b""


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A team's table of 120 labelled rows."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, size=120)
    path = tmp_path_factory.mktemp("source") / "source.npz"
    np.savez(path, x=(rng.normal(size=(120, 6)) + y[:, None]).astype(np.float32), y=y)
    return path


@pytest.fixture(scope="module")
def hospital(source):
    with np.load(source) as table, LocalHospital(table["x"] + 0.3, epsilon=8.0, delta=1e-5, device="cpu") as running:
        yield running


def train(source, *words, steps=3):
    return [
        *CLIENT, "train", "--set", f"data.source={source}", "--source-epochs", 1, "--method", "all-weights",
        "--steps", steps, "--batch", 40, "--setting", "directions=8", "--device", "cpu", *words,
    ]  # fmt: skip


def at(hospital):
    return ["--curator", hospital.address, "--credentials", hospital.credentials]


def test_the_demo_again_in_the_same_folder_after_ctrl_c(tmp_path):
    first, second = (tmp_path / "demo-output" / name for name in ("run-1", "run-2"))
    code, said = interrupted(DEMO, cwd=tmp_path, when=(first / "method-1" / "run.json").exists)
    assert (code, said.splitlines()[-1]) == (130, "dpswd-client: interrupted"), said[-3000:]
    pinned = (first / "method-1" / "ledger.pub").read_text()
    code, said = finished([*DEMO, "--format", "json"], cwd=tmp_path)
    assert code == 0, said
    assert re.search(r"Operator's console, until the demo ends: http://127\.0\.0\.1:\d+/sign-in\?token=\S+", said), said
    assert "dpswd-curator console --home demo-output/run-2/method-1/hospital/home" in said
    assert "BudgetExhausted" in said
    for name in ("method-1/adapted.safetensors", "method-1/receipts.jsonl"):
        assert (second / name).stat().st_size > 0
    # Another hospital, and so another key: nothing of the first is overwritten or held against it.
    assert (first / "method-1" / "ledger.pub").read_text() == pinned != (second / "method-1" / "ledger.pub").read_text()


def test_a_demo_without_a_place_says_so_at_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(client, ["demo", "--output", NOBODYS])
    assert done.exit_code == 3, done.output
    assert done.stderr.startswith(f"dpswd-client: {NOBODYS}: ")
    assert "choose a place of your own" in done.stderr
    (tmp_path / "demo-output").write_text("a file in the way")
    done = CliRunner().invoke(client, ["demo"])
    assert done.exit_code == 2
    assert "'demo-output' is a file" in done.stderr


def test_train_twice_with_the_same_outputs(hospital, source, tmp_path):
    before = hospital.budget()
    words = [*at(hospital), "--epsilon", 1, "--save", "model.safetensors", "--log-dir", "logs", "--checkpoint", "run"]
    code, said = typed(train(source, *words), cwd=tmp_path)
    assert code == 0, said
    first = load_adapted(tmp_path / "model.safetensors", device="cpu")
    code, said = typed(train(source, *words), cwd=tmp_path)
    assert (code, said) == (
        3,
        "dpswd-client: run holds a run already; continue it with --resume, or choose another directory\n",
    )
    code, said = typed(train(source, *words, "--resume"), cwd=tmp_path)
    assert code == 0, said
    again = load_adapted(tmp_path / "model.safetensors", device="cpu")
    torch.testing.assert_close(again.composed()[1], first.composed()[1], rtol=0.0, atol=0.0)
    assert hospital.budget()["runs"] == before["runs"] + 1
    words[-1] = "another-run"
    code, said = typed(train(source, *words), cwd=tmp_path)
    assert code == 0, said
    assert hospital.budget()["runs"] == before["runs"] + 2
    with (tmp_path / "logs" / "steps.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["learning_rate"]]
    assert [int(row["step"]) for row in rows] == [1, 2, 3, 1, 2, 3]


def test_ctrl_c_in_the_middle_of_a_training_and_again(source, tmp_path):
    words = ["--set", f"data.target={source}", "--epsilon", 1, "--checkpoint", "run", "--save", "model.safetensors"]
    command = train(source, *words, steps=30)
    code, said = interrupted(command, cwd=tmp_path, when=(tmp_path / "run" / "state.pt").exists)
    assert (code, said.splitlines()[-1]) == (130, "dpswd-client: interrupted"), said[-3000:]
    assert not (tmp_path / "model.safetensors").exists()
    code, said = typed(command, cwd=tmp_path)
    assert code == 3
    assert "continue it with --resume" in said
    code, said = typed([*command, "--resume", "--format", "json"], cwd=tmp_path)
    assert code == 0, said
    report = json.loads(said[said.index("{\n") :])
    assert report["spent"] == pytest.approx(1.0, abs=1e-3)
    assert report["runs"][0]["sites"][0]["steps"] == 30
    assert (tmp_path / "model.safetensors").exists()


@contextlib.contextmanager
def small_files(most):
    """No file may grow beyond so many bytes, for root neither: as on a disk that is nearly full."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, limit[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)


@pytest.mark.parametrize(
    ("option", "path", "says"),
    [
        ("--save", f"{NOBODYS}/model.safetensors", f"{NOBODYS}: "),
        ("--save", "taken", "a folder stands there"),
        ("--log-dir", "file/logs", "Not a directory"),
        ("--checkpoint", "file", "File exists"),
    ],
)
def test_an_output_that_cannot_be_written_is_refused_before_anything_is_charged(source, tmp_path, option, path, says):
    (tmp_path / "taken").mkdir()
    (tmp_path / "file").write_text("")
    place = path if path.startswith("/") else tmp_path / path
    words = ["train", "--set", f"data.source={source}", "--set", f"data.target={source}", "--source-epochs", "100000"]
    done = CliRunner().invoke(client, [*words, option, str(place)])
    assert done.exit_code == 3, done.output
    assert f"output.{option[2:].replace('-', '_')} cannot be written" in done.stderr
    assert says in done.stderr
    assert "nothing was charged" in done.stderr


def test_a_full_disk_is_noticed_before_anything_is_charged(hospital, source, tmp_path):
    before = hospital.budget()
    words = [*at(hospital), "--epsilon", 1, "--save", "model.safetensors"]
    with small_files(1 << 19):
        code, said = finished(train(source, *words), cwd=tmp_path)
    assert code == 3, said
    assert os.strerror(errno.EFBIG) in said
    assert "nothing was charged" in said
    assert hospital.budget() == before
    assert not list(tmp_path.iterdir())


def test_a_disk_that_fills_up_leaves_the_last_checkpoint_and_says_what_to_do(tmp_path, monkeypatch):
    store = Checkpoint(tmp_path / "run")
    store.write("state", {"step": 1})
    with small_files(1 << 12), pytest.raises(OSError, match=os.strerror(errno.EFBIG)) as full:
        store.write("state", {"step": 2, "weights": torch.zeros(10_000)})
    assert store.read("state") == {"step": 1}

    @click.command()
    def train() -> None:
        raise full.value

    monkeypatch.setattr("dpswd.public_client.cli.training.train", train)
    done = CliRunner().invoke(client, ["train"])
    assert done.exit_code == 3
    assert "free some space and repeat the command; a training with --checkpoint goes on with --resume" in done.stderr


def test_an_interrupted_set_up_is_done_again_and_a_taken_port_is_named(hospital, tmp_path):
    (tmp_path / "home" / "certificates").mkdir(parents=True)  # what `init` makes first
    with LocalHospital(np.zeros((50, 3), np.float32), epsilon=1.0, delta=1e-5, directory=tmp_path) as other:
        assert other.budget()["epsilon"] == 1.0
        other.stop()
        command = [sys.executable, "-m", "dpswd.private_curator.cli", "serve", "--home", other.home]
        with suspended():  # gRPC reads what it may say when it is loaded
            code, said = finished([*command, "--address", hospital.address], cwd=tmp_path)
    assert code == 3, said
    assert "cannot be bound; free the port or choose another" in said
    assert "add_port" not in said  # gRPC's own line
