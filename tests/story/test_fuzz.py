"""A fixed corpus of mutated requests, to a whole curator in this process and to a real one over mutual TLS.

The corpus is drawn from fixed seeds; `make test-exhaustive` draws a larger one anew, and `python -m benchmarks.fuzz`
sends a million of the same kind.
"""

from __future__ import annotations

import random

import grpc
import numpy as np
import pytest
from curator_process import CLIENT, CuratorProcess
from exploring import EXPLORING, seeded
from raw_client import RawClient

from benchmarks.fuzz import graphs, seeds
from benchmarks.fuzz.__main__ import KINDS, Campaign, method_of
from benchmarks.fuzz.mutation import Mutator
from benchmarks.fuzz.site import METHODS, SERVICE, Finding, Site
from dpswd.shared.core.errors import CuratorUnavailable
from dpswd.shared.core.wire.v1 import curator_pb2 as pb
from dpswd.shared.protocol.status import REASONS, from_rpc_error


@pytest.mark.long
@pytest.mark.parametrize(
    ("isolation", "seed", "inputs"),
    [
        ("in-process", 20261121, 400),
        ("process", 7, 30),
        pytest.param("in-process", 20261121, 100_000, marks=pytest.mark.exhaustive),
        pytest.param("process", 7, 5_000, marks=pytest.mark.exhaustive),
    ],
)
def test_the_corpus_breaks_no_promise(isolation, seed, inputs, tmp_path):
    with Site(tmp_path, isolation=isolation) as site:
        campaign = Campaign(site, seeded(seed).getrandbits(32) if EXPLORING else seed)
        campaign.run(inputs)
    assert campaign.findings == []
    # The corpus reaches what it is for: every RPC is both answered and refused, and for several reasons.
    answered = {kind for kind, reason in campaign.outcomes if reason == "OK"}
    assert {method_of(kind) for kind in KINDS} == set(METHODS)
    reasons = {reason for _, reason in campaign.outcomes}
    if isolation == "in-process":
        assert answered == set(KINDS)
        assert {"UNDECODABLE", "REQUEST_INVALID", "REQUEST_ID_REUSED", "GRANT_NOT_HELD"} <= reasons
        assert campaign.opened > 0


@pytest.mark.long
@pytest.mark.parametrize("count", [30, pytest.param(3000, marks=pytest.mark.exhaustive)])
def test_no_random_graph_ends_as_an_incident(count, tmp_path):
    """Attack: 284 of 56,789 graphs did, for reasons that their shapes had told at the upload."""
    with Site(tmp_path, storage_objects=100_000) as site:
        campaign = graphs.Campaign(site, seeded(3) if EXPLORING else random.Random(3))
        campaign.run(count)
        assert not site._home.incidents.exists()
    assert campaign.findings == []
    assert campaign.outcomes["DrawStep", "OK"] > count / 2
    assert len(campaign.words) > 50


@pytest.mark.long
@pytest.mark.parametrize("defect", ["an escaping error", "an incident", "a charge that was refused", "a wrong reply"])
def test_a_defect_is_detected(defect, tmp_path, monkeypatch):
    with Site(tmp_path) as site:
        valid = seeds.make(site)["OpenRun"][0]
        data = valid.SerializeToString()
        service = type(site._service)
        if defect == "an escaping error":
            monkeypatch.setattr(service, "answer", lambda *_: 1 / 0)
        elif defect == "an incident":
            monkeypatch.setattr(service, "_budgets", lambda *_: 1 / 0)
        elif defect == "a wrong reply":
            monkeypatch.setattr(service, "answer", lambda *_: pb.DescribeResponse())
        else:
            ask = service._opened

            def refused_after_the_charge(*arguments, **named):
                ask(*arguments, **named)
                raise CuratorUnavailable("a refusal that comes too late")

            monkeypatch.setattr(service, "_opened", refused_after_the_charge)
            fresh = pb.OpenRunRequest.FromString(data)
            fresh.request_id = "8d9f4c1e-0f0e-4c55-8f53-0c1a32c6b2aa"
            data = fresh.SerializeToString()
        with pytest.raises(Finding):
            site.send("OpenRun", data)


def test_a_real_curator_survives_bytes_from_the_wire(tmp_path):
    rng = np.random.default_rng(0)
    hospital = CuratorProcess(tmp_path, rng.random((200, 1, 8, 8)), epsilon=5.0)
    hospital.start()
    try:
        before = hospital.json("budget")
        folder = hospital.credentials(CLIENT)
        credentials = grpc.ssl_channel_credentials(
            *((folder / name).read_bytes() for name in ("ca.crt", "client.key", "client.crt"))
        )
        (tmp_path / "model").mkdir()
        with Site(tmp_path / "model") as site:  # its requests name runs that the real curator does not know
            mutator = Mutator(seeds.make(site), random.Random(3))
        strange = []
        reasons = {row.error for row in REASONS if row.reason != "INTERNAL"}
        with grpc.secure_channel(hospital.address, credentials) as channel:
            for number in range(10 * len(KINDS)):
                kind = KINDS[number % len(KINDS)]
                call = channel.unary_unary(f"/{SERVICE.full_name}/{method_of(kind)}")
                try:
                    call(mutator.request(kind), timeout=60)
                except grpc.RpcError as error:
                    undecodable = error.code() is grpc.StatusCode.INTERNAL and "deserializing" in error.details()
                    if not undecodable and type(from_rpc_error(error)) not in reasons:
                        strange.append(f"{kind}: {error}")
        assert strange == []
        with RawClient(hospital.address, credentials=folder) as client:
            assert client.describe().records == 200
        # A team's wish for more budget is an entry of the ledger, and changes nothing else.
        grow = {"ledger_head", "ledger_entries"}
        after = hospital.json("budget")
        assert {key: after[key] for key in after.keys() - grow} == {key: before[key] for key in before.keys() - grow}
        assert not hospital.home.incidents.exists()
    finally:
        hospital.stop()
