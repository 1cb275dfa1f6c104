"""What every mechanism must do, whatever it releases; the price has test_conformance_privacy.py.

A mechanism of ALL_MECHANISMS without a case fails the suite.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import struct
import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from conformance_attack import Bench, Labelled
from conformance_cases import CASES, CLASSES, INPUTS, RECORDS, Case
from exploring import tried
from hospital import CLIENT, LIMITS, Hospital, NoNoise
from hypothesis import given, settings
from hypothesis import strategies as st
from made_home import made_home
from raw_client import RawClient, released
from torch.utils._python_dispatch import TorchDispatchMode

from dpswd.private_curator.core.ledger.statements import Request, Run, StoredReply
from dpswd.private_curator.core.steps.randomness import SystemNoise
from dpswd.private_curator.serving.server import CuratorServer
from dpswd.private_curator.settings import tree
from dpswd.private_curator.settings.groups import RecordsSettings
from dpswd.shared.core.errors import BudgetExhausted, RequestIdReused, RequestInvalid, RunFinished
from dpswd.shared.core.mechanisms.declared import AdmittedRun
from dpswd.shared.core.mechanisms.evaluation import counts
from dpswd.shared.core.mechanisms.interface import AnyMechanism
from dpswd.shared.core.noise.feature_map import FeatureMap
from dpswd.shared.core.noise.noise import GridArray
from dpswd.shared.core.steps.admission import admit_run
from dpswd.shared.core.wire.limits import UNLABELLED
from dpswd.shared.core.wire.messages import RunParameters, StepRelease, step_digest
from dpswd.shared.published_mechanisms import ALL_MECHANISMS

RNG = np.random.default_rng(5)
DATA = Labelled(RNG.normal(size=(RECORDS, INPUTS)).astype(np.float32), np.arange(RECORDS) % CLASSES)
BUDGET = 500.0

by_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def test_every_mechanism_has_a_case():
    assert {case.declared[0] for case in CASES} == set(ALL_MECHANISMS)
    assert all(name == mechanism.name for name, mechanism in ALL_MECHANISMS.items())


def _mechanism(case: Case) -> AnyMechanism:
    return ALL_MECHANISMS[case.declared[0]]


# ---- encodings -------------------------------------------------------------------------------------------------------


def _same(one: Any, other: Any) -> bool:
    """Whether two values are equal to the bit."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return struct.pack("<d", one) == struct.pack("<d", other)
    if isinstance(one, torch.Tensor):
        return _same(one.numpy(), other.numpy())
    if isinstance(one, np.ndarray):
        return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    if isinstance(one, FeatureMap | GridArray) or dataclasses.is_dataclass(one):
        return all(_same(getattr(one, field.name), getattr(other, field.name)) for field in dataclasses.fields(one))
    return bool(one == other)


@by_case
@given(data=st.data())
@settings(max_examples=tried(12))
@pytest.mark.long
def test_values_survive_the_wire_and_differ_in_bytes_where_they_differ(case, data):
    mechanism = _mechanism(case)
    kinds = (mechanism.declaration, mechanism.request, mechanism.reply)
    for kind, strategy in zip(kinds, case.values, strict=True):
        one, other = data.draw(strategy), data.draw(strategy)
        assert type(one) is kind
        assert _same(kind.from_bytes(one.to_bytes()), one)
        assert (one.to_bytes() == other.to_bytes()) == _same(one, other)


@by_case
def test_the_cases_own_values_survive_the_wire(case):
    mechanism, bench = _mechanism(case), Bench(_mechanism(case), case, records=RECORDS)
    reply = bench.reply(DATA, SystemNoise(), seed=bytes(32))
    for kind, value in (
        (mechanism.declaration, case.declaration),
        (mechanism.request, case.request),
        (mechanism.reply, reply),
    ):
        assert type(value) is kind
        assert _same(kind.from_bytes(value.to_bytes()), value)


# ---- what is refused -------------------------------------------------------------------------------------------------


def _bench(case: Case) -> Bench:
    return Bench(_mechanism(case), case, records=RECORDS)


def _admitted(bench: Bench, declaration: bytes) -> AdmittedRun:
    parameters = RunParameters("a" * 64, "b" * 64, bench.mechanism.name, declaration, bench.case.batch, 3)
    data, model = bench.facts.data, bench.facts.model
    return admit_run(parameters, mechanisms=ALL_MECHANISMS, data=data, model=model, limits=LIMITS)


def _admitted_step(bench: Bench, payload: bytes) -> Any:
    run = _admitted(bench, bench.case.declaration.to_bytes())
    return run.admit_step(payload, limits=LIMITS)


def _refused_fields(call: Any, *arguments: Any) -> set[str]:
    """Names of the fields that a refusal tells; empty where the call was admitted. Any other exception fails."""
    violations: tuple[tuple[str, str], ...] = ()
    try:
        call(*arguments)
    except RequestInvalid as refusal:
        violations = refusal.violations or (("", ""),)
    assert all(field and text for field, text in violations)
    return {field for field, _ in violations}


@by_case
def test_hostile_declarations_are_refused_by_field(case):
    bench = _bench(case)
    assert _refused_fields(_admitted, bench, case.declaration.to_bytes()) == set()
    for declaration, field in case.hostile:
        assert field in _refused_fields(_admitted, bench, declaration.to_bytes()), declaration


@by_case
def test_hostile_requests_are_refused_by_field(case):
    bench = _bench(case)
    assert _refused_fields(_admitted_step, bench, case.request.to_bytes()) == set()
    for request, field in case.hostile_requests:
        payload = request if isinstance(request, bytes) else request.to_bytes()
        assert field in _refused_fields(_admitted_step, bench, payload), request


def _numbers(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], float]]:
    """Every number of a declaration, with its path."""
    for field in dataclasses.fields(value):
        content = getattr(value, field.name)
        if isinstance(content, int | float):
            yield (*path, field.name), content
        elif dataclasses.is_dataclass(content) and not isinstance(content, FeatureMap):
            yield from _numbers(content, (*path, field.name))


def _with(value: Any, path: tuple[str, ...], number: float) -> Any:
    name, *rest = path
    return replace(value, **{name: _with(getattr(value, name), tuple(rest), number) if rest else number})


_SMALL_AND_LARGE = (0.0, -0.0, 5e-324, 1e-300, 1e-30, 1e30, 1.7e308)


@by_case
def test_every_number_of_a_declaration_is_held_to_a_range(case):
    """NaN, infinite and negative ones are refused; at the ends of the types there is a refusal or a finite price."""
    bench = _bench(case)
    for path, number in _numbers(case.declaration):
        never = (math.nan, math.inf, -math.inf, -1.0) if isinstance(number, float) else ()
        for wrong in never:
            declaration = _with(case.declaration, path, wrong).to_bytes()
            assert any(path[-1] in field for field in _refused_fields(_admitted, bench, declaration)), (path, wrong)
        ends = (
            (0.0, -0.0, 5e-324, 1e-300, 1e-30, 1e30, 1.7e308) if isinstance(number, float) else (0, 1, 2**31, 2**32 - 1)
        )
        for end in ends:
            declaration = _with(case.declaration, path, end).to_bytes()
            if not _refused_fields(_admitted, bench, declaration):
                assert math.isfinite(_admitted(bench, declaration).event.step.shift().largest), (path, end)


@by_case
@given(noise=st.binary(max_size=60), place=st.integers(0, 10**6), value=st.integers(0, 255))
@settings(max_examples=tried(30))
def test_broken_bytes_are_refused_or_are_another_valid_value(case, noise, place, value):
    """Random, truncated and changed bytes: a refusal that names fields, or an admission; never another exception."""
    bench = _BENCHES[case.name]
    for valid, call in ((case.declaration.to_bytes(), _admitted), (case.request.to_bytes(), _admitted_step)):
        at = place % (len(valid) + 1)
        for broken in (noise, valid[:at], valid[:at] + bytes([value]) + valid[at + 1 :], valid + noise):
            _refused_fields(call, bench, broken)


_BENCHES = {case.name: Bench(_mechanism(case), case, records=RECORDS) for case in CASES}


@by_case
def test_broken_replies_are_refused_by_field(case):
    """A client reads what a curator sends: bytes that are no reply raise RequestInvalid alone."""
    valid = _BENCHES[case.name].reply(DATA, SystemNoise(), seed=bytes(32)).to_bytes()
    kind = _mechanism(case).reply
    for at in range(0, len(valid), max(1, len(valid) // 100)):
        for broken in (valid[:at], valid[:at] + bytes([valid[at] ^ 0x7F]) + valid[at + 1 :]):
            _refused_fields(kind.from_bytes, broken)
    assert _refused_fields(kind.from_bytes, b"\xff\xff") == {"reply"}


# ---- padding ---------------------------------------------------------------------------------------------------------


@by_case
def test_a_reply_has_one_length(case):
    """For every data set, all weights of the model and each attempt; what is released is finite."""
    values = (0.0, 1e-38, 1e38, np.nan, np.inf)
    made = [Labelled(np.full((RECORDS, INPUTS), value, np.float32), DATA.labels * 0) for value in values]
    lengths = set()
    for factor in (0.0, 1.0, 1e30):
        bench = Bench(_mechanism(case), case, records=RECORDS, factor=factor)
        for sample, attempt in itertools.product((DATA, *made), range(2)):
            reply = bench.reply(sample, SystemNoise() if attempt else NoNoise(), seed=bytes([attempt + 1]) * 32)
            assert all(torch.isfinite(grid.to_tensor()).all() for grid in case.released(reply))
            lengths.add(len(StepRelease(str(uuid.UUID(int=1)), 1, reply.to_bytes()).to_bytes()))
    assert len(lengths) == 1


# ---- times -----------------------------------------------------------------------------------------------------------


class Kernels(TorchDispatchMode):
    """What torch runs, on which shapes; numpy's part of a step is not seen."""

    def __init__(self) -> None:
        super().__init__()
        self.run: list[tuple[str, tuple[tuple[int, ...], ...]]] = []

    def __torch_dispatch__(self, kernel, _types, args=(), kwargs=None):
        shapes = tuple(tuple(value.shape) for value in args if isinstance(value, torch.Tensor))
        self.run.append((kernel.overloadpacket.__name__, shapes))
        return kernel(*args, **(kwargs or {}))


def _kernels(case: Case, sample: Labelled) -> list[Any]:
    with Kernels() as seen:
        _BENCHES[case.name].reply(sample, NoNoise(), seed=bytes(32))
    return seen.run


ORDERING = {"sort", "topk", "unique", "nonzero", "masked_select"}
"""Kernels whose time follows the order or the number of what they are given."""
ORDERS_WHAT_IS_PUBLIC = {"gradient"}
"""Its sorts are of source records and of rows that are released."""


@by_case
def test_a_step_runs_the_same_kernels_whatever_the_records(case):
    """Attack: a sort took a third of its time for equal features; records without a label were left out of an
    evaluation, whose time told how many there are."""
    _kernels(case, DATA)  # tables are made once
    usual = _kernels(case, DATA)
    samples = [
        Labelled(np.full((RECORDS, INPUTS), value, np.float32), DATA.labels * 0)
        for value in (0.0, 1e-38, 3e38, np.nan, np.inf)
    ]
    if _mechanism(case).partial_labels:
        samples.append(Labelled(DATA.records, np.where(np.arange(RECORDS) < 5, UNLABELLED, DATA.labels)))
    for sample in samples:
        assert _kernels(case, sample) == usual
    assert case.declared[0] in ORDERS_WHAT_IS_PUBLIC or not {name for name, _ in usual} & ORDERING


def test_a_planted_branch_is_detected(monkeypatch):
    monkeypatch.setattr(counts, "neutralise", lambda v: torch.nan_to_num(v) if bool(v.isnan().any()) else v)
    case = next(case for case in CASES if case.name == "evaluation")
    missing = Labelled(DATA.records * np.nan, DATA.labels)
    assert _kernels(case, missing) != _kernels(case, DATA)


# ---- crashes ---------------------------------------------------------------------------------------------------------


class Fault(Exception):
    pass


@by_case
def test_a_step_that_fails_at_any_point_releases_nothing_and_can_be_repeated(case, make_hospital):
    seen: list[str] = []
    failing_at: list[str] = []

    def checkpoint(name):
        seen.append(name)
        if name in failing_at:
            raise Fault

    hospital = make_hospital(DATA.records, labels=DATA.labels, classes=CLASSES, checkpoint=checkpoint)
    parameters = hospital.declare(case.module(), case.declared, batch_size=case.batch, steps=20)
    run = hospital.open_run(parameters)
    hospital.step(run, parameters, case.request)
    points = list(seen)
    assert points[:2] == ["consumed", "sampled"]
    assert points[-1] == "stored"
    assert len(points) >= 4  # at least one point of the mechanism's own
    assert len(set(points)) == len(points)
    for number, point in enumerate(points[:-1], start=2):
        request_id = str(uuid.uuid4())
        failing_at[:] = [point]
        with pytest.raises(Fault):
            hospital.step(run, parameters, case.request, request_id=request_id)
        assert _stored(hospital, run, request_id, case) is None
        failing_at.clear()
        stored = hospital.step(run, parameters, case.request, request_id=request_id)
        assert StepRelease.from_bytes(stored.reply).step == number
        assert _stored(hospital, run, request_id, case) == stored
        assert hospital.ledger.run(client=CLIENT, run_id=run.run_id).steps_used == number
    failing_at[:] = ["stored"]  # what is stored is paid for: it is sent to whoever asks again
    request_id = str(uuid.uuid4())
    with pytest.raises(Fault):
        hospital.step(run, parameters, case.request, request_id=request_id)
    failing_at.clear()
    count = len(seen)
    stored = hospital.step(run, parameters, case.request, request_id=request_id)
    assert StepRelease.from_bytes(stored.reply).step == len(points) + 1
    assert len(seen) == count  # nothing was computed
    assert hospital.pipeline.idle()
    assert hospital.ledger.verify().ok


def _stored(hospital: Hospital, run: Run, request_id: str, case: Case) -> StoredReply | None:
    """What the ledger holds as the answer to a request."""
    return hospital.ledger.stored_reply(
        Request(
            client=CLIENT, request_id=request_id, digest=step_digest(run_id=run.run_id, payload=case.request.to_bytes())
        ),
        run_id=run.run_id,
    )


# ---- the real service ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def client(tmp_path_factory) -> Iterator[RawClient]:
    """A client of a serving curator that offers every mechanism."""
    directory = tmp_path_factory.mktemp("conformance")
    np.savez(directory / "records.npz", records=DATA.records, labels=DATA.labels)
    file = directory / "records.npz"
    settings = RecordsSettings(file=file, array="records", labels_array="labels", classes=CLASSES)
    made = made_home(directory, settings, epsilon=BUDGET)
    chosen = {
        "listen.host": "localhost",
        "listen.port": "0",
        "compute.device": "cpu",
        "compute.isolation": "in-process",
        "limits.reply_quantum_ms": "0",
        "limits.min_batch_size": "1",
    }
    with CuratorServer(made, tree.load(made.path, chosen)) as server:
        with RawClient(server.start(), credentials=directory / "credentials") as connected:
            yield connected
        assert not made.incidents.exists()  # no request of this file met an unexpected error


def _declared(client: RawClient, case: Case, *, steps: int = 2) -> RunParameters:
    name, declaration = case.declared
    return RunParameters(
        **client.upload(case.module()),
        mechanism=name,
        declaration=declaration.to_bytes(),
        batch_size=case.batch,
        steps=steps,
    )


def _spent(client: RawClient) -> float:
    return client.describe().data_set_budget.epsilon_spent


@by_case
def test_a_replay_gets_the_same_bytes_and_charges_once(case, client):
    assert case.declared[0] in client.describe().mechanisms
    parameters, opening, before = _declared(client, case), str(uuid.uuid4()), _spent(client)
    quoted = client.open_run(parameters, validate_only=True)
    assert quoted.fits
    assert _spent(client) == before
    opened = client.open_run(parameters, request_id=opening)
    charged = _spent(client)
    assert charged > before
    assert client.open_run(parameters, request_id=opening).SerializeToString() == opened.SerializeToString()
    with pytest.raises(RequestIdReused):
        client.open_run(replace(parameters, steps=3), request_id=opening)

    pending = client.prepare_step(opened.run_id, case.request)
    first = client.send(pending)
    assert client.send(pending).SerializeToString() == first.SerializeToString()
    other = client.prepare_step(opened.run_id, case.request.to_bytes() + b"\x00")
    other.request_id = pending.request_id
    with pytest.raises(RequestIdReused):
        client.send(other)
    assert released(first).step == 1
    assert _mechanism(case).reply.from_bytes(released(first).payload).to_bytes() == released(first).payload
    second = client.send(client.prepare_step(opened.run_id, case.request))
    assert released(second).step == 2
    assert released(second).payload != released(first).payload
    with pytest.raises(RunFinished):
        client.step(opened.run_id, case.request)
    assert _spent(client) == charged


@by_case
def test_a_refusal_charges_nothing(case, client):
    parameters = _declared(client, case)
    run = client.open_run(parameters).run_id
    before = _spent(client)
    for declaration, field in case.hostile:
        with pytest.raises(RequestInvalid) as refused:
            client.open_run(replace(parameters, declaration=declaration.to_bytes()))
        assert field in {name for name, _ in refused.value.violations}
    for request, field in case.hostile_requests:
        with pytest.raises(RequestInvalid) as refused:
            client.step(run, request)
        assert field in {name for name, _ in refused.value.violations}
    with pytest.raises(BudgetExhausted):
        client.open_run(replace(parameters, steps=10**7))
    assert _spent(client) == before
    assert client.step(run, case.request).step == 1  # none of the refused requests took a step
