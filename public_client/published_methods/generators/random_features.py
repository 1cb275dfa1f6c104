"""DP-MERF (Harder, Adamczewski and Park, AISTATS 2021): a generator fitted to noised random Fourier means.

phi(x) = (cos Wx, sin Wx) / sqrt(D) with D frequencies W ~ N(0, 1/s^2) approximates the Gaussian kernel of scale s, and
|phi| = 1. The one release is the sum over all records of e_y (x) (1, phi(x)): the mechanism `class_statistics` without
second moments. Its sensitivity is 2, of a record that keeps its class; the counts beside it cost nothing
(docs/privacy/class-statistics.md). Anything that is fitted to it is post-processing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from dpswd.public_client.curator.description import Description
from dpswd.public_client.data.progress import reporting
from dpswd.public_client.generation.generator import Generator
from dpswd.public_client.generation.method import Fitting
from dpswd.public_client.methods.statistics_head import shares_of
from dpswd.public_client.methods.statistics_method import StatisticsRun
from dpswd.public_client.plans.recipe import RunTerms, not_counts, not_positive
from dpswd.public_client.published_methods.generators.descent import Network
from dpswd.public_client.published_methods.generators.networks import Centred
from dpswd.public_client.training.run import Release
from dpswd.shared.core.mechanisms.class_statistics.geometry import Weights
from dpswd.shared.core.mechanisms.class_statistics.mechanism import CLASS_STATISTICS, StatisticsDeclaration
from dpswd.shared.core.mechanisms.interface import Payload
from dpswd.shared.core.noise.clipping import RECORD_NORM
from dpswd.shared.models.free_weights import free_count


@dataclass(frozen=True, kw_only=True)
class DpMerf(Network):
    """One release of random Fourier means by class, and a network whose records have the same.

    Attributes:
        frequencies: D, each with a cosine and a sine.
        scale: s of the kernel, in units of the root of the number of values (values between -1 and 1).
        frequencies_seed: of W; public.
        updates: of the network; they cost nothing.
        draws: generated records of an update.
    """

    name = "dp-merf"
    mechanism = CLASS_STATISTICS
    run_kind: ClassVar[type[Release[Any]]] = StatisticsRun

    frequencies: int = 1000
    scale: float = 0.4
    frequencies_seed: int = 0
    updates: int = 2000
    draws: int = 200

    def problems(self) -> list[str]:
        return [
            *super().problems(),
            *not_counts(self, "frequencies", "updates", "draws"),
            *not_positive(self, "scale"),
        ]

    def declaration(self, run: RunTerms) -> Payload:
        weights = Weights(run.classes, free_count(Weights(run.classes, 0.0, 0.0, 0.0)), 0.0, 0.0)
        return StatisticsDeclaration(
            classes=run.classes,
            count_weight=weights.count,
            moment_weight=0.0,
            centring=0.0,
            sigma=run.noise * weights.sensitivity(),
            feature_map=run.feature_map,
        )

    def features(self, description: Description) -> nn.Module:
        """See `GenerationMethod`: half of phi, on the scale of the clip."""
        values = math.prod(description.record_shape)
        scale = self.scale * math.sqrt(values)
        fourier = FourierFeatures(values, self.frequencies, scale, seed=self.frequencies_seed)
        return nn.Sequential(Centred(self.low, self.high), fourier).eval()

    def fit(self, run: Release[Any], features: nn.Module, fitting: Fitting) -> Generator:
        assert isinstance(run, StatisticsRun), "this method opened it"
        with reporting("random Fourier means", run.plan.steps, shown=fitting.progress) as bar:
            sums = run.sums(bar)
        shares, classes = shares_of(sums), run.plan.classes
        # (C, 2D) means over all records of e_y (x) phi, as released; |phi| = 1 where nothing was clipped.
        target = torch.from_numpy((sums.features + sums.total / classes) / sums.records).float().to(fitting.device)
        trained, chance = self.made(run, fitting), torch.from_numpy(shares)
        features, own = features.to(fitting.device), torch.Generator().manual_seed(fitting.seed)
        clip = run.feature_map.to(fitting.device)

        def loss() -> Tensor:
            labels = torch.multinomial(chance, self.draws, replacement=True, generator=own).to(fitting.device)
            made = self.drawn(trained, labels, classes, own, fitting.ranks)
            phi = clip.clipped(self._phi(features, made, run)) / RECORD_NORM
            kinds = nn.functional.one_hot(labels, classes).to(phi)
            return (kinds.T @ phi / self.draws - target).square().sum()

        self.updated(trained, loss, self.updates, fitting)
        return self.finished(trained, run, tuple(float(share) for share in shares))

    def _phi(self, features: nn.Module, made: Tensor, run: Release[Any]) -> Tensor:
        """Of generated values between -1 and 1."""
        if isinstance(features, nn.Sequential) and isinstance(features[0], Centred):
            phi: Tensor = features[1](made)
            return phi
        return self.features_on(features, made, run)


class FourierFeatures(nn.Module):
    """(cos Wx, sin Wx) / (2 sqrt(D)), of norm 1/2; sin t = cos(t - pi/2).

    Args:
        values: of x.
        frequencies: D.
        scale: of the kernel, in x's units.
        seed: of W.
    """

    def __init__(self, values: int, frequencies: int, scale: float, *, seed: int) -> None:
        super().__init__()
        own = torch.Generator().manual_seed(seed)
        drawn = torch.randn((frequencies, values), generator=own) / scale
        self.angles = nn.Linear(values, 2 * frequencies).requires_grad_(False)
        self.gain = RECORD_NORM / math.sqrt(frequencies)
        self.angles.weight.copy_(torch.cat([drawn, drawn]))
        self.angles.bias.copy_(torch.tensor([0.0, -0.5 * math.pi]).repeat_interleave(frequencies))

    def forward(self, x: Tensor) -> Tensor:
        """(b, values) to (b, 2D)."""
        return torch.cos(self.angles(x)) * self.gain
