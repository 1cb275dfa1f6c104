"""Distribution functions of every record's projections, released once as one noised sum: of all, or class by class.

For each of k public directions the release tells how many records lie above each of many thresholds, as L coefficients
in orthonormal cosines. It is linear in the records: it reads all of them in shards, and the sums of several hospitals
add up. docs/privacy/sliced-distributions.md derives the price.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import numpy.typing as npt
import torch

from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.mechanisms.interface import Facts, Limits, RunSize
from dpswd.shared.core.mechanisms.linear import LinearMechanism, Reach, ShardSum
from dpswd.shared.core.mechanisms.sliced import map_violations
from dpswd.shared.core.noise.feature_map import FeatureMap
from dpswd.shared.core.noise.noise import GridArray, Integer, NoiseSource, release_finely, sum_grid
from dpswd.shared.core.privacy.events import BoundedSum, Part
from dpswd.shared.core.wire import limits as protocol
from dpswd.shared.core.wire.arrays import BYTES
from dpswd.shared.core.wire.checks import Violation, between, positive, positive_or_zero
from dpswd.shared.core.wire.payloads import MessagePayload, NoPayload, Wire
from dpswd.shared.core.wire.v1 import curator_pb2 as pb
from dpswd.shared.published_mechanisms.distributions.encoding import (
    CELLS,
    THRESHOLDS,
    cell_table,
    largest_coefficient,
    sensitivity,
)
from dpswd.shared.published_mechanisms.distributions.histograms import ProjectionCounts

LEAST_WINDOW, MOST_WINDOW = 1e-6, 1.0
"""Records of norm 1/2 lie within a window of 1; a narrower one than a millionth tells nothing of them."""
_MOST_CELLS = 1 << 23  # of all classes and directions, 64 MiB
_MOST_ENTRIES = 1 << 23  # of the directions, 64 MiB


@dataclass(frozen=True, eq=False)
class DistributionsDeclaration(MessagePayload, message=pb.DistributionsDeclaration, field="parameters.declaration"):
    """What a run declares.

    Attributes:
        classes: C, or 0 where labels are not read.
        directions: k; a multiple of the features' number d gives most for its price.
        coefficients: L of each direction and class, at most 256.
        window: w, in units of clipped features, whose norm is 1/2 at most: projections beyond w / 2 count as there.
        count_weight: a of a record's one in its class's count; 0 without counts, and where labels are not read.
        sigma: standard deviation of the noise on each coordinate of the sum.
        directions_seed: public; both parties draw the directions from it.
        feature_map: public; None for the identity. Features are clipped after it.
    """

    classes: int
    directions: int
    coefficients: int
    window: float
    count_weight: float
    sigma: float
    directions_seed: int = 0
    feature_map: FeatureMap | None = None

    @property
    def values(self) -> int:
        """Coordinates of the sum."""
        return self.classes + max(1, self.classes) * self.coefficients * self.directions

    def sensitivity(self, dimension: int) -> float:
        """Of features of this dimension; see `encoding.sensitivity`."""
        return sensitivity(
            dimension,
            directions=self.directions,
            coefficients=self.coefficients,
            window=self.window,
            count_weight=self.count_weight,
        )

    def grid(self, records: int) -> tuple[int, Integer]:
        """Exponent and width of the noise's grid, from public numbers alone; see `sum_grid`.

        Raises:
            InvalidValue: sigma is so small that the sum could leave the widest grid.
        """
        return sum_grid(records * max(largest_coefficient(), self.count_weight), sigma=self.sigma)


class DistributionsRequest(NoPayload):
    """What a step brings: nothing."""


@dataclass(frozen=True, eq=False)
class DistributionsReply(MessagePayload, message=pb.DistributionsReply, field="reply"):
    """What a step returns.

    Attributes:
        sum: (values,), the noised sum: the weighted counts of the classes, where labels are read, then coefficients
            (C, L, k) row by row.
    """

    sum: Annotated[GridArray, Wire(shape=("values",), most=protocol.MAX_RELEASE_VALUES)]


@dataclass(frozen=True, eq=False)
class Released:
    """A reply taken apart. Noised.

    Attributes:
        counts: (C,) records of each class, divided by their weight; zeros where they were not released.
        coefficients: (C, L, k) sums over a class's records of `encoding.encoded`; one class where labels are not read.
    """

    counts: npt.NDArray[np.float64]
    coefficients: npt.NDArray[np.float64]

    @classmethod
    def of(cls, reply: DistributionsReply, declared: DistributionsDeclaration) -> Released:
        """Takes a reply apart.

        Raises:
            InvalidValue: the reply has another length than such a run's.
        """
        values = reply.sum.to_numpy()
        if values.shape != (declared.values,):
            raise InvalidValue(f"the reply holds {values.size} values; the run releases {declared.values}")
        counts, rest = np.split(values, [declared.classes])
        # Without a weight nothing of the counts is in the sum; what was released of them is noise.
        counts = counts / declared.count_weight if declared.count_weight else np.zeros(declared.classes)
        return cls(counts, rest.reshape(max(1, declared.classes), declared.coefficients, declared.directions))


class Distributions(LinearMechanism[DistributionsDeclaration, DistributionsRequest, DistributionsReply]):
    """Distribution functions of all records' projections."""

    name = "distributions"
    declaration = DistributionsDeclaration
    request = DistributionsRequest
    reply = DistributionsReply

    def violations(
        self, declared: DistributionsDeclaration, run: RunSize, facts: Facts, limits: Limits
    ) -> list[Violation]:
        """See `Mechanism`."""
        d, k = facts.model.feature_dimension, declared.directions
        broken = between("declaration.directions", k, min(protocol.MAX_DIRECTIONS, limits.max_directions))
        most = min(THRESHOLDS, limits.max_coefficients)
        broken += between("declaration.coefficients", declared.coefficients, most)
        if not LEAST_WINDOW <= declared.window <= MOST_WINDOW:
            text = f"is {declared.window:g}; allowed are {LEAST_WINDOW:g} to {MOST_WINDOW:g}"
            broken.append(("declaration.window", text))
        broken += positive("declaration.sigma", declared.sigma)
        broken += positive_or_zero("declaration.count_weight", declared.count_weight)
        classes = facts.data.classes if self.needs_labels else 0
        if declared.classes != classes:
            text = f"is {declared.classes}; the data set's labels have {classes}"
            return [*broken, ("declaration.classes", text if classes else f"is {declared.classes}; send 0")]
        if declared.count_weight and not classes:
            broken.append(("declaration.count_weight", f"is {declared.count_weight:g}; {self.name} counts no classes"))
        broken += _too_large(declared, d, facts, limits) if not broken else []
        return broken + map_violations(declared.feature_map, facts, "declaration.feature_map")

    def parts(self, declared: DistributionsDeclaration, run: RunSize, facts: Facts) -> tuple[Part, ...]:
        """See `Mechanism`."""
        each = declared.coefficients * declared.directions
        part = BoundedSum(
            values=declared.values,
            sensitivity=declared.sensitivity(facts.model.feature_dimension),
            changed=min(2, declared.classes) + min(2, max(1, declared.classes)) * each,
            sigma=declared.sigma,
            grid_step=declared.sigma * 2.0 ** -declared.grid(facts.data.records)[0],
        )
        return (part,)

    def work(self, declared: DistributionsDeclaration) -> tuple[object, ...]:
        """See `Mechanism`: neither noise nor window nor the map's values cost time."""
        return (declared.classes, declared.directions, declared.coefficients)

    def accumulator(self, declared: DistributionsDeclaration, facts: Facts, device: torch.device) -> ProjectionCounts:
        """See `LinearMechanism`."""
        return ProjectionCounts(
            classes=declared.classes,
            seed=declared.directions_seed,
            dimension=facts.model.feature_dimension,
            directions=declared.directions,
            window=declared.window,
            feature_map=None if declared.feature_map is None else declared.feature_map.to(device),
            device=device,
        )

    def reaches(self, declared: DistributionsDeclaration, facts: Facts) -> tuple[Reach, ...]:
        """See `LinearMechanism`: in each direction one cell of one class."""
        return (Reach(1, counts=True, axes=(0, 2)),)

    def released(
        self, declared: DistributionsDeclaration, facts: Facts, total: ShardSum, noise: NoiseSource
    ) -> DistributionsReply:
        """See `LinearMechanism`."""
        (cells,) = total.sums  # (C, k, M + 1)
        coefficients = (cells @ cell_table(declared.coefficients)).transpose(0, 2, 1)
        counts = declared.count_weight * cells[: declared.classes, 0].sum(axis=1)  # in each direction the same
        exponent, integer = declared.grid(facts.data.records)
        signal = torch.from_numpy(np.concatenate([counts, coefficients.reshape(-1)]))
        released = release_finely(signal, sigma=declared.sigma, exponent=exponent, noise=noise, integer=integer)
        return DistributionsReply(released)

    def summary(self, declared: DistributionsDeclaration, facts: Facts) -> str:
        """See `Mechanism`."""
        text = f"{declared.coefficients} noised coefficients of the distribution function of all records in each of "
        text += f"{declared.directions} directions"
        return f"{text} for each of {declared.classes} classes, and their counts" if declared.classes else text


class LabelledDistributions(Distributions):
    """The same of each class by itself, with the classes' counts."""

    name = "labelled_distributions"
    needs_labels = True
    partial_labels = True


def _too_large(declared: DistributionsDeclaration, dimension: int, facts: Facts, limits: Limits) -> list[Violation]:
    """What a step would keep in memory or send, of numbers that are in range by themselves."""
    k, classes, broken = declared.directions, max(1, declared.classes), []
    most = min(_MOST_CELLS // (CELLS * classes), _MOST_ENTRIES // dimension)
    if k > most:
        text = f"is {k}; at most {most} are counted of {classes} classes and {dimension} features"
        broken.append(("declaration.directions", text))
    try:
        width = BYTES[declared.grid(facts.data.records)[1]]
    except InvalidValue as error:
        return [*broken, ("declaration.sigma", str(error))]
    fit = min(protocol.MAX_RELEASE_VALUES, max(0, limits.max_message_bytes - protocol.FRAMING_BYTES) // width)
    if declared.values > fit:
        text = f"make {declared.values} values; at most {fit} are sent: use fewer, or fewer directions"
        broken.append(("declaration.coefficients", text))
    return broken


DISTRIBUTIONS = Distributions()
LABELLED_DISTRIBUTIONS = LabelledDistributions()
