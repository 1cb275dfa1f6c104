"""How often a value that is handed on comes back to a file that it has left: a reader turns as many pages back.

Followed is what actually happens, in one small fit and one plan. A function counts when it is first called, in the
order of the calls, if one of its arguments other than `self` is followed, or a mapping that holds such. Calls in one
file that follow each other are one stay; a stay in a file that was left before is a return.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import dpswd
from dpswd import DomainAdaptation, Hospital, MockCurator, Replay, mock_description
from dpswd.public_client.data.datasets import Labelled
from dpswd.public_client.data.source import source_loader
from dpswd.public_client.plans.plan import Plan
from dpswd.public_client.replay import posterior
from dpswd.public_client.replay.residuals import Residuals
from dpswd.public_client.replay.verdict import Fitted
from dpswd.public_client.training.loop import Training
from dpswd.public_client.training.sites import Group, Site
from dpswd.shared.core.privacy.events import RunEvent

PRODUCT = tuple(str((Path(dpswd.__file__).parent / side).resolve()) for side in ("public_client", "shared"))
COLUMNS, CLASSES = 5, 3


@functools.cache
def resolved(file: str) -> str:
    return str(Path(file).resolve())


class Route:
    """Files by stay, while it is the profiler.

    Args:
        followed: types of what is followed.
    """

    def __init__(self, *followed: type) -> None:
        self._followed = followed
        self._passed: set[CodeType] = set()
        self.stays: list[str] = []

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or code in self._passed:
            return
        file = resolved(code.co_filename)
        if not file.startswith(PRODUCT) or code.co_name.startswith("<"):
            self._passed.add(code)
            return
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        arguments = frame.f_locals
        if any(self._carries(arguments.get(name)) for name in names if name != "self"):
            self._passed.add(code)
            if self.stays[-1:] != [file]:
                self.stays.append(file)

    def _carries(self, value: Any) -> bool:
        values = value.values() if isinstance(value, Mapping) else (value,)
        return any(isinstance(one, self._followed) for one in values)

    @property
    def returns(self) -> int:
        return len(self.stays) - len(set(self.stays))

    def taken(self, act: Callable[[], Any]) -> Any:
        """The route of one call, and what it returns."""
        sys.setprofile(self)
        try:
            return act()
        finally:
            sys.setprofile(None)


def table(count: int, seed: int, shares: tuple[float, ...]) -> Labelled:
    generator = torch.Generator().manual_seed(seed)
    centres = 2.0 * torch.randn(CLASSES, COLUMNS, generator=torch.Generator().manual_seed(9))
    labels = torch.multinomial(torch.tensor(shares), count, replacement=True, generator=generator)
    return Labelled(centres[labels] + torch.randn(count, COLUMNS, generator=generator), labels)


@pytest.fixture
def hospital():
    """Whose first column is in other units."""
    records = table(800, 1, (1.0, 1.0, 1.0)).images.clone()
    records[:, 0] = 3.0 * records[:, 0] + 10.0
    description = mock_description(records=len(records), record_shape=(COLUMNS,), epsilon=8.0, delta=1e-5)
    curator = MockCurator(description, records=lambda count: records[:count], randomness=np.random.default_rng(0).bytes)
    with Hospital(curator) as where:
        yield where


def modules() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(COLUMNS, 8), nn.ReLU()).eval(), nn.Linear(8, CLASSES).eval()


@pytest.mark.long
def test_a_fit_of_the_default_turns_few_pages_back(hospital, monkeypatch):
    route = Route(Group, Site, Training, Labelled, Residuals, Fitted)
    fit = Replay.fit
    monkeypatch.setattr(posterior, "_ROUNDS", posterior._ROUNDS[:1])  # each round takes the same way
    monkeypatch.setattr(Replay, "fit", lambda *arguments: route.taken(lambda: fit(*arguments)))
    extractor, classifier = modules()
    plan = hospital.plan(Replay(tuning_steps=20, directions=30), epsilon=4.0)
    model = DomainAdaptation(extractor, classifier, hospital=hospital, plan=plan, device="cpu", source_epochs=2)
    model.fit(source_loader(table(300, 0, (1.0, 1.0, 1.0)), batch_size=64), progress=False)
    files = [Path(file).stem for file in route.stays]
    assert {"replay", "posterior", "class_frequencies", "delivery"} <= set(files)
    assert route.returns <= 4, files


def test_a_plan_turns_few_pages_back(hospital):
    route = Route(Plan, RunEvent)
    extractor, _ = modules()
    plan = route.taken(lambda: hospital.plan(Replay(), epsilon=4.0, extractor=extractor))
    assert plan.fits
    files = [Path(file).stem for file in route.stays]
    assert {"declarable", "calibration", "filter"} <= set(files)
    assert route.returns <= 3, files


def test_a_route_that_comes_back_is_counted():
    """From one file to another and back, into a function that was not passed yet; what carries nothing is no stay."""
    names: dict[str, Any] = {}
    for file, code in (
        ("one.py", "def begin(x):\n    middle(x)\n    aside(3)\n    end(x)\n    middle(x)"),
        ("two.py", "def middle(x): 0\ndef aside(x): 0"),
        ("one.py", "def end(x): 0"),
    ):
        exec(compile(code, f"{PRODUCT[0]}/{file}", "exec"), names)
    route = Route(Labelled)
    route.taken(lambda: names["begin"](table(3, 0, (1.0, 1.0, 1.0))))
    assert [Path(file).name for file in route.stays] == ["one.py", "two.py", "one.py"]
    assert route.returns == 1
