"""A sum over the sample of one clipped gradient for each record, as runs declare it (docs/privacy, section 5).

The mechanisms that release such a sum (through the target branch, of a loss) share its declaration, its rules,
its price and the adapted parameters that a step brings.

The gradient of a distance with respect to the weights passes through each private record's own Jacobian, so it is not
post-processing of the released projections: with a linear extractor its row space contains every record of the batch.
So each record's gradient is clipped to C; one replaced record moves the sum by at most 2 C.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.mechanisms.feature_sums.mechanism import adapted_violations
from dpswd.shared.core.mechanisms.interface import Facts, FloatArray, Limits, RunSize
from dpswd.shared.core.noise.clipping import clip_factors, neutralise
from dpswd.shared.core.noise.noise import GridArray, NoiseSource, finest_exponent, release_finely
from dpswd.shared.core.privacy.events import SanitizedGradient
from dpswd.shared.core.wire import limits as protocol
from dpswd.shared.core.wire.checks import Violation, positive
from dpswd.shared.core.wire.payloads import MessagePayload, Wire
from dpswd.shared.core.wire.v1 import curator_pb2 as pb

SummedGradient = Annotated[GridArray, Wire(shape=("p",), most=protocol.MAX_ADAPTED_PARAMETERS)]
"""The noised sum of clipped per-record gradients, (p,), in replies."""

_FIELD = "declaration.sum"
_CHUNK = 1 << 18  # numbers held in float64 at a time: 2 MiB stay in a core's own cache


@dataclass(frozen=True)
class ClippedSum(MessagePayload, message=pb.ClippedSumDeclaration, field="declaration.sum"):
    """What is summed, how it is clipped, and its noise.

    Attributes:
        parameters: names of the adapted parameters, in the order of the flat gradient.
        clip_norm: C, the largest norm of one record's gradient.
        sigma: standard deviation of the noise on each coordinate of the sum over the sample.
    """

    parameters: tuple[str, ...]
    clip_norm: float
    sigma: float

    def violations(self, run: RunSize, facts: Facts, limits: Limits) -> list[Violation]:
        """Every rule that the declaration breaks."""
        broken = positive(f"{_FIELD}.clip_norm", self.clip_norm) + positive(f"{_FIELD}.sigma", self.sigma)
        if not broken:
            try:
                self._step(run)
            except InvalidValue as error:
                broken.append((f"{_FIELD}.sigma", str(error)))
        field, shapes = f"{_FIELD}.parameters", facts.model.parameter_shapes
        if not self.parameters or len(set(self.parameters)) != len(self.parameters):
            broken.append((field, "must name at least one parameter, each once"))
        unknown = [name for name in self.parameters if name not in shapes]
        if unknown:
            some = ", ".join(sorted(shapes)[:20]) or "none"
            broken.append((field, f"{unknown[:5]} are no parameters of the extractor with a gradient; it has {some}"))
        size = facts.model.size(self.parameters)
        if size > limits.max_adapted_parameters:
            broken.append((field, f"have {size} values; at most {limits.max_adapted_parameters} are allowed"))
        if 4 * size + protocol.FRAMING_BYTES > limits.max_message_bytes // 2:
            most = limits.max_message_bytes // 2
            broken.append((field, f"have {size} values; gradients of at most {most} bytes are sent"))
        if size * run.batch > limits.max_gradient_values:
            text = f"have {size} values, times the batch more than {limits.max_gradient_values}; adapt or sample fewer"
            broken.append((field, text))
        return broken

    def part(self, run: RunSize, facts: Facts) -> SanitizedGradient:
        """The part that prices it; refuses nothing that `violations` lets pass."""
        size = facts.model.size(self.parameters)
        return SanitizedGradient(size, self.clip_norm, self.sigma, self._step(run))

    def _step(self, run: RunSize) -> float:
        return gradient_step(batch=run.batch, clip_norm=self.clip_norm, sigma=self.sigma)

    def check(self, adapted: FloatArray | None, facts: Facts) -> list[Violation]:
        """Whether a step brings as many adapted values as were declared, or none at all."""
        return adapted_violations("payload.adapted_parameters", adapted, self.parameters, facts)

    def made_values(self, facts: Facts) -> FloatArray:
        """Adapted values that a step may bring, (p,), made up: small, and none of them zero."""
        return np.random.default_rng(2).normal(0.0, 0.01, facts.model.size(self.parameters)).astype(np.float32)

    def released(self, per_record: Tensor, noise: NoiseSource) -> GridArray:
        """Clips gradients (b, p) record by record, sums them, and adds noise: (p,)."""
        return release_gradient(per_record, clip_norm=self.clip_norm, sigma=self.sigma, noise=noise)

    def summary(self, facts: Facts) -> str:
        """In words."""
        size = facts.model.size(self.parameters)
        return f"a sanitized gradient of {size} numbers, clipped to {self.clip_norm:.3g} record by record"


def gradient_step(*, batch: int, clip_norm: float, sigma: float) -> float:
    """The grid's step of a noised sum, as fine as 32 bits allow; from public numbers only.

    All p coordinates change with one record, so that a coarse grid would cost as much as the root of p of its steps.

    Args:
        batch: b, records in the sample.
        clip_norm: C.
        sigma: standard deviation of the noise on the sum.

    Raises:
        InvalidValue: the sum may saturate on any grid.
    """
    return math.ldexp(sigma, -_exponent(batch, clip_norm, sigma))


def _exponent(batch: int, clip_norm: float, sigma: float) -> int:
    if not 0.0 < clip_norm < float("inf"):
        raise InvalidValue(f"the clip norm is {clip_norm}; it must be positive and finite")
    return finest_exponent(batch * clip_norm, sigma=sigma)


def release_gradient(per_record: Tensor, *, clip_norm: float, sigma: float, noise: NoiseSource) -> GridArray:
    """Clip, sum, add noise.

    Each clipped gradient is rounded to the grid before it is summed: the sum is then exact in integers, the same on
    every device and in every order, and one replaced record moves it by at most 2 C plus one step in each
    coordinate, which is what the accountant charges.

    Args:
        per_record: (b, p), row i a function of record i and of public or already released values alone.
        clip_norm: C, in the gradient's units.
        sigma: standard deviation of the noise on the sum, in the same units.
        noise: where the noise comes from.

    Returns:
        (p,), the noised sum over the batch, in steps of `gradient_step`.

    Raises:
        InvalidValue: the shape is wrong, or the sum could leave int32.
    """
    if per_record.dim() != 2:
        raise InvalidValue(f"per-record gradients have shape {tuple(per_record.shape)}; use (records, parameters)")
    batch, parameters = per_record.shape
    exponent = _exponent(batch, clip_norm, sigma)
    step = math.ldexp(sigma, -exponent)
    total = torch.zeros(parameters, dtype=torch.float64, device=per_record.device)
    for rows in torch.split(per_record.detach(), max(1, _CHUNK // max(1, parameters))):
        finite = neutralise(rows)
        clipped = finite.to(torch.float64) * clip_factors(finite, clip_norm)
        total += torch.round(clipped / step).sum(dim=0)  # integers below 2^53: exact in any order
    return release_finely(total * step, sigma=sigma, exponent=exponent, noise=noise)
