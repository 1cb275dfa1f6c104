"""A mechanism that only tests define: the noised sum of clipped features.

It shows what a mechanism must bring, and that admission, price, trial, release, receipts and repeats need no more. Its
payloads are not even protobuf messages.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

from dpswd.shared.core.mechanisms.interface import Facts, Limits, Mechanism, RunSize, Step
from dpswd.shared.core.noise.noise import GridArray
from dpswd.shared.core.privacy.events import BoundedSum, Part
from dpswd.shared.core.wire import arrays
from dpswd.shared.core.wire.checks import Violation, invalid, positive
from dpswd.shared.core.wire.payloads import parsed, written
from dpswd.shared.core.wire.v1 import curator_pb2 as pb
from dpswd.shared.published_mechanisms.clipped_sum import gradient_step, release_gradient

MAX_FEATURES = 1000


@dataclass(frozen=True)
class MeanDeclaration:
    """What a run declares.

    Attributes:
        clip_norm: C, the largest norm of one record's features.
        sigma: standard deviation of the noise on each coordinate of the sum over the sample.
    """

    clip_norm: float
    sigma: float

    def to_bytes(self) -> bytes:
        """Sixteen bytes."""
        return struct.pack("<dd", self.clip_norm, self.sigma)

    @classmethod
    def from_bytes(cls, data: bytes) -> MeanDeclaration:
        """The inverse of `to_bytes`."""
        if len(data) != 16:
            raise invalid("parameters.declaration", f"has {len(data)} bytes; a mean's two numbers take 16")
        return cls(*struct.unpack("<dd", data))


@dataclass(frozen=True)
class MeanRequest:
    """What a step brings: a weight of the public kind, which the reply repeats; it touches no record.

    Attributes:
        tag: 0 to 255.
    """

    tag: int = 0

    def to_bytes(self) -> bytes:
        """One byte."""
        return bytes([self.tag])

    @classmethod
    def from_bytes(cls, data: bytes) -> MeanRequest:
        """The inverse of `to_bytes`."""
        if len(data) != 1:
            raise invalid("payload", f"has {len(data)} bytes; a mean's step brings 1")
        return cls(data[0])


@dataclass(frozen=True, eq=False)
class MeanReply:
    """What a step returns.

    Attributes:
        tag: of the request.
        total: (d,), the noised sum of the sample's clipped features.
    """

    tag: int
    total: GridArray

    def to_bytes(self) -> bytes:
        """Canonical bytes."""
        return bytes([self.tag]) + written(arrays.encode_grid(self.total))

    @classmethod
    def from_bytes(cls, data: bytes) -> MeanReply:
        """The inverse of `to_bytes`."""
        message = parsed(pb.GridArray, data[1:], field="reply.total")
        return cls(data[0], arrays.decode_grid(message, field="reply.total", max_values=MAX_FEATURES))


class ClippedMean(Mechanism[MeanDeclaration, MeanRequest, MeanReply]):
    """The sum over the sample of features clipped to norm C."""

    name = "test-clipped-mean"
    declaration = MeanDeclaration
    request = MeanRequest
    reply = MeanReply

    def violations(self, declared: MeanDeclaration, run: RunSize, facts: Facts, limits: Limits) -> list[Violation]:
        """Refuses a noise that is none, and a sum that does not fit in 32 bits."""
        broken = positive("declaration.clip_norm", declared.clip_norm) + positive("declaration.sigma", declared.sigma)
        if not broken and run.batch * declared.clip_norm > 2.0**19 * declared.sigma:
            broken.append(("declaration.sigma", f"is {declared.sigma}; the sum would not fit in 32 bits"))
        if facts.model.feature_dimension > MAX_FEATURES:
            broken.append(("parameters.graph_digest", f"has more than {MAX_FEATURES} features"))
        return broken

    def parts(self, declared: MeanDeclaration, run: RunSize, facts: Facts) -> tuple[Part, ...]:
        """One bounded sum: two vectors of norm C are at most 2 C apart."""
        d, sigma, moved = facts.model.feature_dimension, declared.sigma, 2.0 * declared.clip_norm
        step = gradient_step(batch=run.batch, clip_norm=declared.clip_norm, sigma=sigma)
        return (BoundedSum(values=d, sensitivity=moved, changed=d, sigma=sigma, grid_step=step),)

    def synthetic(self, declared: MeanDeclaration, run: RunSize, facts: Facts) -> MeanRequest:
        """Every request costs the same."""
        return MeanRequest()

    def compute(self, declared: MeanDeclaration, request: MeanRequest, step: Step) -> MeanReply:
        """Clips, rounds each record to the grid, sums exactly, adds noise."""
        records, _ = step.sample.take(0, step.sample.count)
        features = step.model.features(records).to(step.device)
        step.reached("averaged")
        total = release_gradient(features, clip_norm=declared.clip_norm, sigma=declared.sigma, noise=step.noise)
        return MeanReply(request.tag, total)

    def summary(self, declared: MeanDeclaration, facts: Facts) -> str:
        """In words."""
        wide = math.sqrt(facts.model.feature_dimension) * declared.sigma
        return f"a noised sum of clipped features, with noise of norm about {wide:.3g}"


CLIPPED_MEAN = ClippedMean()
