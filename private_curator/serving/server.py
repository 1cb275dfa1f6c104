"""The composition root: settings in, a serving curator out. Nothing else makes these objects."""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from concurrent import futures

import grpc
import torch
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from dpswd.private_curator.books.ledger import Ledger
from dpswd.private_curator.cluster.shards import cluster_of
from dpswd.private_curator.core.ledger.store import no_checkpoint
from dpswd.private_curator.core.steps.randomness import fresh_seed
from dpswd.private_curator.core.steps.release import ReleasePipeline
from dpswd.private_curator.observability import logs
from dpswd.private_curator.observability.metrics import Metrics, MetricsServer
from dpswd.private_curator.observability.requests import OK, RequestWatch, tracing_of
from dpswd.private_curator.records import target
from dpswd.private_curator.records.contract import require_contract
from dpswd.private_curator.records.labels import load_labels
from dpswd.private_curator.serving.asking import AskLog
from dpswd.private_curator.serving.pacing import Pacer
from dpswd.private_curator.serving.second_accountant import SecondAccountant
from dpswd.private_curator.serving.service import CuratorService, facts_of
from dpswd.private_curator.serving.turns import Turns
from dpswd.private_curator.settings.permissions import check_permissions, switched_on
from dpswd.private_curator.settings.tree import CuratorSettings
from dpswd.private_curator.steps.device_noise import noise_for
from dpswd.private_curator.steps.engines import make_engine, report
from dpswd.private_curator.steps.extraction import ExtractorCatalogue
from dpswd.private_curator.steps.shards import LocalShards
from dpswd.private_curator.steps.trial_run import Trials
from dpswd.private_curator.storage.asks import Ask
from dpswd.private_curator.storage.certificates import CA_CERTIFICATE, SERVER_CERTIFICATE, SERVER_KEY
from dpswd.private_curator.storage.home_directory import SAFE_UMASK, HomeDirectory
from dpswd.private_curator.storage.incidents import IncidentBook
from dpswd.private_curator.storage.uploads import UploadStore
from dpswd.private_curator.syslog.sender import keep_telling
from dpswd.shared.core.errors import SettingsError
from dpswd.shared.core.mechanisms.interface import AnyMechanism
from dpswd.shared.core.steps.computing import Laboratory
from dpswd.shared.core.wire.v1 import curator_pb2 as pb
from dpswd.shared.device_noise.noise import draw_on
from dpswd.shared.devices import resolve_device
from dpswd.shared.files import write_public
from dpswd.shared.sandbox.building import compute_in_full_float32

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["CuratorService"].full_name

_LINE_PER_THREAD = 8
"""Requests that are under way or wait for their turn (`Turns`), before gRPC refuses more with RESOURCE_EXHAUSTED.

Of one client half of them wait, so that another finds a place. Each has a thread of the system, which sleeps.
"""
_ABORTED_WITHIN_S = 10.0  # of the grace's end: gRPC then ends what is under way, and need not be believed to do so

_log = logging.getLogger(__name__)


class CuratorServer:
    """A curator that listens. A context manager: leaving it stops the server.

    Args:
        home: the curator's directory.
        settings: the operator's choices.
        checkpoint: called at named points of every step; tests stop the process there.
        mechanisms: what may be released.
        ledger: open already, and closed with the server; by default it is opened here.

    Raises:
        SettingsError: something of the home or the settings cannot work.
        DataInvalid: the records cannot be served.
        LedgerUnavailable, LedgerCorrupt: see `Ledger.open`.
    """

    def __init__(
        self,
        home: HomeDirectory,
        settings: CuratorSettings,
        *,
        checkpoint: Callable[[str], None] = no_checkpoint,
        mechanisms: Mapping[str, AnyMechanism] | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        mechanisms = switched_on(settings.clients) if mechanisms is None else mechanisms
        check_permissions(settings.clients, mechanisms)
        device = resolve_device(settings.compute.device)
        compute_in_full_float32()
        if settings.compute.torch_threads:
            torch.set_num_threads(settings.compute.torch_threads)
        data = target.load(settings.records, home=home.path)
        # A wrong one is refused now, in words for the operator, and not at each client's Describe.
        contract = require_contract(settings.records, data, home=home.path)
        self._home = home
        self._settings = settings
        with contextlib.ExitStack() as opened:  # closes what is open already if something below fails
            notices = home.notices(settings)
            opened.callback(notices.close)
            self._ledger = ledger or home.open_ledger(settings.ledger, checkpoint=checkpoint)
            self._ledger.listener = notices.entry  # tells without waiting
            opened.callback(self._ledger.close)

            def notice(ask: Ask) -> None:
                if ask.outcome != OK:
                    notices.refused(ask)
                elif ask.operation == "OpenRun" and not ask.dry_run:
                    notices.budgets(self._ledger.status)

            data.check_count(self._ledger.records, settings.records_file)
            limits, pace = settings.limits, settings.limits.reply_quantum_ms
            uploads = UploadStore(
                home.uploads, max_bytes=limits.client_storage_bytes, max_objects=limits.client_storage_objects
            )
            self._engine = make_engine(settings.compute, device)
            opened.callback(self._engine.close)
            labels = load_labels(settings.records, home=home.path, records=data.count)
            compute = settings.compute
            here = LocalShards(
                self._engine,
                records=data,
                labels=labels,
                device=device,
                parallel=compute.parallel_steps,
                pass_seconds=compute.pass_seconds,
            )
            cluster = cluster_of(settings, records=data, labels=labels, own=here)
            if cluster is not None:
                opened.callback(cluster.close)
            self._pipeline = ReleasePipeline(
                ledger=self._ledger,
                evaluator=self._engine,
                shards=cluster or here,
                lab=Laboratory(
                    records=data,
                    labels=labels,
                    noise=noise_for(device),
                    device=device,
                    fresh_seed=fresh_seed,
                    reached=checkpoint,
                    draw=draw_on(device),
                ),
                parallel_steps=compute.parallel_steps,
                max_attempts=limits.max_step_attempts,
            )
            second_accountant = SecondAccountant()
            opened.callback(second_accountant.close)
            self._service = CuratorService(
                settings=settings,
                ledger=self._ledger,
                mechanisms=mechanisms,
                data_set=facts_of(settings.records, records=data.count, record_shape=data.record_shape),
                contract=contract,
                uploads=uploads,
                extractors=ExtractorCatalogue(
                    uploads, approval=settings.extractors.approval, ledger=self._ledger, engine=self._engine
                ),
                pipeline=self._pipeline,
                trials=Trials(
                    self._pipeline,
                    most_seconds=compute.worker_seconds,
                    pass_seconds=compute.pass_seconds,
                    pass_speedup=compute.pass_speedup,
                ),
                incidents=IncidentBook(home.incidents),
                pacer=Pacer(pace if pace == "auto" else pace / 1000.0),
                turns=Turns(
                    min(limits.client_requests, max(1, settings.compute.request_threads // 2)),
                    most_bytes=limits.client_message_bytes,
                    largest=limits.max_message_bytes,
                    most_in_all=limits.message_bytes,
                    threads=compute.request_threads,
                    line=compute.request_threads * _LINE_PER_THREAD // 2,
                    parallel_steps=compute.parallel_steps,
                ),
                asks=AskLog((home.asks.record, notice), odd=notices.odd),
                crosscheck=second_accountant,
                now=self._ledger.now,
            )
            opened.callback(home.asks.close)
            keep_telling(settings, home, self._ledger, opened)
            tracing = tracing_of(settings.tracing)
            if tracing is not None:
                opened.callback(tracing.close)
            self._metrics = Metrics(home, self._ledger, restarts=lambda: self._engine.restarts)
            self._watch = RequestWatch(SERVICE_NAME, metrics=self._metrics, tracing=tracing)
            self._health = health.HealthServicer()
            self._started = False
            self._server = self._make_server(self._service)
            self._opened = opened.pop_all()

    @property
    def service(self) -> CuratorService:
        """What answers; `ready` before it charges or computes."""
        return self._service

    def ready(self) -> CuratorService:
        """Claims the ledger and waits for the extraction worker; the service can then be asked, listening or not.

        Raises:
            SettingsError: the extraction worker does not start.
            LedgerUnavailable: another process serves this ledger's file, or the ledger is being restored.
        """
        # A second curator on the same file fails here and not at its first charge.
        self._ledger.serve()
        self._ledger.watch()
        report(self._engine)
        return self._service

    def start(self) -> str:
        """Listens, and returns host:port; also written to the home's address file.

        Raises:
            SettingsError: the address cannot be bound, or the extraction worker does not start.
            LedgerUnavailable: another process serves this ledger's file, or the ledger is being restored.
        """
        self.ready()
        host, port = self._settings.listen.host, self._settings.listen.port
        try:
            bound = self._server.add_secure_port(f"{_bracketed(host)}:{port}", self._credentials())
        except RuntimeError as error:
            raise SettingsError(
                f"{_bracketed(host)}:{port} (--address; listen.host, listen.port) cannot be bound; free the port "
                "or choose another (0 takes a free one)"
            ) from error
        if self._settings.metrics.enabled:
            self._opened.callback(MetricsServer(self._metrics, self._settings.metrics, self._home).close)
        self._server.start()
        self._started = True
        for name in ("", SERVICE_NAME):
            self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        address = f"{_bracketed(host)}:{bound}"
        write_public(self._home.address, f"{address}\n".encode())
        return address

    def announcement(self, address: str) -> str:
        """The line that says where it listens, in the log's format."""
        text = f"listening on {address}"
        if self._settings.log.format == "text":
            return text
        record = logging.LogRecord(__name__, logging.INFO, __file__, 0, text, (), None)
        return logs.Lines(self._settings.log).format(record)

    def stop(self) -> bool:
        """Refuses new requests, lets running ones finish for a while, and closes the ledger.

        Returns:
            Whether every step has finished. One that has not loses nothing: its charge stands, nothing of it was
            released, and its request may be repeated.
        """
        self._health.enter_graceful_shutdown()
        if self._started:
            self._home.address.unlink(missing_ok=True)
        grace = self._settings.listen.shutdown_seconds
        finished = self._server.stop(grace).wait(grace + _ABORTED_WITHIN_S) and self._pipeline.idle()
        self._opened.close()
        return finished

    def __enter__(self) -> CuratorServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _make_server(self, service: CuratorService) -> grpc.Server:
        threads = self._settings.compute.request_threads
        size = self._settings.limits.max_message_bytes
        server = grpc.server(
            futures.ThreadPoolExecutor(max_workers=threads * _LINE_PER_THREAD, thread_name_prefix="request"),
            interceptors=[self._watch],
            maximum_concurrent_rpcs=threads * _LINE_PER_THREAD,
            options=[
                ("grpc.max_receive_message_length", size),
                ("grpc.max_send_message_length", size),
                # What is sent before the sender is known stays within a stream's first window, 64 KiB: a window that
                # follows the connection's speed would grow to megabytes. A request that is being received has its own.
                ("grpc.http2.bdp_probe", 0),
                ("grpc.max_concurrent_streams", threads),
                # A second curator on the same port must fail loudly, not share the port's connections.
                ("grpc.so_reuseport", 0),
            ],
        )
        server.add_generic_rpc_handlers((service.rpcs(),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        return server

    def _credentials(self) -> grpc.ServerCredentials:
        directory = self._home.certificates
        try:
            key, certificate, authority = (
                (directory / name).read_bytes() for name in (SERVER_KEY, SERVER_CERTIFICATE, CA_CERTIFICATE)
            )
        except OSError as error:
            raise SettingsError(
                f"{error.filename} cannot be read ({error.strerror}); make it with "
                "`dpswd-curator certificates --renew-server`"
            ) from error
        return grpc.ssl_server_credentials([(key, certificate)], root_certificates=authority, require_client_auth=True)


def serve(home: HomeDirectory, settings: CuratorSettings, *, ledger: Ledger) -> None:
    """Serves until SIGTERM or SIGINT; `ledger` is open, verified, and closed in the end."""
    logs.configure(settings.log)
    logs.close_side_doors()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core dump would hold records and keys
    run_until_signal(CuratorServer(home, settings, ledger=ledger))


def run_until_signal(server: CuratorServer) -> None:
    """Starts the server, prints one line when it is ready, and stops it on SIGTERM or SIGINT."""
    awakened, wakes = socket.socketpair()
    wakes.setblocking(False)
    signal.set_wakeup_fd(wakes.fileno())  # a signal may arrive at any thread, and would leave this one asleep
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, lambda *_: None)
    os.umask(SAFE_UMASK)
    address = server.start()
    sys.stdout.write(f"{server.announcement(address)}\n")
    sys.stdout.flush()
    (number,) = awakened.recv(1)
    _log.info("%s: finishing running steps", signal.Signals(number).name)
    if not server.stop():
        _log.warning("a step did not finish in time; its request may be repeated after a restart")
        sys.stderr.flush()
        # Its thread cannot be ended, and waiting for it would break the promise of listen.shutdown_seconds.
        os._exit(0)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
