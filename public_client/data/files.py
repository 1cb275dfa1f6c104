"""A team's own labelled records as files, and ready networks by the shape of a record."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import nn

from public_client.data.datasets import Labelled, read_arrays
from public_client.data.networks import digits_network
from shared.errors import DataInvalid, InvalidValue

_HIDDEN, _FEATURES = 64, 32  # of the ready network for tables


def load_labelled(path: Path) -> Labelled:
    """Reads an .npz with ``x`` (n, ...) and ``y`` (n,).

    Raises:
        SettingsError: the file is missing.
        DataInvalid: it does not hold these arrays, of these shapes, finite; the message names what is wrong.
    """
    x, y = read_arrays(path, ("x", "y"), missing="needed is an .npz file with the arrays x and y")
    if x.ndim < 2 or y.shape != (len(x),) or not len(x):
        raise DataInvalid(f"{path}: x has shape {x.shape} and y {y.shape}; needed are (n, ...) and (n,), n at least 1")
    if x.dtype.kind not in "fiu" or y.dtype.kind not in "iu" or bool((y < 0).any()):
        raise DataInvalid(
            f"{path}: x has dtype {x.dtype} and y {y.dtype}; needed are numbers, and labels 0, 1, ... as integers"
        )
    records = torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32))
    if not bool(torch.isfinite(records).all()):
        raise DataInvalid(f"{path}: x holds NaN or infinity; fill in what is missing first")
    return Labelled(records, torch.from_numpy(y.astype(np.int64)))


def ready_network(record_shape: tuple[int, ...], classes: int) -> tuple[nn.Module, nn.Module]:
    """Extractor and classifier where the caller brings none.

    Args:
        record_shape: (1, 8, 8) or (1, 28, 28) for digits, (d,) for tables.
        classes: of the labels.

    Raises:
        InvalidValue: there is none for this shape.
    """
    if len(record_shape) == 1:
        layers = (nn.Linear(record_shape[0], _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, _FEATURES), nn.ReLU())
        return nn.Sequential(*layers), nn.Linear(_FEATURES, classes)
    try:
        extractor, classifier = digits_network(record_shape)
    except InvalidValue as error:
        raise InvalidValue(
            f"there is no ready network for records of shape {record_shape}; bring your own (network.factory, or the "
            "Python interface); ready are (d,), (1, 8, 8), (1, 28, 28)"
        ) from error
    if classes > 10:
        raise InvalidValue(f"the ready digits network has ten classes, the labels {classes}; bring your own")
    return extractor, classifier
