"""The example that operators try with is the digits that a team's `train --data digits` adapts to."""

from __future__ import annotations

import numpy as np
from click.testing import CliRunner

from deploy.example import arrays
from dpswd.private_curator.cli.main import main
from dpswd.private_curator.records.example import PACKED
from dpswd.public_client.data.datasets import load_task


def convert(*words):
    return CliRunner().invoke(main, ["records", "convert", *map(str, words)])


def test_the_example_is_written_like_any_records(tmp_path):
    done = convert("--example", "--out", tmp_path / "records.npy")
    assert done.exit_code == 0, done.output
    digits = load_task("digits").target
    written = np.load(tmp_path / "records.npy")
    assert written.dtype == np.float32
    assert np.abs(written - digits.images.numpy()).max() <= 0.5 / 127.5 + 1e-6
    assert np.array_equal(np.load(tmp_path / "records.labels.npy"), digits.labels.numpy())


def test_the_packed_file_is_what_its_command_writes():
    with np.load(PACKED) as packed:
        assert all(np.array_equal(packed[name], value) for name, value in arrays().items())


def test_a_file_or_the_example_is_named():
    for words in (["--out", "r.npy"], ["own.csv", "--example", "--out", "r.npy"]):
        done = convert(*words)
        assert done.exit_code == 3
        assert "name a file or folder of records, --database, or --example" in done.output
