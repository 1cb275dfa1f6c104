"""The README's session against a real curator process: real sockets, certificates, ledger, noise."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from dpswd import AllWeights, DomainAdaptation, Finetune, Hospital, Rows
from dpswd.public_client.data.accuracy import accuracy, features
from dpswd.public_client.data.datasets import load_task
from dpswd.public_client.data.networks import digits_network
from dpswd.public_client.data.source import source_loader, train_source
from dpswd.public_client.testing.local_hospital import LocalHospital
from dpswd.public_client.training.saved_model import load_adapted
from dpswd.shared.books import chain_checks
from dpswd.shared.core.errors import BudgetExhausted, RunFinished

torch.set_num_threads(1)

EPSILON, DELTA = 4.0, 1e-5


@pytest.fixture(scope="module")
def task():
    return load_task("digits")


@pytest.fixture(scope="module")
def trained(task):
    """A source-trained network; tests take copies by state."""
    torch.manual_seed(0)
    extractor, classifier = digits_network(task.image_shape)
    train_source(extractor, classifier, source_loader(task.source, batch_size=64), epochs=30)
    return extractor, classifier


@pytest.fixture
def without_workers(monkeypatch):
    """For curators whose workers are not what a test is about; the first one here has them."""
    monkeypatch.setenv("DPSWD_CURATOR_COMPUTE__ISOLATION", "in-process")


def fresh(trained, task):
    extractor, classifier = digits_network(task.image_shape)
    extractor.load_state_dict(trained[0].state_dict())
    classifier.load_state_dict(trained[1].state_dict())
    return extractor.eval(), classifier.eval()


def test_the_eight_line_session_adapts_and_the_spent_budget_refuses_also_after_a_restart(task, trained, tmp_path):
    extractor, classifier = fresh(trained, task)
    before = accuracy(extractor, classifier, task.target)
    loader = source_loader(task.source, batch_size=64)
    labelled = {"labels": task.target.labels.numpy(), "classes": 10}
    with LocalHospital(task.target.images.numpy(), epsilon=EPSILON, delta=DELTA, device="cpu", **labelled) as hospital:
        with Hospital.connect(
            hospital.address, credentials=hospital.credentials, run_directory=tmp_path / "run"
        ) as connected:
            assert connected.describe().records == len(task.target)
            plan = connected.plan(Finetune(), epsilon=EPSILON, steps=40, batch_size=898)
            model = DomainAdaptation(
                extractor, classifier, hospital=connected, plan=plan, source_epochs=0, device="cpu"
            )
            model.fit(loader, progress=False)
            model.save(tmp_path / "adapted.safetensors")
            after = 100 * model.score(task.target.images, task.target.labels)
            # In six runs the gain was at least 25 points; a curator that ignored its labels would gain none.
            assert after > before + 15
            spent = connected.describe()
            assert 0.98 * EPSILON < spent.spent <= EPSILON
            with pytest.raises(BudgetExhausted) as refused:
                model.fit(loader, progress=False)
            assert refused.value.spent == pytest.approx(spent.spent)
        hospital.stop()
        hospital.start()
        with hospital.connect() as connected:
            assert connected.describe().spent == pytest.approx(spent.spent)
            again = DomainAdaptation(
                *fresh(trained, task), hospital=connected, plan=plan, source_epochs=0, device="cpu"
            )
            with pytest.raises(BudgetExhausted, match=", left "):
                again.fit(loader, progress=False)
            key = bytes.fromhex(connected.describe().ledger_public_key)
    loaded = load_adapted(tmp_path / "adapted.safetensors", device="cpu")
    np.testing.assert_array_equal(
        loaded.predict(task.target.images).numpy(), model.predict(task.target.images).cpu().numpy()
    )
    entries, findings = chain_checks.read_export((tmp_path / "run" / "receipts.jsonl").read_text().splitlines())
    assert (len(entries), findings) == (41, [])  # the run's charge, and each of its steps
    assert all(entry.signed_by(key) for entry in entries)


@pytest.mark.usefixtures("without_workers")
def test_a_hospital_with_the_sources_own_records_is_at_distance_zero(task, trained):
    """Both parties read the public map, the directions and the coefficients alike: else the distance is not zero."""
    extractor, _ = fresh(trained, task)
    with (
        LocalHospital(task.source.images.numpy(), epsilon=3000.0, delta=DELTA, device="cpu") as hospital,
        hospital.connect() as connected,
    ):
        method = AllWeights(directions=100, coefficients=4, gradient_share=0.05, batch_records=len(task.source))
        everything = {"steps": 1, "batch_size": len(task.source)}
        plan = connected.plan(method, epsilon=1000.0, **everything)
        own = features(extractor, task.source.images)
        with connected.open(plan, extractor) as run:
            assert abs(float(run.loss(own))) < 1e-4
            with pytest.raises(RunFinished):
                run.loss(own)
        moved = connected.plan(Rows(directions=50, batch_records=len(own)), epsilon=1000.0, steps=2, batch_size=200)
        shifted = (own + 1.0).requires_grad_(True)
        with connected.open(moved, fresh(trained, task)[0]) as run:
            run.loss(shifted).backward()
        assert shifted.grad is not None
        assert torch.isfinite(shifted.grad).all()


@pytest.mark.usefixtures("without_workers")
def test_all_weights_row_by_row_runs_and_spends_what_was_planned(task, trained):
    extractor, classifier = fresh(trained, task)
    with (
        LocalHospital(task.target.images.numpy(), epsilon=8.0, delta=DELTA, device="cpu") as hospital,
        hospital.connect() as connected,
    ):
        plan = connected.plan(Rows(directions=50), epsilon=8.0, steps=5, batch_size=64)
        weights = {name: value.clone() for name, value in extractor.state_dict().items()}
        DomainAdaptation(extractor, classifier, hospital=connected, plan=plan, source_epochs=0, device="cpu").fit(
            source_loader(task.source, batch_size=64), progress=False
        )
        changed = [name for name, value in extractor.state_dict().items() if not torch.equal(value, weights[name])]
        assert changed == list(weights)
        assert connected.describe().spent <= 8.0
        books = hospital.budget()
        assert books["epsilon_spent"] == pytest.approx(connected.describe().spent)
        json.dumps(books)
