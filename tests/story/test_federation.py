"""One team, two hospitals as real curator processes: one is killed, one is exhausted, both in mid-training."""

from __future__ import annotations

import signal
from contextlib import suppress

import pytest
import torch

from dpswd import DomainAdaptation, Federation, Finetune, Hospital, Replay
from dpswd.public_client.data.datasets import load_task
from dpswd.public_client.data.networks import digits_network
from dpswd.public_client.data.source import source_loader, train_source
from dpswd.public_client.testing.local_hospital import LocalHospital
from dpswd.shared.core.errors import PrivacyError, SettingsError

pytestmark = [pytest.mark.usefixtures("extractors_in_process")]
torch.set_num_threads(1)

STEPS, EPSILON = 8, 2.0


@pytest.fixture(scope="module")
def task():
    return load_task("digits")


@pytest.fixture(scope="module")
def hospitals(task):
    """Two hospitals with different shifts, sizes and budgets."""
    images, labels = task.target.images, task.target.labels.numpy()
    north, south = images[:300].numpy(), (images[300:500] * 0.8 - 0.1).numpy()
    options = {"delta": 1e-5, "classes": 10, "device": "cpu"}
    with (
        LocalHospital(north, epsilon=20.0, name="north", labels=labels[:300], **options) as first,
        LocalHospital(south, epsilon=2 * EPSILON, name="south", labels=labels[300:500], **options) as second,
    ):
        yield {"north": first, "south": second}


@pytest.fixture(scope="module")
def trained(task):
    torch.manual_seed(0)
    extractor, classifier = digits_network(task.image_shape)
    train_source(extractor, classifier, source_loader(task.source, batch_size=64), epochs=5)
    return extractor.state_dict(), classifier.state_dict()


def connect(hospitals, run_directory=None):
    return Federation.connect(
        {name: hospital.address for name, hospital in hospitals.items()},
        credentials={name: hospital.credentials for name, hospital in hospitals.items()},
        patience_s=1.0,
        run_directory=run_directory,
    )


def adaptation(federation, trained, **options):
    extractor, classifier = digits_network((1, 8, 8))
    extractor.load_state_dict(trained[0])
    classifier.load_state_dict(trained[1])
    plans = federation.plan(Finetune(source_records=200), epsilon=EPSILON, steps=STEPS, batch_size=150)
    return DomainAdaptation(
        extractor, classifier, hospital=federation, plan=plans, source_epochs=0, device="cpu", **options
    )


def states(model):
    return {report["site"]: (report["state"], report["steps"]) for report in model.reports}


@pytest.mark.timeout(900)  # three trainings and a restart; a busy machine takes minutes
def test_a_hospital_that_dies_and_one_that_is_exhausted_do_not_end_the_training(hospitals, task, trained, tmp_path):
    loader = source_loader(task.source, batch_size=64)
    calls = []

    def kill_south(extractor, classifier):
        calls.append(len(calls))
        if len(calls) == 4:  # before the first step, and after each of three
            hospitals["south"]._process.send_signal(signal.SIGKILL)
            hospitals["south"]._process.wait()
        return 0.0

    with connect(hospitals, tmp_path / "run") as federation:
        model = adaptation(federation, trained)
        model.fit(loader, evaluate={"south": kill_south}, checkpoint=tmp_path / "run", progress=False)
        assert states(model) == {"north": ("finished", STEPS), "south": ("set aside", 3)}
        assert "CuratorUnavailable" in model.reports[1]["reason"]

    # The dead hospital comes back: only its own steps are drawn, and no run is charged again.
    hospitals["south"]._process = None
    hospitals["south"].start()
    with connect(hospitals, tmp_path / "run") as federation:
        again = adaptation(federation, trained)
        again.fit(loader, checkpoint=tmp_path / "run", progress=False)
        assert states(again) == {"north": ("finished", STEPS), "south": ("finished", STEPS)}
        files = again.save(tmp_path / "adapted.safetensors")
        assert [file.name for file in files] == ["adapted-north.safetensors", "adapted-south.safetensors"]
        other = model.model("north").extractor.state_dict()
        for name, value in again.model("north").extractor.state_dict().items():
            torch.testing.assert_close(value, other[name])
    for hospital in hospitals.values():
        assert hospital.budget()["steps_charged"] == STEPS
        assert 0.9 * EPSILON < hospital.budget()["epsilon_spent"] <= EPSILON

    # In the next training somebody else spends what south had left, after it was asked and before its run is opened.
    class Rival:
        def __init__(self):
            self.spent = False

        def __iter__(self):
            if not self.spent:
                self.spent = True
                south = hospitals["south"]
                with Hospital.connect(south.address, credentials=south.credentials) as rival:
                    extractor, _ = digits_network((1, 8, 8))
                    plan = rival.plan(Replay(directions=20), epsilon=EPSILON * 0.95)
                    with suppress(PrivacyError):  # runs together cost less than their sum: until nothing fits any more
                        for _ in range(50):
                            rival.open(plan, extractor.eval())
            return iter(loader)

        def __len__(self):
            return len(loader)

    with connect(hospitals) as federation:
        model = adaptation(federation, trained, shared=True)
        model.source_epochs = 1
        model.fit(Rival(), progress=False)
        assert states(model) == {"north": ("finished", STEPS), "south": ("refused", 0)}
        assert "BudgetExhausted" in model.reports[1]["reason"]
    assert hospitals["north"].budget()["steps_charged"] == 2 * STEPS
    assert hospitals["south"].budget()["epsilon_spent"] <= 2 * EPSILON


def test_a_checkpoint_for_other_sites_is_refused(hospitals, task, trained, tmp_path):
    loader = source_loader(task.source, batch_size=64)
    north = hospitals["north"]
    with Federation({"north": north.connect()}) as federation:
        adaptation(federation, trained).fit(loader, checkpoint=tmp_path / "run", progress=False)
    with Federation({"elsewhere": north.connect()}) as federation, pytest.raises(SettingsError, match="another plan"):
        adaptation(federation, trained).fit(loader, checkpoint=tmp_path / "run", progress=False)
