from __future__ import annotations

import numpy as np
import pytest
import torch

from dpswd.public_client.data import datasets
from dpswd.public_client.data.datasets import digits_shift, load_task, load_usps, resize_usps
from dpswd.shared.core.errors import DataInvalid, SettingsError


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    for name, side, count in (("mnist", 28, 12), ("usps16", 16, 9)):
        images = rng.integers(0, 256, size=(count, side, side), dtype=np.uint8)
        np.savez(tmp_path / f"{name}.npz", x_train=images, y_train=np.arange(count, dtype=np.uint8) % 10)
    return tmp_path


def test_digits_are_split_into_disjoint_halves_and_the_target_is_shifted():
    task = load_task("digits")
    assert (len(task.source), len(task.target)) == (899, 898)
    assert task.image_shape == (1, 8, 8)
    for half in (task.source, task.target):
        assert half.images.dtype == torch.float32
        assert float(half.images.min()) >= -1.0
        assert float(half.images.max()) <= 1.0
        assert set(half.labels.tolist()) == set(range(10))
    again = load_task("digits")
    assert torch.equal(task.target.images, again.target.images)


def test_the_shift_is_fixed_and_moves_what_it_says():
    image = torch.full((1, 1, 8, 8), -1.0)
    image[0, 0, 3:5, 3:5] = 1.0
    seen = digits_shift(image)
    assert not torch.equal(seen, image)
    background = -datasets.DIGITS_CONTRAST + datasets.DIGITS_BRIGHTNESS
    assert float(seen[0, 0, 0, 0]) == pytest.approx(background)
    torch.testing.assert_close(seen, digits_shift(image.expand(3, 1, 8, 8))[1:2])


@pytest.mark.parametrize("name", ["mnist-usps", "usps-mnist"])
@pytest.mark.parametrize("geometry", ["stretched", "framed"])
def test_both_directions_and_geometries_load_from_a_folder(folder, name, geometry):
    task = load_task(name, geometry=geometry, data_dir=folder)
    assert task.image_shape == (1, 28, 28)
    assert {len(task.source), len(task.target)} == {12, 9}
    assert geometry in task.name
    assert float(task.source.images.abs().max()) <= 1.0


def test_framed_digits_stand_in_an_empty_margin_and_stretched_ones_do_not():
    images = torch.ones(2, 1, 16, 16)
    framed, stretched = (resize_usps(images, geometry=g) for g in ("framed", "stretched"))
    assert framed.shape == stretched.shape == (2, 1, 28, 28)
    assert float(framed[:, :, :4].max()) == -1.0
    assert float(framed[:, :, 4:24, 4:24].min()) == pytest.approx(1.0)
    assert float(stretched.min()) == pytest.approx(1.0)


def test_openml_copies_are_checked_by_their_label_counts():
    counts = (1194, 1005, 731, 658, 652, 556, 664, 645, 542, 644)
    labels = np.repeat(np.arange(1, 11), counts)
    images = np.random.default_rng(0).uniform(-1, 1, size=(9298, 256)).astype(np.float32)

    def copy(data_id, name):
        assert (data_id, name) == (41082, "USPS")
        return images, np.concatenate([labels, np.ones(9298 - len(labels), dtype=np.int64)])

    usps = load_usps(geometry="stretched", fetch=copy)
    assert len(usps) == 7291
    assert usps.labels.bincount().tolist() == list(counts)
    assert float(usps.images.min()) >= -1.0

    def shuffled(data_id, name):
        return images, copy(data_id, name)[1][::-1]

    with pytest.raises(DataInvalid, match="--data-dir"):
        load_usps(geometry="stretched", fetch=shuffled)


@pytest.mark.parametrize(
    ("arguments", "error", "names"),
    [
        ({"name": "svhn"}, SettingsError, "mnist-usps"),
        ({"name": "mnist-usps", "geometry": "round"}, SettingsError, "framed"),
    ],
)
def test_wrong_names(arguments, error, names):
    with pytest.raises(error, match=names):
        load_task(**arguments)


def test_wrong_files_are_explained(folder, tmp_path):
    with pytest.raises(SettingsError, match=r"mnist\.npz does not exist"):
        load_task("mnist-usps", data_dir=tmp_path / "nowhere")
    np.savez(folder / "usps16.npz", x_train=np.zeros((3, 28, 28), np.uint8), y_train=np.zeros(3, np.uint8))
    with pytest.raises(DataInvalid, match=r"needed are \(n, 16, 16\)"):
        load_task("mnist-usps", data_dir=folder)
    np.savez(folder / "usps16.npz", x_train=np.zeros((3, 16, 16), np.float32), y_train=np.zeros(3, np.uint8))
    with pytest.raises(DataInvalid, match="uint8"):
        load_task("mnist-usps", data_dir=folder)
    (folder / "usps16.npz").write_bytes(b"no archive")
    with pytest.raises(DataInvalid, match="x_train"):
        load_task("mnist-usps", data_dir=folder)
