"""MLflow, in a local store, and Weights & Biases, offline, are told what the log on disk is told."""

from __future__ import annotations

import contextlib
import math
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest
from click.testing import CliRunner

from dpswd.public_client.cli.main import main
from dpswd.public_client.tools import trackers
from dpswd.shared.core.errors import SettingsError


@pytest.fixture
def mlflow(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    mlflow.set_tracking_uri(None)
    yield mlflow
    mlflow.set_tracking_uri(None)


@pytest.fixture
def server(mlflow, tmp_path, monkeypatch):
    """MLflow's own server, its store a database of its own; what a team's machine sends goes over HTTP."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    words = ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    words += ["--backend-store-uri", f"sqlite:///{tmp_path / 'mlflow.db'}", "--artifacts-destination", str(tmp_path)]
    with (tmp_path / "server.log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-m", "mlflow", "server", *words], stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 120
        while True:
            with contextlib.suppress(urllib.error.URLError, ConnectionError):
                if urllib.request.urlopen(f"{address}/health", timeout=5).read() == b"OK":
                    break
            said = (tmp_path / "server.log").read_text(errors="replace")[-2000:]
            assert process.poll() is None, said
            assert time.monotonic() < deadline, said
            time.sleep(0.2)
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        yield address
    finally:
        process.terminate()
        process.wait(30)


def logged_in(mlflow, name):
    """The metrics of the latest run, of all steps, and whether it has ended."""
    client = mlflow.tracking.MlflowClient()
    (run, *_) = client.search_runs(["0"])
    assert run.info.run_name == name
    history = {
        key: [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, key)] for key in run.data.metrics
    }
    return history, run.info.status


def test_mlflow_has_every_step_and_epsilon(mlflow, tmp_path):
    with trackers.TrackedLog(tmp_path / "log", ["mlflow"], name="digits") as log:
        for step in (1, 2):
            log.scalars("north", step, distance=1.0 / step, epsilon=0.5 * step, accuracy=math.nan)
    history, status = logged_in(mlflow, "digits")
    assert history == {"north/distance": [(1, 1.0), (2, 0.5)], "north/epsilon": [(1, 0.5), (2, 1.0)]}
    assert status == "FINISHED"


@pytest.mark.long
def test_a_server_of_mlflow_gets_all_of_it_over_http(mlflow, server, tmp_path):
    assert mlflow.get_tracking_uri() == server
    with trackers.TrackedLog(tmp_path / "log", ["mlflow"], name="spring") as log:
        for step in (1, 2):
            log.scalars("north", step, epsilon=0.25 * step, accuracy=math.nan)
        log.scalars("south", 1, epsilon=0.5)
    history, status = logged_in(mlflow, "spring")
    assert history == {"north/epsilon": [(1, 0.25), (2, 0.5)], "south/epsilon": [(1, 0.5)]}
    assert status == "FINISHED"


def test_a_run_of_the_teams_own_goes_on(mlflow):
    with mlflow.start_run(run_name="own"):
        log = trackers.MlflowLog("another")
        log.scalars("north", 1, epsilon=0.5)
        log.close()
        assert mlflow.active_run() is not None
    assert logged_in(mlflow, "own") == ({"north/epsilon": [(1, 0.5)]}, "FINISHED")


@pytest.mark.long
def test_a_training_by_the_command_is_tracked(mlflow, tmp_path):
    words = ["train", "--data", "digits", "--epsilon", "0.5", "--source-epochs", "1", "--method", "statistics"]
    words = [*words, "--log-dir", str(tmp_path / "log"), "--set", "name=spring", "--set", 'output.track=["mlflow"]']
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, (done.output, done.exception)
    history, _ = logged_in(mlflow, "spring")
    (epsilons,) = (values for key, values in history.items() if key.endswith("/epsilon"))
    assert 0.0 < epsilons[-1][1] <= 0.5


def test_wandb_offline_has_each_sites_own_steps(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    for name, value in (("WANDB_MODE", "offline"), ("WANDB_DIR", str(tmp_path)), ("WANDB_SILENT", "true")):
        monkeypatch.setenv(name, value)
    log = trackers.WandbLog("digits")
    log.scalars("north", 3, epsilon=0.25)
    log.scalars("south", 1, epsilon=0.5, accuracy=math.nan)
    summary = {name: value for name, value in dict(wandb.run.summary).items() if not name.startswith("_")}
    assert summary == {"north/epsilon": 0.25, "north/step": 3, "south/epsilon": 0.5, "south/step": 1}
    log.close()
    assert wandb.run is None
    (file,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    deadline = time.monotonic() + 30  # its own process writes it
    while b"north/epsilon" not in file.read_bytes():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("name", trackers.TRACKERS)
def test_a_tracker_that_is_not_installed_says_so(name, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, name, None)
    with pytest.raises(SettingsError, match=f"pip install {name}"):
        trackers.TRACKERS[name](None)
