"""Labelled statistics and gradients of real curator processes: two hospitals, one model; charges, refusals, retries."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from signed_by_team import TEAM, credentials_in
from small_methods import trained_by
from torch import nn

from dpswd import Federation, Hospital, Statistics
from dpswd.public_client.cli.main import main
from dpswd.public_client.curator.receipts import LEDGER_KEY_FILE, read_pinned
from dpswd.public_client.evidence.signature import NOBODY, SIGNED
from dpswd.public_client.ladder.check import check
from dpswd.public_client.testing.audit import write_audit
from dpswd.public_client.testing.local_hospital import LocalHospital
from dpswd.public_client.training.saved_model import load_adapted
from dpswd.shared.books import chain_checks
from dpswd.shared.core.errors import BudgetExhausted, InvalidValue, RequestInvalid

torch.set_num_threads(1)

WIDTH, CLASSES = 6, 3
MEANS = 1.2 * np.random.default_rng(21).normal(size=(CLASSES, WIDTH))
SIZES = {"north": 900, "south": 500}


def made(count, seed):
    """The hospitals' classes are the public source's turned round."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(CLASSES, size=count)
    return (MEANS[(labels + 1) % CLASSES] + rng.normal(size=(count, WIDTH))).astype(np.float32), labels


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory):
    started = {}
    for seed, (name, count) in enumerate(SIZES.items()):
        records, labels = made(count, seed)
        started[name] = LocalHospital(
            records, epsilon=2.0, delta=1e-5, name=name, device="cpu", labels=labels, classes=CLASSES,
            directory=tmp_path_factory.mktemp(name),
        )  # fmt: skip
    with started["north"], started["south"]:
        yield started


def problem():
    extractor = nn.Linear(WIDTH, WIDTH).eval()
    with torch.no_grad():
        extractor.weight.copy_(torch.eye(WIDTH))
        extractor.bias.zero_()
    rng = np.random.default_rng(5)
    labels = rng.integers(CLASSES, size=600)
    source = torch.from_numpy((MEANS[labels] + rng.normal(size=(600, WIDTH))).astype(np.float32))
    data = torch.utils.data.TensorDataset(source, torch.from_numpy(labels))
    return (extractor, nn.Linear(WIDTH, CLASSES)), torch.utils.data.DataLoader(data, batch_size=100)


def test_two_hospitals_labels_make_one_model_at_one_charge_each(hospitals, tmp_path):
    fresh, labels = made(3000, 9)
    best = float((((fresh[:, None] - MEANS) ** 2).sum(axis=2).argmin(axis=1) == (labels + 1) % CLASSES).mean())
    with Federation.connect(
        {name: hospital.address for name, hospital in hospitals.items()},
        credentials={name: hospital.credentials for name, hospital in hospitals.items()},
        run_directory=tmp_path / "run",
    ) as sites:
        descriptions = sites.describe()
        assert all("class_statistics" in one.mechanisms for one in descriptions.values())
        asked = {"shared": True, "checkpoint": tmp_path / "run"}
        trained = trained_by("statistics", *problem(), sites, **asked)
        assert [report["state"] for report in trained.reports] == ["finished", "finished"]
        for report in trained.reports:
            assert 0.95 < report["charged_epsilon"] <= 1.0
        spent = {name: one.spent for name, one in sites.describe().items()}
        again = trained_by(
            "statistics", *problem(), sites, **asked
        )  # from its directory: the same releases, no further charge
        assert {name: one.spent for name, one in sites.describe().items()} == spent
        for name in SIZES:
            torch.testing.assert_close(again.model(name).classifier.weight, trained.model(name).classifier.weight)
            lines = (tmp_path / "run" / "sites" / name / "receipts.jsonl").read_text().splitlines()
            entries, findings = chain_checks.read_export(lines)
            assert findings == []
            assert len(entries) == 2  # the charge and the release; what is asked again is the same receipt
        with pytest.raises(BudgetExhausted):
            trained_by("statistics", *problem(), sites, shared=True, wishes={"epsilon": 1.9})
        assert {name: one.spent for name, one in sites.describe().items()} == spent
    # Nothing but the hospitals' labels says that their classes are turned round: the source is right on next to none.
    assert trained.score(torch.from_numpy(fresh), torch.from_numpy(labels)) > best - 0.05
    (north,) = trained.save(tmp_path / "north.safetensors", site="north")
    loaded = load_adapted(north, device="cpu")
    assert float((loaded.predict(torch.from_numpy(fresh)).numpy() == labels).mean()) > best - 0.05
    applied = subprocess.run(
        [sys.executable, "-m", "dpswd.private_curator.cli", "apply", str(north), "--home", str(hospitals["north"].home),
         "--out", str(tmp_path / "p.csv"), "--format", "json"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert applied.returncode == 0, applied.stderr
    assert json.loads(applied.stdout)["accuracy_on_own_labels"] > best - 0.1
    signer_is_the_team(hospitals["north"], north)


def signer_is_the_team(hospital, path):
    """The team's own key signed: authority and ledger say so, and of another of that name they do not."""
    command = [sys.executable, "-m", "dpswd.private_curator.cli", "ledger", "export", "--client", TEAM]
    exported = subprocess.run([*command, "--home", str(hospital.home)], capture_output=True, text=True, check=True)
    view, key = exported.stdout.splitlines(), read_pinned(hospital.credentials / LEDGER_KEY_FILE)
    checked = check(path, key=key, credentials=hospital.credentials, ledger=view)
    assert checked.findings == []
    assert f"signed by '{TEAM}'" in str(checked)
    write_audit(path, checked.certificate, [], credentials_in(path.parent / "others"))
    texts = [finding.text for finding in check(path, key=key, credentials=hospital.credentials, ledger=view).findings]
    assert "was not certified by the authority" in texts[0]
    assert "the ledger never bound" in texts[1]
    write_audit(path, {**checked.certificate, SIGNED: NOBODY}, [])
    assert "nobody signed the certificate" in check(path, key=key).findings[0].text


def test_two_hospitals_gradients_train_one_classifier(hospitals, tmp_path):
    fresh, labels = made(3000, 9)
    with Federation.connect(
        {name: hospital.address for name, hospital in hospitals.items()},
        credentials={name: hospital.credentials for name, hospital in hospitals.items()},
        run_directory=tmp_path / "run",
    ) as sites:
        before = {name: one.spent for name, one in sites.describe().items()}
        asked = {"shared": True, "checkpoint": tmp_path / "run", "settings": {"learning_rate": 1.0}}
        asked["wishes"] = {"epsilon": 0.7, "steps": 12}
        trained = trained_by("finetune", *problem(), sites, **asked)
        for report in trained.reports:
            assert (report["state"], report["steps"]) == ("finished", 12)
        spent = {name: one.spent for name, one in sites.describe().items()}
        assert all(0.0 < spent[name] - before[name] <= 0.7 for name in SIZES)
        assert all(len(sites_run.history) > 2 for sites_run in trained.sites.values())
        again = trained_by(
            "finetune", *problem(), sites, **asked
        )  # from its directory: no step is drawn, or charged, again
        assert {name: one.spent for name, one in sites.describe().items()} == spent
        weights = [run.model("north").classifier.weight for run in (trained, again)]
        torch.testing.assert_close(*weights)
        for name in SIZES:
            lines = (tmp_path / "run" / "sites" / name / "receipts.jsonl").read_text().splitlines()
            entries, findings = chain_checks.read_export(lines)
            assert findings == []
            assert len(entries) == 13  # the charge and twelve gradients
    scores = {name: trained.score(torch.from_numpy(fresh), torch.from_numpy(labels), site=name) for name in SIZES}
    assert scores["north"] == scores["south"] > 0.6  # the source's own classifier is right on next to none


def test_a_labelled_hospital_teaches_a_model_for_the_teams_own_records(hospitals, tmp_path):
    """By the command: one charge, a model for records that lie elsewhere; three of six hundred are labelled."""
    own, labels = made(600, 11)
    own = own + np.float32(0.6)
    shown = np.where(
        np.isin(np.arange(600), [int(np.flatnonzero(labels == kind)[0]) for kind in range(CLASSES)]), labels, -1
    )
    np.savez(tmp_path / "own.npz", x=own, y=shown)
    north = hospitals["north"]
    words = ["train", "--method", "dpda", "--curator", north.address, "--credentials", str(north.credentials)]
    words += ["--epsilon", "0.8", "--set", f"data.source={tmp_path / 'own.npz'}", "--set", f"data.classes={CLASSES}"]
    words += ["--set", "method.settings.updates=200", "--device", "cpu", "--save", str(tmp_path / "own.safetensors")]
    with Hospital.connect(north.address, credentials=north.credentials) as connected:
        before = connected.describe().spent
        done = CliRunner().invoke(main, [*words, "--checkpoint", str(tmp_path / "run"), "--format", "json"])
        assert done.exit_code == 0, done.output
        assert before < connected.describe().spent <= before + 0.8
    model = load_adapted(tmp_path / "own.safetensors", device="cpu")
    best = float((((own[:, None] - 0.6 - MEANS) ** 2).sum(axis=2).argmin(axis=1) == (labels + 1) % CLASSES).mean())
    assert float((model.predict(torch.from_numpy(own)).numpy() == labels).mean()) > max(0.5, best - 0.3)  # chance: 1/3
    entries, findings = chain_checks.read_export(
        next((tmp_path / "run").rglob("receipts.jsonl")).read_text().splitlines()
    )
    assert findings == []
    assert len(entries) == 2


def test_the_operator_keeps_a_team_from_labels(hospitals):
    """One word in the settings; the team sees it in `describe`, and its plan is refused before anything is charged."""
    south = hospitals["south"]
    settings = south.home / "curator.toml"
    before = settings.read_text()
    south.stop()
    settings.write_text(before + '\n[clients]\nmechanisms = ["ml-team=rows,quantiles"]\n')
    south.start()
    try:
        with Hospital.connect(south.address, credentials=south.credentials) as connected:
            description = connected.describe()
            assert description.mechanisms == ("quantiles", "rows")
            with pytest.raises(InvalidValue, match=r"clients\.mechanisms"):
                connected.plan(Statistics(), epsilon=0.5)
            allowed = replace(description, mechanisms=("class_statistics",))
            connected.describe, describe = (lambda: allowed), connected.describe  # a client that does not look
            plan = connected.plan(Statistics(), epsilon=0.5)
            connected.describe = describe
            with pytest.raises(RequestInvalid, match="not allowed to ml-team; the operator allows quantiles, rows"):
                connected.open(plan, nn.Linear(WIDTH, WIDTH).eval())
            assert connected.describe().spent == description.spent
    finally:
        south.stop()
        settings.write_text(before)
        south.start()


@pytest.mark.parametrize(
    ("method", "steps"), [("statistics", 1), pytest.param("finetune", 20, marks=pytest.mark.exhaustive)]
)
def test_the_command_rehearses_with_labels_and_saves_a_model(tmp_path, method, steps):
    """Digits behind a turn, whose labels the rehearsal's hospital has: the head beats the source-only classifier."""
    path = tmp_path / "model.safetensors"
    words = ["train", "--method", method, "--data", "digits", "--epsilon", "4", "--device", "cpu"]
    words += ["--steps", str(steps), "--set", "method.control_steps=20"]
    done = CliRunner().invoke(main, [*words, "--source-epochs", "10", "--save", str(path), "--format", "json"])
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert (report["method"], report["steps"]) == (method, steps)
    assert 3.9 < report["spent"] <= 4.0
    assert report["adapted"] > report["source_only"] + 5.0
    assert 0.0 < report["control"] < report["adapted"]
    assert load_adapted(path, device="cpu").classes == 10
    dry = CliRunner().invoke(main, [*words, "--dry-run", "--format", "json"])
    assert dry.exit_code == 0, dry.output
    assert "records" in json.dumps(json.loads(dry.stdout)["runs"][0]["charges"])
