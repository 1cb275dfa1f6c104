"""The composed server in this process: what a client sees of refusals and of unexpected errors."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from declarations import gradient, quantiles, rows
from delayed_evaluator import Delayed
from made_home import made_home
from raw_client import RawClient, released
from torch import nn

from dpswd.private_curator.core.ledger.sqlite import file_lock
from dpswd.private_curator.operator import preflight
from dpswd.private_curator.records import contract
from dpswd.private_curator.serving import server, service
from dpswd.private_curator.serving.pacing import Pacer, quantum_ms
from dpswd.private_curator.settings import tree as settings
from dpswd.private_curator.storage import home_directory as home
from dpswd.public_client.extractor.tracing import module_weights, trace, weights_to_bytes
from dpswd.shared.core import errors
from dpswd.shared.core.wire.messages import RunParameters
from dpswd.shared.mechanisms import PUBLISHED
from dpswd.shared.published_mechanisms import PUBLISHED_MECHANISMS
from dpswd.shared.published_mechanisms.clipped_sum import ClippedSum
from dpswd.shared.published_mechanisms.gradient.mechanism import GradientRequest

CANARY = "patient-4711"
RECORDS = np.random.default_rng(4).normal(size=(60, 5)).astype(np.float32)


@pytest.fixture
def directory(tmp_path):
    made_home(tmp_path, RECORDS)
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


@pytest.mark.long
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
    fitting = nn.Linear(5, 4)
    graph = trace(fitting, (5,))
    weights = weights_to_bytes(module_weights(fitting, graph))
    with pytest.raises(errors.RequestInvalid, match="not finite"):
        client.upload_extractor(graph.to_bytes(), weights[:-4] + np.float32(np.nan).tobytes())
    with pytest.raises(errors.ProtocolError, match="RESOURCE_EXHAUSTED"):
        client.upload_extractor(graph.to_bytes(), weights + bytes(120_000))


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
    with pytest.raises(errors.SettingsError, match="certificates --renew-server"):
        broken.start()
    broken.stop()


@pytest.mark.long
def test_a_client_may_use_what_the_operator_allows_it(serve, directory):
    """Told in Describe, refused by name, nothing is charged; steps of a run that was charged before end too."""
    client = serve()
    run = _open(client)
    paid = client.prepare_step(run)
    first = client.send(paid)
    assert set(client.describe().mechanisms) == {
        "rows", "quantiles", "gradient", "feature_sums",
    }  # fmt: skip
    before = client.describe().data_set_budget.epsilon_spent
    client = serve(**{"clients.mechanisms": '["ml-team=rows,class_statistics", "*=quantiles"]'})
    assert list(client.describe().mechanisms) == ["rows"]  # what needs labels is not offered without any
    for declared in (QUANTILES, GRADIENT):
        for validate_only in (True, False):
            with pytest.raises(
                errors.RequestInvalid, match="not allowed to ml-team; the operator allows class_statistics, rows"
            ) as no:
                client.open_run(_parameters(client, declared), validate_only=validate_only)
            assert [field for field, _ in no.value.violations] == ["parameters.mechanism"]
    with pytest.raises(errors.RequestInvalid, match="ask the operator"):
        client.send(client.prepare_step(run))
    assert client.send(paid).SerializeToString() == first.SerializeToString()  # what was paid for is sent again
    assert client.describe().data_set_budget.epsilon_spent == before
    assert client.step(_open(client, rows())).step == 1
    client = serve(**{"clients.mechanisms": '["somebody-else=rows", "*=quantiles,gradient"]'})
    assert list(client.describe().mechanisms) == ["quantiles", "gradient"]
    client = serve(**{"clients.mechanisms": '["somebody-else=rows"]'})
    assert _number(client.send(client.prepare_step(run))) == 2  # allowed again: the charged run goes on


def test_what_only_published_methods_need_is_off_until_the_operator_turns_it_on(serve, directory):
    """Not offered, refused with the setting's name, and a charged run goes on once it is on again."""
    client = serve()
    run, spent = _open(client, rows()), client.describe().data_set_budget.epsilon_spent
    client = serve(**{"clients.published_mechanisms": "false"})
    assert set(client.describe().mechanisms) == {"quantiles", "feature_sums"}
    says = r"'gradient' is of published methods, which are off here; on are quantiles, .*clients\.published_mechanisms"
    for validate_only in (True, False):
        with pytest.raises(errors.RequestInvalid, match=says):
            client.open_run(_parameters(client, GRADIENT), validate_only=validate_only)
    with pytest.raises(errors.RequestInvalid, match="'rows' is of published methods"):
        client.send(client.prepare_step(run))
    assert client.describe().data_set_budget.epsilon_spent == spent
    made = home.HomeDirectory(directory / "home")
    off = {"clients.published_mechanisms": "false", "clients.mechanisms": '["ml-team=rows,quantiles"]'}
    with pytest.raises(errors.SettingsError, match=r"names rows, .* those are off: set clients.published_mechanisms"):
        server.CuratorServer(made, settings.load(made.path, off))
    client = serve()
    assert _number(client.send(client.prepare_step(run))) == 1


def test_the_names_of_published_mechanisms_load_none():
    assert set(PUBLISHED) == set(PUBLISHED_MECHANISMS)
    code = "import sys, dpswd.private_curator.serving.server; assert 'dpswd.shared.published_' not in str(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_permissions_for_what_is_unknown_are_refused_at_start(directory):
    made = home.HomeDirectory(directory / "home")
    with pytest.raises(
        errors.SettingsError, match="names labels, row; this curator knows quantiles, labelled_quantiles"
    ):
        server.CuratorServer(made, settings.load(made.path, {"clients.mechanisms": '["ml-team=row,labels,rows"]'}))
    (finding,) = [one for one in preflight.check(made, {"clients.mechanisms": '["a=row"]'}) if one.check == "settings"]
    assert not finding.ok
    assert "names row" in finding.text
    for wrong in ('["ml-team"]', '["=rows"]', '["ml-team="]', '["a=rows, gradient"]', '["a=rows", "a=gradient"]'):
        with pytest.raises(errors.SettingsError, match=r"clients\.mechanisms"):
            settings.load(made.path, {"clients.mechanisms": wrong})


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


def test_a_paid_reply_outlives_its_extractors_upload(serve, directory):
    client = serve()
    run = _open(client, gradient(QUANTILES, ClippedSum(("weight",), 0.1, 1.0), source_features=7))
    pending = client.prepare_step(run, GradientRequest(SOURCE))
    first = client.send(pending)
    for stored in (directory / "home" / "uploads" / "objects").iterdir():
        stored.unlink()
    client = serve(**{"limits.max_source_features": "3"})
    _again(client, pending, first)
    with pytest.raises(errors.ExtractorUnknown):
        client.step(run, GradientRequest(SOURCE))


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


def test_who_may_not_ask_is_refused_at_once_and_holds_no_thread(serve, directory):
    """Attack: eight requests a second of a revoked client held every thread for a quantum each."""
    client = serve(**{"limits.reply_quantum_ms": "3000"})
    run = _open(client)
    with home.HomeDirectory(directory / "home").open_ledger() as ledger:
        ledger.revoke_client("ml-team", reason="test")
    begun = time.monotonic()
    for _ in range(8):
        with pytest.raises(errors.CredentialsInvalid):
            client.step(run)
    assert time.monotonic() - begun < 3.0


def test_a_repeat_does_not_tell_when_a_reply_was_ready(serve):
    """Attack: a reply waits for its quantum, but a repeat of its request was answered as soon as it was stored."""
    stored = threading.Event()

    def checkpoint(name):
        if name == "stored":
            stored.set()

    client = serve(checkpoint=checkpoint, **{"limits.reply_quantum_ms": "4000"})
    pending = client.prepare_step(_open(client))
    first = threading.Thread(target=lambda: client.send(pending))
    first.start()
    assert stored.wait(timeout=60)
    with pytest.raises(errors.RequestInProgress):  # the reply is there, and waits
        client.send(pending)
    first.join(timeout=60)
    assert _number(client.send(pending)) == 1


def test_a_run_whose_trial_takes_long_is_tried_and_charged_once(serve):
    """A ResNet's trial outlasts a client's patience: a repeat learns that it is under way, and begins no second one."""
    begun, go_on, tried = threading.Event(), threading.Event(), []
    client = serve()
    parameters, request = _parameters(client), str(uuid.uuid4())
    trials = serve.running._service.trials
    measured = trials.step_time

    def slow(run, extractor):
        tried.append(run)
        begun.set()
        assert go_on.wait(timeout=60)
        return measured(run, extractor)

    object.__setattr__(serve.running._service, "trials", SimpleNamespace(step_time=slow, work=trials.work))
    opened = []
    first = threading.Thread(target=lambda: opened.append(client.open_run(parameters, request_id=request)))
    first.start()
    assert begun.wait(timeout=60)
    with pytest.raises(errors.RequestInProgress):
        client.open_run(parameters, request_id=request)
    assert client.open_run(parameters, validate_only=True).fits, "a price waits for nothing"
    go_on.set()
    first.join(timeout=60)
    assert client.open_run(parameters, request_id=request).run_id == opened[0].run_id
    assert len(tried) == 1


def test_a_request_is_measured_before_it_is_parsed(serve):
    """Attack: 80 MiB of anything were parsed for a description; now the bytes are looked at first."""
    client = serve()
    with pytest.raises(errors.RequestInvalid, match=r"request: has \d+ bytes; Describe takes at most"):
        client.send_bytes("Describe", b"\x00" * (1 << 21))
    with pytest.raises(errors.RequestInvalid, match="cannot be decoded as a OpenRunRequest"):
        client.send_bytes("OpenRun", b"\xff" * 100)
    assert client.describe().records == 60


def test_a_refusal_names_no_file_of_the_curator_s(serve, directory):
    """Attack: a full disk or a held lock told the client where the curator's home is."""
    client = serve(**{"ledger.lock_seconds": "0.1"})
    parameters = _parameters(client)
    lock = directory / "home" / "ledger.db.lock"
    with (
        file_lock(lock, timeout_s=1.0, held_by="the test"),
        pytest.raises(errors.CuratorUnavailable, match="nothing was spent") as caught,
    ):
        client.open_run(parameters)
    assert "/" not in str(caught.value)


def test_a_client_of_a_frozen_data_set_hears_so_and_no_price(serve, directory):
    client = serve()
    parameters = _parameters(client, quantiles(2, 0.01, directions=10), steps=1000)  # far beyond the budget
    with home.HomeDirectory(directory / "home").open_ledger() as ledger:
        ledger.freeze(reason="test")
    with pytest.raises(errors.BudgetExhausted) as caught:
        client.open_run(parameters)
    assert caught.value.scope == "frozen data set"


def test_the_first_line_is_in_the_log_s_format(serve):
    serve(**{"log.format": "json"})
    line = json.loads(serve.running.announcement("localhost:1"))
    assert line["message"] == "listening on localhost:1"
    assert line["level"] == "INFO"
    serve()
    assert serve.running.announcement("localhost:1") == "listening on localhost:1"


def test_uploads_are_the_curator_s_alone(serve, directory):
    shutil.rmtree(directory / "home" / "uploads", ignore_errors=True)
    before = os.umask(0o022)
    try:
        serve()
    finally:
        os.umask(before)
    for name in ("uploads", "uploads/objects", "uploads/clients"):
        assert (directory / "home" / name).stat().st_mode & 0o777 == 0o700


def start_turns(serve):
    return serve.running._service.turns._places.held


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


def test_records_that_do_not_keep_the_contract_are_not_served_and_the_pass_is_made_once(directory, serve, monkeypatch):
    declared = {"records.value_range": "[-10.0, 10.0]"}
    assert list(serve(**declared).describe().contract.value_range) == [-10.0, 10.0]
    monkeypatch.setattr(contract, "_first_outside", lambda *_: pytest.fail("they were looked at before"))
    serve(**declared)
    monkeypatch.undo()
    with pytest.raises(errors.SettingsError) as refused:
        serve(**{"records.value_range": "[-0.5, 0.5]"})
    assert str(refused.value) == "the records do not keep the declared contract; run `dpswd-curator preflight`"
    with pytest.raises(errors.SettingsError):  # a failure is not taken as known
        serve(**{"records.value_range": "[-0.5, 0.5]"})
    # Other values on the disk, and accepted: the pass is made again.
    np.save(directory / "records.npy", RECORDS * 100)
    with pytest.raises(errors.SettingsError, match="records accept"):
        serve(**declared)


def computing(seconds):
    """So many seconds of a processor."""
    ends = time.thread_time() + seconds
    while time.thread_time() < ends:
        pass


@pytest.mark.parametrize("place", ["sqlite", "postgres"])
def test_two_servers_have_one_quantum_whatever_their_load(tmp_path, request, monkeypatch, place):
    """Attack: quanta of 100 and 150 ms for one graph, by the load. On PostgreSQL both servers are up at once."""
    groups = {}
    if place == "postgres":
        groups = {"ledger": {"url": request.getfixturevalue("postgres").url(), "schema_name": "two_servers"}}
    made = made_home(tmp_path, RECORDS, groups=groups)
    chosen = {
        "listen.host": "localhost",
        "listen.port": "0",
        "compute.device": "cpu",
        "compute.isolation": "in-process",
    }
    expected, own = [], []
    monkeypatch.setattr(Pacer, "expect", lambda _, quantum_s: expected.append(quantum_s))
    monkeypatch.setattr(service, "quantum_ms", lambda seconds: own.append(quantum_ms(seconds)) or own[-1])
    with contextlib.ExitStack() as to_the_end:
        for load_s in (0.0, 0.3):
            running = server.CuratorServer(made, settings.load(made.path, chosen))
            pipeline = running.service.pipeline
            pipeline.evaluator = Delayed(pipeline.evaluator, functools.partial(computing, load_s))
            with contextlib.ExitStack() as until_the_next:
                stack = to_the_end if groups else until_the_next  # of a file one serves at a time
                stack.callback(running.stop)
                client = stack.enter_context(RawClient(running.start(), credentials=tmp_path / "credentials"))
                assert client.step(_open(client)).step == 1
    assert max(own) >= 450 > 300 >= min(own)
    assert set(expected) == {own[0] / 1000}
