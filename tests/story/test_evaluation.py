"""Evaluations and a training against a curator process, through the client's own commands."""

from __future__ import annotations

import csv
import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from declarations import evaluation, quantiles
from drawn_steps import new_step, parameters
from small_methods import trained_by
from torch import nn

from dpswd.public_client.cli.main import main
from dpswd.public_client.methods import Statistics
from dpswd.public_client.methods.evaluation import Evaluate
from dpswd.public_client.testing.local_hospital import LocalHospital
from dpswd.public_client.training.run import RequestIds
from dpswd.public_client.training.saved_model import save_adapted
from dpswd.shared.core.errors import BudgetExhausted, InvalidValue, RequestIdReused, RequestInvalid
from dpswd.shared.core.mechanisms.evaluation.mechanism import EvaluationDeclaration
from dpswd.shared.models.adapted import read_adapted

pytestmark = [pytest.mark.usefixtures("extractors_in_process")]
torch.set_num_threads(1)

N, WIDTH, CLASSES = 400, 6, 3
RNG = np.random.default_rng(21)
CENTRES = RNG.normal(size=(CLASSES, WIDTH)) * 1.5
LABELS = RNG.integers(CLASSES, size=N)
RECORDS = (CENTRES[LABELS] + RNG.normal(size=(N, WIDTH))).astype(np.float32)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A delivered file."""
    extractor, classifier = _nearest_centre()
    path = tmp_path_factory.mktemp("model") / "adapted.safetensors"
    save_adapted(path, extractor=extractor, classifier=classifier, record_shape=(WIDTH,), plan={})
    return path


@pytest.fixture(scope="module")
def hospital(tmp_path_factory):
    with LocalHospital(
        RECORDS, epsilon=4.0, delta=1e-5, device="cpu", labels=LABELS, classes=CLASSES,
        directory=tmp_path_factory.mktemp("hospital"),
    ) as running:  # fmt: skip
        yield running


def _truth():
    scores = RECORDS @ CENTRES.T - 0.5 * (CENTRES**2).sum(axis=1)
    return float((scores.argmax(axis=1) == LABELS).mean())


def test_the_command_prices_evaluates_and_repeats_for_free(hospital, model, tmp_path):
    """One evaluation, its price before, its figures, its receipts, its repeat; then what is refused."""
    common = ["evaluate", str(model), "--curator", hospital.address, "--credentials", str(hospital.credentials)]

    def run(*arguments, status=0):
        done = CliRunner().invoke(main, [*common, *map(str, arguments)])
        assert done.exit_code == status, done.output
        return done.output

    with hospital.connect() as connected:
        before = connected.describe()
        assert (before.classes, "evaluation" in before.mechanisms) == (CLASSES, True)
        priced = json.loads(run("--epsilon", 1.0, "--price", "--format", "json"))
        assert priced["quote"]["fits"] is True
        assert connected.describe().spent == before.spent == 0.0
        directory = tmp_path / "evaluation"
        report = json.loads(run("--epsilon", 1.0, "--directory", directory, "--format", "json"))
        # The interval misses by chance in 5% of runs; four times its width in fewer than 1e-12.
        assert abs(report["accuracy"] - _truth()) < 4 * priced["accuracy_error"]
        assert sum(map(sum, report["confusion"])) == pytest.approx(N)
        spent = connected.describe().spent
        assert spent == pytest.approx(priced["quote"]["epsilon"])
        assert len((directory / "receipts.jsonl").read_text().splitlines()) == 2  # the charge, the release
        again = json.loads(run("--epsilon", 1.0, "--directory", directory, "--format", "json"))
        assert {k: v for k, v in again.items() if k not in ("spent", "remaining")} == {
            k: v for k, v in report.items() if k not in ("spent", "remaining")
        }
        assert connected.describe().spent == spent
        assert "other options" in run("--epsilon", 0.5, "--directory", directory, status=3)
        assert "budget" in run("--epsilon", 4.0, status=8)
        assert "does NOT fit" in run("--epsilon", 20, "--price", status=8)
        assert connected.describe().spent == spent


def test_what_does_not_fit_is_refused_before_anything_is_charged(hospital, model):
    whole, bare = Evaluate(), Evaluate(confusion=False, bins=0)
    with hospital.connect() as connected:
        spent = connected.describe().spent
        for wrong, match in ((nn.Linear(WIDTH, 5), "5 scores"), (nn.Linear(WIDTH + 1, CLASSES), "cannot travel|shape")):
            with pytest.raises((InvalidValue, RequestInvalid), match=match):
                connected.evaluate(wrong, whole, epsilon=0.5)
        with pytest.raises(InvalidValue, match="cannot be evaluated"):
            connected.evaluate(object(), whole, epsilon=0.5)
        ids, plan = RequestIds(), connected.plan_evaluation(bare, epsilon=0.05)
        small = connected.evaluate(model, plan, request_ids=ids)
        assert small.confusion is None
        assert small.reliability == ()
        with pytest.raises(RequestIdReused):
            connected.evaluate(nn.Linear(WIDTH, CLASSES), plan, request_ids=ids)
        # A run takes the request of its own mechanism, and no other's.
        curator = connected.curator
        uploaded = curator.upload_extractor(*_graph(nn.Linear(WIDTH, CLASSES)))
        for declared in (evaluation(EvaluationDeclaration(CLASSES, 1e5)), quantiles(1, 1e5, directions=2)):
            run = curator.open_run(parameters(uploaded, declared, batch_size=N, steps=1))
            with pytest.raises(RequestInvalid, match="payload"):
                curator.send(new_step(run, np.ones((2, CLASSES), np.float32)))
            assert curator.send(new_step(run)).step == 1
        assert connected.describe().spent < spent + 0.5


def _graph(module):
    from dpswd.public_client.extractor.tracing import module_weights, trace, weights_to_bytes

    graph = trace(module, (WIDTH,))
    return graph.to_bytes(), weights_to_bytes(module_weights(module, graph))


def test_the_delivered_model_runs_at_the_hospital_without_the_client(hospital, model, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "dpswd.private_curator.cli", "apply", str(model), "--home", str(hospital.home), "--out",
         str(tmp_path / "p.csv"), "--format", "json"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["accuracy_on_own_labels"] == pytest.approx(_truth())
    with (tmp_path / "p.csv").open() as file:
        assert len(list(csv.DictReader(file))) == N


def test_a_training_is_charged_at_the_accountants_price_and_moves_the_extractor(tmp_path):
    """Over the real service: the charge is the budget to three digits; tests/unit/public_client has the accuracy.

    The client dies after its second step; the run is charged once, and no step is drawn twice.
    """

    class Died(Exception):
        pass

    def die(module, head):
        calls.append(module)
        if len(calls) == 3:  # before the first step, and after each of two
            raise Died
        return 0.0

    calls = []
    extractor, classifier = _nearest_centre()
    records = RECORDS + np.float32(0.7) * (CENTRES[1] - CENTRES[0]).astype(np.float32)
    source = CENTRES[RNG.integers(CLASSES, size=500)] + RNG.normal(size=(500, WIDTH))
    loader = [(torch.from_numpy(source.astype(np.float32)), torch.zeros(500, dtype=torch.int64))]
    with (
        LocalHospital(records, epsilon=4.0, delta=1e-5, device="cpu") as hospital,
        hospital.connect(run_directory=tmp_path) as connected,
    ):
        with pytest.raises(InvalidValue, match="does not offer 'evaluation'"):  # its operator declares no classes
            connected.evaluate(nn.Linear(WIDTH, CLASSES), epsilon=0.1)
        wishes = {"epsilon": 4.0, "steps": 4, "batch_size": 200}
        asked = ("all-weights", (extractor, classifier), loader, connected)
        sized = {"settings": {"batch_records": 500}, "wishes": wishes}
        with pytest.raises(Died):
            trained_by(*asked, **sized, checkpoint=tmp_path / "run", evaluate=die)
        assert hospital.budget()["steps_charged"] == 4  # all of them when the run was opened
        trained = trained_by(*asked, **sized, checkpoint=tmp_path / "run")
        assert [report["state"] for report in trained.reports] == ["finished"]
        assert trained.history[-1].epsilon == pytest.approx(4.0, rel=1e-3)
        assert connected.describe().spent == pytest.approx(4.0, rel=1e-3)
        with pytest.raises(BudgetExhausted):
            trained_by(*asked, **sized)
        assert len((tmp_path / "receipts.jsonl").read_text().splitlines()) == 5  # the charge and four steps
        (file,) = trained.save(tmp_path / "adapted.safetensors")
    inputs = torch.from_numpy(records)
    moved = read_adapted(file).extractor.features(inputs) - extractor(inputs)
    assert 0.0 < float(moved.detach().abs().max()) < 1.0


def _nearest_centre():
    """Right on most records of the source, and of a hospital without a shift."""
    extractor, classifier = nn.Sequential(nn.Linear(WIDTH, WIDTH)).eval(), nn.Linear(WIDTH, CLASSES)
    with torch.no_grad():
        extractor[0].weight.copy_(torch.eye(WIDTH))
        extractor[0].bias.zero_()
        classifier.weight.copy_(torch.from_numpy(CENTRES))
        classifier.bias.copy_(torch.from_numpy(-0.5 * (CENTRES**2).sum(axis=1)))
    return extractor, classifier


def test_a_small_evaluation_is_admitted_after_a_run_at_a_served_hospital(tmp_path):
    """Both together cost no more than their sum, and one with no room is refused before anything."""
    with (
        LocalHospital(
            RECORDS, epsilon=4.0, delta=1e-5, device="cpu", labels=LABELS, classes=CLASSES, directory=tmp_path / "h"
        ) as hospital,
        hospital.connect() as connected,
    ):
        assert connected.describe().spent == 0.0
        extractor = nn.Linear(WIDTH, WIDTH).eval()
        planned = connected.plan(Statistics(), epsilon=1.0, extractor=extractor)
        connected.open(planned, extractor)
        models = {name: nn.Linear(WIDTH, CLASSES).eval() for name in ("one", "two", "three")}
        assert connected.compare(models, epsilon=0.1).epsilon == 0.1
        spent = connected.describe().spent
        assert spent <= 1.1
        with pytest.raises(BudgetExhausted):
            connected.compare(models, epsilon=3.99)
        assert connected.describe().spent == spent
