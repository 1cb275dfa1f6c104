"""One release, replayed: class statistics of public features, and a generator that is fitted to them for free.

The hospital releases once, with the whole epsilon: class counts, class sums and second moments of public features of
its labelled records. From there on everything is post-processing:

* the classes' normal laws in the features, each number shrunk by the known noise on it, and their linear discriminant
  (`dpswd.public_client.methods.statistics_head`);
* a decoder from features back to images: one hidden layer of random units, whose output weights are the ridge
  regression of procedural images on their features. It has never seen a record; what makes a drawn image look like the
  hospital's is the law from which its features are drawn;
* labels by the discriminant, of the image as it was drawn: a blurred or odd image gets the label that the release
  gives it, and not that of the class it was meant for. So whoever trains on the rows learns the discriminant, whatever
  the rows look like, and a part of them may as well be procedural images (`by_rule`): they show the label of shapes
  that the decoder never draws.

No public image of the same kind is needed.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpswd.public_client.curator.description import Description
from dpswd.public_client.data.ranks import Ranks
from dpswd.public_client.generation.generator import MAX_STEPS, Generator
from dpswd.public_client.generation.marginals import marginals
from dpswd.public_client.generation.method import Fitting
from dpswd.public_client.generation.procedural import procedural
from dpswd.public_client.generation.scattering import OnSphere, computed, scattering_features
from dpswd.public_client.generation.statistics import StatisticsGeneration
from dpswd.public_client.methods.statistics_head import Classes, ClassSums, classes_of
from dpswd.public_client.plans.recipe import not_between, not_counts, not_positive
from dpswd.public_client.training.run import Release
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.noise.clipping import RECORD_NORM

_AT_A_TIME = 2000  # pool images; bounds memory
_RIDGE = 1e-3
"""Of the mean square of a hidden unit."""
_SPREAD = 1.5
"""Deviation of the hidden units' thresholds, in those of a feature."""
_LEAST_SIDE, _MOST_SIDE = 8, 64  # pixels; larger images need more axes than a release carries


@dataclass(frozen=True, kw_only=True)
class Replayed(StatisticsGeneration):
    """One release of class statistics of public features, replayed: a decoder, labelled by the discriminant.

    Attributes:
        low: black, public.
        high: white; drawn values are brought back into this range.
        axes: d, features of an image.
        power: of an axis's variance over procedural images, by which it is divided.
        pool: procedural images that the decoder is fitted to.
        hidden: units of the decoder.
        by_rule: share of the drawn rows that are procedural images, labelled like the others.
        matching: steps of descent on a decoded image's pixels, until its features are those that were drawn for it
            (`matching`); 0 draws it as decoded, in a tenth of the time.
        varied: decoded images get edges and texture by rule, before they are labelled.
        temperature: divides the discriminant's scores before they become probabilities: far from what was released it
            is surer than it should be, and sure labels teach less.
    """

    name = "replayed"

    low: float = -1.0
    high: float = 1.0
    axes: int = 200
    power: float = 0.3
    pool: int = 20_000
    hidden: int = 1500
    by_rule: float = 0.5
    matching: int = 10
    varied: bool = True
    temperature: float = 4.0

    def problems(self) -> list[str]:
        """See `GenerationMethod`."""
        problems = [
            *super().problems(),
            *not_counts(self, "axes", "pool", "hidden"),
            *not_positive(self, "power", "temperature"),
        ]
        problems += not_between(self, 0.0, 1.0, "by_rule")
        if type(self.matching) is not int or not 0 <= self.matching <= MAX_STEPS:
            problems.append(f"matching is {self.matching!r}; it must be a whole number from 0 to {MAX_STEPS}")
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            problems.append(f"low is {self.low!r} and high {self.high!r}; low must be below high, both finite")
        return problems

    def features(self, description: Description) -> nn.Module:
        """See `GenerationMethod`: a scattering on the axes of procedural images."""
        shape = _image(description.record_shape)
        # A copy: the numbers are shared by all calls of a process, and a resumed run may load others.
        return copy.deepcopy(scattering_features(shape, low=self.low, high=self.high, axes=self.axes, power=self.power))

    def wrapped(self, extractor: nn.Module, description: Description) -> nn.Module:
        """See `GenerationMethod`: the team's features, brought to one norm."""
        shape = _image(description.record_shape)
        with torch.no_grad():
            width = extractor(torch.full((1, *shape), self.low)).shape[1]
        return nn.Sequential(extractor, OnSphere(width)).eval()

    def fit(self, run: Release[Any], features: nn.Module, fitting: Fitting) -> Generator:
        """See `GenerationMethod`."""
        return self.fitted(
            self.read(run, fitting),
            features,
            _image(run.plan.record_shape),
            seed=fitting.seed,
            device=fitting.device,
            ranks=fitting.ranks,
        )

    def fitted(
        self,
        statistics: ClassSums,
        features: nn.Module,
        shape: tuple[int, int, int],
        *,
        seed: int,
        device: torch.device,
        ranks: Ranks | None = None,
    ) -> Generator:
        """A generator of what was released; asks nobody.

        Args:
            statistics: the release.
            features: that it is of.
            shape: of an image.
            seed: of the procedural images and the decoder's units.
            device: where features are computed.
            ranks: processes that share the features of the procedural images, most of the work, and end alike.
        """
        laws = classes_of(statistics)
        seeded = torch.Generator().manual_seed(seed)
        images = procedural(self.pool, shape, low=self.low, high=self.high, generator=seeded)

        drawing = _law(laws)

        def released(records: Tensor) -> Tensor:
            return computed(features.to(device), records.to(device)).cpu() / RECORD_NORM  # u, |u| <= 1

        generator = Generator.of(
            self._decoder(laws, images, released, seeded, drawing, ranks or Ranks()),
            latent=len(laws.covariance),
            record_shape=shape,
            shares=laws.shares,
            labeller=nn.Sequential(features, _head(laws)),
            low=self.low,
            high=self.high,
            by_rule=self.by_rule,
            varied=self.varied,
            temperature=self.temperature,
            matching=(_as_features(drawing), features, self.matching) if self.matching else None,
        )
        return generator.with_facts(
            {"marginals": marginals(replace(generator, by_rule=0.0).on(device), statistics, released, seed=seed)}
        )

    def _decoder(
        self,
        laws: Classes,
        images: Tensor,
        released: Callable[[Tensor], Tensor],
        seeded: torch.Generator,
        drawing: Tensor,
        ranks: Ranks,
    ) -> nn.Module:
        """[z, e_c] to pixels: features by the laws, then the ridge regression on random units and the features."""
        d, classes = len(laws.covariance), len(laws.shares)
        turned = torch.randn((d, self.hidden), generator=seeded, dtype=torch.float64)
        threshold = _SPREAD / math.sqrt(d) * torch.randn(self.hidden, generator=seeded, dtype=torch.float64)
        gram = torch.zeros((self.hidden + d + 1, self.hidden + d + 1), dtype=torch.float64)
        onto = torch.zeros((self.hidden + d + 1, math.prod(images.shape[1:])), dtype=torch.float64)
        parts = torch.split(images, _AT_A_TIME)
        for some, u in zip(parts, ranks.divided(len(parts), lambda i: released(parts[i]).double()), strict=True):
            units = torch.relu(u @ turned + threshold)
            seen = torch.cat([units, u, torch.ones((len(u), 1), dtype=torch.float64)], dim=1).float()
            # Products in single precision, sums in double: a quarter of the time, and as exact as is needed.
            gram += (seen.T @ seen).double()
            onto += (seen.T @ some.flatten(1)).double()
        ridge = _RIDGE * gram.diagonal().mean() * torch.eye(len(gram), dtype=torch.float64)
        solved = torch.linalg.solve(gram + ridge, onto)  # (hidden + d + 1, values)
        first = nn.Linear(d + classes, self.hidden + 2 * d)
        last = nn.Linear(self.hidden + 2 * d, solved.shape[1])
        with torch.no_grad():  # u itself passes the units as its positive and its negative part
            first.weight.copy_(torch.cat([turned.T @ drawing, drawing, -drawing]))
            first.bias.copy_(torch.cat([threshold, torch.zeros(2 * d, dtype=torch.float64)]))
            units, linear = solved[: self.hidden], solved[self.hidden : -1]
            last.weight.copy_(torch.cat([units, linear, -linear]).T)
            last.bias.copy_(solved[-1])
        return nn.Sequential(first, nn.ReLU(), last)


def _law(laws: Classes) -> Tensor:
    """(d, d + C): features u = law [z, e_c] of class c."""
    values, vectors = np.linalg.eigh(laws.covariance)
    spread = torch.from_numpy(vectors * np.sqrt(np.maximum(values, 0.0)))  # (d, d)
    return torch.cat([spread, torch.from_numpy(laws.means).T], dim=1)


def _as_features(drawing: Tensor) -> nn.Linear:
    """The law on the scale of features of norm 1/2."""
    made = nn.Linear(drawing.shape[1], drawing.shape[0])
    with torch.no_grad():
        made.weight.copy_(drawing * RECORD_NORM)
        made.bias.zero_()
    return made


def _head(laws: Classes) -> nn.Linear:
    """The discriminant on features of norm 1/2."""
    head = laws.discriminant()
    made = nn.Linear(head.weight.shape[1], head.weight.shape[0])
    with torch.no_grad():
        made.weight.copy_(torch.from_numpy(head.weight) / RECORD_NORM)
        made.bias.copy_(torch.from_numpy(head.bias))
    return made


def _image(record_shape: tuple[int, ...]) -> tuple[int, int, int]:
    """The shape of an image that the method can draw.

    Raises:
        InvalidValue: the records are none.
    """
    if len(record_shape) == 3 and all(_LEAST_SIDE <= side <= _MOST_SIDE for side in record_shape[1:]):
        channels, height, width = record_shape
        return channels, height, width
    raise InvalidValue(
        f"records have shape {record_shape}; replayed draws images (channels, h, w) with sides of {_LEAST_SIDE} to "
        f"{_MOST_SIDE} pixels. For other records use --method gaussian. Nothing was spent"
    )
