"""Drawn images to look at: one sheet with a row for each class."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dpswd.public_client.generation.generator import Generator
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.files import write_public

_COLUMNS = 10
_LEAST_SIDE = 56  # pixels of an image in a sheet; smaller ones are magnified
_DRAWN = 4000  # records among which each class's are found


def is_image(record_shape: tuple[int, ...]) -> bool:
    """Whether records are grey or coloured images (1 or 3, h, w)."""
    return len(record_shape) == 3 and record_shape[0] in (1, 3)


def grey_values(generator: Generator, records: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """Its records (n, c, h, w) as (n, h, w) or (n, h, w, 3), 0 to 255, from its least value to its largest.

    Raises:
        InvalidValue: they are no images.
    """
    shape = generator.record_shape
    if not is_image(shape):
        raise InvalidValue(f"records of shape {shape} are no images (1 or 3, h, w); write them as .npz or .parquet")
    low = float(records.min()) if generator.low is None else generator.low
    high = float(records.max()) if generator.high is None else generator.high
    values = ((records - low) / max(high - low, 1e-12) * 255.0).round().clip(0.0, 255.0).astype(np.uint8)
    return values[:, 0] if shape[0] == 1 else np.moveaxis(values, 1, 3)


def sheet(generator: Generator, *, seed: int = 0) -> bytes:
    """A PNG with ten drawn images of each class; of a class that is drawn more rarely, fewer."""
    from PIL import Image

    records, labels = generator.sample(_DRAWN, seed)
    images, y = grey_values(generator, records.numpy()), labels.numpy()
    height, width = images.shape[1:3]
    grown = max(1, -(-_LEAST_SIDE // max(height, width)))
    whole = np.full((generator.classes * (height + 1), _COLUMNS * (width + 1), *images.shape[3:]), 128, dtype=np.uint8)
    for c in range(generator.classes):
        for column, image in enumerate(images[y == c][:_COLUMNS]):
            top, left = c * (height + 1), column * (width + 1)
            whole[top : top + height, left : left + width] = image
    picture = Image.fromarray(whole)
    file = io.BytesIO()
    picture.resize((picture.width * grown, picture.height * grown), Image.Resampling.NEAREST).save(file, "PNG")
    return file.getvalue()


def write_sheet(generator: Generator, path: Path, *, seed: int = 0) -> None:
    """Writes `sheet` to a file, whole or not at all."""
    write_public(path, sheet(generator, seed=seed))
