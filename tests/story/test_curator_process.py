"""A real curator process, real certificates, real sockets on loopback."""

from __future__ import annotations

import dataclasses
import signal
import sys
import threading
import time
from pathlib import Path

import grpc
import numpy as np
import pytest
import torch
from grpc_health.v1 import health_pb2, health_pb2_grpc
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))  # under importlib mode a test directory is no package

from curator_process import CLIENT, CuratorProcess, upload
from declarations import Declared, gradient, quantiles, rows
from drawn_steps import new_step, parameters, reply_of

from dpswd.private_curator.storage.certificates import CertificateAuthority
from dpswd.public_client.curator.identity import make_identity
from dpswd.shared.certificates import request_fingerprint
from dpswd.shared.core import errors
from dpswd.shared.core.wire.v1 import curator_pb2 as pb
from dpswd.shared.core.wire.v1 import curator_pb2_grpc as pb_grpc
from dpswd.shared.published_mechanisms.clipped_sum import ClippedSum

INPUTS, FEATURES, N = 12, 6, 400
CANARY = 1234.5678  # stands in every record; must stand in no output
RNG = np.random.default_rng(11)
RECORDS = RNG.normal(size=(N, INPUTS)).astype(np.float32)
RECORDS[:, 3] = CANARY
SOURCE = RNG.normal(size=(50, FEATURES)).astype(np.float32)
EPSILON = 2.0
SLICED = quantiles(2, 4.0, directions=30)
GRADIENT = gradient(SLICED, ClippedSum(("weight",), 1.0, 100.0))


@pytest.fixture(scope="module")
def hospital(tmp_path_factory):
    made = CuratorProcess(tmp_path_factory.mktemp("hospital"), RECORDS, epsilon=EPSILON)
    made.start()
    yield made
    made.stop()


@pytest.fixture
def curator(hospital):
    with hospital.connect() as connection:
        yield connection


def _module():
    torch.manual_seed(5)
    return nn.Linear(INPUTS, FEATURES)


def _declare(curator, declared: Declared = GRADIENT, *, batch_size=64, steps=4):
    return parameters(upload(curator, _module()), declared, batch_size=batch_size, steps=steps)


def test_describe_tells_what_is_public(curator):
    description = curator.describe()
    assert (description.records, tuple(description.record_shape)) == (N, (INPUTS,))
    assert description.data_set_budget.epsilon == EPSILON


def test_each_kind_of_step_is_answered_and_repeats_return_the_same_bytes(hospital, curator):
    kinds = [
        (rows(50.0, directions=30), None),
        (gradient(rows(50.0, directions=30), ClippedSum(("weight", "bias"), 1.0, 200.0)), SOURCE),
        (SLICED, None),
        (gradient(SLICED, ClippedSum(("bias",), 1.0, 200.0)), SOURCE),
    ]
    for declared, source in kinds:
        run = curator.open_run(_declare(curator, declared, steps=2))
        pending = new_step(run, source)
        first, again = curator.send(pending), curator.send(pending)
        assert first.payload == again.payload
        reply = reply_of(run, first)
        sliced = reply if source is None else reply.sliced
        assert np.isfinite(sliced.values.to_numpy()).all()
        assert source is None or np.isfinite(reply.gradient.to_numpy()).all()
        assert first.step == again.step == 1
    used = {row["steps_used"] for row in hospital.json("runs")}
    assert used == {1}


def test_a_request_id_stands_for_what_was_sent_byte_by_byte(curator):
    run = curator.open_run(_declare(curator, steps=2))
    request_id = "00000000-0000-4000-8000-000000000001"
    assert curator.send(new_step(run, SOURCE, request_id=request_id)).step == 1
    with pytest.raises(errors.RequestIdReused):
        curator.send(new_step(run, SOURCE[:-1], request_id=request_id))
    assert curator.send(new_step(run, SOURCE)).step == 2


def test_refusals_spend_nothing_and_name_the_field(curator):
    before = curator.describe().data_set_budget.spent
    with pytest.raises(errors.RequestInvalid, match="batch_size"):
        curator.open_run(_declare(curator, batch_size=N + 1))
    with pytest.raises(errors.ExtractorUnknown):
        curator.open_run(dataclasses.replace(_declare(curator), graph_digest="0" * 64))
    with pytest.raises(errors.GrantNotHeld):
        run = dataclasses.replace(curator.open_run(_declare(curator, steps=1)), run_id="f" * 32)
        before = curator.describe().data_set_budget.spent
        curator.send(new_step(run, SOURCE))
    assert curator.describe().data_set_budget.spent == before


def _channel(hospital, *, ca: bytes, certificate: bytes | None = None, key: bytes | None = None):
    credentials = grpc.ssl_channel_credentials(ca, private_key=key, certificate_chain=certificate)
    return grpc.secure_channel(hospital.address, credentials)


def _call(channel):
    with channel:
        return pb_grpc.CuratorServiceStub(channel).Describe(pb.DescribeRequest(), timeout=60)


def test_without_a_certificate_of_this_curator_nobody_is_heard(hospital, tmp_path):
    directory = hospital.credentials(CLIENT)
    ca, certificate, key = ((directory / name).read_bytes() for name in ("ca.crt", "client.crt", "client.key"))
    assert _call(_channel(hospital, ca=ca, certificate=certificate, key=key)).records == N
    other = CertificateAuthority(tmp_path / "other")
    other.create(names=["localhost"], data_set="elsewhere")
    stranger, stranger_key = other.make_client(name=CLIENT)
    expired, expired_key = hospital.home.authority.make_client(name="late", days=-1)
    with hospital.home.open_ledger() as ledger:
        ledger.add_client("late", expired.fingerprint)
    for attempt in (
        {"ca": ca},
        {"ca": ca, "certificate": stranger.pem, "key": stranger_key},
        {"ca": ca, "certificate": expired.pem, "key": expired_key},
        {"ca": (tmp_path / "other" / "ca.crt").read_bytes(), "certificate": certificate, "key": key},
    ):
        with pytest.raises(grpc.RpcError) as caught:
            _call(_channel(hospital, **attempt))
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE, attempt.keys()


def test_a_certificate_that_was_signed_but_never_added_is_refused(hospital):
    issued, key = hospital.home.authority.make_client(name="nobody")
    directory = hospital.credentials("nobody")
    hospital.home.authority.write_credentials(issued, directory, key_pem=key)
    with pytest.raises(errors.CredentialsInvalid, match="no such certificate"):
        hospital.connect(name="nobody")


def test_a_client_that_made_its_own_key_is_served_until_it_is_revoked(hospital, curator):
    directory = hospital.credentials("hospital-b")
    request = make_identity("hospital-b", directory)
    hospital.command("approve", request, "--out", directory, "--epsilon", "0.5",
                     "--fingerprint", request_fingerprint(request.read_bytes()))  # fmt: skip
    with hospital.connect(name="hospital-b") as connection:
        assert connection.describe().client_budget.epsilon == 0.5
        run = curator.open_run(_declare(curator, steps=1))
        with pytest.raises(errors.GrantNotHeld):  # another client's run
            connection.send(new_step(run, SOURCE))
        with pytest.raises(errors.ExtractorUnknown):  # another client's extractor
            connection.open_run(run.parameters)
        hospital.command("clients", "--revoke", "hospital-b", "--reason", "the study has ended")
        with pytest.raises(errors.CredentialsInvalid, match="revoked"):
            connection.describe()


def test_a_renewed_certificate_replaces_the_old_one(hospital):
    hospital.command("add", "renewer", "--out", hospital.credentials("renewer"))
    with hospital.connect(name="renewer") as old:
        old.describe()
        hospital.command("add", "--renew", "renewer", "--out", hospital.credentials("renewed"))
        assert old.describe().client_name == "renewer"  # both count for now
        hospital.command("add", "--renew", "renewer", "--replace", "--out", hospital.credentials("renewed-again"))
        with pytest.raises(errors.CredentialsInvalid):
            old.describe()
    with hospital.connect(name="renewed-again") as new:
        assert new.describe().client_name == "renewer"


def test_the_health_service_answers(hospital):
    directory = hospital.credentials(CLIENT)
    ca, certificate, key = ((directory / name).read_bytes() for name in ("ca.crt", "client.crt", "client.key"))
    with _channel(hospital, ca=ca, certificate=certificate, key=key) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service="dpswd.curator.v1.CuratorService")
        assert stub.Check(request, timeout=60).status == health_pb2.HealthCheckResponse.SERVING


def test_freezing_stops_releases_at_once_and_unfreezing_resumes_them(hospital, curator):
    run = curator.open_run(_declare(curator, steps=1))
    hospital.command("budget", "--freeze", "--reason", "an inquiry")
    with pytest.raises(errors.GrantNotHeld, match="frozen"):
        curator.send(new_step(run, SOURCE))
    assert curator.describe().data_set_budget.closed
    hospital.command("budget", "--unfreeze", "--reason", "the inquiry is closed")
    assert curator.send(new_step(run, SOURCE)).step == 1


def test_the_budget_holds_also_across_a_restart(tmp_path):
    hospital = CuratorProcess(tmp_path, RECORDS, epsilon=1.0, isolation="in-process")
    hospital.start()
    with hospital.connect() as curator:
        plan = _declare(curator, quantiles(2, 5.0, directions=30))
        fitting = curator.price_run(dataclasses.replace(plan, steps=10_000_000)).steps_that_fit
        assert 10 < fitting < 10_000_000
        half = dataclasses.replace(plan, steps=fitting * 6 // 10)
        run = curator.open_run(half)
        pending = new_step(run)
        first = curator.send(pending)
        spent = curator.describe().data_set_budget.spent
        # The ledger's lanes are fixed now, so what still fits is exact.
        rest = curator.price_run(dataclasses.replace(plan, steps=10_000_000)).steps_that_fit
        too_many = dataclasses.replace(plan, steps=rest + 1)
        with pytest.raises(errors.BudgetExhausted) as refused:
            curator.open_run(too_many)
    assert hospital.stop() == 0
    hospital.start()
    with hospital.connect() as curator:
        assert curator.describe().data_set_budget.spent == spent
        with pytest.raises(errors.BudgetExhausted) as again:
            curator.open_run(too_many)
        assert (again.value.requested, again.value.spent) == (refused.value.requested, refused.value.spent)
        assert refused.value.requested > refused.value.remaining > 0
        assert refused.value.steps_that_fit == rest > 0
        curator.open_run(dataclasses.replace(plan, steps=refused.value.steps_that_fit))
        with pytest.raises(errors.BudgetExhausted):
            curator.open_run(dataclasses.replace(plan, steps=max(1, rest // 10)))
        # What was answered before the restart is answered with the same bytes after it.
        assert curator.send(pending).payload == first.payload
        assert curator.describe().data_set_budget.spent <= 1.0
    assert hospital.stop() == 0
    assert hospital.json("ledger", "verify")["ok"] is True


POINTS = [
    "begin_step:step-consumed",  # inside the transaction: nothing was consumed
    "consumed",
    "released",
    "finish_step:step-answered",  # inside the transaction: nothing was stored
    "stored",  # stored and not sent
]


@pytest.mark.parametrize(
    ("isolation", "points"),
    [
        ("in-process", ["consumed", "stored"]),
        pytest.param("in-process", POINTS, marks=pytest.mark.exhaustive),
        pytest.param("process", POINTS, marks=pytest.mark.exhaustive),
    ],
    ids=["two", "in-process", "process"],
)
def test_one_request_survives_the_curators_death_at_every_point(tmp_path, isolation, points):
    hospital = CuratorProcess(tmp_path, RECORDS, epsilon=EPSILON, isolation=isolation)
    hospital.start()
    with hospital.connect() as curator:
        run = curator.open_run(_declare(curator))
        pending = new_step(run, SOURCE)
    hospital.stop()
    for point in points:
        hospital.start(stop_at=(point, "kill"))
        with hospital.connect(patience_s=0.5) as curator, pytest.raises(errors.CuratorUnavailable):
            curator.send(pending)
        assert hospital.ended() == -signal.SIGKILL, point
    hospital.start()
    with hospital.connect() as curator:
        first, again = curator.send(pending), curator.send(pending)
        following = curator.send(new_step(run, SOURCE))
    assert hospital.stop() == 0
    assert (first.step, again.step, following.step) == (1, 1, 2)
    assert first.payload == again.payload
    assert hospital.json("runs")[0]["steps_used"] == 2
    assert hospital.json("ledger", "verify")["ok"] is True


def test_sigterm_lets_the_running_step_finish(tmp_path):
    hospital = CuratorProcess(tmp_path, RECORDS, epsilon=EPSILON)
    hospital.start(stop_at=("extracted", "1.5"))
    with hospital.connect() as curator:
        run = curator.open_run(_declare(curator))
        pending = new_step(run, SOURCE)
        answers = []
        thread = threading.Thread(target=lambda: answers.append(curator.send(pending)))
        thread.start()
        reached = hospital.home.path / "reached-extracted"
        deadline = time.monotonic() + 30
        while not reached.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        assert hospital.stop() == 0
        thread.join(timeout=30)
    assert [answer.step for answer in answers] == [1]


def _residuals(matrix: np.ndarray, records: np.ndarray, rank: int) -> np.ndarray:
    """Share of each record that lies outside of the span of the `rank` strongest right singular vectors."""
    basis = np.linalg.svd(matrix)[2][:rank]
    outside = records - records @ basis.T @ basis
    return np.linalg.norm(outside, axis=1) / np.linalg.norm(records, axis=1)


@pytest.mark.statistical
@pytest.mark.parametrize(
    "release", [rows(4.0, directions=10), quantiles(2, 2.0, directions=10)], ids=lambda kind: kind[0]
)
def test_records_cannot_be_read_off_the_gradients_row_space(tmp_path, release):
    """With a linear extractor the plain gradient is sum_i c_i x_i^T: its row space holds every record of the batch.

    The whole data set is the batch, so the attacker even knows who is in it, and pools all steps. On pure noise a
    residual below 0.65 has probability 3e-8 for one record (a Beta(4, 28) variable above 0.5775), 5e-7 for the test.
    """
    batch, width, features, steps = 8, 64, 16, 4
    generator = np.random.default_rng(21)
    records = generator.normal(size=(batch, width)).astype(np.float32)
    source = (generator.normal(size=(40, features)) + 1).astype(np.float32)
    torch.manual_seed(9)
    module = nn.Linear(width, features, bias=False)
    hospital = CuratorProcess(tmp_path, records, epsilon=10.0, isolation="in-process")
    hospital.start()
    with hospital.connect() as curator:
        uploaded = upload(curator, module)
        sigma = 1.0
        while True:
            declared = gradient(release, ClippedSum(("weight",), 1.0, sigma))
            run_parameters = parameters(uploaded, declared, batch_size=batch, steps=steps)
            if curator.price_run(run_parameters).fits:
                break
            sigma *= 1.25
        run = curator.open_run(run_parameters)
        gradients = []
        for _ in range(steps):
            reply = reply_of(run, curator.send(new_step(run, source)))
            gradients.append(reply.gradient.to_numpy().reshape(features, width))
    hospital.stop()
    assert sigma < 20  # the budget of epsilon 10 buys little noise: the test is not won by drowning everything
    sanitized = _residuals(np.concatenate(gradients), records, batch)
    assert sanitized.min() > 0.65
    # The same gradient as the papers publish it, unclipped and without noise, gives every record away.
    cotangents = generator.normal(size=(batch, features))
    plain = _residuals(cotangents.T @ records.astype(np.float64), records, batch)
    assert plain.max() < 1e-6


def test_no_output_holds_a_record(hospital, curator):
    """Runs last on the shared hospital: after all the refusals above, grep what they left behind."""
    patterns = [b"1234.56", np.float32(CANARY).tobytes() * 1]
    assert hospital.log.stat().st_size > 0
    with pytest.raises(errors.RequestInvalid):
        curator.open_run(_declare(curator, batch_size=N + 1))
    for path in [hospital.log, *(p for p in hospital.home.path.rglob("*") if p.is_file())]:
        data = path.read_bytes()
        for pattern in patterns:
            assert pattern not in data, path.name
