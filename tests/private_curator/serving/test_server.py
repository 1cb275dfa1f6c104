"""The composed server in this process: what a client sees of refusals and of unexpected errors."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import socket
import threading
import time
import uuid

import numpy as np
import pytest
import torch
from declarations import gradient, quantiles
from raw_client import RawClient, released
from torch import nn

from private_curator.serving import server
from private_curator.settings import tree as settings
from private_curator.settings.groups import RecordsSettings
from private_curator.storage import home_directory as home
from shared import errors
from shared.extractor.tracing import trace
from shared.extractor.weights import module_weights, weights_to_bytes
from shared.mechanisms.clipped_sum import ClippedSum
from shared.mechanisms.gradient.mechanism import GradientRequest
from shared.protocol.messages import RunParameters

CANARY = "patient-4711"
RECORDS = np.random.default_rng(4).normal(size=(60, 5)).astype(np.float32)


@pytest.fixture
def directory(tmp_path):
    np.save(tmp_path / "records.npy", RECORDS)
    made = home.create(
        tmp_path / "home",
        records=RecordsSettings(file=tmp_path / "records.npy"),
        epsilon=50.0,
        delta=1e-5,
        names=["localhost"],
    )
    issued, key = made.authority.make_client(name="ml-team")
    made.authority.write_credentials(issued, tmp_path / "credentials", key_pem=key)
    with made.open_ledger() as ledger:
        ledger.add_client("ml-team", issued.fingerprint)
    return tmp_path


@pytest.fixture
def serve(directory):
    """Starts a server and connects a client to it."""
    opened = []

    def stop():
        while opened:
            thing = opened.pop()
            (thing.close if isinstance(thing, RawClient) else thing.stop)()

    def start(*, checkpoint=server.no_checkpoint, **overrides):
        stop()  # a restart, where one served before
        made = home.HomeDirectory(directory / "home")
        chosen = settings.load(
            made.path,
            {
                "listen.host": "localhost",
                "listen.port": "0",
                "compute.device": "cpu",
                "compute.isolation": "in-process",  # workers have tests of their own and take seconds to start
                **overrides,
            },
        )
        running = server.CuratorServer(made, chosen, checkpoint=checkpoint)
        opened.append(running)
        start.running = running
        client = RawClient(running.start(), credentials=directory / "credentials")
        opened.append(client)
        return client

    yield start
    stop()


QUANTILES = quantiles(2, 1.0, directions=10)
GRADIENT = gradient(QUANTILES, ClippedSum(("weight",), 0.1, 1.0))
SOURCE = np.ones((7, 4), np.float32)


def _parameters(client, declared=QUANTILES, *, steps=3):
    torch.manual_seed(1)
    name, declaration = declared
    return RunParameters(
        **client.upload(nn.Linear(5, 4)),
        mechanism=name,
        declaration=declaration.to_bytes(),
        batch_size=20,
        steps=steps,
    )


def _open(client, declared=QUANTILES, **sizes):
    """Opens a run, and returns its id."""
    return client.open_run(_parameters(client, declared, **sizes)).run_id


def _number(reply):
    return released(reply).step


def test_an_unexpected_error_is_a_constant_text_and_a_number(serve, directory, caplog):
    failing = True

    def checkpoint(name):
        if failing and name == "extracted":
            raise ValueError(f"cannot use {CANARY}")

    client = serve(checkpoint=checkpoint)
    run = _open(client)
    pending = client.prepare_step(run)
    with pytest.raises(errors.CuratorFault) as caught:
        client.send(pending)
    number = str(caught.value).rpartition(" ")[2]
    assert str(caught.value) == f"internal error, incident {number}"
    book = (directory / "home" / "incidents.jsonl").read_text()
    assert json.loads(book)["number"] == number
    assert CANARY not in book + caplog.text
    failing = False
    assert _number(client.send(pending)) == 1  # the request may be repeated, and was charged once
    assert client.step(run).step == 2


def test_an_error_of_the_table_that_is_raised_after_the_data_were_read_is_unexpected_too(serve):
    """Its text may quote what it was made from: past the first record only the incident's number travels."""

    def checkpoint(name):
        if name == "extracted":
            raise errors.RequestInvalid((("input", CANARY),))

    client = serve(checkpoint=checkpoint)
    run = _open(client)
    with pytest.raises(errors.CuratorFault, match="incident") as caught:
        client.step(run)
    assert CANARY not in str(caught.value)


def test_only_listed_graphs_run_where_the_operator_lists_them(serve, directory):
    client = serve(**{"extractors.approval": "listed"})
    parameters = _parameters(client)
    with pytest.raises(errors.ExtractorNotApproved, match=parameters.graph_digest):
        client.open_run(parameters)
    with home.HomeDirectory(directory / "home").open_ledger() as ledger:
        ledger.approve_extractor(parameters.graph_digest)
    run = client.open_run(parameters).run_id
    client.step(run)
    with home.HomeDirectory(directory / "home").open_ledger() as ledger:
        ledger.revoke_extractor(parameters.graph_digest)
    with pytest.raises(errors.ExtractorNotApproved):
        client.step(run)


def test_a_request_that_is_being_computed_is_not_computed_twice(serve):
    entered, go_on = threading.Event(), threading.Event()

    def checkpoint(name):
        if name == "sampled":
            entered.set()
            go_on.wait(timeout=30)

    client = serve(checkpoint=checkpoint)
    run = _open(client)
    pending = client.prepare_step(run)
    answers = []
    thread = threading.Thread(target=lambda: answers.append(client.send(pending)))
    thread.start()
    assert entered.wait(timeout=30)
    with pytest.raises(errors.RequestInProgress):
        client.send(pending)
    go_on.set()
    thread.join(timeout=30)
    assert [_number(answer) for answer in answers] == [1]


def test_bad_uploads_name_what_is_wrong_and_messages_have_a_limit(serve):
    client = serve(**{"limits.max_message_bytes": "65536"})
    with pytest.raises(errors.RequestInvalid, match="graph"):
        client.upload_extractor(b"{}", b"")
    wrong = nn.Linear(7, 4)
    graph = trace(wrong, (7,))
    with pytest.raises(errors.RequestInvalid, match=r"\(5,\)"):
        client.upload_extractor(graph.to_bytes(), weights_to_bytes(module_weights(wrong, graph)))
    with pytest.raises(errors.RequestInvalid, match="NaN"):
        client.upload_source(np.full((3, 4), np.nan))
    with pytest.raises(errors.ProtocolError, match="RESOURCE_EXHAUSTED"):
        client.upload_source(np.zeros((300, 100)))


def test_settings_that_cannot_work_are_refused_at_start(directory):
    made = home.HomeDirectory(directory / "home")
    if not torch.cuda.is_available():
        with pytest.raises(errors.SettingsError, match="no CUDA device"):
            server.CuratorServer(made, settings.load(made.path, {"compute.device": "cuda"}))
    np.save(directory / "records.npy", RECORDS[:50])
    with pytest.raises(errors.SettingsError, match="50 records, the ledger was made for 60"):
        server.CuratorServer(made, settings.load(made.path))
    np.save(directory / "records.npy", RECORDS)
    made.certificates.joinpath("server.crt").unlink()
    broken = server.CuratorServer(made, settings.load(made.path, {"compute.isolation": "in-process"}))
    with pytest.raises(errors.SettingsError, match="cert renew-server"):
        broken.start()
    broken.stop()


def test_a_port_in_use_is_said_so(directory):
    made = home.HomeDirectory(directory / "home")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        blocked = server.CuratorServer(
            made,
            settings.load(
                made.path,
                {"listen.host": "127.0.0.1", "listen.port": str(port), "compute.isolation": "in-process"},
            ),
        )
        with pytest.raises(errors.SettingsError, match=str(port)):
            blocked.start()
        blocked.stop()


def test_a_second_curator_on_the_same_ledger_fails_at_its_start(serve, directory):
    serve()
    made = home.HomeDirectory(directory / "home")
    chosen = {"listen.host": "localhost", "listen.port": "0", "compute.isolation": "in-process"}
    second = server.CuratorServer(made, settings.load(made.path, chosen))
    with pytest.raises(errors.LedgerUnavailable, match="another curator serves"):
        second.start()
    second.stop()
    assert made.address.exists()  # the first one still serves there


def _again(client, pending, first):
    """Sends a step's request again and compares everything that was paid for."""
    repeated = client.send(pending)
    assert repeated.step_release == first.step_release
    assert repeated.receipt == first.receipt


def test_a_paid_reply_is_sent_again_whatever_the_operator_has_decided_since(serve, directory):
    """The reply was lost on its way: neither limits nor approvals nor a freeze may keep it from its client."""
    client = serve()
    parameters = _parameters(client)
    opening = str(uuid.uuid4())
    opened = client.open_run(parameters, request_id=opening)
    run = opened.run_id
    pending = client.prepare_step(run)
    first = client.send(pending)
    with home.HomeDirectory(directory / "home").open_ledger() as ledger:
        ledger.freeze(reason="a test")
    client = serve(**{"extractors.approval": "listed", "limits.max_directions": "2", "limits.max_batch_size": "3"})
    _again(client, pending, first)
    again = client.open_run(parameters, request_id=opening)
    assert (again.run_id, again.receipt) == (run, opened.receipt)
    with pytest.raises(errors.ExtractorNotApproved):
        client.step(run)  # a new step is another matter
    with pytest.raises(errors.ExtractorNotApproved):
        client.open_run(parameters)


def test_a_paid_reply_with_source_features_outlives_their_upload(serve, directory):
    client = serve()
    run = _open(client, gradient(QUANTILES, ClippedSum(("weight",), 0.1, 1.0), source_features=7))
    digest = client.upload_source(SOURCE)
    pending = client.prepare_step(run, GradientRequest(digest))
    first = client.send(pending)
    for kept in (directory / "home" / "uploads" / "objects").iterdir():
        kept.unlink()
    client = serve(**{"limits.max_source_features": "3"})
    _again(client, pending, first)
    with pytest.raises(errors.ExtractorUnknown):
        client.step(run, GradientRequest(digest))


def test_one_client_cannot_take_all_threads(serve):
    """Four requests of one client wait for a slow step; the fifth is told to wait, and the client comes back."""
    entered, go_on = threading.Event(), threading.Event()

    def checkpoint(name):
        if name == "sampled":
            entered.set()
            go_on.wait(timeout=60)

    client = serve(checkpoint=checkpoint, **{"limits.client_requests": "4"})
    run = _open(client, steps=6)
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(client.step(run))) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert entered.wait(timeout=60)
    turns = start_turns(serve)
    while turns["ml-team"] < 4:
        time.sleep(0.01)
    with pytest.raises(errors.TooManyRequests, match="4 requests under way"):
        client.describe()
    go_on.set()
    for thread in threads:
        thread.join(timeout=60)
    assert sorted(answer.step for answer in answers) == [1, 2, 3, 4]
    assert client.describe().records == 60
    assert not turns  # nothing is remembered of a client that asks nothing


def start_turns(serve):
    return serve.running._service.turns._under_way


def test_a_worker_killed_in_mid_step_costs_no_step(serve, directory):
    killing = True

    def checkpoint(name):
        if killing and name == "extracted":  # between the features and the gradients
            os.kill(serve.running._engine.pids[0], signal.SIGKILL)

    client = serve(checkpoint=checkpoint, **{"compute.isolation": "process"})
    run = _open(client, GRADIENT)
    pending = client.prepare_step(run, GradientRequest(SOURCE))
    with pytest.raises(errors.ExtractionStopped, match="its process has ended; nothing was released"):
        client.send(pending)
    killing = False
    assert _number(client.send(pending)) == 1  # the same request, free, by a fresh worker
    with home.HomeDirectory(directory / "home").open_ledger() as ledger:
        assert ledger.status().steps_used == 1
        assert ledger.verify().ok
    assert not (directory / "home" / "incidents.jsonl").exists()


def test_a_run_whose_steps_would_exceed_the_workers_limits_is_refused_before_it_is_charged(serve):
    client = serve(**{"compute.isolation": "process", "compute.worker_memory_bytes": str(32 << 20)})
    torch.manual_seed(1)
    wide = nn.Sequential(nn.Linear(5, 3000), nn.ReLU(), nn.Linear(3000, 40))
    # 60 gradients of 120,000 numbers are 29 MB, and their sum of parts
    name, declaration = gradient(QUANTILES, ClippedSum(("2.weight",), 0.1, 1.0))
    hungry = RunParameters(
        **client.upload(wide), mechanism=name, declaration=declaration.to_bytes(), batch_size=60, steps=3
    )
    with pytest.raises(errors.RequestInvalid, match=r"cannot be computed here.*worker_memory_bytes"):
        client.open_run(hungry)
    assert client.describe().data_set_budget.epsilon_spent == 0.0
    name, declaration = QUANTILES
    modest = client.open_run(dataclasses.replace(hungry, mechanism=name, declaration=declaration.to_bytes())).run_id
    assert client.step(modest).step == 1
