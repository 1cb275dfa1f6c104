"""DP-Sinkhorn (Cao, Bie, Vahdat, Fidler, Kreis, NeurIPS 2021) on samples without replacement, rigorously priced.

Each step the network draws n + n' records; the curator returns the clipped, noised gradient of the semi-debiased loss
in the first n (docs/privacy/sinkhorn.md), which goes back through the network. The last n' are compared with generated
records alone, so that their gradient is computed here.

As in the released code: cost |.|_2^2 + m |.|_1 with one-hot labels times 15 appended, blur 0.05, p = n'/n = 0.2,
batches of 50, classes drawn evenly, the whole gradient clipped to 0.5, its network. Otherwise: normal latents in the
place of uniform ones, and settings for short runs (width, rate, steps), which finish on a CPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dpswd.public_client.curator.description import Description
from dpswd.public_client.generation.gaussian import Scaled
from dpswd.public_client.generation.method import Fitting
from dpswd.public_client.plans.recipe import RunTerms, not_counts, not_positive
from dpswd.public_client.published_methods.generators.descent import Network
from dpswd.public_client.training.run import DrawnStep, Release
from dpswd.shared.core.mechanisms.interface import Payload, RunSize
from dpswd.shared.core.mechanisms.sliced import labelled
from dpswd.shared.core.noise.clipping import clip_records
from dpswd.shared.published_mechanisms.sinkhorn.mechanism import SINKHORN, SinkhornDeclaration, SinkhornRequest
from dpswd.shared.published_mechanisms.sinkhorn.transport import sinkhorn

_L1_WEIGHT, _BLUR = 1.0, 0.05  # m, and the weight of the entropy


@dataclass(frozen=True, kw_only=True)
class DpSinkhorn(Network):
    """The Sinkhorn loss's sanitized gradient in generated records, one a step.

    Attributes:
        points: n, generated records of a step that have a gradient.
        fresh: n', further ones, with which they are compared among themselves.
        label_weight: of the one-hot labels beside the features.
        iterations: of each coupling.
        clip_norm: C, of the whole gradient.
        clip_points: see `SinkhornDeclaration`.
    """

    name = "dp-sinkhorn"
    mechanism = SINKHORN

    points: int = 50
    fresh: int = 10
    label_weight: float = 15.0
    iterations: int = 100
    clip_norm: float = 0.5
    clip_points: bool = False

    def problems(self) -> list[str]:
        problems = [
            *super().problems(),
            *not_counts(self, "points", "iterations"),
            *not_positive(self, "label_weight", "clip_norm"),
        ]
        if not 0 <= self.fresh <= self.points:
            problems.append(f"fresh is {self.fresh!r}; allowed are 0 to the {self.points} points")
        return problems

    def usual_size(self, description: Description) -> RunSize:
        """See `Recipe`: the paper's batch; its some 200,000 steps take a GPU."""
        return RunSize(batch=50, steps=1000)

    def declaration(self, run: RunTerms) -> Payload:
        return SinkhornDeclaration(
            classes=run.classes,
            points=self.points,
            fresh=self.fresh,
            label_weight=self.label_weight,
            l1_weight=_L1_WEIGHT,
            blur=_BLUR,
            iterations=self.iterations,
            clip_norm=self.clip_norm,
            sigma=2.0 * self.clip_norm * run.noise,
            clip_points=self.clip_points,
        )

    def features(self, description: Description) -> nn.Module:
        """See `GenerationMethod`: the values themselves, in a range of 2 as the paper's; costs are of differences."""
        return Scaled(self.low, self.high, 1.0, norm=2.0).eval()

    def step(
        self, run: Release[Any], features: nn.Module, fitting: Fitting, trained: nn.Module, own: torch.Generator
    ) -> DrawnStep[Any]:
        classes = run.plan.classes
        labels = torch.randint(classes, (self.points,), generator=own)
        labels = torch.cat([labels, labels[: self.fresh]]).to(fitting.device)  # as in the paper's code
        points = features(self.drawn(run, trained, labels, own))
        drawn = run.draw(SinkhornRequest(points.detach().float().cpu().numpy(), tuple(labels.tolist())))
        released = drawn.reply.gradient.to_tensor(device=fitting.device)
        among = self._among(points.detach(), labels, classes)
        points.backward(torch.cat([released, among]))
        return drawn

    def _among(self, points: Tensor, labels: Tensor, classes: int) -> Tensor:
        """The loss's gradient in the last n' points, (n', d): public, and clipped as in the paper's code."""
        if not self.fresh:
            return points[self.points :]
        last = points[self.points :].double().requires_grad_()
        label = partial(labelled, classes=classes, weight=self.label_weight)
        every = label(torch.cat([points[: self.points].double(), last]), labels)
        loss = -sinkhorn(
            every[: self.points], every[self.fresh :], l1=_L1_WEIGHT, blur=_BLUR, iterations=self.iterations
        )
        (gradient,) = torch.autograd.grad(loss, last)
        return clip_records(gradient.reshape(1, -1), self.clip_norm).reshape(gradient.shape).to(points)
