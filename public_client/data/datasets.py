"""Public data: what a team trains on, and what a rehearsal hospital on this machine serves.

Pixels are float32 in [-1, 1], images (n, 1, h, w). Three tasks:

- ``digits``: scikit-learn's 8 x 8 digits, shipped with it. The even rows are the public source; the odd rows are the
  private target, seen through `digits_shift`, a fixed map.
- ``mnist-usps`` and ``usps-mnist``: the training halves of the public originals, from OpenML through scikit-learn or
  from a folder with mnist.npz and usps16.npz (arrays x_train, y_train).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from dpswd.shared.core.errors import DataInvalid, SettingsError

Geometry = Literal["stretched", "framed"]
"""How 16 x 16 USPS images become 28 x 28: bilinear to the full frame (hard shift), or to 20 x 20 inside a margin."""
Fetch = Callable[[int, str], tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]]
"""(OpenML id, name for messages) to images (n, pixels) and labels (n,)."""
Batches: TypeAlias = Iterable[tuple[Tensor, Tensor]]
"""Anything that can be iterated again and again for (records, labels), such as a DataLoader."""
TASKS = ("digits", "mnist-usps", "usps-mnist")
SCALE = (-1.0, 1.0)
"""Of the values of all of their images."""

_USPS_TRAIN = 7291  # rows of zip.train, the standard split, which come first in OpenML's copy
_MNIST_TRAIN = 60_000
# Images of each digit 0..9 in zip.train; proves that order and labels of a download are what they should be.
_USPS_TRAIN_COUNTS = (1194, 1005, 731, 658, 652, 556, 664, 645, 542, 644)


@dataclass(frozen=True)
class Labelled:
    """Images with their labels.

    Attributes:
        images: (n, 1, h, w) float32 in [-1, 1].
        labels: (n,) int64.
    """

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def part(self, chosen: Tensor | slice) -> Labelled:
        """Some of them: by number (m,), by a mask (n,), or a slice."""
        return Labelled(self.images[chosen], self.labels[chosen])

    def to(self, device: torch.device) -> Labelled:
        """The same on another device."""
        return Labelled(self.images.to(device), self.labels.to(device))


@dataclass(frozen=True)
class Task:
    """A source and a target of one adaptation problem.

    Attributes:
        name: one of `TASKS`, with the geometry where there are two.
        source: public, labelled.
        target: what the rehearsal hospital serves; its labels are for evaluation, and for methods that learn from them.
        columns: names of a table's columns, where the source is one.
        class_names: of the labels, where they are names.
    """

    name: str
    source: Labelled
    target: Labelled
    columns: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()

    @property
    def image_shape(self) -> tuple[int, ...]:
        """Shape of one image."""
        return tuple(self.source.images.shape[1:])

    @property
    def classes(self) -> int:
        """C of the source's labels."""
        return int(self.source.labels.max()) + 1


def load_task(name: str, *, geometry: Geometry = "stretched", data_dir: Path | None = None) -> Task:
    """Loads a task by name.

    Args:
        name: one of `TASKS`.
        geometry: of USPS; no meaning for ``digits``.
        data_dir: folder with mnist.npz and usps16.npz; by default OpenML's copies are fetched and cached.

    Raises:
        SettingsError: unknown task or geometry, or a missing file.
        DataInvalid: a file or a download does not hold what it should.
    """
    if name not in TASKS:
        raise SettingsError(f"there is no data set {name!r}; allowed: {', '.join(TASKS)}")
    if geometry not in get_args(Geometry):
        raise SettingsError(f"there is no geometry {geometry!r}; allowed: {', '.join(get_args(Geometry))}")
    if name == "digits":
        return _digits()
    mnist, usps = load_mnist(data_dir), load_usps(data_dir, geometry=geometry)
    source, target = (mnist, usps) if name == "mnist-usps" else (usps, mnist)
    return Task(name=f"{name} ({geometry})", source=source, target=target)


def load_mnist(data_dir: Path | None = None, *, fetch: Fetch | None = None) -> Labelled:
    """The 60,000 training images of MNIST, 28 x 28."""
    if data_dir is not None:
        return _scaled(*_from_npz(data_dir / "mnist.npz", side=28))
    images, labels = (fetch or _from_openml)(554, "MNIST")  # LeCun's files, training rows first
    if len(images) != 70_000 or images.shape[1] != 784:
        raise DataInvalid(f"OpenML's MNIST has shape {images.shape}; expected (70000, 784)")
    return _scaled(images[:_MNIST_TRAIN].reshape(-1, 28, 28), labels[:_MNIST_TRAIN])


def load_usps(data_dir: Path | None = None, *, geometry: Geometry, fetch: Fetch | None = None) -> Labelled:
    """The 7,291 training images of USPS (zip.train), brought to 28 x 28."""
    if data_dir is not None:
        images, labels = _from_npz(data_dir / "usps16.npz", side=16)
    else:
        images, labels = (fetch or _from_openml)(41082, "USPS")
        images, labels = images[:_USPS_TRAIN].reshape(-1, 16, 16), labels[:_USPS_TRAIN]
        labels = labels - labels.min()  # OpenML counts the digits 1..10
        if tuple(np.bincount(labels, minlength=10)) != _USPS_TRAIN_COUNTS:
            raise DataInvalid(
                "OpenML's USPS does not begin with the standard training split any more; put usps16.npz (x_train "
                "n x 16 x 16, y_train) into a folder and pass --data-dir"
            )
        low, high = images.min(), images.max()  # stored in [-1, 1] or [0, 1], depending on the version
        images = (images - low) / (high - low) * 255.0
    usps = _scaled(images, labels)
    return Labelled(resize_usps(usps.images, geometry=geometry), usps.labels)


def resize_usps(images: Tensor, *, geometry: Geometry) -> Tensor:
    """(n, 1, 16, 16) to (n, 1, 28, 28), in one of the two geometries."""
    if geometry == "stretched":
        return functional.interpolate(images, size=(28, 28), mode="bilinear", align_corners=False)
    inner = functional.interpolate(images, size=(20, 20), mode="bilinear", align_corners=False)
    return functional.pad(inner, (4, 4, 4, 4), value=-1.0)


DIGITS_SHIFT = torch.tensor([[1.18, 0.42, 0.10], [-0.38, 1.12, -0.08]])
"""Where `digits_shift` reads each pixel, in units of half an image side: a turn by about 20 degrees, 20% smaller, a
little off centre."""
DIGITS_CONTRAST, DIGITS_BRIGHTNESS = 0.75, 0.15


def digits_shift(images: Tensor) -> Tensor:
    """The fixed map through which the demo's hospital sees its digits: turned, smaller, off centre, less contrast.

    Args:
        images: (n, 1, 8, 8) in [-1, 1].

    Returns:
        (n, 1, 8, 8) in [-1, 1]; bilinear, the paper's edge repeated outside.
    """
    theta = DIGITS_SHIFT.to(images).expand(len(images), 2, 3)
    grid = functional.affine_grid(theta, list(images.shape), align_corners=False)
    seen = functional.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)
    return (seen * DIGITS_CONTRAST + DIGITS_BRIGHTNESS).clamp(-1.0, 1.0)


def _digits() -> Task:
    from sklearn.datasets import load_digits

    bundle = load_digits()
    images = torch.from_numpy(bundle.images.astype(np.float32) / 8.0 - 1.0).unsqueeze(1)  # 0..16 to [-1, 1]
    labels = torch.from_numpy(bundle.target.astype(np.int64))
    return Task(
        name="digits", source=Labelled(images[0::2].contiguous(), labels[0::2].contiguous()),
        target=Labelled(digits_shift(images[1::2]), labels[1::2].contiguous()),
    )  # fmt: skip


def _scaled(images: npt.NDArray[np.generic], labels: npt.NDArray[np.int64]) -> Labelled:
    """Grey values 0..255 to [-1, 1]."""
    pixels = torch.from_numpy(np.ascontiguousarray(images, dtype=np.float32)) / 127.5 - 1.0
    return Labelled(pixels.unsqueeze(1), torch.from_numpy(labels.astype(np.int64)))


def _from_npz(path: Path, *, side: int) -> tuple[npt.NDArray[np.generic], npt.NDArray[np.int64]]:
    if not path.is_file():
        raise SettingsError(f"{path} does not exist; --data-dir must hold mnist.npz and usps16.npz")
    try:
        with np.load(path, allow_pickle=False) as archive:
            images, labels = archive["x_train"], archive["y_train"]
    except (KeyError, ValueError, OSError) as error:
        raise DataInvalid(f"{path} must be an .npz file with the arrays x_train and y_train ({error})") from error
    if images.ndim != 3 or images.shape[1:] != (side, side) or labels.shape != (len(images),):
        raise DataInvalid(
            f"{path.name}: x_train has shape {images.shape} and y_train {labels.shape}; "
            f"needed are (n, {side}, {side}) and (n,)"
        )
    if images.dtype != np.uint8:
        raise DataInvalid(f"{path.name}: x_train has dtype {images.dtype}; needs uint8")
    return images, labels.astype(np.int64)


def _from_openml(data_id: int, name: str) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    from sklearn.datasets import fetch_openml

    try:
        images, labels = fetch_openml(data_id=data_id, as_frame=False, return_X_y=True, parser="liac-arff")
    except OSError as error:  # URLError among them
        raise SettingsError(
            f"{name} could not be fetched from OpenML ({error}); put mnist.npz and usps16.npz into a folder and pass "
            "--data-dir"
        ) from error
    return np.asarray(images, dtype=np.float32), np.asarray(labels).astype(np.int64)
