"""Every method with settings small enough for a test, and plans of them; tests hold all methods to the same."""

from __future__ import annotations

import copy
from contextlib import contextmanager
from dataclasses import fields
from unittest.mock import patch

import pytest
from torch import nn

from dpswd import DomainAdaptation
from dpswd.public_client.methods import method_kinds
from dpswd.public_client.normalisation.conversation import Conversation
from dpswd.public_client.published_methods import pseudo_labels
from dpswd.public_client.replay import posterior

_SMALL = {"directions": 8, "source_records": 64, "tuning_steps": 20, "points": 20, "updates": 100}


def small(name, **settings):
    """The method of this name with few directions, records and updates, where it has such settings."""
    kind = method_kinds()[name]
    names = {field.name for field in fields(kind)}
    return kind(**{key: value for key, value in _SMALL.items() if key in names} | settings)


def small_network() -> tuple[nn.Module, nn.Module]:
    """For images of 8 x 8 and ten classes: what `digits_network` is made of, with a tenth of its weights."""
    layers = (nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
    layers += (nn.Conv2d(6, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    return nn.Sequential(*layers), nn.Sequential(nn.Linear(32, 12), nn.ReLU(), nn.Linear(12, 10))


def of_every_method(*more):
    """All methods as parameters; `make test` takes one of many steps, one of one release, one of several questions."""
    quick = ("rows", "replay", "normalisation")
    marks = {name: () if name in quick else pytest.mark.exhaustive for name in method_kinds()}
    return [pytest.param(name, *more, marks=mark) for name, mark in marks.items()]


def trained_by(name, model, loader, hospital, *, settings=None, wishes=None, shared=False, seed=0, **options):
    """A copy of (extractor, classifier), trained by the method of this name."""
    method = method_kinds()[name].from_json({"name": name, **(settings or {})})
    plan = hospital.plan(method, **({"epsilon": 1.0} | (wishes or {})))
    made = DomainAdaptation(
        *copy.deepcopy(model), hospital=hospital, plan=plan, shared=shared, device="cpu", seed=seed, source_epochs=0
    )
    return made.fit(loader, progress=False, **options)


def require_all_asked(served, method, steps):
    """Every step was asked once; of normalisation as many as its answers left something to ask for. How many."""
    drawn = served.curator.steps_charged
    assert 0 < drawn <= steps if method == "normalisation" else drawn == steps
    return drawn


@contextmanager
def hardly_refusing():
    """In a test of all methods hospitals are small: for pseudo-labels to begin, or for channels to be better undone."""
    with (
        patch.object(pseudo_labels, "_LEAST_RATIO", 1.0),
        patch.object(Conversation, "_expected_to_help", lambda _: True),
    ):
        yield


@pytest.fixture(autouse=True)
def short_fits(request, monkeypatch) -> None:
    """A fit of a view takes twelve of its steps, and not 564, but where the fit itself is tested, in `replay`.

    Here the default method is one of many, held to the same as the others.
    """
    if "replay" not in request.path.parent.parts:
        monkeypatch.setattr(posterior, "_ROUNDS", (posterior._Round(2, 6, 1.0),))


@pytest.fixture(autouse=True)
def small_hospitals():
    """Every method trains here, also where in earnest it would refuse so few records."""
    with hardly_refusing():
        yield
