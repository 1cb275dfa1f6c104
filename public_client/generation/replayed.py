"""One release, replayed: class statistics of public features, and a generator that is fitted to them for free.

The hospital releases once, with the whole epsilon: class counts, class sums and second moments of public features of
its labelled records (`pixels.Joint`): of their shapes, by a scattering, and of their pixels. From there on everything
is post-processing:

* the classes' normal laws in the shapes' features, each number shrunk by the known noise on it, and their linear
  discriminant (`dpswd.public_client.methods.statistics_head`): it labels whatever is drawn;
* a small convolutional network, fitted until what it draws has the released sums and second moments (`network`).

An image is deformed a little, and drawn again if it gets another label. No public image of the same kind is needed.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import nn

from dpswd.public_client.curator.description import Description
from dpswd.public_client.extractor.adapter_layers import filled_linear
from dpswd.public_client.generation.generator import MAX_TRIES, Generator, traced
from dpswd.public_client.generation.marginals import marginals
from dpswd.public_client.generation.method import Fitting
from dpswd.public_client.generation.network import ImageNetwork, Target, fit_network
from dpswd.public_client.generation.pixels import Coordinates, Joint, Waves, public_axes
from dpswd.public_client.generation.procedural import procedural
from dpswd.public_client.generation.scattering import OnSphere, scattering_features
from dpswd.public_client.generation.statistics import StatisticsGeneration
from dpswd.public_client.methods.statistics_head import Classes, ClassSums, classes_of, shares_of
from dpswd.public_client.plans.plan import Plan
from dpswd.public_client.plans.recipe import not_between, not_counts, not_positive
from dpswd.public_client.training.run import Release
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.noise.clipping import RECORD_NORM

SHARES = (0.5, 0.3, 0.2)
"""Of the squared norm of a record: of its shapes, its coordinates and its waves."""
_WHITENED, _FLAT = 0.25, 4e-3
"""The power of the second moments by whose inverse they are turned, and below which all count as much as that one."""
_PUBLIC = 6_000  # procedural images of the pretraining
_LEAST_SIDE, _MOST_SIDE = 8, 64  # pixels; larger images need more axes than a release carries
_LEAST_AXES, _RECORDS_OF_AN_AXIS = 30, 20  # further ones made the discriminant of MNIST worse at epsilon 1
_LEAST_OF_A_CLASS = 8  # images of an update
_FEW = 12_000  # records times epsilon


@dataclass(frozen=True, kw_only=True)
class Replayed(StatisticsGeneration):
    """One release of class statistics of public features, replayed: a network of images that has the same.

    Attributes:
        low: black, public.
        high: white; drawn values lie between them.
        axes: of the shapes' features, at most.
        power: of an axis's variance over procedural images, by which it is divided.
        coordinates: of the pixels, along axes of procedural images, at most.
        waves: random directions of the pixels, over three scales.
        latent: dimension of what an image is drawn from.
        width: of the network.
        pretraining: updates of the network on procedural images.
        updates: of the network; they cost nothing.
        moments: weight of the second moments beside the classes' means.
        images: of an update.
        looked: of them whose shapes are computed, which takes most of the time.
        learning_rate: at the start.
        tries: draws of an image, at most, until the discriminant gives it the class that was asked for.
        temperature: divides the discriminant's scores before they become probabilities: sure labels teach less.
    """

    name = "replayed"
    moment_weight: ClassVar[float] = 1.2
    """Blocks share the norm, which second moments lose twice: at more than is free discriminants were better."""

    low: float = -1.0
    high: float = 1.0
    axes: int = 300
    power: float = 0.3
    coordinates: int = 200
    waves: int = 300
    latent: int = 16
    width: int = 16
    pretraining: int = 1200
    updates: int = 3000
    moments: float = 1.0
    images: int = 400
    looked: int = 100
    learning_rate: float = 4e-3
    tries: int = 8
    temperature: float = 4.0

    def problems(self) -> list[str]:
        return [
            *super().problems(),
            *not_counts(self, "axes", "coordinates", "waves", "latent", "width", "pretraining", "updates"),
            *not_counts(self, "images", "looked"),
            *not_positive(self, "power", "moments", "temperature", "learning_rate"),
            *(not_counts(self, "tries") or not_between(self, 1, MAX_TRIES + 1, "tries")),
        ]

    def notes(self, plan: Plan) -> list[tuple[str, str]]:
        few = plan.records * plan.epsilon < _FEW
        words = "few records: at epsilon 1 rows of 7,300 taught a CNN 89 (real ones 96), rows of 1,300 taught 74 (98)"
        return [*super().notes(plan), *([("", words)] if few else [])]

    def features(self, description: Description) -> nn.Module:
        """See `GenerationMethod`: a scattering on axes of procedural images, and coordinates and waves of pixels."""
        shape, axes = _image(description.record_shape), _carried(self.axes, description)
        # A copy: the numbers are shared by all calls of a process, and a resumed run may load others.
        seen = scattering_features(shape, low=self.low, high=self.high, axes=axes, power=self.power)
        return self._joint(copy.deepcopy(seen), description)

    def wrapped(self, extractor: nn.Module, description: Description) -> nn.Module:
        """See `GenerationMethod`: the team's features, brought to one norm, in the scattering's place."""
        with torch.no_grad():
            width = extractor(torch.full((1, *_image(description.record_shape)), self.low)).shape[1]
        return self._joint(nn.Sequential(extractor, OnSphere(width)), description)

    def _joint(self, seen: nn.Module, description: Description) -> Joint:
        shape, count = _image(description.record_shape), _carried(self.coordinates, description)
        own = public_axes(shape, low=self.low, high=self.high, count=count, power=self.power)
        joint = Joint(seen, Coordinates(*own), Waves(shape, self.low, self.high, self.waves), SHARES)
        return joint.requires_grad_(False).eval()

    def fit(self, run: Release[Any], features: nn.Module, fitting: Fitting) -> Generator:
        assert isinstance(features, Joint), "this method made it"
        return self.fitted(self.read(run, fitting), features, _image(run.plan.record_shape), fitting)

    def fitted(
        self, statistics: ClassSums, features: Joint, shape: tuple[int, int, int], fitting: Fitting
    ) -> Generator:
        """A generator of what was released, of these features of images of this shape; asks nobody."""
        features = features.to(fitting.device)
        with torch.no_grad():
            width = features.seen(torch.full((1, *shape), self.low, device=fitting.device)).shape[1]
        shapes = _first(statistics, width, SHARES[0])
        laws = classes_of(shapes)
        classes = len(laws.shares)
        torch.manual_seed(fitting.seed)
        network = ImageNetwork(self.latent + classes, self.width, shape, low=self.low, high=self.high)
        network = network.to(fitting.device)
        if fitting.store is None or fitting.store.read("fit") is None:
            own = torch.Generator().manual_seed(fitting.seed)
            public = procedural(_PUBLIC, shape, low=self.low, high=self.high, generator=own)
            network.pretrain(public.to(fitting.device), updates=self.pretraining, own=own)
        labeller = nn.Sequential(copy.deepcopy(features.seen).cpu(), _head(laws))

        def made(trained: ImageNetwork) -> Generator:
            decoder = traced(copy.deepcopy(trained), self.latent + classes)
            return Generator(
                decoder, shape, tuple(laws.shares.tolist()), labeller=traced(labeller, *shape), low=self.low,
                high=self.high, deformation=float(trained.deformation.item()), tries=self.tries,
                temperature=self.temperature,
            )  # fmt: skip

        preview = fitting.preview
        shown = None if preview is None else lambda trained: preview(made(trained))
        target = self._target(statistics, features, width, fitting.device)
        fit_network(network, target, updates=self.updates, rate=self.learning_rate, fitting=fitting, shown=shown)
        generator = made(network)
        rows = marginals(generator.on(fitting.device), shapes, features.seen, fitting)
        return generator.with_facts({"marginals": rows})

    def _target(self, statistics: ClassSums, features: Joint, width: int, device: torch.device) -> Target:
        """Of features of norm 1, where a class's weight is that of its records."""
        assert statistics.moments is not None, "always released"
        shares = shares_of(statistics)
        classes, records = len(shares), statistics.records
        means = (statistics.features + statistics.total / classes) / (shares * records)[:, None]
        variance = (statistics.feature_variance + statistics.total_variance / classes**2) * (classes / records) ** 2
        first = width + features.coordinates.axes.out_features
        moments = torch.from_numpy(statistics.moments[:first, :first]) / records
        values, vectors = torch.linalg.eigh(moments)
        # Noise on a symmetric matrix spreads its eigenvalues over twice its deviation times the root of its side.
        edge = max(_FLAT, 2.0 * math.sqrt(first * statistics.moment_variance) / records)
        turn = (vectors * values.clamp(min=edge) ** -_WHITENED) @ vectors.T
        turn = turn / (turn @ moments @ turn).norm().sqrt()
        each = max(_LEAST_OF_A_CLASS, -(-self.images // classes))
        return Target(
            features=features,
            means=torch.from_numpy(means).float().to(device),
            noise=classes * means.shape[1] * variance,
            shares=torch.from_numpy(shares).float().to(device),
            turn=turn.float().to(device),
            moments=(turn @ moments @ turn).float().to(device),
            images=each, looked=min(each, max(2, -(-self.looked // classes))), weight=self.moments,
        )  # fmt: skip


def _first(released: ClassSums, width: int, share: float) -> ClassSums:
    """What was released of the first features, each of the root of the share, as features of norm 1."""
    root = math.sqrt(share)
    return replace(
        released, features=released.features[:, :width] / root, total=released.total[:width] / root,
        moments=None if released.moments is None else released.moments[:width, :width] / share,
        feature_variance=released.feature_variance / share, total_variance=released.total_variance / share,
        moment_variance=released.moment_variance / share**2,
    )  # fmt: skip


def _head(laws: Classes) -> nn.Linear:
    """The discriminant on features of norm 1/2."""
    head = laws.discriminant()
    return filled_linear(torch.from_numpy(head.weight).contiguous() / RECORD_NORM, torch.from_numpy(head.bias))


def _carried(axes: int, description: Description) -> int:
    """Of so many axes those that a release of these records can tell of; the first ones matter most."""
    return min(axes, max(_LEAST_AXES, description.records // _RECORDS_OF_AN_AXIS))


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
