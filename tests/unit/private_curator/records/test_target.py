from __future__ import annotations

import numpy as np
import pytest

from dpswd.private_curator.records import target
from dpswd.private_curator.records.mapped import MappedRecords
from dpswd.private_curator.settings.groups import RecordsSettings
from dpswd.shared.core.errors import DataInvalid

CANARY = 7.654321


def _load(path, **fields):
    return target.load(RecordsSettings(file=path.name, **fields), home=path.parent)


@pytest.fixture
def floats():
    return np.random.default_rng(1).normal(size=(10, 3, 4)).astype(np.float32)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_records_come_back_in_the_order_asked_for(tmp_path, floats, save):
    save(tmp_path / "r.npz", x=floats, y=np.arange(10))
    loaded = _load(tmp_path / "r.npz", array="x", labels_array="y")
    assert (loaded.count, loaded.record_shape) == (10, (3, 4))
    taken = loaded.take(np.array([7, 0, 3]))
    np.testing.assert_array_equal(taken, floats[[7, 0, 3]])


def test_uncompressed_records_are_mapped_not_read(tmp_path, floats):
    np.savez(tmp_path / "r.npz", x=floats)
    np.save(tmp_path / "r.npy", floats)
    for name in ("r.npz", "r.npy"):
        loaded = _load(tmp_path / name)
        assert isinstance(loaded.stored, MappedRecords)
        np.testing.assert_array_equal(loaded.take(np.arange(len(floats))), floats.reshape(-1, *loaded.record_shape))


def test_uint8_is_scaled_from_its_public_range(tmp_path):
    pixels = np.array([[0, 255], [51, 102]], dtype=np.uint8)
    np.save(tmp_path / "r.npy", pixels)
    unit = _load(tmp_path / "r.npy").take(np.array([0, 1]))
    np.testing.assert_allclose(unit, pixels / 255.0, atol=1e-7)
    signed = _load(tmp_path / "r.npy", scale_to=(-1, 1)).take(np.array([0]))
    np.testing.assert_allclose(signed, [[-1, 1]], atol=1e-6)


def test_a_declared_shape_is_given_to_each_record(tmp_path, floats):
    np.save(tmp_path / "r.npy", floats)
    loaded = _load(tmp_path / "r.npy", record_shape=(1, 12))
    assert loaded.take(np.array([2, 1])).shape == (2, 1, 12)
    with pytest.raises(DataInvalid, match=r"product must be 12"):
        _load(tmp_path / "r.npy", record_shape=(1, 13))


def _broken(floats):
    holes = floats.copy()
    holes[3, 1, 2] = np.nan
    holes[0, 0, 0] = CANARY
    return {
        "NaN": {"x": holes},
        "float64": {"x": floats.astype(np.float64) + CANARY},
        "two records": {"x": floats[:1]},
        "without pickle|objects": {"x": np.array([CANARY, "a"], dtype=object)},
        "name one": {"x": floats, "z": floats},
    }


@pytest.mark.parametrize("message", ["NaN", "float64", "two records", "without pickle|objects", "name one"])
def test_bad_records_are_refused_without_showing_a_value(tmp_path, floats, message):
    np.savez(tmp_path / "r.npz", **_broken(floats)[message])
    with pytest.raises(DataInvalid, match=message) as caught:
        _load(tmp_path / "r.npz")
    assert "r.npz" in str(caught.value)
    assert str(CANARY)[:5] not in str(caught.value)


def test_labels_must_be_one_for_each_record(tmp_path, floats):
    np.savez(tmp_path / "r.npz", x=floats, y=np.arange(9))
    with pytest.raises(DataInvalid, match="one label for each of 10"):
        _load(tmp_path / "r.npz", array="x", labels_array="y")


@pytest.mark.parametrize("name", ["missing.npz", "table.csv", "garbage.npz", "garbage.npy"])
def test_files_that_are_none_are_refused(tmp_path, name):
    if name != "missing.npz":
        (tmp_path / name).write_bytes(f"secret {CANARY}".encode())
    with pytest.raises(DataInvalid, match=name) as caught:
        _load(tmp_path / name)
    assert str(CANARY)[:5] not in str(caught.value)
    assert caught.value.__cause__ is None
