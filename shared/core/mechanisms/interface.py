"""What a mechanism is: everything that both parties must agree on about one kind of release.

A mechanism is one value. It is pure: it opens no file and no socket and knows no ledger. It says what a run of it
declares, what a step of it brings and returns, which declarations and requests are refused, what privacy event prices a
step, and how a step is computed from a secret sample. Admission, pricing, the trial on made records, the release,
receipts, checkpoints and plans are written once, for every mechanism.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dpswd.shared.core.noise.directions import Draw, drawn_here
from dpswd.shared.core.noise.noise import NoiseSource
from dpswd.shared.core.privacy.events import Part
from dpswd.shared.core.wire import limits as protocol
from dpswd.shared.core.wire.checks import Violation

FloatArray = npt.NDArray[np.float32]
LabelArray = npt.NDArray[np.int64]


class Payload(Protocol):
    """A declaration, a request or a reply: a frozen value that travels as bytes."""

    def to_bytes(self) -> bytes:
        """Canonical bytes: equal values give equal bytes."""
        ...

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """The inverse of `to_bytes`.

        Raises:
            RequestInvalid: the bytes are no such value; every broken rule of its structure is named.
        """
        ...


@dataclass(frozen=True)
class RunSize:
    """How much of the data set a run touches.

    Attributes:
        batch: b, records in each step's secret sample.
        steps: T.
    """

    batch: int
    steps: int = 1


@dataclass(frozen=True)
class DataSetFacts:
    """What everybody may know of the data set.

    Attributes:
        records: n.
        record_shape: the shape of one record.
        classes: C of the labels, declared by the operator; 0 where there are none.
        partly_labelled: whether some records may have no label.
        labelled: how many have one, where the operator says it; 0: all, or it is private.
    """

    records: int
    record_shape: tuple[int, ...]
    classes: int = 0
    partly_labelled: bool = False
    labelled: int = 0

    @property
    def number_private(self) -> bool:
        """Whether the number of labelled records is private."""
        return self.partly_labelled and not self.labelled


class Shaped(Protocol):
    """What is asked of a graph: `ModelFacts`."""

    @property
    def input_shape(self) -> tuple[int, ...]: ...  # noqa: D102
    @property
    def feature_dimension(self) -> int: ...  # noqa: D102
    @property
    def learnable(self) -> Mapping[str, tuple[int, ...]]: ...  # noqa: D102


@dataclass(frozen=True)
class ModelFacts:
    """The shapes of an uploaded graph.

    Attributes:
        input_shape: of the record that it takes.
        feature_dimension: d, numbers that it computes of a record.
        parameter_shapes: shape of each parameter that may be adapted, by name: those that a gradient reaches.
    """

    input_shape: tuple[int, ...]
    feature_dimension: int
    parameter_shapes: Mapping[str, tuple[int, ...]]

    @classmethod
    def of(cls, graph: Shaped) -> ModelFacts:
        """The facts of a graph."""
        return cls(graph.input_shape, graph.feature_dimension, graph.learnable)

    def size(self, names: tuple[str, ...]) -> int:
        """p: the number of scalars in these parameters; names that do not exist count as nothing."""
        return sum(math.prod(self.parameter_shapes.get(name, (0,))) for name in names)


@dataclass(frozen=True)
class Facts:
    """What is public about a run before it begins.

    Attributes:
        data: of the data set.
        model: of the uploaded graph.
    """

    data: DataSetFacts
    model: ModelFacts


@dataclass(frozen=True)
class Limits:
    """The operator's bounds on requests, told in `Describe`.

    Attributes:
        max_message_bytes: of one message.
        max_directions: k.
        max_coefficients: L of each direction.
        max_batch_size: b.
        max_adapted_parameters: p.
        max_source_features: m of one step.
        max_sample_values: values of all records of one sample together.
        max_gradient_values: values of all gradients of one sample together.
        min_batch_size: b of a secret sample; all records of a smaller data set.
    """

    max_message_bytes: int = protocol.MAX_MESSAGE_BYTES
    max_directions: int = protocol.MAX_DIRECTIONS
    max_coefficients: int = protocol.MAX_COEFFICIENTS
    max_batch_size: int = protocol.MAX_BATCH_SIZE
    max_adapted_parameters: int = protocol.MAX_ADAPTED_PARAMETERS
    max_source_features: int = protocol.MAX_SOURCE_FEATURES
    max_sample_values: int = protocol.MAX_SAMPLE_VALUES
    max_gradient_values: int = protocol.MAX_GRADIENT_VALUES
    min_batch_size: int = protocol.MIN_BATCH_SIZE


class Sample(Protocol):
    """The records of one step, in secret: a uniform ordered sample without replacement, or every record."""

    @property
    def count(self) -> int:
        """B."""
        ...

    def take(self, start: int, stop: int) -> tuple[FloatArray, LabelArray | None]:
        """Records (m, *record_shape) of the sample, m = stop - start, with their labels (m,) where there are any.

        A label is 0 to C - 1, or `UNLABELLED` in data sets that are partly labelled.
        """
        ...


class Session(Protocol):
    """One step's evaluations, all by the same extractor. Not for several threads."""

    def features(
        self,
        records: FloatArray,
        *,
        adapted: FloatArray | None = None,
        names: tuple[str, ...] = (),
        differentiable: bool = True,
        meanwhile: Callable[[], None] | None = None,
    ) -> Tensor:
        """Raw features of each record by itself.

        Args:
            records: (b, *record_shape), b at least 1.
            adapted: (p,) values of the adapted parameters, one behind the other in the order of `names`; None for
                the uploaded values.
            names: the adapted parameters.
            differentiable: whether the gradients of `names` will be asked for.
            meanwhile: called once, while another process evaluates; what it does needs no feature.

        Returns:
            (b, d), float32, in the caller's own memory: the host's, or the extractor's device's where it is evaluated
            in the caller's process.

        Raises:
            ExtractionStopped: a limit was reached, or the worker ended.
        """
        ...

    def gradients(self, cotangents: Tensor) -> Tensor:
        """The gradient of <cotangent, features> of each record by itself, for the records of the last `features`.

        Args:
            cotangents: (b, d).

        Returns:
            (b, p), float32; valid until the session's next call or its end.

        Raises:
            ExtractionStopped: a limit was reached, or the worker ended.
        """
        ...


@dataclass(frozen=True)
class Step:
    """What a mechanism computes one step with.

    Attributes:
        run: sizes.
        facts: public shapes.
        sample: the records; private.
        model: evaluates the uploaded graph, record by record.
        noise: the only source of noise.
        device: where the arithmetic runs.
        fresh_seed: 32 public random bytes, unknown to everybody before this step.
        reached: told of the step's named points; tests stop the process there.
        draw: of the directions, where the arithmetic runs.
    """

    run: RunSize
    facts: Facts
    sample: Sample
    model: Session
    noise: NoiseSource
    device: torch.device
    fresh_seed: Callable[[], bytes]
    reached: Callable[[str], None]
    draw: Draw = drawn_here


D = TypeVar("D", bound=Payload)
Q = TypeVar("Q", bound=Payload)
R = TypeVar("R", bound=Payload)


class Mechanism(abc.ABC, Generic[D, Q, R]):
    """One kind of release. Instances are values without state.

    Attributes:
        name: on the wire, in `Describe`, in the ledger and in digests.
        declaration: the type of what a run declares.
        request: the type of what a step brings.
        reply: the type of what a step returns.
        needs_labels: whether it reads labels; it is then offered only where the operator declares classes.
        partial_labels: whether records without a label count for nothing in it. One that reads labels and does not say
            so is not offered of partly labelled records.
        whole: whether a step reads every record (b = n), in no particular order; else a secret ordered sample of b.
    """

    name: ClassVar[str]
    declaration: type[D]
    request: type[Q]
    reply: type[R]
    needs_labels: ClassVar[bool] = False
    partial_labels: ClassVar[bool] = False
    whole: ClassVar[bool] = False

    @abc.abstractmethod
    def violations(self, declared: D, run: RunSize, facts: Facts, limits: Limits) -> list[Violation]:
        """Every rule that a declaration breaks, as (field, what is wrong and what is allowed); from public values."""

    @abc.abstractmethod
    def parts(self, declared: D, run: RunSize, facts: Facts) -> tuple[Part, ...]:
        """What one step releases, as the parts of the event that prices it; the same at both parties."""

    def synthetic(self, declared: D, run: RunSize, facts: Facts) -> Q:
        """The most expensive request that a step of this run may bring: of the trial on made records.

        By default the one that brings nothing; a mechanism whose requests cost time has its own.
        """
        return self.request()

    @abc.abstractmethod
    def compute(self, declared: D, request: Q, step: Step) -> R:
        """One step. Everything private lives and dies inside this call; what it returns is noised."""

    @abc.abstractmethod
    def summary(self, declared: D, facts: Facts) -> str:
        """What a step releases, in words, for plans and dry runs."""

    def check(self, request: Q, declared: D, facts: Facts, limits: Limits) -> list[Violation]:
        """Every rule that a step's request breaks against its run."""
        return []

    def work(self, declared: D) -> tuple[object, ...]:
        """What the time and the memory of a step depend on, besides the graph and the batch."""
        return (declared.to_bytes(),)


AnyMechanism = Mechanism[Any, Any, Any]
