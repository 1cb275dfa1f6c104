"""A mechanism that only a test defines, and a curator that offers it: ``own_mechanism.py HOME [POINT ACTION]``.

It shows what a mechanism must bring, and that admission, price, trial, release, receipts and repeats need no more. Its
payloads are not even protobuf messages.
"""

from __future__ import annotations

import math
import struct
import sys
from dataclasses import dataclass

import serve_with_stops
import torch

from shared.kernels.clipping import RECORD_NORM, clip_records
from shared.kernels.noise import GridArray, grid_step, narrowest_integer, release_steps
from shared.mechanisms import MECHANISMS
from shared.mechanisms.interface import Facts, Limits, Mechanism, RunSize, Step
from shared.privacy.events import BoundedSum, Part
from shared.protocol import arrays
from shared.protocol.checks import Violation, invalid, positive
from shared.protocol.payloads import parsed, written
from shared.protocol.v1 import curator_pb2 as pb

MAX_FEATURES = 1000


@dataclass(frozen=True)
class MeanDeclaration:
    """What a run declares.

    Attributes:
        sigma: standard deviation of the noise on each coordinate of the sum over the sample.
    """

    sigma: float

    def to_bytes(self) -> bytes:
        """Eight bytes."""
        return struct.pack("<d", self.sigma)

    @classmethod
    def from_bytes(cls, data: bytes) -> MeanDeclaration:
        """The inverse of `to_bytes`."""
        if len(data) != 8:
            raise invalid("parameters.declaration", f"has {len(data)} bytes; a mean's sigma takes 8")
        return cls(*struct.unpack("<d", data))


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
    """The sum over the sample of features clipped to norm 1/2."""

    name = "test-clipped-mean"
    declaration = MeanDeclaration
    request = MeanRequest
    reply = MeanReply

    def violations(self, declared: MeanDeclaration, run: RunSize, facts: Facts, limits: Limits) -> list[Violation]:
        """Refuses a noise that is none, and a sum that does not fit in 32 bits."""
        broken = positive("declaration.sigma", declared.sigma)
        if not broken and run.batch * RECORD_NORM > 2.0**19 * declared.sigma:
            broken.append(("declaration.sigma", f"is {declared.sigma}; the sum would not fit in 32 bits"))
        if facts.model.feature_dimension > MAX_FEATURES:
            broken.append(("parameters.graph_digest", f"has more than {MAX_FEATURES} features"))
        return broken

    def parts(self, declared: MeanDeclaration, run: RunSize, facts: Facts) -> tuple[Part, ...]:
        """One bounded sum: two vectors of norm 1/2 are at most 1 apart."""
        d, sigma = facts.model.feature_dimension, declared.sigma
        return (BoundedSum(values=d, sensitivity=1.0, changed=d, sigma=sigma, grid_step=grid_step(sigma)),)

    def synthetic(self, declared: MeanDeclaration, run: RunSize, facts: Facts) -> MeanRequest:
        """Every request costs the same."""
        return MeanRequest()

    def compute(self, declared: MeanDeclaration, request: MeanRequest, step: Step) -> MeanReply:
        """Clips, rounds each record to the grid, sums exactly, adds noise."""
        records, _ = step.sample.take(0, step.sample.count)
        clipped = clip_records(step.model.features(records).to(step.device))
        step.reached("averaged")
        steps = torch.round(clipped.to(torch.float64) / grid_step(declared.sigma)).sum(dim=0)
        integer = narrowest_integer(RECORD_NORM * step.run.batch, sigma=declared.sigma)
        return MeanReply(request.tag, release_steps(steps, sigma=declared.sigma, noise=step.noise, integer=integer))

    def summary(self, declared: MeanDeclaration, facts: Facts) -> str:
        """In words."""
        wide = math.sqrt(facts.model.feature_dimension) * declared.sigma
        return f"a noised sum of clipped features, with noise of norm about {wide:.3g}"


CLIPPED_MEAN = ClippedMean()

if __name__ == "__main__":
    serve_with_stops.main(sys.argv[1:], mechanisms={**MECHANISMS, CLIPPED_MEAN.name: CLIPPED_MEAN})
