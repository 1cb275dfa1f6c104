"""The generator of DP-SWD (Rakotomamonjy and Ralaivola, ICML 2021), class-conditional, and the same by quantiles.

Each step the curator releases noisy projections of a sample's records with their labels beside them; the network draws
as many records, whose projections get the same noise, and descends on the sliced distance. The private side has no
parameters, so the gradient is one-sided and all of it is post-processing. As in the paper: rows, k = 1000, batches of
100, raw values (d = 784 for its images). Otherwise: labels are scaled one-hot vectors, clipped together with the
values, the networks are those of the other published generators here, and the settings are for short runs.

By quantiles a step releases L coefficients of each direction in the place of b rows, with less noise on each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from dpswd.public_client.curator.description import Description
from dpswd.public_client.generation.gaussian import Scaled
from dpswd.public_client.generation.method import Fitting
from dpswd.public_client.plans.recipe import RunTerms, not_counts, not_positive
from dpswd.public_client.published_methods.generators.descent import Network
from dpswd.public_client.published_methods.losses import sliced_loss
from dpswd.public_client.training.run import DrawnStep, Release
from dpswd.shared.core.mechanisms.interface import AnyMechanism, Payload, RunSize
from dpswd.shared.core.mechanisms.quantiles.mechanism import LABELLED_QUANTILES
from dpswd.shared.core.mechanisms.sliced import SlicedDeclaration, labelled
from dpswd.shared.core.noise.clipping import RECORD_NORM
from dpswd.shared.core.noise.feature_map import FeatureMap
from dpswd.shared.published_mechanisms.rows.mechanism import LABELLED_ROWS

_TYPICAL = 0.4
"""Root mean square of a typical record's values in units of high - low; it is brought to the clip norm less the label's
share, and larger records are clipped."""


@dataclass(frozen=True, kw_only=True)
class DpSwd(Network):
    """The paper's: noisy projections of a batch's records with their labels, one batch a step.

    Attributes:
        directions: k.
        coefficients: L of each direction; without meaning for rows.
        label_weight: of the one-hot label, beside values of norm 1/2 at most.
    """

    name = "dp-swd"
    mechanism: ClassVar[AnyMechanism] = LABELLED_ROWS

    directions: int = 1000
    coefficients: int = 8
    label_weight: float = 0.25

    def problems(self) -> list[str]:
        problems = [
            *super().problems(),
            *not_counts(self, "directions", "coefficients"),
            *not_positive(self, "label_weight"),
        ]
        if self.label_weight >= RECORD_NORM:
            problems.append(f"label_weight is {self.label_weight!r}; it must be below the clip norm of {RECORD_NORM:g}")
        return problems

    def usual_size(self, description: Description) -> RunSize:
        """See `Recipe`: the paper's batch; its length takes hours."""
        return RunSize(batch=100, steps=1000)

    def declaration(self, run: RunTerms) -> Payload:
        coefficients = 0 if self.mechanism is LABELLED_ROWS else self.coefficients
        return SlicedDeclaration(
            directions=self.directions,
            sigma=run.sliced_sigma(self.directions, coefficients, label_values=run.classes),
            coefficients=coefficients,
            feature_map=run.feature_map,
            label_weight=self.label_weight,
        )

    def features(self, description: Description) -> nn.Module:
        """See `GenerationMethod`: the values themselves, on the scale of the clip."""
        values = math.prod(description.record_shape)
        room = math.sqrt(RECORD_NORM**2 - self.label_weight**2)
        return Scaled(self.low, self.high, _TYPICAL * math.sqrt(values), norm=room).eval()

    def step(
        self, run: Release[Any], features: nn.Module, fitting: Fitting, trained: nn.Module, own: torch.Generator
    ) -> DrawnStep[Any]:
        declared: SlicedDeclaration = run.declared
        classes, batch = run.plan.classes, run.plan.batch_size
        clip = FeatureMap.identity(run.plan.facts.model.feature_dimension + classes)
        labels = torch.randint(classes, (batch,), generator=own).to(fitting.device)
        made = features(self.drawn(run, trained, labels, own))
        drawn = run.draw()
        source = labelled(made, labels, classes=classes, weight=declared.label_weight)
        sliced_loss(source, drawn.reply, declared, feature_map=clip, batch=batch).backward()  # type: ignore[no-untyped-call]
        return drawn


@dataclass(frozen=True, kw_only=True)
class DpSwdQuantiles(DpSwd):
    """DP-SWD's generator by sliced quantile coefficients in the place of rows: less noise for the same distance."""

    name = "dp-swd-quantiles"
    mechanism = LABELLED_QUANTILES
