"""Clients that die, and clients that race, against a curator in a container."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # under importlib mode a test directory is no package

from two_sites import STEPS, TRAIN, TRAINING_S, finish, wait

pytestmark = [
    pytest.mark.containers,
    pytest.mark.exhaustive,
    pytest.mark.timeout(1800),
]


def test_a_client_that_is_killed_and_resumed_spends_nothing_twice(sites):
    sites.leave(4)
    before, answered = sites.budget(), sites.answers
    outputs = "--checkpoint killed-run --save killed.safetensors"
    training = sites.team(f"{TRAIN} {outputs}")
    wait("a few steps", seconds=TRAINING_S, condition=lambda: sites.answers >= answered + 3)
    training.kill("SIGKILL")
    assert training.wait(timeout=60)["StatusCode"] == 137
    training.remove()
    half = sites.budget()
    assert half["runs"] == before["runs"] + 1
    assert before["steps_used"] + 3 <= half["steps_used"] < before["steps_used"] + STEPS
    finish(sites.team(f"{TRAIN} {outputs} --resume"))
    after = sites.budget()
    assert after["runs"] == half["runs"]
    assert after["epsilon_spent"] == half["epsilon_spent"]
    assert after["steps_used"] == before["steps_used"] + STEPS
    receipts = finish(sites.team("-c 'wc -l < killed-run/receipts.jsonl'", entrypoint="sh"))
    assert int(receipts) >= STEPS
    assert json.loads(sites.operator("ledger", "verify", "--format", "json"))["ok"]


_RACE = """
import signal, sys, threading, torch
from dpswd import Hospital, Replay
from dpswd.public_client.data.networks import digits_network
from dpswd.shared.core.errors import BudgetExhausted

start = threading.Event()
signal.signal(signal.SIGUSR1, lambda *_: start.set())
epsilon = float(sys.argv[1])
torch.manual_seed(0)
extractor, _ = digits_network((1, 8, 8))
with Hospital.connect("curator:50051", credentials="credentials") as hospital:
    plan = hospital.plan(Replay(directions=20), epsilon=epsilon)
    print("READY", flush=True)
    start.wait()
    try:
        hospital.open(plan, extractor.eval())
        print("ADMITTED")
    except BudgetExhausted as refusal:
        print("REFUSED", refusal)
"""


_LOG = math.log(1e5)  # of one over the data set's delta


def _rho(epsilon: float) -> float:
    """The largest rho for which rho-zCDP gives (epsilon, 1e-5) by the usual conversion."""
    return (math.sqrt(_LOG + epsilon) - math.sqrt(_LOG)) ** 2


def _epsilon(rho: float) -> float:
    return rho + 2 * math.sqrt(rho * _LOG)


def test_two_clients_that_race_for_the_rest_of_one_budget_cannot_both_have_it(sites):
    volumes = {}
    for name in ("racer-one", "racer-two"):
        volume = sites.docker.volumes.create(f"{sites.project}_{name}", labels={"com.docker.compose.project": "race"})
        sites.operator("add", name, "--out", "/exchange/credentials", handed=volume.name)
        volumes[name] = volume
    sites.leave(2.0)
    before = sites.budget()
    # Three quarters of what is left in zero-concentrated terms: one such run fits, two do not.
    left = _rho(before["epsilon"]) - _rho(before["epsilon_spent"])
    epsilon = _epsilon(0.75 * left)
    racers = [
        sites.team(
            ["-c", _RACE, str(epsilon)],
            entrypoint="python",
            volumes={volume.name: {"bind": "/var/lib/dpswd", "mode": "rw"}},
        )
        for volume in volumes.values()
    ]
    try:
        for racer in racers:
            wait("a client at the start", lambda racer=racer: b"READY" in racer.logs(), seconds=TRAINING_S)
        for racer in racers:
            racer.kill("SIGUSR1")
        words = [finish(racer) for racer in racers]
    finally:
        for volume in volumes.values():
            volume.remove(force=True)
    assert sorted(word.split()[1] for word in words) == ["ADMITTED", "REFUSED"], words
    assert "does not allow this run" in "".join(words)
    after = sites.budget()
    assert after["runs"] == before["runs"] + 1
    assert before["epsilon_spent"] < after["epsilon_spent"] <= after["epsilon"]
    assert json.loads(sites.operator("ledger", "verify", "--format", "json"))["ok"]
