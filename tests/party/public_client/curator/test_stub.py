from __future__ import annotations

import contextlib
import re
import socket
import threading
import uuid

import grpc
import numpy as np
import pytest
import torch
from free_ports import own_port
from held_receipts import verify_receipts

from dpswd.public_client.curator.connection import Patience, call
from dpswd.public_client.curator.receipts import checked_receipt
from dpswd.public_client.curator.stub import Curator
from dpswd.public_client.curator.values import PendingStep, new_request_id
from dpswd.shared.books import chain_checks
from dpswd.shared.core import errors
from dpswd.shared.core.ledger import receipts
from dpswd.shared.core.mechanisms.sliced import SlicedDeclaration, SlicedReply, SlicedRequest
from dpswd.shared.core.noise.feature_map import FeatureMap
from dpswd.shared.core.wire.messages import RunParameters
from dpswd.shared.core.wire.v1 import curator_pb2 as pb
from dpswd.shared.protocol.receipts import encode_receipt
from dpswd.shared.protocol.status import to_status
from dpswd.shared.published_mechanisms.clipped_sum import ClippedSum
from dpswd.shared.published_mechanisms.gradient.mechanism import GradientDeclaration, GradientReply, GradientRequest
from dpswd.shared.published_mechanisms.labelled_gradient.mechanism import (
    LabelledGradientDeclaration,
    LossGradientReply,
    LossGradientRequest,
)

DIGEST = "a" * 64


QUANTILES = SlicedDeclaration(directions=5, sigma=0.5, coefficients=2)
ROWS = SlicedDeclaration(directions=5, sigma=1.0)
SUM = ClippedSum(("w",), 1.0, 2.0)


def relay(port, target):
    """From now on connections to this port of the loopback are carried to another."""

    def carry(source, sink):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)

    listener = socket.create_server(("127.0.0.1", port))

    def serve():
        with listener, contextlib.suppress(OSError):
            while True:
                inner, outer = listener.accept()[0], socket.create_connection(("127.0.0.1", target))
                for pair in ((inner, outer), (outer, inner)):
                    threading.Thread(target=carry, args=pair, daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()


def declaration(mechanism="quantiles", declared=QUANTILES):
    return RunParameters(
        graph_digest=DIGEST, weights_digest=DIGEST, mechanism=mechanism, declaration=declared.to_bytes(),
        batch_size=8, steps=4,
    )  # fmt: skip


def pending_step(run, request=SlicedRequest()):  # noqa: B008 - a frozen value
    return PendingStep(run.run_id, new_request_id(), request.to_bytes())


@pytest.fixture
def hospital(served, tmp_path):
    with Curator.connect(served.address, credentials=served.credentials, run_directory=tmp_path / "run") as curator:
        yield curator


def test_describe_reads_everything_and_prints_the_figures_a_user_needs(hospital):
    description = hospital.describe()
    assert description.records == 1000
    assert description.record_shape == (1, 8, 8)
    assert description.remaining == 5.0
    assert description.to_json()["data_set_budget"]["delta"] == 1e-5
    text = str(description)
    assert "1000 records of shape 1 x 8 x 8" in text
    assert "epsilon 5 at delta 1e-05" in text
    assert "quantiles" in text


def test_missing_credentials_are_named(served, tmp_path):
    with pytest.raises(errors.SettingsError, match=r"client\.crt"):
        Curator.connect(served.address, credentials=tmp_path)


def test_address_without_port_is_explained(served):
    with pytest.raises(errors.SettingsError, match="host:port"):
        Curator.connect("localhost", credentials=served.credentials)


def test_nobody_at_the_address(certificates, caplog):
    with pytest.raises(errors.CuratorUnavailable, match="no curator answers at localhost:1 "):
        Curator.connect("localhost:1", credentials=certificates, patience_s=0.5)
    with pytest.raises(errors.CuratorUnavailable) as refused:
        Curator.connect("localhost:1", credentials=certificates)
    (waiting,) = [record.getMessage() for record in caplog.records if record.name.startswith("dpswd.public_client")]
    assert re.search(r"for up to \d s more: TCP port 1 of localhost cannot be reached", waiting)
    assert not re.search("ipv4|UNAVAILABLE|last error", str(refused.value))  # gRPC's own words are no user's


def test_a_curator_that_is_not_there_yet_is_waited_for_in_words(served, caplog):
    """Connecting waits as every other request does, and says so once, with what may be wrong, and when it is over."""
    port = own_port()
    come_back = threading.Timer(4.5, relay, (port, int(served.address.rpartition(":")[2])))
    come_back.start()
    with Curator.connect(f"localhost:{port}", credentials=served.credentials, start_s=60.0) as curator:
        assert curator.describe().records
    come_back.join()
    waiting, over = [record.getMessage() for record in caplog.records if record.name.startswith("dpswd.public_client")]
    assert re.match(rf"waiting for a curator at localhost:{port}, for up to 5\d s more: TCP port {port} of", waiting)
    assert over.startswith("the curator answers again, after ")


def test_a_foreign_authority_is_not_trusted(served, certificates, tmp_path):
    for name in ("client.crt", "client.key"):
        (tmp_path / name).write_bytes((certificates / name).read_bytes())
    (tmp_path / "ca.crt").write_bytes((certificates / "client.crt").read_bytes())
    with pytest.raises(errors.CuratorUnavailable):
        Curator.connect(served.address, credentials=tmp_path, patience_s=0.5)


def test_retryable_refusals_are_repeated_with_the_same_id(hospital, served):
    served.curator.failures["OpenRun"] = [
        errors.RequestInProgress("busy"),
        errors.CuratorUnavailable("ledger locked"),
        grpc.StatusCode.UNAVAILABLE,
    ]
    run = hospital.open_run(declaration())
    assert run.run_id == "run-1"
    assert served.curator.calls["OpenRun"] == 4
    assert len(set(served.curator.request_ids)) == 1


def test_final_refusals_are_not_repeated(hospital, served):
    served.curator.failures["OpenRun"] = [errors.RequestInvalid((("parameters.steps", "is 0; allowed are 1 to 9"),))]
    with pytest.raises(errors.RequestInvalid, match=r"parameters\.steps: is 0"):
        hospital.open_run(declaration())
    assert served.curator.calls["OpenRun"] == 1


def test_an_answer_that_is_lost_on_the_way_is_fetched_again_without_a_second_charge(hospital, served):
    run = hospital.open_run(declaration())
    served.curator.failures["DrawStep:after"] = [1, 1]
    release = hospital.send(pending_step(run))
    assert served.curator.steps_charged == 1
    assert served.curator.calls["DrawStep"] == 3
    assert release.step == 1
    assert SlicedReply.from_bytes(release.payload).values.values.shape == (2, 5)


def test_exhausted_budget_arrives_with_its_figures(hospital, served):
    served.curator.spent = 4.5
    with pytest.raises(errors.BudgetExhausted) as caught:
        hospital.open_run(declaration())
    assert (caught.value.requested, caught.value.spent, caught.value.remaining) == (1.0, 4.5, 0.5)
    assert caught.value.steps_that_fit == 3
    assert hospital.describe().remaining == 0.5


def test_price_spends_nothing(hospital, served):
    quote = hospital.price_run(declaration())
    assert quote.epsilon == 1.0
    assert quote.fits
    assert served.curator.spent == 0.0


def gradient_of(release, declared):
    return GradientDeclaration(release, declared, SUM, 4)


MAP = FeatureMap(torch.zeros(6), torch.ones(6))
WEIGHTS = np.array([1.0, 2.0, 3.0], dtype=np.float32)
SOURCE = np.ones((4, 6), dtype=np.float32)


@pytest.mark.parametrize(
    ("mechanism", "declared", "asked", "reply"),
    [
        ("rows", ROWS, SlicedRequest(MAP), SlicedReply),
        ("quantiles", QUANTILES, SlicedRequest(), SlicedReply),
        ("gradient", gradient_of("rows", ROWS), GradientRequest(SOURCE, WEIGHTS, MAP), GradientReply),
        ("gradient", gradient_of("quantiles", QUANTILES), GradientRequest(SOURCE, WEIGHTS), GradientReply),
        ("labelled_gradient", LabelledGradientDeclaration(10, SUM), LossGradientRequest(WEIGHTS), LossGradientReply),
    ],
)
def test_a_step_carries_the_mechanisms_own_request_and_reply(hospital, served, mechanism, declared, asked, reply):
    run = hospital.open_run(declaration(mechanism, declared))
    served.curator.gradient_size = 3
    answer = reply.from_bytes(hospital.send(pending_step(run, asked)).payload)
    (arrived,) = served.curator.requests
    assert arrived.to_bytes() == asked.to_bytes()
    if mechanism in ("gradient", "labelled_gradient"):
        np.testing.assert_array_equal(arrived.adapted, WEIGHTS)
        assert answer.gradient.values.shape == (3,)
    if mechanism in ("rows", "quantiles"):
        assert answer.values.values.shape == ((8 if mechanism == "rows" else 2), 5)


def test_receipts_are_stored_once_and_form_a_chain(hospital, served, tmp_path):
    run = hospital.open_run(declaration())
    pending = pending_step(run)
    first = hospital.send(pending)
    again = hospital.send(pending)
    assert first == again
    hospital.send(pending_step(run))
    lines = (tmp_path / "run" / "receipts.jsonl").read_text().splitlines()
    entries, findings = chain_checks.read_export(lines)
    assert (len(entries), findings) == (3, [])  # the charge and two answers
    key = bytes.fromhex(hospital.describe().ledger_public_key)
    assert verify_receipts(served.curator.entries, entries, key) == ()


def test_a_receipt_for_another_reply_is_refused(hospital, served):
    run = hospital.open_run(declaration())
    served.curator.forge_receipts = True
    with pytest.raises(errors.ProtocolError, match="SHA-256"):
        hospital.send(pending_step(run))


@pytest.mark.parametrize("changed", [{"request_id": str(uuid.UUID(int=7, version=4))}, {"run_id": "run-2"}])
def test_the_receipt_of_another_request_is_refused(hospital, served, changed):
    run = hospital.open_run(declaration())
    pending = pending_step(run)
    hospital.send(pending)
    receipt = receipts.Receipt.of(served.curator.entries[-1])
    ids = {"run_id": run.run_id, "request_id": pending.request_id, "request_digest": receipt.request_digest}
    stored = served.curator.stored[pending.request_id].step_release
    stated = ids | {"step": 1, "reply": stored, "public_key": served.curator.key.public_key().public_bytes_raw()}
    message = encode_receipt(receipt)
    assert checked_receipt(message, **stated) == receipt.entry
    with pytest.raises(errors.ProtocolError, match=r"another request's|carries no receipt"):
        checked_receipt(message, **stated | changed)


def test_a_pending_step_survives_a_new_connection(hospital, served):
    run = hospital.open_run(declaration())
    pending = pending_step(run)
    first = hospital.send(pending)
    copy = PendingStep(pending.run_id, pending.request_id, bytes(pending.payload))
    with Curator.connect(served.address, credentials=served.credentials) as other:
        again = other.send(copy)
    assert first == again
    assert served.curator.steps_charged == 1


def failure_of(status, said="gone"):
    """A failed call as gRPC tells it; with a curator's own error as one tells that."""

    class Failure(grpc.RpcError, grpc.Call):
        def code(self):
            return status

        def details(self):
            return str(said)

        def trailing_metadata(self):
            own = isinstance(said, errors.DpswdError)
            return (("grpc-status-details-bin", to_status(said).SerializeToString()),) if own else ()

        initial_metadata = is_active = time_remaining = cancel = add_callback = None

    Failure.__abstractmethods__ = frozenset()
    return Failure()


def test_pauses_double_and_patience_ends(caplog):
    clock = [0.0]
    pauses = []

    def pause(seconds):
        pauses.append(seconds)
        clock[0] += seconds

    def method(request, timeout):
        assert timeout == 3.0
        raise failure_of(grpc.StatusCode.UNAVAILABLE)

    patience = Patience(timeout_s=3.0, total_s=60.0, first_pause_s=1.0, longest_pause_s=8.0)
    with pytest.raises(errors.CuratorUnavailable, match="does not run"):
        call(method, pb.DescribeRequest(), pb.DescribeResponse, patience=patience, pause=pause, clock=lambda: clock[0])
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("waiting for the curator, for up to 60 s without a sign of life: the curator does not run")
    assert len(pauses) >= 6
    for pause_s, longest in zip(pauses, (1, 2, 4, 8, 8, 8), strict=False):
        assert longest / 2 <= pause_s <= longest
    assert clock[0] <= 60.0


@pytest.mark.parametrize(
    ("computing_s", "signs", "answered"), [(100.0, True, True), (3600.0, True, True), (100.0, False, False)]
)
def test_patience_counts_from_the_last_sign_of_life(computing_s, signs, answered):
    """A step of minutes or an hour: the first attempt ends at its deadline, the others hear that it is computed."""
    clock, attempts = [0.0], []

    def pause(seconds):
        clock[0] += seconds

    def method(request, timeout):
        attempts.append(clock[0])
        if len(attempts) == 1:
            clock[0] += timeout
            raise failure_of(grpc.StatusCode.DEADLINE_EXCEEDED)
        if clock[0] < computing_s:
            raise failure_of(grpc.StatusCode.ABORTED, errors.RequestInProgress("it is being computed"))
        return pb.DescribeResponse()

    arguments = {"patience": Patience(timeout_s=20.0, total_s=15.0, signs=signs), "pause": pause}
    if answered:
        call(method, pb.DescribeRequest(), pb.DescribeResponse, clock=lambda: clock[0], **arguments)
        assert computing_s <= clock[0] <= computing_s + 15.0
    else:
        with pytest.raises(errors.CuratorUnavailable, match="did not answer in time"):
            call(method, pb.DescribeRequest(), pb.DescribeResponse, clock=lambda: clock[0], **arguments)
        assert attempts == [0.0]


def test_a_curator_that_hangs_is_tried_twice():
    """Without a word from it a deadline renews patience once."""
    clock, attempts = [0.0], []

    def method(request, timeout):
        attempts.append(clock[0])
        clock[0] += timeout
        raise failure_of(grpc.StatusCode.DEADLINE_EXCEEDED)

    patience = Patience(timeout_s=20.0, total_s=15.0)
    with pytest.raises(errors.CuratorUnavailable, match="did not answer in time"):
        call(
            method, pb.DescribeRequest(), pb.DescribeResponse,
            patience=patience, pause=lambda _: None, clock=lambda: clock[0],
        )  # fmt: skip
    assert len(attempts) == 2
