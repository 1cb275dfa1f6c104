"""Logs hold what was told; bars too."""

from __future__ import annotations

import csv
import math
import threading
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from small_methods import small
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

from dpswd import DomainAdaptation, Hospital
from dpswd.public_client.data.datasets import Labelled
from dpswd.public_client.data.source import source_loader
from dpswd.public_client.replay import fit as replay_fit
from dpswd.public_client.testing.mock import MockCurator, mock_description
from dpswd.public_client.training.logs import COLUMNS, TrainingLog

D = 6


@pytest.mark.long
def test_a_training_is_in_both_logs(tmp_path):
    hospital = Hospital(MockCurator(mock_description(records=300, record_shape=(D,), epsilon=2.0, delta=1e-5)))
    generator = torch.Generator().manual_seed(0)
    loader = source_loader(
        Labelled(torch.randn(96, D, generator=generator), torch.randint(3, (96,), generator=generator)), batch_size=32
    )
    plan = hospital.plan(small("rows"), epsilon=1.0, steps=4, batch_size=50)
    extractor, classifier = nn.Sequential(nn.Linear(D, 8), nn.Tanh()), nn.Linear(8, 3)
    adaptation = DomainAdaptation(extractor, classifier, hospital=hospital, plan=plan, source_epochs=1, device="cpu")
    with TrainingLog(tmp_path) as log:
        adaptation.fit(loader, progress=False, log=log, evaluate=lambda e, c: 50.0)
    with (tmp_path / "steps.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == COLUMNS
    steps = [row for row in rows if row["class_loss"]]
    assert [int(row["step"]) for row in steps] == [1, 2, 3, 4]
    points = [row for row in rows if row["accuracy"]]
    assert float(points[-1]["epsilon"]) == pytest.approx(adaptation.plan.price(), rel=1e-6)
    assert {row["site"] for row in rows} == {"curator"}
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert set(events.Tags()["scalars"]) == {
        f"curator/{name}" for name in ("distance", "class_loss", "learning_rate", "epsilon", "accuracy")
    }
    assert [event.step for event in events.Scalars("curator/class_loss")] == [1, 2, 3, 4]


def test_a_log_takes_several_threads_and_goes_on_where_it_was(tmp_path):
    for _ in range(2):
        with TrainingLog(tmp_path, tensorboard=False) as log:
            threads = [
                threading.Thread(target=lambda n=n: [log.scalars(f"s{n}", t, distance=1.0) for t in range(50)])
                for n in range(4)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            log.scalars("s0", 99, distance=math.nan)
    with (tmp_path / "steps.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * (4 * 50 + 1)
    assert all(row["distance"] in ("1.0", "") for row in rows)


def test_the_bars_of_a_replay_tell_epsilon_and_accuracy(monkeypatch):
    heard = []

    class Bar:
        def __init__(self, title):
            self.title = title

        def advance(self, text):
            heard.append((self.title, text))

        tell = advance

    @contextmanager
    def reporting(title, total, *, shown, done=0):
        yield Bar(title)

    monkeypatch.setattr("dpswd.public_client.methods.replay.reporting", reporting)
    monkeypatch.setattr("dpswd.public_client.training.loop.reporting", reporting)
    monkeypatch.setattr("dpswd.public_client.replay.fit.find_view", convinced(replay_fit.find_view))
    hospital = Hospital(MockCurator(mock_description(records=300, record_shape=(6,), epsilon=1.0, delta=1e-5)))
    plan = hospital.plan(small("replay", directions=4, tuning_steps=3), epsilon=1.0, steps=2)
    torch.manual_seed(0)
    extractor = nn.Sequential(nn.Linear(6, 5), nn.Tanh())
    model = DomainAdaptation(extractor, nn.Linear(5, 3), hospital=hospital, plan=plan, source_epochs=0, device="cpu")
    labels = torch.arange(60) % 3
    model.fit([(torch.randn(60, 6) + labels[:, None], labels)], evaluate=lambda *_: 87.5, progress=False)
    said = {title: [text for t, text in heard if t == title] for title, _ in heard}
    drawn = said["private releases of curator"]
    assert drawn == [model.plan.charged] * 2
    assert model.plan.charged == "epsilon 1.0000 alone, charged for all 2"
    assert said["tuning on the view of curator"][-1] == f"{model.plan.charged}  accuracy 87.5%"


def convinced(find_view):
    """The fit as it is, whatever it thinks of the mock's records."""

    def find(*parts, **options):
        return replace(find_view(*parts, **options), outcome="adapted by a view")

    return find
