"""DP-Sinkhorn's release: the loss's gradient in generated points, clipped as one vector (docs/privacy/sinkhorn.md).

The client sends features of generated records with their classes; the curator couples them with a secret sample of
labelled records. One record takes part in every point's gradient, so it is the whole gradient that is clipped to C. The
labels are private; public is what the operator declares: that every record has one, and the number of classes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.mechanisms.interface import Facts, FloatArray, Limits, Mechanism, RunSize, Step
from dpswd.shared.core.mechanisms.sliced import labelled
from dpswd.shared.core.noise.clipping import clip_records, neutralise
from dpswd.shared.core.noise.noise import GridArray, finest_exponent, release_finely
from dpswd.shared.core.privacy.events import ClippedVector, Part
from dpswd.shared.core.wire import limits as protocol
from dpswd.shared.core.wire.checks import Violation, between, positive, positive_or_zero
from dpswd.shared.core.wire.payloads import MessagePayload, Wire
from dpswd.shared.core.wire.v1 import curator_pb2 as pb
from dpswd.shared.published_mechanisms.sinkhorn.transport import semi_debiased

MAX_ITERATIONS = 2000
"""Of one coupling; after 200 the marginals are met to 5e-13 for 50 digits at the paper's blur."""
MAX_PAIRS = 1 << 22
"""Costs of one coupling: 32 MB, of which a step holds a few at a time."""
SMALLEST, LARGEST = 1e-6, 1e6
"""Of weights and of the blur: squares of features, divided by the blur, stay finite."""


@dataclass(frozen=True)
class SinkhornDeclaration(MessagePayload, message=pb.SinkhornDeclaration, field="parameters.declaration"):
    """What a run declares.

    Attributes:
        classes: C.
        points: n, generated points whose gradient is released.
        fresh: n', further ones; their share of n is the paper's mixture fraction p.
        label_weight: of the one-hot labels that are appended to the features.
        l1_weight: m of the ground cost |.|_2^2 + m |.|_1.
        blur: weight of the entropy, in units of the ground cost.
        iterations: of each coupling.
        clip_norm: C, of the whole gradient.
        sigma: standard deviation of the noise on each coordinate of the gradient.
        clip_points: each point's gradient is first clipped to C over the root of n, as the paper's text has it; the
            whole gradient is then within C by itself.
    """

    classes: int
    points: int
    fresh: int
    label_weight: float
    l1_weight: float
    blur: float
    iterations: int
    clip_norm: float
    sigma: float
    clip_points: bool = False

    @property
    def exponent(self) -> int:
        """Of the noise's grid, from public numbers alone.

        Raises:
            InvalidValue: sigma is so small that the gradient could leave 32 bits on any grid.
        """
        return finest_exponent(self.clip_norm, sigma=self.sigma)


@dataclass(frozen=True, eq=False)
class SinkhornRequest(MessagePayload, message=pb.SinkhornRequest, field="payload"):
    """What a step brings.

    Attributes:
        points: features of generated records (n + n', d).
        labels: their classes, n + n' of them.
    """

    points: FloatArray
    labels: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class SinkhornReply(MessagePayload, message=pb.SinkhornReply, field="reply"):
    """What a step returns.

    Attributes:
        gradient: (n, d), of the loss in the features of the first n points, clipped and noised.
    """

    gradient: Annotated[GridArray, Wire(shape=("points", "features"), most=protocol.MAX_RELEASE_VALUES)]


class Sinkhorn(Mechanism[SinkhornDeclaration, SinkhornRequest, SinkhornReply]):
    """The gradient of 2 W(X, Y) - W(X, X') in the generated points X, Y a sample of records."""

    name = "sinkhorn"
    declaration = SinkhornDeclaration
    request = SinkhornRequest
    reply = SinkhornReply
    needs_labels = True

    def violations(self, declared: SinkhornDeclaration, run: RunSize, facts: Facts, limits: Limits) -> list[Violation]:
        broken = positive("declaration.sigma", declared.sigma) + positive("declaration.clip_norm", declared.clip_norm)
        for name in ("label_weight", "l1_weight", "blur"):
            field, value, least = f"declaration.{name}", getattr(declared, name), SMALLEST * (name == "blur")
            broken += positive_or_zero(field, value)
            if math.isfinite(value) and not least <= value <= LARGEST:
                broken.append((field, f"is {value:g}; allowed are {least:g} to {LARGEST:g}"))
        if not broken:
            try:
                _ = declared.exponent
            except InvalidValue as error:
                broken.append(("declaration.sigma", str(error)))
        if declared.classes != facts.data.classes:
            text = f"is {declared.classes}; the data set's labels have {facts.data.classes}"
            broken.append(("declaration.classes", text))
        broken += between("declaration.iterations", declared.iterations, MAX_ITERATIONS)
        broken += between(
            "declaration.points", declared.points, min(protocol.MAX_SOURCE_FEATURES, limits.max_source_features)
        )
        broken += between("declaration.fresh", declared.fresh, declared.points, least=0)
        return broken + self._too_many(declared, run, facts, limits)

    def _too_many(self, declared: SinkhornDeclaration, run: RunSize, facts: Facts, limits: Limits) -> list[Violation]:
        """Rules about what n points and b records are together."""
        field, n, d = "declaration.points", declared.points, facts.model.feature_dimension
        broken = []
        most = min(limits.max_message_bytes - protocol.FRAMING_BYTES, 4 * protocol.MAX_RELEASE_VALUES)
        if 4 * (n + declared.fresh) * d > most:
            text = f"make messages of {4 * (n + declared.fresh) * d} bytes with {declared.fresh} fresh ones"
            broken.append((field, f"{text} of {d} features each; at most {most} are sent"))
        if n * max(run.batch, n) > MAX_PAIRS:
            text = f"make {n * max(run.batch, n)} pairs with the batch of {run.batch}, or among themselves"
            broken.append((field, f"{text}; at most {MAX_PAIRS} are allowed"))
        return broken

    def check(
        self, request: SinkhornRequest, declared: SinkhornDeclaration, facts: Facts, limits: Limits
    ) -> list[Violation]:
        broken, shape = [], (declared.points + declared.fresh, facts.model.feature_dimension)
        if request.points.shape != shape:
            broken.append(("payload.points", f"has shape {request.points.shape}; this run declared {shape}"))
        if len(request.labels) != shape[0]:
            broken.append(("payload.labels", f"has {len(request.labels)} classes; this run declared {shape[0]} points"))
        if request.labels and max(request.labels) >= declared.classes:
            text = f"holds {max(request.labels)}; classes are 0 to {declared.classes - 1}"
            broken.append(("payload.labels", text))
        return broken

    def synthetic(self, declared: SinkhornDeclaration, run: RunSize, facts: Facts) -> SinkhornRequest:
        shape = (declared.points + declared.fresh, facts.model.feature_dimension)
        made = np.random.default_rng(1).random(shape, dtype=np.float32)
        return SinkhornRequest(made, tuple(number % declared.classes for number in range(shape[0])))

    def parts(self, declared: SinkhornDeclaration, run: RunSize, facts: Facts) -> tuple[Part, ...]:
        values = declared.points * facts.model.feature_dimension
        step = declared.sigma * 2.0**-declared.exponent
        return (ClippedVector(values, declared.clip_norm, declared.sigma, step),)

    def work(self, declared: SinkhornDeclaration) -> tuple[object, ...]:
        """See `Mechanism`: neither the noise nor the weights' values cost time."""
        return (declared.classes, declared.points, declared.fresh, bool(declared.l1_weight), declared.iterations)

    def compute(self, declared: SinkhornDeclaration, request: SinkhornRequest, step: Step) -> SinkhornReply:
        records, labels = step.sample.take(0, step.sample.count)
        assert labels is not None, "offered only where there are labels"
        # In float64 no square of a float32 overflows.
        features = neutralise(step.model.features(records).to(step.device)).to(torch.float64)  # (b, d)
        step.reached("extracted")
        gradient = _gradient(declared, request, features, torch.from_numpy(labels).to(step.device))
        step.reached("coupled")
        return SinkhornReply(sanitized(gradient, declared, step))

    def summary(self, declared: SinkhornDeclaration, facts: Facts) -> str:
        n, d = declared.points, facts.model.feature_dimension
        return (
            f"the Sinkhorn loss's gradient in {n} generated points of {d} features, clipped to {declared.clip_norm:.3g}"
        )


def _gradient(declared: SinkhornDeclaration, request: SinkhornRequest, features: Tensor, labels: Tensor) -> Tensor:
    """Of the loss in the first n points' features, (n, d); private."""
    with torch.enable_grad():
        points = torch.from_numpy(request.points).to(features).requires_grad_()
        kinds = torch.tensor(request.labels, dtype=torch.int64, device=features.device)
        label = partial(labelled, classes=declared.classes, weight=declared.label_weight)
        loss = semi_debiased(
            label(points, kinds),
            label(features, labels),
            fresh=declared.fresh,
            l1=declared.l1_weight,
            blur=declared.blur,
            iterations=declared.iterations,
        )
        (gradient,) = torch.autograd.grad(loss, points)
    return gradient[: declared.points]


def sanitized(gradient: Tensor, declared: SinkhornDeclaration, step: Step) -> GridArray:
    """Clips the whole gradient (n, d) to C, and adds noise."""
    if declared.clip_points:
        gradient = clip_records(gradient, declared.clip_norm / math.sqrt(declared.points))
    clipped = clip_records(gradient.reshape(1, -1), declared.clip_norm).reshape(gradient.shape)
    return release_finely(clipped, sigma=declared.sigma, exponent=declared.exponent, noise=step.noise)


SINKHORN = Sinkhorn()
