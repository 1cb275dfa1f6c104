"""A generator from a mock curator with real labels: what is charged, what is drawn, and what its file holds."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from dpswd import MockCurator, mock_description
from dpswd.public_client.cli.main import main
from dpswd.public_client.generation import Gaussian, load_generator
from dpswd.public_client.generation.generating import generate, plan_generator
from dpswd.shared.core.errors import BudgetExhausted, DataInvalid, InvalidValue, SettingsError
from dpswd.shared.protocol.contract import DataContract

D, CLASSES = 6, 3
RNG = np.random.default_rng(3)
MEANS = RNG.uniform(0.2, 0.8, size=(CLASSES, D))
SPREAD = 0.05 * RNG.normal(size=(D, D))


def made(count, seed):
    rng = np.random.default_rng(seed)
    labels = rng.choice(CLASSES, size=count, p=(0.5, 0.3, 0.2))
    return (MEANS[labels] + rng.normal(size=(count, D)) @ SPREAD.T).astype(np.float32), labels


def curator(records, labels, *, epsilon=5.0):
    description = mock_description(records=len(labels), record_shape=(D,), epsilon=epsilon, delta=1e-5, classes=CLASSES)
    held, randomness = torch.from_numpy(records), np.random.default_rng(0).bytes
    return MockCurator(description, records=lambda count: held[:count], labels=labels, randomness=randomness)


METHOD = Gaussian(low=0.0, high=1.0, typical=0.7)


def test_rows_follow_the_records_law_and_cost_nothing_more(tmp_path):
    where = curator(*made(4000, 0), epsilon=25.0)
    plan, quote = plan_generator(where, METHOD, epsilon=20.0)
    assert quote.fits
    assert where.charges == []
    generator = generate(where, plan, seed=1, device="cpu", progress=False, directory=tmp_path / "run")
    (charge,) = where.charges
    assert 19.5 < charge.epsilon <= 20.0
    x, y = generator.sample(20_000, seed=5)
    shares = np.bincount(y.numpy(), minlength=CLASSES) / len(y)
    np.testing.assert_allclose(shares, (0.5, 0.3, 0.2), atol=0.03)
    for c in range(CLASSES):
        np.testing.assert_allclose(x[y == c].mean(dim=0).numpy(), MEANS[c], atol=0.03)
    rest = x.numpy() - MEANS[y.numpy()]
    np.testing.assert_allclose(rest.T @ rest / len(rest), SPREAD @ SPREAD.T, atol=0.004)
    again = generate(where, plan, seed=1, device="cpu", progress=False, directory=tmp_path / "run")
    assert len(where.charges) == 1
    torch.testing.assert_close(again.sample(50)[0], generator.sample(50)[0])
    with pytest.raises(SettingsError, match="other options"):
        generate(where, plan_generator(where, METHOD, epsilon=2.0)[0], progress=False, directory=tmp_path / "run")
    with pytest.raises(BudgetExhausted):
        generate(where, plan, progress=False)
    assert len(where.charges) == 1


def test_the_file_is_the_generator_and_says_where_it_comes_from(tmp_path):
    where = curator(*made(2000, 0))
    where.purpose = "a test"
    generator = generate(where, plan_generator(where, METHOD, epsilon=1.0)[0], progress=False)
    path = tmp_path / "generator.safetensors"
    generator.save(path)
    again = load_generator(path)
    assert again.facts == generator.facts
    assert again.facts["guarantee"]["neighbours"] == "replace-one"
    assert again.facts["guarantee"]["epsilon"] <= 1.0
    assert again.facts["purpose"] == "a test"
    few, more = again.sample(7, seed=2), generator.sample(1500, seed=2)
    torch.testing.assert_close(few[0], more[0][:7])
    assert (few[1] == more[1][:7]).all()
    assert not torch.equal(few[0], again.sample(7, seed=3)[0])
    assert float(more[0].min()) >= 0.0
    assert float(more[0].max()) <= 1.0
    soft = again.sample_soft(7, seed=2)[1]
    assert (soft.argmax(dim=1) == few[1]).all()
    for wrong in (0, -1, 10**9):
        with pytest.raises(InvalidValue, match="rows"):
            again.sample(wrong)
    whole = path.read_bytes()
    for damaged in (whole[:-8], whole.replace(b"shares", b"sharks"), whole.replace(b"generator-4", b"generator-9")):
        path.write_bytes(damaged)
        with pytest.raises(DataInvalid):
            load_generator(path)


def test_the_command_plans_rehearses_and_draws(tmp_path):
    description = mock_description(records=500, record_shape=(D,), epsilon=2.0, delta=1e-5, classes=CLASSES)
    described = tmp_path / "described.json"
    described.write_text(json.dumps(description.to_json()))
    words = ["generate", "--method", "gaussian", "--epsilon", "1", "--dry-run", str(described), "--device", "cpu"]
    run = CliRunner().invoke
    asked = run(main, [*words, "--plan"])
    assert asked.exit_code == 0, asked.output
    assert "charged as a whole" in asked.output
    out, rows = tmp_path / "g.safetensors", tmp_path / "rows.npz"
    done = run(main, [*words, "--out", str(out), "--rows", "40", "--records", str(rows), "--purpose", "rehearsal"])
    assert done.exit_code == 0, done.output
    assert "DRY RUN" in done.output
    assert load_generator(out).facts["purpose"] == "rehearsal"
    with np.load(rows) as held:
        assert held["x"].shape == (40, D)
        assert held["y"].shape == (40,)
    more = run(main, ["generate", "--from", str(out), "--rows", "9", "--records", str(tmp_path / "more.npz")])
    assert more.exit_code == 0, more.output
    head = "You have a generator of records like mock's; what is drawn from it costs nothing more.\nepsilon 0.99"
    assert more.output.startswith(head)
    for wrong in (["--rows", "3"], ["--out", str(out)], []):
        refused = run(main, [*words, *wrong])
        assert refused.exit_code in (2, 3), refused.output


def test_records_declared_on_another_scale_are_refused_before_anything_is_charged():
    contract = DataContract(value_range=(0.0, 255.0), channel_mean=(127.5,), channel_std=(127.5,))
    description = mock_description(
        records=300, record_shape=(D,), epsilon=1.0, delta=1e-5, classes=CLASSES, contract=contract
    )
    where = MockCurator(description)
    with pytest.raises(InvalidValue, match=r"from 0 to 1, and the hospital serves -1 to 1: set low and high"):
        plan_generator(where, METHOD, epsilon=0.5)
    assert where.charges == []
    assert plan_generator(where, replace(METHOD, low=-1.0), epsilon=0.5)[1].fits


def test_a_curator_without_labels_is_refused_before_anything_is_charged():
    description = mock_description(records=100, record_shape=(D,), epsilon=1.0, delta=1e-5)
    where = MockCurator(description)
    with pytest.raises(InvalidValue, match=r"records\.classes"):
        plan_generator(where, METHOD, epsilon=0.5)
    assert where.charges == []
