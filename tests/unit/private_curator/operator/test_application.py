"""`dpswd-curator apply`: local, refusing what does not fit, with a drift report that finds what was moved."""

from __future__ import annotations

import csv
import json
import stat
import sys

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from scipy.stats import ks_2samp
from torch import nn

from dpswd.private_curator.cli.main import main
from dpswd.private_curator.operator.drift import DriftMeter, ks_at_least
from dpswd.public_client.extractor.tracing import module_weights, trace
from dpswd.shared.models.adapted import write_adapted
from dpswd.shared.models.source_statistics import LEVELS, SourceStatistics, quantiles_of

N, WIDTH = 300, 5
RNG = np.random.default_rng(9)
SOURCE = RNG.normal(size=(800, WIDTH)).astype(np.float32)
RECORDS = RNG.normal(size=(N, WIDTH)).astype(np.float32)
RECORDS[:, 2] += 2.0  # the third value has drifted, the others have not


def _model(path, *, width=WIDTH, classes=3, statistics=True):
    torch.manual_seed(4)
    extractor, classifier = nn.Sequential(nn.Linear(width, 8), nn.Tanh()), nn.Linear(8, classes)
    graph, head = trace(extractor, (width,)), trace(classifier, (8,))
    source = torch.from_numpy(SOURCE)
    with torch.no_grad():
        made = SourceStatistics.of(source, extractor(source), classifier(extractor(source))) if statistics else None
    write_adapted(
        path,
        extractor=(graph, module_weights(extractor, graph)),
        classifier=(head, module_weights(classifier, head)),
        plan={},
        statistics=made,
    )
    return nn.Sequential(extractor, classifier)


def _run(*arguments, status=0):
    done = CliRunner().invoke(main, ["apply", *map(str, arguments)])
    assert done.exit_code == status, done.output
    return done.output


@pytest.fixture
def files(tmp_path):
    np.save(tmp_path / "records.npy", RECORDS)
    return tmp_path, _model(tmp_path / "m.safetensors")


def test_predictions_are_the_models_in_the_records_order_and_the_files_are_private(files):
    folder, module = files
    shown = json.loads(
        _run(folder / "m.safetensors", "--records", folder / "records.npy", "--out", folder / "p.csv",
             "--report", folder / "drift.json", "--format", "json")
    )  # fmt: skip
    with (folder / "p.csv").open() as file:
        rows = list(csv.DictReader(file))
    with torch.no_grad():
        shares = module(torch.from_numpy(RECORDS)).softmax(dim=1)
    assert [int(row["prediction"]) for row in rows] == shares.argmax(dim=1).tolist()
    np.testing.assert_allclose([float(row["confidence"]) for row in rows], shares.amax(dim=1), atol=1e-5)
    assert [int(row["record"]) for row in rows] == list(range(N))
    for name in ("p.csv", "drift.json"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600
    assert shown["records"] == N
    assert shown["drift"] == json.loads((folder / "drift.json").read_text())


def test_the_drift_report_names_the_value_that_moved_and_says_that_it_is_not_private(files):
    folder, _ = files
    text = _run(folder / "m.safetensors", "--records", folder / "records.npy", "--out", folder / "p.csv",
                "--report", folder / "drift.json")  # fmt: skip
    assert "not private" in text
    drift = json.loads((folder / "drift.json").read_text())
    first, *others = drift["values"]
    assert first["name"] == "2"
    truth = ks_2samp(RECORDS[:, 2], SOURCE[:, 2]).statistic
    assert truth - 2 / (LEVELS - 1) < first["distance"] <= truth + 1 / (LEVELS - 1)
    assert first["mean_shift"] == pytest.approx(2.0, abs=0.3)
    assert all(other["distance"] < 0.15 for other in others)
    assert drift["drifted"] == 0.2
    assert drift["feature_distance"] > 3 * drift["chance"]
    assert sum(drift["confidences"]) == pytest.approx(1.0)
    assert drift["notice"].startswith("local and not private")


def test_nothing_is_sent_anywhere(files):
    """No socket is even made while a model is applied."""
    folder, _ = files
    seen = []
    active = True

    def audit(event, _arguments):
        if active and event.startswith("socket."):
            seen.append(event)

    sys.addaudithook(audit)
    _run(folder / "m.safetensors", "--records", folder / "records.npy", "--out", folder / "p.csv")
    active = False
    assert seen == []


def test_a_model_for_other_records_or_classes_is_refused(files, tmp_path):
    folder, _ = files
    _model(tmp_path / "wide.safetensors", width=7, statistics=False)
    text = _run(tmp_path / "wide.safetensors", "--records", folder / "records.npy", "--out", folder / "p.csv", status=4)
    assert "takes records of shape (7,), these have (5,)" in text
    np.savez(folder / "labelled.npz", x=RECORDS, y=np.zeros(N, dtype=np.int64))
    text = _run(
        folder / "m.safetensors", "--records", folder / "labelled.npz", "--array", "x", "--labels-array", "y",
        "--classes", "a,b", "--out", folder / "p.csv", status=4,
    )  # fmt: skip
    assert "label is not one of the 2 names" in text or "tells 3 classes apart, the hospital declares 2" in text
    assert not (folder / "p.csv").exists()
    _run(folder / "records.npy", "--records", folder / "records.npy", "--out", folder / "p.csv", status=4)


def test_own_labels_give_an_accuracy_that_stays_here_and_names_give_readable_predictions(files):
    folder, module = files
    with torch.no_grad():
        guesses = module(torch.from_numpy(RECORDS)).argmax(dim=1).numpy()
    labels = np.array(["no", "yes", "maybe"])[guesses]
    labels[:30] = np.where(guesses[:30] == 0, "yes", "no")
    np.savez(folder / "labelled.npz", x=RECORDS, y=labels)
    shown = json.loads(
        _run(folder / "m.safetensors", "--records", folder / "labelled.npz", "--array", "x", "--labels-array", "y",
             "--classes", "no,yes,maybe", "--out", folder / "p.csv", "--format", "json")
    )  # fmt: skip
    assert shown["accuracy_on_own_labels"] == pytest.approx((N - 30) / N)
    with (folder / "p.csv").open() as file:
        assert {row["prediction"] for row in csv.DictReader(file)} <= {"no", "yes", "maybe"}


def test_a_curators_home_says_how_its_records_are_read(files):
    folder, _ = files
    pixels = (RECORDS - RECORDS.min()) / np.ptp(RECORDS) * 255
    np.savez(folder / "export.npz", x=pixels.astype(np.uint8), y=np.arange(N) % 3)
    done = CliRunner().invoke(
        main,
        ["init", "--home", str(folder / "home"), "--records", str(folder / "export.npz"), "--array", "x",
         "--labels-array", "y", "--classes", "3", "--scale-to", "-1", "1", "--epsilon", "1", "--delta", "1e-5"],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    shown = json.loads(
        _run(folder / "m.safetensors", "--home", folder / "home", "--out", folder / "a.csv", "--format", "json")
    )
    assert "accuracy_on_own_labels" in shown
    np.savez(folder / "new.npz", x=pixels[:40].astype(np.uint8))
    shown = json.loads(
        _run(folder / "m.safetensors", "--home", folder / "home", "--records", folder / "new.npz", "--out",
             folder / "b.csv", "--format", "json")
    )  # fmt: skip
    assert shown["records"] == 40
    assert "accuracy_on_own_labels" not in shown
    assert (folder / "b.csv").read_text().splitlines()[:41] == (folder / "a.csv").read_text().splitlines()[:41]


def test_nothing_is_overwritten_and_what_is_missing_is_named(files):
    folder, _ = files
    (folder / "p.csv").write_text("mine")
    text = _run(folder / "m.safetensors", "--records", folder / "records.npy", "--out", folder / "p.csv", status=3)
    assert "nothing is ever overwritten" in text
    assert (folder / "p.csv").read_text() == "mine"
    assert "--records" in _run(folder / "m.safetensors", "--out", folder / "q.csv", status=3)
    text = _run(folder / "m.safetensors", "--records", folder / "records.npy", "--out", folder / "q.csv",
                "--record-shape", "a,b", status=3)  # fmt: skip
    assert "--record-shape" in text


def test_a_model_without_statistics_gives_predictions_and_says_why_there_is_no_report(files):
    folder, _ = files
    _model(folder / "bare.safetensors", statistics=False)
    text = _run(folder / "bare.safetensors", "--records", folder / "records.npy", "--out", folder / "p.csv")
    assert "no drift report" in text


@pytest.mark.parametrize("kind", ["continuous", "repeated", "constant"])
def test_the_bound_never_exceeds_the_true_distance_and_is_near_it(kind):
    rng = np.random.default_rng(17)
    for shift in (0.0, 0.3, 1.5):
        source, other = rng.normal(size=4001), rng.normal(size=3000) + shift
        if kind == "repeated":
            source, other = np.round(source), np.round(other)
        if kind == "constant":
            source = np.zeros_like(source)
        quantiles = quantiles_of(torch.from_numpy(source)[:, None])
        values = torch.from_numpy(other)[:, None]
        below = torch.stack([(values < q).double().mean(dim=0) for q in quantiles[0]], dim=1)
        upto = torch.stack([(values <= q).double().mean(dim=0) for q in quantiles[0]], dim=1)
        bound, truth = float(ks_at_least(quantiles, below, upto)), ks_2samp(source, other).statistic
        # The table is one order statistic a level: its own rounding is below 1/4000.
        assert bound <= truth + 1e-3
        assert bound >= truth - 2 / (LEVELS - 1) - 1e-3


def test_a_constant_value_has_no_shift_in_deviations():
    source = torch.cat([torch.randn(50, 1), torch.zeros(50, 1)], dim=1)
    statistics = SourceStatistics.of(source, torch.randn(50, 3), torch.randn(50, 2))
    meter = DriftMeter(statistics, record_shape=(2,))
    meter.add(torch.ones(10, 2), torch.randn(10, 3), torch.randn(10, 2))
    by_name = {value.name: value for value in meter.report().values}
    assert by_name["1"].mean_shift is None
    assert by_name["1"].outside == 1.0
    assert by_name["1"].distance == 1.0
