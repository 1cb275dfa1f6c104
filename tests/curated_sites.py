"""Two hospitals, each with a curator that serves it and a budget of one plan; the sites of a federation of them."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

import numpy as np
import pytest
import torch
from made_home import made_home
from serving_here import serving
from torch import nn

from dpswd import Finetune, Hospital
from dpswd.private_curator.settings.groups import RecordsSettings
from dpswd.public_client.federated.site import CuratedSite

WIDTH, CLASSES, RECORDS, ROUNDS, EPSILON = 6, 3, 600, 4, 2.0
MEANS = 1.5 * np.random.default_rng(21).normal(size=(CLASSES, WIDTH))


def made(count, seed):
    rng = np.random.default_rng(seed)
    labels = rng.integers(CLASSES, size=count)
    return (MEANS[labels] + rng.normal(size=(count, WIDTH))).astype(np.float32), labels


def made_model():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, CLASSES))


def site(address, credentials, directory, **settings):
    """A node's site, from what can be sent to another process."""
    hospital = Hospital.connect(address, credentials=credentials)
    plan = hospital.plan(Finetune(clip_norm=1.0), epsilon=EPSILON, steps=ROUNDS, batch_size=RECORDS)
    settings = {"optimizer": partial(torch.optim.Adam, lr=0.1)} | settings
    return CuratedSite(hospital, plan, made_model(), directory=directory, **settings)


@pytest.fixture
def sites(tmp_path):
    """By number: the home, and what `site` takes."""
    with ExitStack() as opened:
        standing = []
        for number in (1, 2):
            directory = tmp_path / f"site-{number}"
            directory.mkdir()
            records, labels = made(RECORDS, number)
            np.savez(directory / "records.npz", records=records, labels=labels)
            settings = RecordsSettings(
                file=directory / "records.npz", array="records", labels_array="labels", classes=CLASSES
            )
            home = made_home(directory, settings, epsilon=EPSILON)
            address = opened.enter_context(serving(home))
            standing.append((home, (address, str(directory / "credentials"), str(directory / "round"))))
        yield standing


def charged(home):
    """What stands in the ledger: runs, steps charged, steps used, epsilon spent."""
    with home.open_ledger() as ledger:
        status = ledger.status()
    return status.runs, status.steps_charged, status.steps_used, pytest.approx(status.data_set.epsilon_spent, abs=1e-5)


def accuracy(weights):
    model, (records, labels) = made_model(), made(2000, 9)
    model.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in weights.items()})
    with torch.no_grad():
        return float((model(torch.from_numpy(records)).argmax(dim=1).numpy() == labels).mean())
