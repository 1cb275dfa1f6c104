"""Evaluation on the labelled records: what a declaration may ask, and the counting itself.

The labels are private. Public is what the operator declares: that every record has one, and the number of classes.
docs/privacy/evaluation.md derives the price.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from shared.errors import InvalidValue
from shared.kernels.noise import NoiseSource
from shared.mechanisms.evaluation.counts import EvaluationCounter, ReleasedCounts, check_count_range
from shared.protocol import arrays
from shared.protocol.checks import Violation
from shared.protocol.v1 import curator_pb2 as pb

if TYPE_CHECKING:
    from private_curator.steps.admission import DataSetFacts, ExtractorFacts
    from private_curator.steps.trial_run import Records
    from private_curator.worker.sessions import Session
    from shared.protocol.messages import Evaluation, RunParameters

_RECORDS_AT_A_TIME = 4096
"""Bounds memory; the counts are sums and do not depend on it."""


@dataclass(frozen=True)
class EvaluationAnswer:
    """What a step of an evaluation releases, before it is encoded.

    Attributes:
        counts: noised.
    """

    counts: ReleasedCounts

    def encode(self, *, run_id: str, step: int) -> bytes:
        """The bytes that are stored and sent; their length depends on declared sizes only."""
        message = pb.EvaluationRelease(run_id=run_id, step=step)
        for field, values in (
            (message.correct, self.counts.correct),
            (message.confusion, self.counts.confusion),
            (message.calibration, self.counts.calibration),
        ):
            if values is not None:
                field.CopyFrom(arrays.encode_grid(values))
        return message.SerializeToString(deterministic=True)

    def audit(self) -> dict[str, Any]:
        """Public fields of the step's audit record."""
        counts = self.counts
        return {
            "release": "evaluation",
            "correct_step": counts.correct.step,
            "confusion_step": None if counts.confusion is None else counts.confusion.step,
            "calibration_step": None if counts.calibration is None else counts.calibration.step,
        }


def evaluate(
    declared: Evaluation,
    model: Session,
    *,
    data: Records,
    labels: npt.NDArray[np.int64],
    noise: NoiseSource,
    checkpoint: Callable[[str], None],
) -> EvaluationAnswer:
    """Counts the model's predictions on all records, each by itself, and adds noise.

    Args:
        declared: what is released.
        model: evaluates records to one score for each class.
        data: the records.
        labels: (n,), 0 to C - 1, private.
        noise: the only source of noise.
        checkpoint: called at the step's named points.
    """
    counter = EvaluationCounter(classes=declared.classes, bins=declared.bins)
    checkpoint("sampled")
    for start in range(0, data.count, _RECORDS_AT_A_TIME):
        numbers = np.arange(start, min(start + _RECORDS_AT_A_TIME, data.count), dtype=np.int64)
        counter.add(model.features(data.take(numbers)), labels[numbers])
    checkpoint("extracted")
    counts = counter.release(
        correct_sigma=declared.correct_sigma,
        confusion_sigma=declared.confusion_sigma,
        calibration_sigma=declared.calibration_sigma,
        noise=noise,
    )
    checkpoint("released")
    return EvaluationAnswer(counts)


def declaration_violations(
    declared: Evaluation, parameters: RunParameters, *, data_set: DataSetFacts, model: ExtractorFacts
) -> list[Violation]:
    """Every rule that an evaluation's declaration breaks; from public values alone."""
    field = "parameters.evaluation"
    if not data_set.classes:
        text = "is not offered: the operator declares no classes of the records' labels (records.classes)"
        return [(field, f"{text}; ask the operator")]
    broken: list[Violation] = []
    if declared.classes != data_set.classes:
        broken.append((f"{field}.classes", f"is {declared.classes}; the data set's labels have {data_set.classes}"))
    if model.feature_dimension != data_set.classes:
        text = f"computes {model.feature_dimension} scores for each record; needed is one for each of "
        broken.append(("parameters.graph_digest", f"{text}{data_set.classes} classes"))
    if parameters.batch_size != data_set.records:
        text = f"is {parameters.batch_size}; an evaluation counts all {data_set.records} records"
        broken.append(("parameters.batch_size", text))
    for name in ("correct_sigma", "confusion_sigma", "calibration_sigma"):
        sigma = getattr(declared, name)
        if sigma:
            try:
                check_count_range(records=data_set.records, sigma=sigma)
            except InvalidValue as error:
                broken.append((f"{field}.{name}", str(error)))
    return broken
