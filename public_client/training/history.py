"""The history of a training: its points, and the running average of its parameters."""

from __future__ import annotations

import copy
import csv
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor


@dataclass(frozen=True)
class HistoryPoint:
    """Where training stood after a step.

    Attributes:
        step: steps drawn so far.
        distance: estimated distance F, averaged since the last point.
        epsilon: what the steps so far would cost alone; the whole run was charged when it opened.
        accuracy: percent, where an evaluation was given; else NaN.
    """

    step: int
    distance: float
    epsilon: float
    accuracy: float


def write_history(history: Sequence[HistoryPoint], path: Path) -> None:
    """Writes the points as CSV, one a line."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(HistoryPoint.__dataclass_fields__))
        writer.writeheader()
        writer.writerows(asdict(point) for point in history)


class Average:
    """A running average of parameters, free of the start's bias; decay 0 is the last value."""

    def __init__(self, parameters: Sequence[Tensor], decay: float) -> None:
        self.values = detached(parameters)
        self._decay = decay

    def update(self, parameters: Sequence[Tensor]) -> None:
        """Moves the average towards the present values."""
        for value, parameter in zip(self.values, parameters, strict=True):
            value.lerp_(parameter.detach(), 1.0 - self._decay)

    def copy_to(self, parameters: Sequence[Tensor]) -> None:
        """Puts the average in the parameters' place."""
        with torch.no_grad():
            for value, parameter in zip(self.values, parameters, strict=True):
                parameter.copy_(value)


def detached(parameters: Sequence[Tensor]) -> list[Tensor]:
    """Copies without gradients."""
    return [copy.deepcopy(parameter.detach()) for parameter in parameters]
