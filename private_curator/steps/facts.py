"""What admission decides about, as frozen values: the data set's and an extractor's public facts, a step's content."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shared.protocol.messages import PublicMap, RunParameters

FloatArray = npt.NDArray[np.float32]


class Operation(enum.Enum):
    """The RPCs that use up a step, by name."""

    ALIGN_TARGET = "AlignTarget"
    RELEASE_PROJECTIONS = "ReleaseProjections"
    RELEASE_QUANTILES = "ReleaseQuantiles"
    EVALUATE_MODEL = "EvaluateModel"
    RELEASE_CRITIC_GRADIENT = "ReleaseCriticGradient"


@dataclass(frozen=True)
class DataSetFacts:
    """What everybody may know of the data set.

    Attributes:
        records: n.
        record_shape: the shape of one record.
        classes: C of the labels, declared by the operator; 0 where nothing can be evaluated.
        class_names: of the classes, where the operator declares them.
    """

    records: int
    record_shape: tuple[int, ...]
    classes: int = 0
    class_names: tuple[str, ...] = ()


@dataclass(frozen=True)
class ExtractorFacts:
    """What admission needs of an extractor.

    Attributes:
        input_shape: the shape of the record that it takes.
        feature_dimension: d.
        parameter_shapes: shape of each parameter that may be adapted, by name.
    """

    input_shape: tuple[int, ...]
    feature_dimension: int
    parameter_shapes: Mapping[str, tuple[int, ...]]

    def size(self, names: tuple[str, ...]) -> int:
        """Number of scalars in these parameters; names that do not exist count as nothing."""
        return sum(math.prod(self.parameter_shapes.get(name, (0,))) for name in names)


@dataclass(frozen=True)
class StepContent:
    """What a step brings, decoded from the wire and not yet checked against its run.

    Attributes:
        operation: the RPC.
        run_id: the run.
        request_id: the client's id.
        adapted: flat adapted parameters, float32 little-endian bytes; empty for the uploaded values.
        feature_map: replaces the run's map for this step, or None.
        source: raw source features (m, d), or None.
    """

    operation: Operation
    run_id: str
    request_id: str
    adapted: bytes
    feature_map: PublicMap | None
    source: FloatArray | None


@dataclass(frozen=True)
class AdmittedStep:
    """A step whose every public input is checked.

    Attributes:
        parameters: the run's declaration.
        adapted: value of each adapted parameter, by name; empty for the uploaded values.
        feature_map: the map of this step, or None for the identity.
        source: raw source features (m, d), or None when none are needed.
        digest: SHA-256 of the request's meaning, hexadecimal; two requests with one id must agree in it.
    """

    parameters: RunParameters
    adapted: dict[str, FloatArray]
    feature_map: PublicMap | None
    source: FloatArray | None
    digest: str
