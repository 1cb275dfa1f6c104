"""``generate`` against a curator process: plan, one charge, files, a repeat that is free, rows that cost nothing."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from dpswd.public_client.cli.main import main
from dpswd.public_client.generation import Column, Schema, load_generator
from dpswd.public_client.testing.local_hospital import LocalHospital

pytestmark = [pytest.mark.usefixtures("extractors_in_process")]
torch.set_num_threads(1)

N = 600
SCHEMA = Schema(
    (
        Column(name="age", kind="numeric", low=0.0, high=100.0, bins=5, whole=True),
        Column(name="pain", kind="categorical", values=(0.0, 1.0, 2.0), missing=-1.0),
    )
)


def test_a_hospital_s_table_is_generated_once_and_drawn_for_ever(tmp_path):
    rng = np.random.default_rng(5)
    labels = rng.integers(2, size=N)
    pain = np.where(labels == 1, 2, rng.choice([-1, 0, 1], size=N))
    records = np.column_stack([rng.integers(20, 90, size=N), pain]).astype(np.float32)
    schema, out = tmp_path / "schema.json", tmp_path / "g.safetensors"
    schema.write_text(json.dumps(SCHEMA.to_json()))
    with LocalHospital(
        records, epsilon=2.4, delta=1e-5, device="cpu", labels=labels, classes=2, directory=tmp_path / "hospital"
    ) as hospital:
        common = ["generate", "--curator", hospital.address, "--credentials", str(hospital.credentials)]
        common += ["--schema", str(schema), "--setting", "updates=200", "--epsilon", "2", "--format", "json"]

        def run(*arguments, status=0):
            done = CliRunner().invoke(main, [*common, *map(str, arguments)])
            assert done.exit_code == status, done.output
            return done.stdout

        with hospital.connect() as connected:
            priced = json.loads(run("--plan"))["quote"]
            assert priced["fits"] is True
            assert connected.describe().spent == 0.0
            words = ["--directory", tmp_path / "run", "--purpose", "a first look"]
            report = json.loads(run(*words, "--out", out, "--rows", "100", "--records", tmp_path / "rows.npz"))
            assert report["facts"]["purpose"] == "a first look"
            spent = connected.describe().spent
            assert spent == pytest.approx(priced["epsilon"])
            assert report["facts"]["guarantee"]["epsilon"] == pytest.approx(spent)
            run(*words, "--out", tmp_path / "again.safetensors")  # the same run, from the same directory
            assert connected.describe().spent == spent
            run("--out", tmp_path / "other.safetensors", status=8)  # a second one does not fit
            assert connected.describe().spent == spent
    # The hospital is gone; the file draws.
    generator, again = load_generator(out), load_generator(tmp_path / "again.safetensors")
    drawn, kinds = generator.sample(2000, seed=3)
    torch.testing.assert_close(again.sample(2000, seed=3)[0], drawn)
    # Of 600 records the noise on a share is below 0.06: five deviations, a false alarm below 1e-6.
    assert abs(float((drawn[kinds == 1, 1] == 2.0).double().mean()) - 1.0) < 0.3
    assert float((drawn[kinds == 0, 1] == 2.0).double().mean()) < 0.3
    assert set(drawn[:, 1].unique().tolist()) <= {-1.0, 0.0, 1.0, 2.0}
    with np.load(tmp_path / "rows.npz") as held:
        assert held["x"].shape == (100, 2)
