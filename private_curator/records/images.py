"""A folder of images: all of one size and mode, optionally one sub-folder for each class."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from dpswd.shared.records.batches import Array, Batch, Format, Layout, rows_per_batch
from dpswd.shared.records.problems import RecordsRefused, refusing

IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".pgm", ".ppm", ".webp"})
MODES = {"L": 1, "RGB": 3}
"""Pillow's names of the modes that are served, with their channels: 8 bits of grey, or of red, green and blue."""
_MAX_PIXELS = 64 << 20  # of one image; a small file can name a size that would fill the memory
_IGNORED = frozenset({"Thumbs.db", "desktop.ini"})


class ImageSource:
    """Images of a folder, channels first, in the order of their names.

    Files that begin with a dot are left out. Images are taken as they are stored: no rotation by EXIF, no colour
    profile.

    Args:
        path: the folder. Either images, or sub-folders with images, whose names are then the labels.

    Raises:
        RecordsRefused: fewer than two images, a file that is none, or images and sub-folders side by side.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files = _files(path)
        if len(self._files) < 2:
            raise RecordsRefused(f"{path} holds {len(self._files)} images; needed are at least two")
        self._labelled = self._files[0].parent != path
        self._size, self._mode = self._measure(self._files[0])
        width, height = self._size
        self.layout = Layout(
            format=Format.IMAGES,
            dtype=np.dtype(np.uint8),
            shape=(MODES[self._mode], height, width),
            count=len(self._files),
            labels="sub-folder" if self._labelled else "",
            notes=(f"images of mode {self._mode}, {width} x {height} pixels, channels first",),
        )

    def batches(self) -> Iterator[Batch]:
        """See `Source`."""
        rows = rows_per_batch(self.layout.record_bytes)
        for start in range(0, len(self._files), rows):
            files = self._files[start : start + rows]
            labels = np.array([file.parent.name for file in files]) if self._labelled else None
            yield Batch(np.stack([self._read(file) for file in files]), labels)

    def _measure(self, file: Path) -> tuple[tuple[int, int], str]:
        with self._opened(file) as image:
            if image.mode not in MODES:
                raise self._refused(
                    f"an image has mode {image.mode}; convert all to 8-bit grey (L) or RGB, for example with "
                    "Image.convert('RGB')",
                    file,
                )
            if image.width * image.height > _MAX_PIXELS:
                raise self._refused(f"an image has more than {_MAX_PIXELS} pixels; make it smaller", file)
            return image.size, image.mode

    def _read(self, file: Path) -> Array:
        size, mode = self._measure(file)
        if (size, mode) != (self._size, self._mode):
            raise self._refused(
                "the images are not all of one size and mode; resize and convert them first (the first one has "
                f"{self._size[0]} x {self._size[1]} pixels and mode {self._mode})",
                file,
            )
        with self._opened(file) as image, self._readable(file, "replace it"):
            values = np.asarray(image, dtype=np.uint8)
        return np.ascontiguousarray(values.reshape(*values.shape[:2], -1).transpose(2, 0, 1))

    def _opened(self, file: Path) -> Image.Image:
        with self._readable(file, "replace it or take it out"):
            return Image.open(file)

    def _readable(self, file: Path, remedy: str) -> AbstractContextManager[None]:
        foreign = (UnidentifiedImageError, OSError, ValueError, SyntaxError, Image.DecompressionBombError)
        location = str(file.relative_to(self._path))
        return refusing(*foreign, text=f"{self._path}: an image cannot be read", remedy=remedy, location=location)

    def _refused(self, text: str, file: Path) -> RecordsRefused:
        return RecordsRefused(f"{self._path}: {text}", location=str(file.relative_to(self._path)))


def _files(path: Path) -> list[Path]:
    entries = sorted(entry for entry in path.iterdir() if not entry.name.startswith(".") and entry.name not in _IGNORED)
    folders = [entry for entry in entries if entry.is_dir()]
    if folders and len(folders) != len(entries):
        raise RecordsRefused(
            f"{path} holds images and sub-folders side by side; have either, sub-folders standing for classes"
        )
    files = [file for folder in folders for file in _files(folder)] if folders else entries
    for file in files:
        if file.suffix.lower() not in IMAGE_SUFFIXES:
            raise RecordsRefused(
                f"{path}: a file is no image by its name; take it out ({', '.join(sorted(IMAGE_SUFFIXES))} are read)",
                location=file.name,
            )
        if len(file.relative_to(path).parts) > 2:
            raise RecordsRefused(f"{path}: sub-folders stand for classes and hold images, not further folders")
    return files
