"""A method of generation: a recipe, what its private records go through, and how a generator is fitted to a run."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import nn

from dpswd.public_client.curator.description import Description
from dpswd.public_client.curator.stub import Curator
from dpswd.public_client.data.ranks import Ranks
from dpswd.public_client.generation.generator import Generator
from dpswd.public_client.plans.declarable import Declarable
from dpswd.public_client.plans.plan import Plan
from dpswd.public_client.plans.recipe import Recipe, refuse
from dpswd.public_client.training.checkpoint import Checkpoint
from dpswd.public_client.training.run import Release

Preview = Callable[[Generator], None]
"""Shown a generator that is still being fitted."""


@dataclass(frozen=True)
class Fitting:
    """How a fit runs, whatever the method.

    Attributes:
        seed: of every random choice on the client's side.
        device: where to compute.
        progress: shows bars on standard error.
        store: where requests are written before they are sent, and answers kept; None for nowhere.
        preview: shown the generator a few times during the fit.
        ranks: the processes that fit together.
    """

    seed: int = 0
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    progress: bool = True
    store: Checkpoint | None = None
    preview: Preview | None = None
    ranks: Ranks = field(default_factory=Ranks)


@dataclass(frozen=True, kw_only=True)
class GenerationMethod(Recipe):
    """One way to fit a generator to private labelled records, with its settings.

    Attributes:
        run_kind: what reads its releases.
    """

    run_kind: ClassVar[type[Release[Any]]] = Release

    def __post_init__(self) -> None:
        refuse(self.problems())

    def problems(self) -> list[str]:
        """Settings that are out of range, in words."""
        low, high = (getattr(self, name, bound) for name, bound in (("low", 0.0), ("high", 1.0)))
        if math.isfinite(low) and math.isfinite(high) and low < high:
            return []
        return [f"low is {low!r} and high {high!r}; low must be below high, both finite"]

    def adapts(self, record_shape: tuple[int, ...] | None) -> str:
        """See `Recipe`."""
        return "nothing of the team's: a generator of labelled records is fitted, and more rows of it cost nothing"

    def disagreements(self, description: Description) -> list[str]:
        """Where the hospital declares its records otherwise than these settings take them to be, in words."""
        bounds = description.contract.bounds(description.record_shape)
        own = [float(getattr(self, name)) for name in ("low", "high") if hasattr(self, name)]
        if bounds is None or not own:
            return []
        served = [float(bounds[0].min()), float(bounds[1].max())]
        if all(math.isclose(a, b, abs_tol=1e-4 * (served[1] - served[0])) for a, b in zip(own, served, strict=True)):
            return []
        taken = f"{self.name} takes records' values to reach from {own[0]:g} to {own[1]:g}"
        return [f"{taken}, and the hospital serves {served[0]:.6g} to {served[1]:.6g}: set low and high to these"]

    @abc.abstractmethod
    def features(self, description: Description) -> nn.Module:
        """What private records go through at the curator, in evaluation mode and of the closed vocabulary.

        Raises:
            InvalidValue: the method has none for such records; the team's own extractor is needed, or another method.
        """

    def wrapped(self, extractor: nn.Module, description: Description) -> nn.Module:
        """What private records go through where the team brings its own extractor: by default that alone."""
        return extractor

    def open(self, curator: Curator, plan: Plan, features: nn.Module, store: Checkpoint | None) -> Release[Any]:
        """Opens, hence charges, the run, or continues the one in the store.

        Args:
            curator: the connection.
            plan: of this method.
            features: as `features` made it, or the team's own extractor.
            store: where requests are written before they are sent.

        Raises:
            BudgetExhausted: the plan does not fit; nothing was spent.
        """
        return self.run_kind(curator, Declarable.of(features, plan.record_shape), plan, checkpoint=store).open()

    @abc.abstractmethod
    def fit(self, run: Release[Any], features: nn.Module, fitting: Fitting) -> Generator:
        """Draws the run's steps and fits a generator to what they say.

        Args:
            run: as `open` returned it.
            features: as it was opened with.
            fitting: how.

        Returns:
            The generator, with facts of the method's own at most; `generating.generate` adds the rest.
        """
