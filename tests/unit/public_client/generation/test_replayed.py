"""One release of images, replayed: rows teach a classifier what the release knows; nothing else is charged."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn

from dpswd import MockCurator, mock_description
from dpswd.public_client.cli.main import main
from dpswd.public_client.data.datasets import load_task
from dpswd.public_client.generation import Replayed, load_generator, marginals, replayed
from dpswd.public_client.generation.generating import generate, plan_generator
from dpswd.public_client.generation.network import Target
from dpswd.public_client.methods.statistics_head import ClassSums
from dpswd.shared.core.errors import InvalidValue

OTHER_SHAPES = ((3, 14, 18), (1, 20, 15))
SMALL = Replayed(axes=60, coordinates=40, waves=60, pretraining=60, updates=150, images=200, looked=20)


@pytest.fixture(scope="module", autouse=True)
def few_public_images():
    """A network that is pretrained for some tens of updates sees no more; figures of a page are of fewer rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replayed, "_PUBLIC", 1000)
        patch.setattr(marginals, "_DRAWN", 300)
        yield


@pytest.fixture(scope="module")
def fitted():
    """From 898 digits of scikit-learn; their other half is for tests."""
    task = load_task("digits")
    held = task.source
    description = mock_description(records=len(held), record_shape=(1, 8, 8), epsilon=30.0, delta=1e-4, classes=10)
    randomness = np.random.default_rng(0).bytes
    where = MockCurator(
        description, records=lambda n: held.images[:n], labels=held.labels.numpy(), randomness=randomness
    )
    plan, _ = plan_generator(where, SMALL, epsilon=20.0)
    generator = generate(where, plan, seed=3, device="cpu", progress=False)
    return generator, where, task


@pytest.mark.long
def test_a_classifier_of_drawn_rows_knows_real_ones(fitted):
    generator, where, task = fitted
    assert len(where.charges) == 1
    x, p = generator.sample_soft(1500, seed=1)
    assert float(x.min()) >= -1.0
    assert float(x.max()) <= 1.0
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(10):
        for rows in torch.randperm(len(x)).split(50):
            loss = -(p[rows] * torch.log_softmax(model(x[rows]), dim=1)).sum(dim=1).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    taught = float((model(task.source.images).argmax(dim=1) == task.source.labels).double().mean())
    release = float(
        (generator.labeller.features(task.source.images).argmax(dim=1) == task.source.labels).double().mean()
    )
    assert release > 0.85
    assert taught > 0.8  # chance is 0.1


@pytest.mark.long
def test_the_class_that_was_asked_for_is_the_class_that_is_drawn(fitted):
    generator, _, _ = fitted
    once = replace(generator, tries=1)
    seen = {
        name: float((own.sample(2000, seed=1)[1] == classes_asked(own, 2000, seed=1)).double().mean())
        for name, own in (("once", once), ("again", generator))
    }
    assert seen["again"] > 0.97
    assert seen["once"] < seen["again"]
    few, more = (generator.sample(rows, seed=4) for rows in (40, 1040))
    torch.testing.assert_close(few[0], more[0][:40], atol=1e-5, rtol=0.0)
    for wrong in (0, 101):
        with pytest.raises(InvalidValue, match="tries"):
            replace(generator, tries=wrong)


def classes_asked(generator, rows, *, seed):
    """What the rows are drawn for: a labeller that gives each record the class of its latents would say so."""
    return replace(generator, labeller=None, tries=1).sample(rows, seed)[1]


@pytest.mark.long
def test_a_fit_that_was_broken_off_goes_on_where_it_was(fitted, tmp_path):
    _, _, task = fitted
    held = task.source
    description = mock_description(records=len(held), record_shape=(1, 8, 8), epsilon=30.0, delta=1e-4, classes=2)
    where = MockCurator(description, records=lambda n: held.images[:n], labels=held.labels.numpy() % 2)
    method = replace(SMALL, axes=20, coordinates=10, waves=10, pretraining=3, updates=110, images=8, looked=4)
    plan, _ = plan_generator(where, method, epsilon=20.0)
    options = {"seed": 3, "device": "cpu", "progress": False}
    shown = []

    def broken_off(generator):
        """At update 108, where what was fitted by update 100 is on file."""
        shown.append(generator)
        if len(shown) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate(where, plan, directory=tmp_path, preview=broken_off, **options)
    assert (tmp_path / "fit.pt").exists()
    resumed = generate(where, plan, directory=tmp_path, **options)
    (tmp_path / "fit.pt").unlink()
    whole = generate(where, plan, directory=tmp_path, **options)
    assert len(where.charges) == 1
    assert torch.equal(resumed.sample(50)[0], whole.sample(50)[0])


@pytest.mark.long
@pytest.mark.parametrize(("records", "epsilon", "few"), [(1300, 1.0, True), (60_000, 0.1, True), (60_000, 1.0, False)])
def test_a_plan_for_so_few_records_says_what_rows_taught_there(records, epsilon, few):
    description = mock_description(records=records, record_shape=(1, 8, 8), epsilon=9.0, delta=1e-5, classes=10)
    plan, _ = plan_generator(MockCurator(description), SMALL, epsilon=epsilon)
    assert ("rows of 1,300 taught 74 (98)" in str(plan)) == few


@pytest.mark.parametrize(("records", "axes"), [(100, 30), (900, 45), (60_000, 60)])
@pytest.mark.long
def test_fewer_records_are_seen_along_fewer_axes(records, axes):
    description = mock_description(records=records, record_shape=(1, 8, 8), epsilon=9.0, delta=1e-5, classes=10)
    features = replace(SMALL, coordinates=60).features(description)
    assert features(torch.zeros(1, 1, 8, 8)).shape == (1, axes + axes + 2 * SMALL.waves)


@pytest.mark.long
@pytest.mark.parametrize(("deviation", "least"), [(1e-9, 4e-3), (1e-3, 2e-2)])
def test_small_second_moments_do_not_outweigh_large_ones_however_little_noise_is_released(deviation, least):
    """Turned by the power -1/4, and below 4e-3 alike, or below twice the noise's deviation times the root of 100."""
    description = mock_description(records=60_000, record_shape=(1, 8, 8), epsilon=9.0, delta=1e-5, classes=10)
    features = SMALL.features(description)
    d, first = features(torch.zeros(1, 1, 8, 8)).shape[1], 100
    moments = np.diag(np.geomspace(0.25, 1e-8, d))
    released = ClassSums(np.zeros(10), np.zeros((10, d)), np.zeros(d), moments, 1.0, 1e-9, 1e-9, 1e-9, deviation**2)
    turn = SMALL._target(released, features, 60, torch.device("cpu")).turn
    expected = np.maximum(np.diag(moments)[:first], least) ** -0.25
    np.testing.assert_allclose(turn / turn[0, 0], np.diag(expected / expected[0]), atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize(
    "shape", [(3, 11, 14), *(pytest.param(each, marks=pytest.mark.exhaustive) for each in OTHER_SHAPES)]
)
def test_images_of_other_sizes_and_colours_are_drawn(shape):
    """Halves that were mixed up would differ by nothing, or the other way; these by 0.29 or more under other noise."""
    rng = np.random.default_rng(0)
    labels = np.arange(120) % 2
    images = (0.2 * rng.random((120, *shape))).astype(np.float32)
    half = shape[2] // 2
    images[labels == 0, ..., :half] += 0.8
    images[labels == 1, ..., half:] += 0.8
    description = mock_description(records=120, record_shape=shape, epsilon=99.0, delta=1e-4, classes=2)
    records, randomness = torch.from_numpy(images), np.random.default_rng(0).bytes
    where = MockCurator(description, records=lambda n: records[:n], labels=labels, randomness=randomness)
    method = Replayed(low=0.0, axes=20, coordinates=10, waves=20, pretraining=30, updates=80, images=40, looked=4)
    plan, _ = plan_generator(where, method, epsilon=90.0)
    x, y = generate(where, plan, device="cpu", progress=False).sample(60)
    assert x.shape == (60, *shape)
    for c, bright, dark in ((0, slice(half), slice(half, None)), (1, slice(half, None), slice(half))):
        assert float(x[y == c][..., bright].mean()) > 0.15 + float(x[y == c][..., dark].mean())


@pytest.mark.long
def test_the_file_holds_all_of_it_and_the_page_and_the_card_say_so(fitted, tmp_path):
    generator, _, _ = fitted
    path = tmp_path / "g.safetensors"
    generator.save(path)
    again = load_generator(path)
    torch.testing.assert_close(again.sample(30, seed=2)[0], generator.sample(30, seed=2)[0])
    words = ["generate", "--from", str(path), "--rows", "120"]
    pages = ["--grid", str(tmp_path / "g.png"), "--report", str(tmp_path / "g.html")]
    for target in ("rows.npz", "rows.parquet", "images"):
        done = CliRunner().invoke(main, [*words, "--records", str(tmp_path / target), *pages])
        assert done.exit_code == 0, done.output
        pages = []
    with np.load(tmp_path / "rows.npz") as held:
        np.testing.assert_allclose(held["probabilities"].sum(axis=1), 1.0, atol=1e-5)
        assert held["x"].shape == (120, 1, 8, 8)
    from pyarrow import parquet

    table = parquet.read_table(tmp_path / "rows.parquet")
    assert (table.num_rows, table.num_columns) == (120, 64 + 1 + 10)
    assert len(list((tmp_path / "images").rglob("*.png"))) == 120
    for card in (tmp_path / "rows.npz.card.md", tmp_path / "images" / "card.md"):
        text = card.read_text()
        for word in (
            "replace-one",
            "at delta 0.0001",
            "accountant",
            "seed of the fit: 3",
            "seed of this draw: 0",
            "single people",
        ):
            assert word in text
    page = (tmp_path / "g.html").read_text()
    assert "data:image/png;base64," in page
    assert "http" not in page
    assert page.count("<svg") == 10 * 9
    shares = [row for row in generator.facts["marginals"] if row["what"] == "share"]
    assert sum(row["released"] for row in shares) == pytest.approx(1.0, abs=1e-9)


@pytest.mark.long
def test_a_generator_is_a_source_of_labelled_records(fitted, tmp_path):
    generator, _, _ = fitted
    generator.save(tmp_path / "g.safetensors")
    words = ["train", "--set", f"data.source={tmp_path / 'g.safetensors'}", "--set", "data.rows=300", "--dry-run"]
    words += [
        "--records",
        "500",
        "--source-epochs",
        "1",
        "--device",
        "cpu",
        "--format",
        "json",
        "--method",
        "statistics",
    ]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["dry_run"]
    batches = generator.batches(100, batch_size=40)
    assert [len(y) for _, y in batches] == [40, 40, 20]


@pytest.mark.long
def test_the_teams_extractor_takes_the_scatterings_place_and_labels_the_rows(fitted):
    held = fitted[2].source
    description = mock_description(records=len(held), record_shape=(1, 8, 8), epsilon=30.0, delta=1e-4, classes=10)
    where = MockCurator(
        description, records=lambda n: held.images[:n], labels=held.labels.numpy(),
        randomness=np.random.default_rng(0).bytes,
    )  # fmt: skip
    torch.manual_seed(0)
    own = nn.Sequential(nn.Flatten(), nn.Linear(64, 40), nn.ReLU()).eval()
    plan, _ = plan_generator(where, replace(SMALL, pretraining=20, updates=40), epsilon=20.0, extractor=own)
    generator = generate(where, plan, extractor=own, device="cpu", progress=False)
    labels = generator.labeller.features(held.images).argmax(dim=1)
    assert float((labels == held.labels).double().mean()) > 0.7
    assert len(torch.unique(generator.sample(500)[1])) == 10


def test_what_is_no_image_is_refused_before_anything_is_charged():
    description = mock_description(records=100, record_shape=(5,), epsilon=1.0, delta=1e-5, classes=2)
    where = MockCurator(description)
    with pytest.raises(InvalidValue, match="gaussian"):
        plan_generator(where, Replayed(), epsilon=0.5)
    assert where.charges == []
    for wrong in ({"axes": 0}, {"tries": 1000}, {"low": 1.0, "high": 0.0}):
        with pytest.raises(InvalidValue):
            Replayed(**wrong)


@pytest.mark.long
def test_a_class_without_records_shows_nothing_but_noise(fitted):
    """Its share stays positive, its mean is the common centre but for noise: nothing says that nobody is in it."""
    task = fitted[2]
    labels = np.where(task.source.labels.numpy() == 7, 1, task.source.labels.numpy())
    description = mock_description(records=len(labels), record_shape=(1, 8, 8), epsilon=2.0, delta=1e-4, classes=10)
    where = MockCurator(description, records=lambda n: task.source.images[:n], labels=labels)
    plan, _ = plan_generator(where, replace(SMALL, pretraining=5, updates=10), epsilon=1.0)
    generator = generate(where, plan, device="cpu", progress=False)
    assert min(generator.shares) > 0.0
    assert set(generator.sample(200)[1].tolist()) <= set(range(10))


@pytest.mark.long
@pytest.mark.parametrize(("noise", "follows"), [(0.0, True), (1e3, False)])
def test_classes_are_followed_no_further_than_noise_hides_them(noise, follows):
    description = mock_description(records=900, record_shape=(1, 8, 8), epsilon=9.0, delta=1e-5, classes=2)
    features = SMALL.features(description)
    d = features(torch.zeros(1, 1, 8, 8)).shape[1]
    target = Target(
        features, torch.zeros(2, d), noise, torch.full((2,), 0.5), torch.eye(50), torch.zeros(50, 50),
        images=6, looked=4, weight=1e-9,
    )  # fmt: skip
    images = torch.rand((2, 6, 1, 8, 8), generator=torch.Generator().manual_seed(0)).requires_grad_()
    moving = {"means": torch.zeros(2, d), "moments": torch.zeros(50, 50)}
    target.loss(images, moving, 1.0).backward()
    assert (target.distance(moving) > 0.0) == follows
    assert (float(images.grad.abs().sum()) > 1e-3) == follows
