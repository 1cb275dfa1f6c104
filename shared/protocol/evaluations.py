"""What an evaluation declares and what it releases, as frozen values (docs/privacy/evaluation.md)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shared.protocol import arrays, limits
from shared.protocol.checks import Violation, between, invalid, positive, positive_or_zero
from shared.protocol.v1 import curator_pb2 as pb

Counts = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Evaluation:
    """Noised counts of a model's predictions on all labelled records.

    Attributes:
        classes: C.
        correct_sigma: noise on the number of correct predictions.
        confusion_sigma: noise on each of the C^2 cells of the confusion matrix; 0: it is not released.
        bins: B, bins of the confidence; 0 without calibration.
        calibration_sigma: noise on each of the 3 B calibration sums; 0: they are not released.
    """

    classes: int
    correct_sigma: float
    confusion_sigma: float = 0.0
    bins: int = 0
    calibration_sigma: float = 0.0

    def to_message(self) -> pb.EvaluationDeclaration:
        """Encodes the declaration."""
        return pb.EvaluationDeclaration(
            classes=self.classes,
            bins=self.bins,
            correct_sigma=self.correct_sigma,
            confusion_sigma=self.confusion_sigma,
            calibration_sigma=self.calibration_sigma,
        )

    @classmethod
    def from_message(cls, message: pb.EvaluationDeclaration, *, field: str) -> tuple[Evaluation, list[Violation]]:
        """Decodes a declaration, with every rule that it breaks."""
        declared = cls(
            classes=message.classes,
            bins=message.bins,
            correct_sigma=message.correct_sigma,
            confusion_sigma=message.confusion_sigma,
            calibration_sigma=message.calibration_sigma,
        )
        broken = between(f"{field}.classes", declared.classes, limits.MAX_CLASSES, least=2)
        broken += between(f"{field}.bins", declared.bins, limits.MAX_BINS, least=0)
        broken += positive(f"{field}.correct_sigma", declared.correct_sigma)
        broken += positive_or_zero(f"{field}.confusion_sigma", declared.confusion_sigma)
        broken += positive_or_zero(f"{field}.calibration_sigma", declared.calibration_sigma)
        if (declared.bins == 0) != (declared.calibration_sigma == 0.0):
            broken.append((f"{field}.bins", "and calibration_sigma belong together; declare both, or neither"))
        return declared, broken


@dataclass(frozen=True)
class EvaluationRelease:
    """What one evaluation releases, decoded, in units of records.

    Attributes:
        run_id: the run.
        step: 1 for the run's first step.
        correct: noised number of correct predictions.
        confusion: noised counts (C, C), row the label, column the prediction; None unless declared.
        calibration: noised sums (3, B): correct, wrong, and a quarter of the confidence's place in its bin; None unless
            declared.
    """

    run_id: str
    step: int
    correct: float
    confusion: Counts | None
    calibration: Counts | None

    @classmethod
    def from_bytes(cls, data: bytes) -> EvaluationRelease:
        """Decodes the bytes whose digest stands in the receipt.

        Raises:
            RequestInvalid: the curator sent something that is not an evaluation's release.
        """
        message = pb.EvaluationRelease()
        try:
            message.ParseFromString(data)
        except Exception as error:
            raise invalid("evaluation_release", "cannot be parsed") from error
        correct = _decoded(message.correct, "correct", 1)
        if correct.shape != (1,):
            raise invalid("evaluation_release.correct", f"has shape {correct.shape}; needed is (1,)")
        confusion = calibration = None
        if message.HasField("confusion"):
            confusion = _decoded(message.confusion, "confusion", limits.MAX_CLASSES**2)
            if confusion.ndim != 2 or confusion.shape[0] != confusion.shape[1]:
                raise invalid("evaluation_release.confusion", f"has shape {confusion.shape}; needed is (C, C)")
        if message.HasField("calibration"):
            calibration = _decoded(message.calibration, "calibration", 3 * limits.MAX_BINS)
            if calibration.ndim != 2 or calibration.shape[0] != 3:
                raise invalid("evaluation_release.calibration", f"has shape {calibration.shape}; needed is (3, B)")
        return cls(message.run_id, message.step, float(correct[0]), confusion, calibration)


def _decoded(message: pb.GridArray, name: str, most: int) -> Counts:
    values, step = arrays.decode_grid(message, field=f"evaluation_release.{name}", max_values=most)
    result: Counts = values.astype(np.float64) * step
    return result
