"""Tables by a public schema: bins, one release, what is drawn; small and empty classes; wrong schemas and files."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from dpswd import MockCurator, mock_description
from dpswd.public_client.cli.main import main
from dpswd.public_client.generation import Column, Schema, Tabular, load_generator
from dpswd.public_client.generation.export import export
from dpswd.public_client.generation.generating import generate, plan_generator
from dpswd.public_client.generation.tabular import Bins
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.protocol.contract import DataContract

SCHEMA = Schema(
    (
        Column(name="age", kind="numeric", low=0.0, high=80.0, bins=8, whole=True, unit="years"),
        Column(name="chol", kind="numeric", low=100.0, high=400.0, bins=6, missing=0.0),
        Column(name="sex", kind="categorical", values=(0.0, 1.0)),
        Column(name="pain", kind="categorical", values=(1.0, 2.0, 3.0, 7.0), missing=-1.0),
        Column(name="site", kind="categorical", values=(5.0,)),
        Column(name="constant", kind="numeric", low=0.0, high=1.0, bins=4),
    )
)
N = 4000


def table(seed=0):
    """Pain follows the label, cholesterol is missing where pain is 7, class 2 has three records, a column one value."""
    rng = np.random.default_rng(seed)
    y = rng.integers(2, size=N)
    y[:3] = 2
    pain = np.where(y == 1, rng.choice([1, 2, 3, 7], p=[0.1, 0.1, 0.1, 0.7], size=N), rng.choice([1, 2, 3, -1], size=N))
    chol = np.where(pain == 7, 0.0, rng.uniform(150, 350, size=N))
    age = rng.integers(20, 40, size=N) + 30 * y
    columns = [age, chol, rng.integers(2, size=N), pain, np.full(N, 5), np.full(N, 0.6)]
    return np.column_stack(columns).astype(np.float32), y.astype(np.int64)


def fitted(*, classes=4, epsilon=2.0, schema=SCHEMA):
    x, y = table()
    description = mock_description(records=N, record_shape=(6,), epsilon=4.0, delta=1e-5, classes=classes)
    where = MockCurator(description, records=x, labels=y, randomness=np.random.default_rng(0).bytes)
    plan, _ = plan_generator(where, Tabular(schema=schema, fitted_rows=2000, updates=40), epsilon=epsilon)
    return generate(where, plan, device="cpu", progress=False), where, x, y


def test_bins_are_a_one_in_each_column_and_the_nearest_one_for_what_is_no_category():
    records = torch.tensor(
        [
            [0.0, 0.0, 0.0, -1.0, 5.0, 0.6],
            [79.5, 399.0, 1.0, 7.0, 5.0, 0.6],
            [-40.0, 1e6, 1.0, 5.9, 8.0, 0.1],  # beyond the bounds, or no category: the nearest bins
        ]
    )
    expected = torch.from_numpy(SCHEMA.expected).float()
    bins = Bins(SCHEMA)(records) * 2.0 * SCHEMA.norm + expected
    assert bins.shape == (3, SCHEMA.width) == (3, 8 + 7 + 2 + 5 + 1 + 4)
    torch.testing.assert_close(bins.sum(dim=1), torch.full((3,), 6.0))
    torch.testing.assert_close(bins.max(dim=1).values, torch.ones(3))
    first = [int(row[start : start + 8].argmax()) for row, start in zip(bins, (0, 0, 0), strict=True)]
    assert first == [0, 7, 0]
    assert [int(row[8:15].argmax()) for row in bins] == [0, 6, 6]  # the missing code, the last bin twice
    assert [int(row[17:22].argmax()) for row in bins] == [0, 4, 4]


def test_a_usual_value_shortens_records_that_hold_it_and_only_those():
    usual = Schema((*SCHEMA.columns[:2], *(Column(name=f"f{i}", kind="categorical", values=(0.0, 1.0), usual=0.0)
                                           for i in range(10))))  # fmt: skip
    plain = Schema(tuple(replace(column, usual=None) for column in usual.columns))
    records = torch.zeros((3, 12))
    records[1, 2] = 1.0
    records[2, 2:] = 1.0
    assert (plain.norm / usual.norm) ** 2 == pytest.approx((7 / 8 + 6 / 7 + 5) / (7 / 8 + 6 / 7 + 1.8))
    plainly, usually = (Bins(schema)(records).norm(dim=1) for schema in (plain, usual))
    torch.testing.assert_close(plainly, torch.full((3,), 0.5))
    squares = [7 / 8 + 6 / 7 + 0.2, 7 / 8 + 6 / 7 + 0.18 + 1.62, 7 / 8 + 6 / 7 + 16.2]
    torch.testing.assert_close(usually, torch.tensor(squares).sqrt() / usual.norm / 2.0)
    assert usually[0] < usually[1] < 0.51 < usually[2]  # the last is shrunk to 1/2 by the curator


@pytest.mark.parametrize("bins", [1, 4, 9, 40])
def test_whole_numbers_are_drawn_in_their_own_bin_each_as_often(bins):
    column = Column(name="age", kind="numeric", low=1.0, high=9.0, bins=bins, whole=True, missing=0.0)
    schema = Schema((column,))
    numbers = [low for low, high in column.bounds if low < high]
    assert len(numbers) == min(bins, 9)  # no more than there are numbers
    for low, high in column.bounds:
        drawn = schema.snapped(torch.linspace(low, high, 998)[1:-1, None])
        own = Bins(schema)(drawn)  # all of norm 1/2
        assert (own == own[0]).all()
        _, times = drawn.unique(return_counts=True)
        assert times.max() - times.min() <= 2
    assert (Bins(schema)(torch.tensor([[0.0], [1.0]])).argmax(dim=1) == torch.tensor([0, 1])).all()


def test_one_release_gives_a_table_with_its_marginals_and_a_small_class_shows_no_more_than_an_empty_one(tmp_path):
    generator, where, x, y = fitted()
    (charge,) = where.charges
    assert charge.epsilon <= 2.0
    drawn, labels = generator.sample(N, seed=1)
    drawn, labels = drawn.numpy(), labels.numpy()
    assert set(np.unique(drawn[:, 3])) <= {-1.0, 1.0, 2.0, 3.0, 7.0}
    assert set(np.unique(drawn[:, 2])) == {0.0, 1.0}
    assert (drawn[:, 4] == 5.0).all()
    present = drawn[:, 1][drawn[:, 1] != 0.0]
    assert ((present >= 100.0) & (present <= 400.0)).all()
    assert (drawn[:, 0] == np.round(drawn[:, 0])).all()
    for c in (0, 1):
        assert abs((labels == c).mean() - (y == c).mean()) < 0.05
        assert abs((drawn[labels == c, 3] == 7.0).mean() - (x[y == c, 3] == 7.0).mean()) < 0.1
        assert abs(drawn[labels == c, 0].mean() - x[y == c, 0].mean()) < 5.0
    # A pair that no class explains alone: cholesterol is missing where pain is 7.
    assert abs((drawn[:, 1] == 0.0)[drawn[:, 3] == 7.0].mean() - 1.0) < 0.2
    assert (drawn[:, 1] == 0.0)[drawn[:, 3] != 7.0].mean() < 0.15
    # Class 2 has three records, class 3 none; both are noise around nothing: rows of both may be drawn.
    assert generator.shares[2] < 0.03
    assert generator.shares[3] < 0.03
    assert min(generator.shares) > 0.0

    # Labels are drawn with the probabilities that rows come with, and more rows begin with the same ones.
    rows, chances = generator.sample_soft(N, seed=1)
    assert (rows.numpy() == drawn).all()
    expected, spread = chances.sum(dim=0), (chances * (1.0 - chances)).sum(dim=0).sqrt()
    counted = torch.from_numpy(np.bincount(labels, minlength=4))
    assert ((counted - expected).abs() < 6.0 * spread + 3.0).all()  # a chance of some 1e-8
    assert (generator.sample(10, seed=1)[1].numpy() == labels[:10]).all()

    path = tmp_path / "g.safetensors"
    generator.save(path)
    again = load_generator(path)
    assert again.schema == SCHEMA
    for restored, made in zip(again.sample(50, seed=2), generator.sample(50, seed=2), strict=True):
        torch.testing.assert_close(restored, made)
    done = CliRunner().invoke(
        main, ["generate", "--from", str(path), "--rows", "50", "--records", str(tmp_path / "rows.parquet")]
    )
    assert done.exit_code == 0, done.output
    from pyarrow import parquet

    written = parquet.read_table(tmp_path / "rows.parquet")
    assert written.column_names[:3] == ["age", "chol", "sex"]
    assert (written["label"].to_numpy() == generator.sample(50)[1].numpy()).all()
    _, card = export(generator, tmp_path / "rows.npz", rows=50)
    with np.load(tmp_path / "rows.npz", allow_pickle=False) as arrays:
        assert arrays["columns"].tolist() == [column.name for column in SCHEMA.columns]
    assert '"unit": "years"' in card.read_text()


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"kind": "date"}, "allowed: numeric, categorical"),
        ({"low": 90.0}, "low below high"),
        ({"high": None}, "low below high"),
        ({"bins": 0}, "allowed are 1 to"),
        ({"missing": 40.0}, "within its bounds"),
        ({"missing": -0.25}, "within its bounds"),  # whole numbers end halfway
        ({"high": 80.5}, "whole bounds"),
        ({"kind": "categorical", "values": (2.0, 1.0)}, "increasing"),
        ({"kind": "categorical", "values": (1.0, 2.0), "missing": 2.0}, "one of its values"),
        ({"kind": "categorical", "values": (1.0, 2.0), "names": ("one",)}, "one for each"),
        ({"kind": "categorical", "values": (1.0, 2.0), "usual": 0.0}, "usual is 0, none of its values"),
    ],
)
def test_a_column_that_cannot_be_is_refused_by_name(changed, match):
    with pytest.raises(InvalidValue, match=f"column 'age'.*{match}"):
        replace(SCHEMA.columns[0], **changed)


def test_a_schema_at_odds_with_the_records_is_refused_before_anything_is_charged(tmp_path):
    with pytest.raises(InvalidValue, match=r"shape \(6,\), and the schema has 5 columns"):
        fitted(schema=Schema(SCHEMA.columns[:5]))
    names = tuple(column.name for column in SCHEMA.columns)
    turned = DataContract(column_names=names[::-1])
    served = mock_description(records=300, record_shape=(6,), epsilon=4.0, delta=1e-5, classes=2, contract=turned)
    with pytest.raises(InvalidValue, match=r"column_names differ.*Nothing was spent"):
        plan_generator(MockCurator(served), Tabular(schema=SCHEMA), epsilon=1.0)
    served = replace(served, contract=DataContract(column_names=names))
    description, schema = tmp_path / "told.json", tmp_path / "schema.json"
    description.write_text(json.dumps(served.to_json()))
    words = ["generate", "--dry-run", str(description), "--epsilon", "1", "--plan"]
    done = CliRunner().invoke(main, [*words, "--method", "tabular"])
    assert done.exit_code != 0
    assert "--schema FILE" in done.output
    schema.write_text('{"columns": [{"name": "age"}]}')
    done = CliRunner().invoke(main, [*words, "--schema", str(schema)])
    assert done.exit_code != 0
    assert "is not a schema" in done.output
    schema.write_text(json.dumps(SCHEMA.to_json()))
    done = CliRunner().invoke(main, [*words, "--schema", str(schema)])
    assert done.exit_code == 0, done.output
    done = CliRunner().invoke(main, [*words, "--method", "gaussian", "--schema", str(schema)])
    assert "gaussian takes none" in done.output


@pytest.mark.parametrize(("records", "epsilon", "points"), [(50_000, 1.0, "1 to 2"), (3_000, 1.0, "1 to 7"),
                                                            (500, 1.0, "1 to 21"), (500, 0.1, "12 to 40")])  # fmt: skip
def test_a_plan_says_what_tables_lost_at_such_noise(records, epsilon, points):
    description = mock_description(records=records, record_shape=(6,), epsilon=4.0, delta=1e-5, classes=2)
    plan, _ = plan_generator(MockCurator(description), Tabular(schema=SCHEMA), epsilon=epsilon)
    assert f"as many rows taught {points} points of AUC less" in str(plan)


def test_settings_survive_plans():
    method = Tabular(schema=SCHEMA, deviation=0.7)
    assert Tabular.from_json(json.loads(json.dumps(method.to_json()))) == method
