"""A small curator for the client's tests: the real contract over real sockets with mutual TLS, scripted answers.

It proves nothing about privacy and computes nothing: it records what arrives, fails when told to, signs receipts, and
answers a repeated request id with the stored bytes, as the contract demands.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from collections import Counter
from concurrent import futures
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import numpy as np
import pytest
import torch
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import NameOID
from grpc_status import rpc_status
from small_methods import short_fits

from dpswd.shared.core import errors
from dpswd.shared.core.ledger import receipts
from dpswd.shared.core.mechanisms.class_statistics.mechanism import StatisticsReply
from dpswd.shared.core.mechanisms.feature_sums.mechanism import SumsReply
from dpswd.shared.core.mechanisms.interface import ModelFacts
from dpswd.shared.core.mechanisms.score_statistics.mechanism import ScoresReply
from dpswd.shared.core.mechanisms.sliced import SlicedReply
from dpswd.shared.core.noise.noise import GridArray
from dpswd.shared.core.wire.messages import RunParameters, StepRelease, run_digest, step_digest
from dpswd.shared.core.wire.v1 import curator_pb2 as pb
from dpswd.shared.core.wire.v1 import curator_pb2_grpc as rpc
from dpswd.shared.protocol.receipts import encode_receipt
from dpswd.shared.protocol.status import to_status
from dpswd.shared.published_mechanisms import ALL_MECHANISMS
from dpswd.shared.published_mechanisms.gradient.mechanism import GradientReply
from dpswd.shared.published_mechanisms.labelled_gradient.mechanism import LossGradientReply
from dpswd.shared.sandbox.graph import ExtractorGraph

__all__ = ["short_fits"]

torch.set_num_threads(1)

OFFERED = (
    "rows", "quantiles", "gradient", "class_statistics", "score_statistics", "feature_sums",
    "labelled_gradient",
)  # fmt: skip


@dataclass
class FakeCurator(rpc.CuratorServiceServicer):
    """Answers by script; see the module."""

    records: int = 1000
    record_shape: tuple[int, ...] = (1, 8, 8)
    epsilon: float = 5.0
    price: float = 1.0
    classes: int = 10
    feature_dimension: int = 6
    gradient_size: int = 0
    failures: dict[str, list[object]] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)
    request_ids: list[str] = field(default_factory=list)
    requests: list[object] = field(default_factory=list)
    run: RunParameters | None = None
    graph: ExtractorGraph | None = None
    steps_charged: int = 0
    forge_receipts: bool = False
    lose_open_answer: bool = False
    before_step: object = None

    def __post_init__(self) -> None:
        self.key = Ed25519PrivateKey.generate()
        self.stored: dict[str, object] = {}
        self.entries: list[receipts.SignedEntry] = []
        self.spent = 0.0
        self.rng = np.random.default_rng(7)

    def Describe(self, request, context):
        self._begin("Describe", context)
        return pb.DescribeResponse(
            data_set="fake",
            records=self.records,
            record_shape=self.record_shape,
            data_set_budget=self._budget(),
            client_budget=self._budget(),
            neighbouring_relation="replace-one",
            mechanisms=OFFERED,
            limits=pb.Limits(
                max_message_bytes=1 << 24, max_directions=2000, max_coefficients=64, max_batch_size=4096,
                max_adapted_parameters=100_000, max_source_features=4096,
            ),
            grid_exponent=11,
            ledger_public_key=self.key.public_key().public_bytes_raw(),
            client_name="tester",
            software_version="0",
            classes=self.classes,
            records_per_person=1,
        )  # fmt: skip

    def UploadExtractor(self, request, context):
        self._begin("UploadExtractor", context)
        self.graph = ExtractorGraph.from_bytes(request.graph)
        self.feature_dimension = self.graph.feature_dimension
        return pb.UploadExtractorResponse(
            graph_digest=hashlib.sha256(request.graph).hexdigest(),
            weights_digest=hashlib.sha256(request.weights).hexdigest(),
            feature_dimension=self.feature_dimension,
        )

    def OpenRun(self, request, context):
        self._begin("OpenRun", context)
        self.request_ids.append(request.request_id)
        parameters = RunParameters.from_message(request.parameters)
        cost = self.price
        if request.validate_only:
            return pb.OpenRunResponse(
                epsilon=cost, fits=self.spent + cost <= self.epsilon, steps_that_fit=parameters.steps,
                data_set_budget=self._budget(), client_budget=self._budget(),
            )  # fmt: skip
        if request.request_id not in self.stored:
            if self.spent + cost > self.epsilon:
                self._refuse(context, errors.BudgetExhausted(cost, self.spent, self.epsilon - self.spent, 3))
            self.spent += cost
            self.run = parameters
            summed = getattr(self.declared, "sum", None)
            if summed is not None and self.graph is not None:
                model = ModelFacts(self.record_shape, self.feature_dimension, self.graph.parameter_shapes)
                self.gradient_size = model.size(summed.parameters)
            payload = {
                "run": "run-1", "client": "tester", "request_id": request.request_id,
                "digest": run_digest(parameters), "steps": parameters.steps,
            }  # fmt: skip
            self.stored[request.request_id] = pb.OpenRunResponse(
                run_id="run-1", epsilon=cost, data_set_budget=self._budget(), client_budget=self._budget(),
                receipt=self._signed(receipts.RUN_OPENED, payload),
            )  # fmt: skip
            if self.lose_open_answer:
                self.lose_open_answer = False
                context.abort(grpc.StatusCode.UNAVAILABLE, "connection lost after the charge")
        return self.stored[request.request_id]

    def restart(self):
        """Forgets everything but the key; noise begins anew."""
        self.stored.clear()
        self.entries.clear()
        self.spent, self.steps_charged, self.rng = 0.0, 0, np.random.default_rng(7)

    @property
    def mechanism(self):
        """Of the open run."""
        assert self.run is not None
        return ALL_MECHANISMS[self.run.mechanism]

    @property
    def declared(self):
        """What the open run declared of its mechanism."""
        return self.mechanism.declaration.from_bytes(self.run.declaration)

    def DrawStep(self, request, context):
        if self.before_step is not None:
            self.before_step()
        self._begin("DrawStep", context)
        self.request_ids.append(request.request_id)
        if request.request_id not in self.stored:
            if self.run is not None and self.steps_charged == self.run.steps:
                self._refuse(context, errors.RunFinished("all declared steps are used"))
            self.steps_charged += 1
            self.requests.append(self.mechanism.request.from_bytes(request.payload))
            released = StepRelease(request.run_id, self.steps_charged, self._reply().to_bytes()).to_bytes()
            payload = {
                "run": request.run_id, "client": "tester", "request_id": request.request_id,
                "digest": step_digest(run_id=request.run_id, payload=request.payload), "step": self.steps_charged,
                "reply": "f" * 64 if self.forge_receipts else receipts.sha256(released),
            }  # fmt: skip
            receipt = self._signed(receipts.STEP_ANSWERED, payload)
            self.stored[request.request_id] = pb.DrawStepResponse(step_release=released, receipt=receipt)
        after = self.failures.get("DrawStep:after")
        if after and after.pop(0) is not None:
            context.abort(grpc.StatusCode.UNAVAILABLE, "connection lost after the answer was stored")
        return self.stored[request.request_id]

    def _reply(self):
        """Numbers of the declared sizes."""
        if self.mechanism.name == "labelled_gradient":
            return LossGradientReply(self._sums())
        if self.mechanism.name == "gradient":
            return GradientReply(self._sliced(self.declared.sliced), self._sums(), 0.5)
        if self.mechanism.name == "class_statistics":
            size = self.declared.values(self.feature_dimension)
            return StatisticsReply(GridArray(self.rng.integers(-300, 300, size=size).astype(np.int32), 1e-3))
        if self.mechanism.name == "score_statistics":
            size = self.declared.values
            return ScoresReply(GridArray(self.rng.integers(-300, 300, size=size).astype(np.int32), 1e-3))
        if self.mechanism.name == "feature_sums":  # large, as if channels had moved: else a client asks no further
            return SumsReply(GridArray(self.rng.integers(-300, 300, size=self.feature_dimension).astype(np.int32), 1.0))
        return self._sliced(self.declared)

    def _sliced(self, declared):
        shape = (declared.coefficients or self.run.batch_size, declared.directions)
        values = self.rng.integers(-300, 300, size=shape).astype(np.int16)
        return SlicedReply(self.rng.bytes(32), GridArray(values, declared.sigma / 2048, "int16"))

    def _sums(self):
        return GridArray(self.rng.integers(-300, 300, size=self.gradient_size).astype(np.int32), 1e-3)

    def _signed(self, kind, payload):
        statement = receipts.canonical_json(
            {
                "format": receipts.FORMAT, "kind": kind, "payload": payload,
                "previous": self.entries[-1].hash if self.entries else receipts.GENESIS,
                "seq": len(self.entries) + 1, "time": "2026-01-31T12:00:00.000000Z",
            }
        )  # fmt: skip
        signature = self.key.sign(receipts.Signed.ENTRY.over(statement))
        self.entries.append(receipts.SignedEntry.parse(statement, signature))
        return encode_receipt(receipts.Receipt.of(self.entries[-1]))

    def _begin(self, method, context):
        self.calls[method] += 1
        planned = self.failures.get(method)
        if planned:
            failure = planned.pop(0)
            if failure is None:
                return
            if isinstance(failure, grpc.StatusCode):
                context.abort(failure, "scripted")
            self._refuse(context, failure)

    def _refuse(self, context, error):
        context.abort_with_status(rpc_status.to_status(to_status(error)))

    def _budget(self):
        return pb.BudgetStatus(
            epsilon=self.epsilon, delta=1e-5, epsilon_spent=self.spent, epsilon_remaining=self.epsilon - self.spent
        )


@dataclass
class Served:
    """A fake curator that listens."""

    curator: FakeCurator
    address: str
    credentials: Path
    server: grpc.Server


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    """A directory with ca.crt, server.crt, server.key, client.crt and client.key."""
    directory = tmp_path_factory.mktemp("certificates")
    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])
    authority = _certificate(authority_name, authority_key.public_key(), authority_name, authority_key, ca=True)
    (directory / "ca.crt").write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    for party in ("server", "client"):
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, party)])
        certificate = _certificate(name, key.public_key(), authority_name, authority_key, ca=False)
        (directory / f"{party}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        (directory / f"{party}.key").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
    return directory


def _certificate(subject, public_key, issuer, issuer_key, *, ca):
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(minutes=5))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(issuer_key, hashes.SHA256())
    )


@pytest.fixture
def serve(certificates):
    """Starts fake curators, each with its own settings, and stops them at the end."""
    running = []

    def start(**settings):
        curator = FakeCurator(**settings)
        server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
        rpc.add_CuratorServiceServicer_to_server(curator, server)
        credentials = grpc.ssl_server_credentials(
            [((certificates / "server.key").read_bytes(), (certificates / "server.crt").read_bytes())],
            root_certificates=(certificates / "ca.crt").read_bytes(),
            require_client_auth=True,
        )
        port = server.add_secure_port("localhost:0", credentials)
        server.start()
        running.append(Served(curator, f"localhost:{port}", certificates, server))
        return running[-1]

    yield start
    for served in running:
        served.server.stop(grace=None).wait()


@pytest.fixture
def served(serve):
    """One running fake curator."""
    return serve()
