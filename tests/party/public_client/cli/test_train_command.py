"""``train`` from the command line: dry runs, several curators, methods, own files."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from click.testing import CliRunner

from dpswd.public_client.cli.main import main
from dpswd.public_client.experiments import run
from dpswd.public_client.testing.mock import mock_description
from dpswd.public_client.training.saved_model import load_adapted
from dpswd.shared.core import errors
from dpswd.shared.protocol.contract import DataContract

SHORT = ["--source-epochs", "1", "--steps", "3", "--batch", "40", "--device", "cpu"]


def invoke(*arguments):
    return CliRunner().invoke(main, list(map(str, arguments)))


@pytest.fixture
def tables(tmp_path):
    """A team's own table, and a public stand-in for the target."""
    rng = np.random.default_rng(0)
    for name in ("source", "target"):
        y = rng.integers(0, 3, size=120)
        np.savez(tmp_path / f"{name}.npz", x=(rng.normal(size=(120, 6)) + y[:, None]).astype(np.float32), y=y)
    return ["--set", f"data.source={tmp_path / 'source.npz'}", "--set", f"data.target={tmp_path / 'target.npz'}"]


@pytest.mark.long
def test_a_dry_run_needs_no_server_and_lists_what_would_be_charged(tables, tmp_path):
    file = tmp_path / "hospital.json"
    description = mock_description(records=500, record_shape=(6,), epsilon=3.0, delta=1e-6, classes=3)
    file.write_text(json.dumps(description.to_json()))
    words = ["train", "--dry-run", *tables, *SHORT, "--curator", "a=nowhere:1", "--curator", "b=nowhere:2",
             "--description", file, "--method", "finetune", "--epsilon", 2, "--save", tmp_path / "no.safetensors",
             "--log-dir", tmp_path / "logs"]  # fmt: skip
    text = invoke(*words)
    assert text.exit_code == 0, text.output
    assert "nothing was spent" in text.stdout
    assert "meaningless" in text.stdout
    assert "%" not in text.stdout  # no accuracy is shown
    charged = [float(re.findall(rf"{site}: epsilon (\S+) for a run of 3 steps", text.stdout)[0]) for site in ("a", "b")]
    assert all(1.8 < epsilon <= 2.0 for epsilon in charged)
    assert not (tmp_path / "no.safetensors").exists()
    assert (tmp_path / "logs" / "steps.csv").exists()
    report = json.loads(invoke(*words, "--format", "json").stdout)
    assert report["dry_run"] is True
    (run,) = report["runs"]
    assert [site["charged_epsilon"] for site in run["sites"]] == pytest.approx(charged, abs=1e-3)
    assert run["accuracy"] == {"a": None, "b": None}


@pytest.mark.long
def test_two_curators_from_the_command_line(serve, tmp_path, tables):
    north, south = serve(record_shape=(6,), classes=3), serve(record_shape=(6,), classes=3)
    south.curator.spent = 4.5  # exhausted: reported, and the training goes on
    done = invoke(
        "train", *tables, *SHORT, "--method", "finetune",
        "--curator", f"north={north.address}", "--credentials", north.credentials,
        "--curator", f"south={south.address}", "--credentials", south.credentials,
        "--checkpoint", tmp_path / "run", "--save", tmp_path / "adapted.safetensors",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "south was refused after 0 of 3 steps: BudgetExhausted" in done.stdout
    assert "north        data set 1.0000 spent" in done.stdout
    assert (north.curator.spent, south.curator.spent) == (1.0, 4.5)
    assert load_adapted(tmp_path / "adapted-north.safetensors", device="cpu").plan["epsilon"] == 1.0
    again = invoke(
        "train", *tables, *SHORT, "--method", "finetune",
        "--curator", f"north={north.address}", "--credentials", north.credentials, "--checkpoint", tmp_path / "run",
    )  # fmt: skip
    assert again.exit_code == 3
    assert "holds a run already; continue it with --resume" in again.stderr


@pytest.mark.long
def test_a_training_runs_dry_and_against_two_curators_and_is_resumed(serve, tmp_path, tables):
    short = ["--source-epochs", 1, "--steps", 4, "--batch", 40, "--device", "cpu", "--method", "finetune"]
    dry = invoke("train", "--dry-run", *tables, *short, "--epsilon", 2, "--records", 500)
    assert dry.exit_code == 0, dry.output
    assert "nothing was spent" in dry.stdout
    asked = "a run of 4 steps, each releasing the cross-entropy's sanitized gradient"
    (charged,) = re.findall(rf"epsilon (\S+) for {asked}", dry.stdout)
    assert 1.8 < float(charged) <= 2.0
    wrong = invoke("train", "--dry-run", *tables, *short, "--set", "method.settings.hidden=8")
    assert wrong.exit_code == 9
    assert "finetune has no hidden" in wrong.stderr

    north, south = serve(record_shape=(6,), classes=3), serve(record_shape=(6,), classes=3)
    south.curator.failures["DrawStep"] = [None, None, errors.RunFinished("closed by the operator")]
    words = [
        "train", *tables, *short, "--checkpoint", tmp_path / "run", "--save", tmp_path / "adapted.safetensors",
        "--curator", f"north={north.address}", "--credentials", north.credentials,
        "--curator", f"south={south.address}", "--credentials", south.credentials,
    ]  # fmt: skip
    first = invoke(*words)
    assert first.exit_code == 0, first.output
    assert "south was set aside after 2 of 4 steps: RunFinished" in first.stdout
    resumed = invoke(*words, "--resume")
    assert resumed.exit_code == 0, resumed.output
    assert "set aside" not in resumed.stdout
    for served in (north, south):
        assert (served.curator.steps_charged, served.curator.spent) == (4, 1.0)
    saved = [load_adapted(tmp_path / f"adapted-{name}.safetensors", device="cpu") for name in ("north", "south")]
    assert [model.plan["method"]["name"] for model in saved] == ["finetune", "finetune"]


def test_a_control_over_two_seeds_on_ones_own_stand_in(tables):
    done = invoke("train", *tables, "--source-epochs", 1, "--method", "control",
                  "--set", "method.control_steps=5", "--seed", 0, "--seed", 1, "--device", "cpu")  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "over 2 seeds" in done.stdout


@pytest.mark.long
def test_a_rehearsal_for_the_teams_own_records(tables):
    """docs/ml-team/labelled-sources.md: 30 of the team's labels are kept, the score is on its own records."""
    done = invoke("train", *tables, "--method", "dpda", "--epsilon", 4, "--set", "data.labelled=30", "--device", "cpu",
                  "--set", "method.settings.updates=20", "--format", "json")  # fmt: skip
    assert done.exit_code == 0, done.output
    (run,) = json.loads(done.stdout)["runs"]
    assert run["control"] is None  # the control is for a hospital's records
    assert all(0.0 <= value <= 100.0 for value in run["accuracy"].values())
    assert [site["state"] for site in run["sites"]] == ["finished"]


def test_a_method_that_keeps_nothing_is_refused_before_it_trains(tables, tmp_path):
    saved = tmp_path / "adapted.safetensors"
    refused = invoke("train", *tables, "--method", "control", "--save", saved, "--source-epochs", 100_000)
    assert refused.exit_code == 3
    assert "control asks none, without a plan" in refused.stderr


def test_ones_own_files_are_checked(tmp_path, tables):
    np.savez(tmp_path / "bad.npz", x=np.full((4, 6), np.nan), y=np.arange(4))
    bad = invoke("train", "--set", f"data.source={tmp_path / 'bad.npz'}", "--set", tables[3])
    assert bad.exit_code == 4
    assert "NaN" in bad.stderr
    np.savez(tmp_path / "bad.npz", x=np.zeros((4, 5), np.float32), y=np.arange(4))
    other = invoke("train", *tables[:2], "--set", f"data.target={tmp_path / 'bad.npz'}")
    assert other.exit_code == 4
    assert "must be alike" in other.stderr
    missing = invoke("train", "--set", "data.source=none.npz")
    assert missing.exit_code == 3
    alone = invoke("train", *tables[:2])
    assert alone.exit_code == 3
    assert "for a rehearsal give --target, a file like it" in alone.stderr


def test_a_charge_that_mostly_changed_nothing_is_made_on_a_word_alone(tables, monkeypatch):
    """198 of 218 measured replays on vectors kept the model: none is charged unless it is wished all the same."""
    monkeypatch.setattr(run, "_compared", lambda *_: pytest.fail("the hospital was asked"))
    words = ["train", *tables, "--source-epochs", 1, "--curator", "nowhere:1", "--credentials", "c"]
    refused = invoke(*words, "--method", "replay")
    assert refused.exit_code == 3
    assert "198 of 218 measured runs of replay on vectors were charged and left the model as it was" in refused.stderr
    for more in (["--method", "replay", "--yes"], ["--method", "rows"], []):
        with pytest.raises(pytest.fail.Exception, match="the hospital was asked"):
            CliRunner().invoke(main, list(map(str, [*words, *more])), catch_exceptions=False)


def test_methods_are_listed():
    listed = invoke("train", "--list-methods").stdout
    assert "replay" in listed
    assert "control" in listed


def test_another_scale_or_order_is_refused_before_the_source_is_trained(tables, tmp_path, monkeypatch):
    file = tmp_path / "hospital.json"
    contract = DataContract(value_range=(0.0, 1.0), column_names=tuple("abcdef"), class_names=("x", "y", "z"))
    description = mock_description(
        records=500, record_shape=(6,), epsilon=3.0, delta=1e-6, classes=3, contract=contract
    )  # fmt: skip
    file.write_text(json.dumps(description.to_json()))
    monkeypatch.setattr(run, "train_source_model", lambda *_, **__: pytest.fail("the source was trained"))
    words = ["train", "--dry-run", *tables, *SHORT, "--method", "replay", "--description", file]
    refused = invoke(*words)
    assert refused.exit_code == 4, refused.output
    assert "the hospital declares 0 to 1" in refused.output
    own = tmp_path / "own.toml"
    own.write_text('contract.column_names = ["b", "a", "c", "d", "e", "f"]\ncontract.class_names = ["y", "x", "z"]\n')
    refused = invoke(*words, "--experiment", own)
    assert "first 'b' for 'a' (number 0)" in refused.output
    assert "first 'y' for 'x' (number 0)" in refused.output
    own.write_text("contract.value_range = [1.0, 0.0]\n")
    refused = invoke(*words, "--experiment", own)
    assert (refused.exit_code, "value_range must be two finite numbers" in refused.output) == (3, True), refused.output
