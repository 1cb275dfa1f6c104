"""Two processes train as one would with their batches together, and are charged as one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dpswd.public_client.data.ranks import Ranks, _packed, _unpacked
from dpswd.public_client.evidence.certificate import EVIDENCE_SUFFIX, described
from dpswd.public_client.evidence.evidence import Evidence
from dpswd.public_client.ladder.check import check
from dpswd.public_client.methods import method_kinds
from dpswd.public_client.testing.mock import MockCurator, mock_description
from dpswd.public_client.training.distributed import SharedTransport, shared_curators
from dpswd.public_client.training.saved_model import load_adapted
from dpswd.shared.core import errors

SCRIPT = Path(__file__).with_name("ddp_training.py")
ROOT = Path(__file__).resolve().parents[4]


TOGETHER = [name for name in method_kinds() if name != "dpda"]
"""Methods that several processes train by; the other one's refusal is tested beside it."""


def launch(out, *, ranks):
    """Trains by each of them, in as many processes."""
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}",
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    program = [sys.executable, str(SCRIPT), str(out), *TOGETHER]
    if ranks > 1:
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        program = [sys.executable, *torchrun, *program[1:]]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=480, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return out


def results(out, method, *, ranks):
    return [
        (
            torch.load(out / method / f"weights-{rank}.pt", weights_only=True),
            json.loads((out / method / f"report-{rank}.json").read_text()),
        )
        for rank in range(ranks)
    ]


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    return launch(tmp_path_factory.mktemp("one"), ranks=1)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    return launch(tmp_path_factory.mktemp("two"), ranks=2)


@pytest.mark.parametrize("method", TOGETHER)
def test_two_processes_end_where_one_ends_and_are_charged_the_same(one, two, method):
    ((alone, report),) = results(one, method, ranks=1)
    (first, first_report), (second, second_report) = results(two, method, ranks=2)
    for part, weights in first.items():
        for name, value in weights.items():
            torch.testing.assert_close(value, second[part][name], rtol=0, atol=0)  # ranks agree to the bit
            if method != "replay":  # the replay draws its batches from the gathered records, in another order
                torch.testing.assert_close(value, alone[part][name], rtol=1e-3, atol=1e-4)
    assert load_adapted(two / method / "adapted.safetensors", device="cpu").plan["epsilon"] == 2.0
    assert first_report["charges"] == pytest.approx(report["charges"], rel=1e-9)
    assert len(first_report["charges"]) == 1
    assert second_report["charges"] == []  # rank 1 talks to nobody
    assert first_report["steps"] == second_report["steps"] == report["steps"]
    adapted = two / method / "adapted.safetensors"
    evidence = Evidence.from_bytes(adapted.with_suffix(EVIDENCE_SUFFIX).read_bytes())
    checked = check(adapted, key=bytes.fromhex(described(evidence).ledger_public_key))
    assert checked.findings == []
    assert "2 processes made it" in str(checked)
    other = Evidence.from_bytes((one / method / "adapted.evidence").read_bytes())
    assert len(evidence.source) == 64
    assert evidence.source != other.source, "of the shares of both"


@pytest.mark.parametrize("method", ["replay", "rows"])
def test_every_process_learns_what_is_refused_and_what_does_not_fit_together(two, method):
    (_, first_report), (_, second_report) = results(two, method, ranks=2)
    assert first_report["refused"]
    assert second_report["refused"]  # rank 0's refusal reached it, figures included
    assert first_report["statistics"] == second_report["statistics"]
    for reported in (first_report, second_report):
        assert "numbers of source batches differ (4 on rank 0, 3 on rank 1)" in reported["uneven"]
        assert reported["charges after uneven"] == len(reported["charges"])


def test_two_processes_train_against_two_hospitals_as_one_does(one, two):
    for method in ("rows", "replay"):
        alone, charges, reports = torch.load(one / f"several-{method}-0.pt", weights_only=True)
        first, first_charges, first_reports = torch.load(two / f"several-{method}-0.pt", weights_only=True)
        second, second_charges, second_reports = torch.load(two / f"several-{method}-1.pt", weights_only=True)
        assert first_charges == charges == {"north": 1, "south": 1}
        assert second_charges == {"north": 0, "south": 0}
        for own_reports in (first_reports, second_reports):
            assert [(each["state"], each["steps"]) for each in own_reports] == [
                (each["state"], each["steps"]) for each in reports
            ]
        for site, weights in first.items():
            for name, value in weights.items():
                torch.testing.assert_close(value, second[site][name], rtol=0, atol=0)
                if method == "rows":
                    torch.testing.assert_close(value, alone[site][name], rtol=1e-3, atol=1e-4)


def test_a_replay_is_fitted_by_two_processes_as_by_one(one, two):
    """Each candidate draws for itself, so it is the same whoever fits it; tuning shares batches, and ends alike."""
    reason, alone, decoder, trained_on, weights = torch.load(one / "divided-0.pt", weights_only=True)
    both = [torch.load(two / f"divided-{rank}.pt", weights_only=True) for rank in (0, 1)]
    for fit_reason, _, drawn, training_reason, own in both:
        assert (fit_reason, training_reason) == (reason, trained_on)
        torch.testing.assert_close(drawn, decoder, rtol=0, atol=0)  # a generator's decoder, fitted together
        torch.testing.assert_close(own, weights, rtol=0, atol=0)  # trained on by class frequencies
    first, second = (each[1] for each in both)
    for name, value in first.items():
        torch.testing.assert_close(value, second[name], rtol=0, atol=0)
        assert not torch.equal(value, alone[name])  # the parts of a batch are varied by each rank for itself
        torch.testing.assert_close(value, alone[name], rtol=0, atol=0.05)


def test_generators_that_learn_by_steps_end_where_one_process_ends(one, two):
    alone = torch.load(one / "generators-0.pt", weights_only=True)
    both = [torch.load(two / f"generators-{rank}.pt", weights_only=True) for rank in (0, 1)]
    assert len(alone) == 2
    for name, (weights, charges) in alone.items():
        (first, first_charges), (second, second_charges) = (each[name] for each in both)
        torch.testing.assert_close(first, second, rtol=0, atol=0)
        torch.testing.assert_close(first, weights, rtol=1e-3, atol=1e-4)
        assert first_charges == pytest.approx(charges)
        assert (len(charges), second_charges) == (1, [])


def test_no_rank_waits_for_one_that_failed(two):
    """The rank with the fault raises it as it is, the other one is told of it."""
    own = "ValueError('of number 1')"
    raised = repr(RuntimeError(f"another process of this job failed: {own}"))
    assert json.loads((two / "failed-0.json").read_text()) == [own, raised]
    assert json.loads((two / "failed-1.json").read_text()) == [raised, own]


@pytest.mark.parametrize("rank", [0, 1])
def test_no_thread_of_gloo_outlives_the_process_group(two, rank):
    """Python aborts if it ends while a late thread of gloo still drops its tensors."""
    before, after = json.loads((two / f"threads-{rank}.json").read_text())
    assert before > 0
    assert after == 0


def test_errors_survive_the_way_between_ranks():
    for error in (
        errors.BudgetExhausted(1.0, 2.0, 0.5, 3, "client"),
        errors.RequestInvalid((("field", "is wrong"),)),
        errors.CuratorUnavailable("gone"),
    ):
        again = _unpacked(*_packed(error))
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert vars(again) == vars(error)


def test_one_process_is_a_job_of_one():
    ranks = Ranks.current()
    assert (ranks.rank, ranks.size, ranks.first) == (0, 1, True)
    rows = torch.ones(2, 3)
    assert ranks.gather(rows) is rows
    with pytest.raises(errors.SettingsError, match="rank 0"):
        SharedTransport(None)
    curators = shared_curators(
        lambda: {"north": MockCurator(mock_description(records=9, record_shape=(2,), epsilon=1.0, delta=1e-5))}
    )
    assert curators["north"].describe().records == 9
