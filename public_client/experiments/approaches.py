"""What an experiment can be adapted by, by its name on the command line, and how each is trained.

The ladder and the methods ask hospitals; the source model as it is, and the control, ask nobody.
"""

from __future__ import annotations

import copy
import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from dpswd.public_client.adaptation.domain_adaptation import DomainAdaptation
from dpswd.public_client.data.checks import checked
from dpswd.public_client.experiments.file import LADDER
from dpswd.public_client.experiments.start import SourceModel
from dpswd.public_client.ladder.adapted import AdaptedEach
from dpswd.public_client.methods import Method, method_kinds
from dpswd.public_client.plans.plan import Plan
from dpswd.public_client.replay.control import control
from dpswd.public_client.training.sites import Model
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.devices import resolve_device

SOURCE_ONLY, CONTROL = "source-only", "control"
LOCAL = "stand-in"
"""The name of the only model of an approach that asks no hospital."""
_UNASKED = {
    SOURCE_ONLY: "No adaptation: the source-trained model as it is.",
    CONTROL: "The default's tuning without a release: random variation alone, no epsilon.",
}


def approaches() -> dict[str, str]:
    """Everything that can be trained here, by name, in one line each."""
    asked = {LADDER: "Asks the cheapest thing that may help, and goes on while it pays."}
    return asked | _UNASKED | {name: (kind.__doc__ or "").splitlines()[0] for name, kind in method_kinds().items()}


def asks_hospital(name: str) -> bool:
    """Whether such a training asks a hospital.

    Raises:
        InvalidValue: there is none of this name.
    """
    allowed = approaches()
    if name not in allowed:
        near = "".join(f"; did you mean {each!r}?" for each in difflib.get_close_matches(name, allowed, n=1))
        raise InvalidValue(f"there is no method {name!r}; allowed: {', '.join(allowed)}{near}")
    return name not in _UNASKED


def method_of(name: str, settings: Mapping[str, Any]) -> Method:
    """The method of this name with these settings.

    Raises:
        InvalidValue: there is no such method, or a setting is unknown or out of range.
    """
    kinds = method_kinds()
    if asks_hospital(name) and name in kinds:
        return kinds[name].from_json({"name": name, **settings})
    raise InvalidValue(f"{name} is no method with settings and a plan of its own; those are {', '.join(kinds)}")


@dataclass
class Trained:
    """What a training came to.

    Attributes:
        models: by site; `ALONE` for one hospital, `LOCAL` where none was asked.
        plans: by site; empty where nothing was private.
        reports: what was charged at each site, and how far it came.
        made: what holds the models and saves them; None where no hospital was asked.
    """

    models: Mapping[str, Model]
    plans: Mapping[str, Plan] = field(default_factory=dict)
    reports: list[dict[str, Any]] = field(default_factory=list)
    made: DomainAdaptation | AdaptedEach | None = None

    @classmethod
    def of(cls, made: DomainAdaptation | AdaptedEach) -> Trained:
        """Of a method's training, or of a ladder's."""
        if isinstance(made, DomainAdaptation):
            models = {name: made.model(name) for name in made.sites}
            return cls(models, {name: site.plan for name, site in made.sites.items()}, made.reports, made)
        asked = {name: own for name, own in made.items() if own.lost is None}
        models, plans = ({name: getattr(own, key) for name, own in asked.items()} for key in ("model", "plan"))
        return cls(models, plans, [row for name, own in made.items() for row in own.reports(name)], made)

    @property
    def climbed(self) -> AdaptedEach | None:
        """Of the ladder, by site; else None."""
        return self.made if isinstance(self.made, AdaptedEach) else None

    def save(self, path: Path) -> list[Path]:
        """Writes the models that hospitals were asked for; one file each, by the sites' names where there are several.

        Args:
            path: of the file.
        """
        return [] if self.made is None else self.made.save(path)


def unasked(name: str, source: SourceModel, *, steps: int, seed: int, device: str, progress: bool = True) -> Model:
    """A copy of the source model in evaluation mode: as it is, or tuned as a replay is, without a release.

    Args:
        name: `SOURCE_ONLY` or `CONTROL`.
        source: stays as it is.
        steps: updates of the control.
        seed: of its batches and variations.
        device: "auto", "cpu" or "cuda".
        progress: shows a bar.
    """
    place = resolve_device(device)
    modules: tuple[nn.Module, nn.Module] = (source.extractor, source.classifier)
    if name == SOURCE_ONLY:
        return Model(*(copy.deepcopy(module).to(place).eval() for module in modules))
    batches = checked(source.loader, *modules, device=place)
    return Model(*control(*modules, batches, steps=steps, seed=seed, device=place, progress=progress))
