"""A delivered model watched over records that grow: real rounds, a killed client, a recalibration, a year's cap."""

from __future__ import annotations

import datetime as dt
import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn

from dpswd.private_curator.operator.record import Record
from dpswd.private_curator.storage.home_directory import HomeDirectory
from dpswd.public_client.adaptation.hospital import Hospital
from dpswd.public_client.cli.main import main
from dpswd.public_client.methods.evaluation import Evaluate, quoted_for, submitted
from dpswd.public_client.testing.local_hospital import LocalHospital
from dpswd.public_client.training.run import Release, RequestIds
from dpswd.public_client.training.saved_model import load_adapted, save_adapted
from dpswd.public_client.watching.repeating import begun_or_new
from dpswd.public_client.watching.watch import MODEL_FILE, watch
from dpswd.shared.core.errors import BudgetExhausted, CuratorUnavailable, SettingsError

pytestmark = [pytest.mark.usefixtures("extractors_in_process")]
torch.set_num_threads(1)

WIDTH, CLASSES, FIRST, ADDED = 6, 3, 2000, 1500
SENTENCES = {"The model is worse", "The model is better", "No change can be told"}
RNG = np.random.default_rng(36)
SPREAD = 3.0
CENTRES = (2.0 * RNG.normal(size=(CLASSES, WIDTH))).astype(np.float32)
WEIGHT = CENTRES / SPREAD**2
BIAS = (-0.5 * (CENTRES * WEIGHT).sum(axis=1) - [0.0, 0.0, 3.0]).astype(np.float32)
"""A model that hardly ever finds the last class."""
KILLED = (sys.executable, str(Path(__file__).with_name("killed_watch.py")))
NETWORK = """
import torch
from torch import nn

def model():
    head = nn.Linear({width}, {classes})
    with torch.no_grad():
        head.weight.copy_(torch.tensor({weight}))
        head.bias.copy_(torch.tensor({bias}))
    return nn.Sequential(nn.Flatten()), head
"""


def records(count, *, shares=(0.45, 0.45, 0.1)):
    labels = RNG.choice(CLASSES, size=count, p=shares)
    return (CENTRES[labels] + SPREAD * RNG.normal(size=(count, WIDTH))).astype(np.float32), labels


EARLY = records(FIRST)
LATER = records(ADDED, shares=(0.02, 0.08, 0.9))
"""Other patients: the model's accuracy falls."""


def grown(parts):
    return tuple(np.concatenate(values) for values in zip(*parts, strict=True))


@pytest.fixture(scope="module")
def hospital(tmp_path_factory):
    x, y = EARLY
    with LocalHospital(
        x,
        epsilon=6.0,
        delta=1e-6,
        device="cpu",
        labels=y,
        classes=CLASSES,
        directory=tmp_path_factory.mktemp("hospital"),
    ) as running:
        yield running


def update(hospital: LocalHospital, parts) -> None:
    """What the operator does with a newer extract: the file, the act, a restart."""
    x, y = grown(parts)
    np.savez(hospital.home.parent / "records.npz", records=x, labels=y)
    with pytest.raises(SettingsError, match="--update"):
        hospital._command("records", "accept", "--reason", "not said to be another number")
    hospital._command("records", "accept", "--update", "--reason", "the year's admissions")
    hospital.stop()
    hospital.start()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    classifier = nn.Linear(WIDTH, CLASSES)
    with torch.no_grad():
        classifier.weight.copy_(torch.from_numpy(WEIGHT))
        classifier.bias.copy_(torch.from_numpy(BIAS))
    path = tmp_path_factory.mktemp("model") / "delivered.safetensors"
    save_adapted(path, extractor=nn.Flatten(), classifier=classifier.eval(), record_shape=(WIDTH,), plan={})
    return path


def experiment(directory: Path, hospital: LocalHospital) -> Path:
    """The team's own: its network, its public records, a recalibration."""
    code = NETWORK.format(width=WIDTH, classes=CLASSES, weight=WEIGHT.tolist(), bias=BIAS.tolist())
    (directory / "network.py").write_text(code, encoding="utf-8")
    x, y = records(3000)
    np.savez(directory / "source.npz", x=x, y=y)
    file = directory / "again.toml"
    file.write_text(
        f'purpose = "the watched model became worse"\ndevice = "cpu"\n[data]\nsource = "source.npz"\n'
        f'[network]\ncode = "network.py:model"\n[source]\nepochs = 0\n[method]\nname = "recalibrate"\n'
        f'[privacy]\nepsilon = 1.0\n[[curators]]\naddress = "{hospital.address}"\n'
        f'credentials = "{hospital.credentials}"\n',
        encoding="utf-8",
    )
    return file


def spent(hospital: LocalHospital) -> float:
    return float(hospital.budget()["epsilon_spent"])


def truth(file: Path, parts) -> float:
    x, y = grown(parts)
    return float((load_adapted(file, device="cpu").predict(torch.from_numpy(x)).numpy() == y).mean())


def test_a_model_is_watched_over_records_that_grow(hospital, model, tmp_path):
    """Three rounds, a kill, updated records, a worse model and its successor, and a year that is used up."""
    directory, today = tmp_path / "watch", dt.datetime.now(dt.UTC).date()
    options = ["--epsilon", "0.3", "--every", "90", "--directory", str(directory), "--appended"]
    command = [
        "evaluate",
        str(model),
        *options,
        "--curator",
        hospital.address,
        "--credentials",
        str(hospital.credentials),
    ]
    hospital._command("clients", "ml-team", "--cap", "3", "--year", "--reason", "it watches its model")

    killed = subprocess.run([*KILLED, "round", *command], check=False, capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    after = spent(hospital)
    assert 0.25 < after <= 0.3
    for words in ("A round was made", "Nothing was due"):  # the killed one goes on, and a daily job asks nothing
        done = CliRunner().invoke(main, command)
        assert done.exit_code == 0, done.output
        assert words in done.output
        assert spent(hospital) == after
    (report,) = directory.glob("round-*/report.json")
    first = json.loads(report.read_text())["round"]
    assert abs(first["accuracy"] - truth(model, [EARLY])) < 6.2 * first["noise"]  # false alarm below 1e-9

    def made(day, **more):
        with Hospital.connect(hospital.address, credentials=hospital.credentials, purpose="watching") as connected:
            return watch(
                directory, model, connected, Evaluate(), epsilon=0.3, every=90, appended=True, today=day, **more
            )

    assert not made(today + dt.timedelta(days=89)).asked
    update(hospital, [EARLY, LATER])
    again = experiment(tmp_path, hospital)
    day = today + dt.timedelta(days=100)
    words = [directory, model, hospital.address, hospital.credentials, day, again]
    killed = subprocess.run([*KILLED, "training", *map(str, words)], check=False, capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    charged = spent(hospital)
    second = made(day + dt.timedelta(days=1), experiment=again)  # no round is due, and the training goes on
    assert not second.asked
    assert second.change is not None
    assert second.change.worse
    assert second.change.added == ADDED
    assert str(second).startswith("The model is worse by ")
    loss = truth(model, [EARLY]) - truth(model, [LATER])
    assert abs(second.change.loss - loss) < 6.2 * second.change.deviation
    successor = second.model
    assert successor == directory / "round-0002" / MODEL_FILE
    assert truth(successor, [LATER]) > truth(model, [LATER]) + 0.1
    assert after + 0.5 < charged < after + 0.3 + 1.0
    assert spent(hospital) == charged

    third = made(today + dt.timedelta(days=200), experiment=again)  # a new model has nothing to be compared with yet
    assert (third.asked, third.change, third.model) == (True, None, successor)
    assert [one.records for one in third.rounds] == [FIRST, FIRST + ADDED, FIRST + ADDED]
    assert third.rounds[2].model != third.rounds[1].model

    charged = spent(hospital)
    hospital._command("clients", "ml-team", "--cap", f"{charged + 0.005:.4f}", "--year", "--reason", "less")
    for _ in range(2):
        with pytest.raises(BudgetExhausted, match="the year's privacy budget"):
            made(today + dt.timedelta(days=300))
    assert spent(hospital) == charged
    hospital._command("clients", "ml-team", "--cap", "3", "--year", "--reason", "agreed")
    fourth = made(today + dt.timedelta(days=301))
    assert (fourth.asked, len(fourth.rounds)) == (True, 4)
    assert charged < spent(hospital) <= charged + 0.3
    assert "No change can be told since" in str(fourth)
    (row,) = json.loads(hospital._command("clients", "--format", "json"))
    assert row["cap_year"] == 3.0
    assert row["spent_year"] == pytest.approx(spent(hospital))  # all that this client was ever charged
    first_model, successors = Record(HomeDirectory(hospital.home)).clients[0].watched.values()  # as the console shows
    loss = truth(model, [EARLY]) - truth(model, [EARLY, LATER])
    assert abs(first_model.loss - loss) < 6.2 * first_model.deviation
    assert abs(successors.loss) < 6.2 * successors.deviation
    assert {str(one).split(" by ")[0].split(" since ")[0] for one in (first_model, successors)} <= SENTENCES
    purposes = {one["purpose"] for one in json.loads(hospital._command("runs", "--format", "json"))}
    assert purposes == {"a round of watching a delivered model", "watching", "the watched model became worse"}


@pytest.mark.parametrize("charged", [False, True], ids=["before its charge", "after its charge"])
def test_a_round_that_an_update_interrupts_is_begun_anew(hospital, model, tmp_path, charged):
    """Of records as they were before nothing is released any more: neither to a repeat nor to a new request."""
    directory, evaluation = tmp_path / "watch", Evaluate()
    loaded = load_adapted(model, device="cpu")
    with Hospital.connect(hospital.address, credentials=hospital.credentials) as connected:
        before = connected.describe().records
        plan = connected.plan_evaluation(evaluation, epsilon=0.1)
        plan, ids = begun_or_new(directory / "round-0001", connected, loaded, plan)
        assert isinstance(ids, RequestIds)
        if charged:
            Release(connected.curator, submitted(loaded, plan), plan, ids=ids).open()
    parts = [EARLY, LATER, *[records(25)] * ((before - FIRST - (ADDED if before > FIRST else 0)) // 25 + 1)]
    update(hospital, parts)
    total = spent(hospital)
    with Hospital.connect(hospital.address, credentials=hospital.credentials) as connected:
        watched = watch(directory, model, connected, evaluation, epsilon=0.1, every=90)
    assert watched.rounds[0].records == len(grown(parts)[0]) != before
    assert total < spent(hospital) <= total + 0.1
    assert (directory / "round-0001" / f"earlier-{ids.run}.json").exists()


def test_a_server_that_was_not_restarted_charges_nothing(hospital, model):
    with Hospital.connect(
        hospital.address, credentials=hospital.credentials, patience_s=0.5, timeout_s=5.0
    ) as connected:
        plan = connected.plan_evaluation(epsilon=0.1)
        plan, _ = quoted_for(connected.curator, model, plan)
        hospital._command("records", "accept", "--update", "--reason", "the same once more")
        total = spent(hospital)
        with pytest.raises(CuratorUnavailable, match="updated since this curator started"):
            connected.evaluate(model, plan)
    assert spent(hospital) == total
    hospital.stop()
    hospital.start()
