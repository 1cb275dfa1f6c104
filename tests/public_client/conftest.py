"""A small curator for the client's tests: the real contract over real sockets with mutual TLS, scripted answers.

It proves nothing about privacy and computes nothing: it records what arrives, fails when told to, signs receipts, and
answers a repeated request id with the stored bytes, as the contract demands.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import math
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

from shared import errors
from shared.extractor import ExtractorGraph
from shared.kernels.noise import GridArray
from shared.ledger import receipts
from shared.protocol import arrays
from shared.protocol.digests import run_digest, step_digest
from shared.protocol.messages import Critic, PublicMap, Quantiles, RunParameters
from shared.protocol.receipts import encode_receipt
from shared.protocol.status import to_status
from shared.protocol.v1 import curator_pb2 as pb
from shared.protocol.v1 import curator_pb2_grpc as rpc

torch.set_num_threads(1)

_RELEASED = {
    pb.AlignTargetResponse: "step_release",
    pb.ReleaseProjectionsResponse: "step_release",
    pb.ReleaseQuantilesResponse: "step_release",
    pb.ReleaseCriticGradientResponse: "critic_release",
}


@dataclass
class FakeCurator(rpc.CuratorServiceServicer):
    """Answers by script; see the module."""

    records: int = 1000
    record_shape: tuple[int, ...] = (1, 8, 8)
    epsilon: float = 5.0
    price: float = 1.0
    feature_dimension: int = 6
    gradient_size: int = 0
    failures: dict[str, list[object]] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)
    request_ids: list[str] = field(default_factory=list)
    inputs: list[pb.StepInput] = field(default_factory=list)
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
            mechanisms=["rows", "quantiles", "gradient", "critic"],
            limits=pb.Limits(
                max_message_bytes=1 << 24, max_directions=2000, max_coefficients=64, max_batch_size=4096,
                max_adapted_parameters=100_000, max_source_features=4096,
            ),
            grid_exponent=11,
            ledger_public_key=self.key.public_key().public_bytes_raw(),
            client_name="tester",
            software_version="0",
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

    def UploadSource(self, request, context):
        self._begin("UploadSource", context)
        return pb.UploadSourceResponse(source_digest=hashlib.sha256(request.features.data).hexdigest())

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
            if parameters.gradient is not None and self.graph is not None:
                shapes = self.graph.parameter_shapes
                self.gradient_size = sum(math.prod(shapes[name]) for name in parameters.gradient.parameters)
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

    def AlignTarget(self, request, context):
        return self._step("AlignTarget", request, pb.AlignTargetResponse, context)

    def ReleaseProjections(self, request, context):
        return self._step("ReleaseProjections", request, pb.ReleaseProjectionsResponse, context)

    def ReleaseQuantiles(self, request, context):
        return self._step("ReleaseQuantiles", request, pb.ReleaseQuantilesResponse, context)

    def ReleaseCriticGradient(self, request, context):
        return self._step("ReleaseCriticGradient", request, pb.ReleaseCriticGradientResponse, context)

    def _step(self, method, request, reply_type, context):
        step_input = request.input
        if self.before_step is not None:
            self.before_step()
        self._begin(method, context)
        self.request_ids.append(step_input.request_id)
        if step_input.request_id not in self.stored:
            if self.run is not None and self.steps_charged == self.run.steps:
                self._refuse(context, errors.RunFinished("all declared steps are used"))
            self.steps_charged += 1
            self.inputs.append(step_input)
            released = self._released(request)
            reply = reply_type(receipt=self._receipt(method, request, released), **{_RELEASED[reply_type]: released})
            self.stored[step_input.request_id] = reply
        after = self.failures.get(method + ":after")
        if after and after.pop(0) is not None:
            context.abort(grpc.StatusCode.UNAVAILABLE, "connection lost after the answer was stored")
        return self.stored[step_input.request_id]

    def _released(self, request):
        step_input = request.input
        assert self.run is not None
        release = self.run.release
        if isinstance(release, Critic):
            gradient = arrays.encode_grid(GridArray(self._sums(), 1e-3))
            critic = pb.CriticRelease(run_id=step_input.run_id, step=self.steps_charged, gradient=gradient)
            return critic.SerializeToString()
        rows = release.coefficients if isinstance(release, Quantiles) else self.run.batch_size
        values = self.rng.integers(-300, 300, size=(rows, self.run.directions)).astype(np.int16)
        message = pb.StepRelease(
            run_id=step_input.run_id,
            step=self.steps_charged,
            directions_seed=self.rng.bytes(32),
            release=arrays.encode_grid(GridArray(values, release.sigma / 2048)),
            cotangent_scale=0.5,
        )
        if self.run.gradient is not None:
            message.gradient.CopyFrom(arrays.encode_grid(GridArray(self._sums(), 1e-3)))
        return message.SerializeToString()

    def _sums(self):
        return self.rng.integers(-300, 300, size=self.gradient_size).astype(np.int32)

    def _receipt(self, method, request, released):
        payload = {
            "run": request.input.run_id, "client": "tester", "request_id": request.input.request_id,
            "digest": self._digest(method, request), "step": self.steps_charged,
            "reply": "f" * 64 if self.forge_receipts else receipts.sha256(released),
        }  # fmt: skip
        return self._signed(receipts.STEP_ANSWERED, payload)

    def _digest(self, method, request):
        """What the real curator computes from a request that it has decoded."""
        source = None
        if method not in ("ReleaseProjections", "ReleaseCriticGradient") and request.HasField("source"):
            inline = request.source.WhichOneof("features") == "inline"
            source = receipts.sha256(request.source.inline.data) if inline else request.source.digest
        own_map = request.input.HasField("feature_map")
        return step_digest(
            operation=method,
            run_id=request.input.run_id,
            adapted=request.input.adapted_parameters,
            feature_map=PublicMap.from_message(request.input.feature_map, field="map") if own_map else None,
            source=source,
        )

    def _signed(self, kind, payload):
        statement = receipts.canonical_json(
            {
                "format": receipts.FORMAT, "kind": kind, "payload": payload,
                "previous": self.entries[-1].hash if self.entries else receipts.GENESIS,
                "seq": len(self.entries) + 1, "time": "2026-01-31T12:00:00.000000Z",
            }
        )  # fmt: skip
        signature = self.key.sign(statement)
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
