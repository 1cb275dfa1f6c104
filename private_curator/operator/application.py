"""An adapted model on the hospital's own records: predictions, confidences and a drift report. Local, no network.

Nothing here is charged because nothing leaves: the files that are written belong to the operator alone. The model is
data of the closed vocabulary, as everywhere; what it computes of one record depends on that record alone.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import numpy as np
import numpy.typing as npt
import torch

from dpswd.private_curator.core.steps.denormals import flushed_denormals
from dpswd.private_curator.operator.drift import DriftMeter, DriftReport
from dpswd.private_curator.records.labels import Labels
from dpswd.private_curator.records.target import Target
from dpswd.shared.core.errors import DataInvalid, InvalidValue, SettingsError
from dpswd.shared.core.wire.limits import UNLABELLED
from dpswd.shared.files import create_private
from dpswd.shared.models.adapted import AdaptedModel

_RECORDS_AT_A_TIME = 512
"""Bounds memory; nothing else depends on it."""


@dataclass(frozen=True, eq=False)
class Application:
    """A model applied to records. Private.

    Attributes:
        predictions: (n,) class numbers, in the records' order.
        confidences: (n,) softmax of the predicted class.
        drift: beside the public source; None where the model's file has no statistics of it.
    """

    predictions: npt.NDArray[np.int64]
    confidences: npt.NDArray[np.float64]
    drift: DriftReport | None

    def class_counts(self, classes: int) -> list[int]:
        """How many records were given each class."""
        counts: list[int] = np.bincount(self.predictions, minlength=classes).tolist()
        return counts

    def accuracy(self, labels: Labels) -> float:
        """Share of predictions that agree with the hospital's own labels, where there are any; not private."""
        own = labels[np.arange(len(self.predictions))]
        return float((self.predictions == own)[own != UNLABELLED].mean())


def apply_model(
    model: AdaptedModel, data: Target, *, class_names: Sequence[str] = (), value_names: Sequence[str] = ()
) -> Application:
    """Runs a model on all records, in order.

    Args:
        model: from its file.
        data: the records.
        class_names: the hospital's names of the classes; there must be as many as scores.
        value_names: of the values of a record, for the drift report.

    Raises:
        DataInvalid: the model takes other records, or has another number of classes.
    """
    check_fits(model, data, classes=len(class_names))
    meter = None
    if model.statistics is not None:
        try:
            meter = DriftMeter(model.statistics, record_shape=model.record_shape, names=value_names)
        except InvalidValue as error:
            raise DataInvalid(f"the model's source statistics do not fit its own records: {error}") from error
    predictions, confidences = [], []
    with flushed_denormals():
        for start in range(0, data.count, _RECORDS_AT_A_TIME):
            numbers = np.arange(start, min(start + _RECORDS_AT_A_TIME, data.count), dtype=np.int64)
            records = torch.from_numpy(data.take(numbers))
            features = torch.nan_to_num(model.extractor.features(records), nan=0.0, posinf=0.0, neginf=0.0)
            scores = torch.nan_to_num(model.classifier.features(features), nan=0.0, posinf=0.0, neginf=0.0).cpu()
            shares = torch.softmax(scores.to(torch.float64), dim=1)
            best = shares.max(dim=1)
            predictions.append(best.indices.numpy())
            confidences.append(best.values.numpy())
            if meter is not None:
                meter.add(records, features.cpu(), scores)
    return Application(
        predictions=np.concatenate(predictions),
        confidences=np.concatenate(confidences),
        drift=None if meter is None else meter.report(),
    )


def check_fits(model: AdaptedModel, data: Target, *, classes: int) -> None:
    """Refuses a model whose shapes are not those of the records.

    Args:
        model: from its file.
        data: the records.
        classes: that the hospital declares; 0 where it declares none.

    Raises:
        DataInvalid: with both shapes, and what to do.
    """
    if model.record_shape != data.record_shape:
        raise DataInvalid(
            f"the model takes records of shape {model.record_shape}, these have {data.record_shape}; use the model "
            "that was adapted for these records, or say how they are read (--record-shape, --array, --columns)"
        )
    if classes and classes != model.classes:
        raise DataInvalid(
            f"the model tells {model.classes} classes apart, the hospital declares {classes} (records.classes); use a "
            "model for these classes"
        )


def write_predictions(path: Path, applied: Application, *, class_names: Sequence[str] = ()) -> None:
    """Writes one line for each record: its number from 0, the predicted class, the confidence. Never over a file.

    The file belongs to its owner alone (mode 0600).

    Raises:
        SettingsError: the file exists.
    """
    with open_private(path) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["record", "prediction", "confidence"])
        for number, (prediction, confidence) in enumerate(
            zip(applied.predictions.tolist(), applied.confidences.tolist(), strict=True)
        ):
            writer.writerow([number, class_names[prediction] if class_names else prediction, f"{confidence:.6f}"])


def open_private(path: Path) -> TextIO:
    """Makes a file that only its owner can read, and never opens one that exists."""
    try:
        return io.TextIOWrapper(create_private(path), encoding="utf-8", newline="")
    except FileExistsError as error:
        raise SettingsError(f"{path} exists, and nothing is ever overwritten; choose another file") from error
