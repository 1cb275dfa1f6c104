"""MLflow, in a local store, and Weights & Biases, offline, are told what the log on disk is told."""

from __future__ import annotations

import math
import time

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
