"""A live curator with a cluster under faults: ``python -m benchmarks.cluster_faults --faults 40 --seeds 0``.

On this machine, by the operator's commands: a curator, a scheduler and two nodes that a supervisor starts again, and
the team's client over mutual TLS. In the middle of a step something happens, drawn by seed: the scheduler, the courier
or a node is killed (SIGKILL); what the curator and the scheduler send to each other is held back, or their connections
are cut and refused; the wall clock of the curator, the scheduler or a node jumps (a shim before the C library's,
compiled here by cc). The client repeats its requests until they are answered.

Each step is charged before it is computed and releases class statistics; a reply that differs from the exact sums by
more than nine standard deviations of its noise anywhere is wrong (for an honest one: 1e-18 for each number).
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import mmap
import os
import random
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.records import Row, Rows, options
from dpswd.private_curator.settings.groups import RecordsSettings
from dpswd.private_curator.storage.certificates import make_cluster_members
from dpswd.public_client.curator.stub import Curator
from dpswd.public_client.curator.values import PendingStep, Run, new_request_id
from dpswd.public_client.extractor.tracing import module_weights, trace, weights_to_bytes
from dpswd.shared.core import errors
from dpswd.shared.core.mechanisms.class_statistics.mechanism import StatisticsDeclaration, StatisticsReply, Sums
from dpswd.shared.core.noise.clipping import RECORD_NORM
from dpswd.shared.core.noise.feature_map import FeatureMap
from dpswd.shared.core.wire.messages import RunParameters

RESULTS = Path(__file__).parent / "results" / "cluster-faults.json"
ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

CLI = (sys.executable, "-m", "dpswd.private_curator.cli")
CLASSES, VALUES, FEATURES, SIGMA = 4, 64, 12, 20.0
PATIENCE_S = 900.0
SHIM = """
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static volatile long *offset;
__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("CLOCK_OFFSET");
    int file = path ? open(path, O_RDONLY) : -1;
    void *mapped = file < 0 ? MAP_FAILED : mmap(0, sizeof(long), PROT_READ, MAP_SHARED, file, 0);
    if (mapped != MAP_FAILED) offset = mapped;
}
int clock_gettime(clockid_t id, struct timespec *at) {
    int done = syscall(SYS_clock_gettime, id, at);
    if (!done && offset && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) at->tv_sec += *offset;
    return done;
}
int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
"""


class Clock:
    """A wall clock that may be wrong, for processes that are started with its environment."""

    def __init__(self, folder: Path, name: str) -> None:
        library = folder / "clock.so"
        if not library.exists():
            (folder / "clock.c").write_text(SHIM)
            subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", library, folder / "clock.c"], check=True)
        file = folder / f"clock-{name}"
        file.write_bytes(bytes(8))
        with file.open("r+b") as opened:
            self._offset = mmap.mmap(opened.fileno(), 8)
        self.environment = {**os.environ, "LD_PRELOAD": str(library), "CLOCK_OFFSET": str(file)}
        self.environment["PYTHONPATH"] = str(ROOT)

    def jump(self, seconds: int) -> None:
        self._offset[:] = struct.pack("<q", seconds)


class Link:
    """A TCP link that can be held back or cut."""

    def __init__(self, port: int) -> None:
        self.target: tuple[str, int] = ("127.0.0.1", 0)
        self.held, self.refused = threading.Event(), threading.Event()
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", port))
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        for each in self._open:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._open.clear()

    def _accept(self) -> None:
        while True:
            near, _ = self._listener.accept()
            if self.refused.is_set():
                near.close()
                continue
            try:
                far = socket.create_connection(self.target, timeout=5.0)
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            self._open += [near, far]
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                while self.held.is_set():
                    time.sleep(0.05)
                other.sendall(data)
        for each in (one, other):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


class Member:
    """A process of the cluster that is started again when it ends."""

    def __init__(self, clock: Clock, log: Path, *command: object) -> None:
        self.clock = clock
        self._command, self._log = (*CLI, *map(str, command)), log
        self._ended = False
        self.process = self._start()
        threading.Thread(target=self._keep, daemon=True).start()

    def _start(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(self._command, stdout=log, stderr=log, env=self.clock.environment, cwd=ROOT)

    def _keep(self) -> None:
        while not self._ended:
            self.process.wait()
            time.sleep(0.5)
            if not self._ended:
                self.process = self._start()

    def end(self) -> None:
        self._ended = True
        self.process.kill()
        self.process.wait()


class Site:
    """Everything that is live, and the exact sums that its releases hold."""

    def __init__(self, folder: Path, *, records: int) -> None:
        from free_ports import own_port
        from made_home import made_home

        rng = np.random.default_rng(3)
        values, labels = rng.normal(size=(records, VALUES)).astype(np.float32), rng.integers(CLASSES, size=records)
        np.save(folder / "records.npy", values)
        np.save(folder / "labels.npy", labels.astype(np.uint8))
        make_cluster_members(folder / "members", nodes=("north", "east"), names=("127.0.0.1",))
        port, scheduler = own_port(), own_port()
        self.link = Link(port)
        self.link.target = "127.0.0.1", scheduler
        self.home = made_home(
            folder,
            RecordsSettings(file=folder / "records.npy", labels_file=folder / "labels.npy", classes=CLASSES),
            epsilon=1e4,
            groups={
                "compute": {"device": "cpu", "torch_threads": 1},
                "cluster": {"scheduler": f"tls://127.0.0.1:{port}", "certificates": str(folder / "members/curator")},
                "limits": {"reply_quantum_ms": 100, "max_step_attempts": 64},
            },
        )
        subprocess.run([*CLI, "records", "accept", "--home", self.home.path, "--reason", "made"], check=True, cwd=ROOT)
        torch.manual_seed(0)
        self.module = nn.Sequential(nn.Linear(VALUES, 512), nn.ReLU(), nn.Linear(512, FEATURES))
        with torch.no_grad():
            features = self.module(torch.from_numpy(values))
        clipped = FeatureMap.identity(FEATURES).clipped(features).double().numpy() / RECORD_NORM
        self.exact = np.stack([clipped[labels == kind].sum(axis=0) for kind in range(CLASSES)])
        self.counts = np.bincount(labels, minlength=CLASSES)
        self.clocks = {name: Clock(folder, name) for name in ("curator", "scheduler", "north", "east")}
        toml = self.home.path / "curator.toml"
        self.members = {
            "scheduler": Member(
                self.clocks["scheduler"], folder / "scheduler.log", "cluster", "scheduler",
                "--address", f"127.0.0.1:{scheduler}", "--certificates", folder / "members/scheduler",
            )
        }  # fmt: skip
        for name in ("north", "east"):
            self.members[name] = Member(
                self.clocks[name], folder / f"{name}.log", "cluster", "node", "--settings", toml,
                "--scheduler", f"tls://127.0.0.1:{scheduler}", "--host", "127.0.0.1",
                "--certificates", folder / "members" / name,
            )  # fmt: skip
        time.sleep(10.0)
        self.curator = Member(
            self.clocks["curator"],
            folder / "curator.log",
            "serve",
            "--home",
            self.home.path,
            "--address",
            "localhost:0",
        )
        deadline = time.monotonic() + 300.0
        while not self.home.address.exists():
            if time.monotonic() > deadline:
                raise SystemExit((folder / "curator.log").read_text()[-3000:])
            time.sleep(0.2)
        self.credentials = folder / "credentials"

    def courier(self) -> int:
        """The courier's number, of the curator's children."""
        children = Path(f"/proc/{self.curator.process.pid}/task").glob("*/children")
        for child in {int(each) for file in children for each in file.read_text().split()}:
            with contextlib.suppress(OSError):
                if b"cluster.courier" in Path(f"/proc/{child}/cmdline").read_bytes():
                    return child
        return 0

    def close(self) -> None:
        for member in (self.curator, *self.members.values()):
            member.end()

    def wrong(self, reply: bytes, declared: StatisticsDeclaration) -> bool:
        sums = Sums.of(StatisticsReply.from_bytes(reply), declared, FEATURES)
        far = max(np.abs(sums.counts - self.counts).max(), np.abs(sums.features - self.exact).max())
        # Rounding of features to 2^-13, and of the exact sums here, is far below one sigma.
        return bool(far > 9.0 * SIGMA + 0.01 * self.counts.max() * 2.0**-6)


def faults(site: Site, rng: random.Random) -> dict[str, Callable[[], Callable[[], None]]]:
    """Each begins a fault and returns what ends it."""

    def killed(name: str) -> Callable[[], Callable[[], None]]:
        def begin() -> Callable[[], None]:
            site.members[name].process.kill()
            return lambda: None

        return begin

    def courier() -> Callable[[], None]:
        if number := site.courier():
            os.kill(number, 9)
        return lambda: None

    def held() -> Callable[[], None]:
        site.link.held.set()
        return site.link.held.clear

    def cut() -> Callable[[], None]:
        site.link.refused.set()
        site.link.cut()
        return site.link.refused.clear

    def jumped(name: str) -> Callable[[], Callable[[], None]]:
        def begin() -> Callable[[], None]:
            site.clocks[name].jump(rng.choice((-86_400 * 3, -3_600, -120, 120, 3_600, 86_400 * 3)))
            return lambda: site.clocks[name].jump(0)

        return begin

    return {
        "scheduler killed": killed("scheduler"),
        "courier killed": courier,
        "node killed": killed("north"),
        "partition, held back": held,
        "partition, cut": cut,
        "curator's clock": jumped("curator"),
        "scheduler's clock": jumped("scheduler"),
        "a node's clock": jumped("east"),
    }


def repeated(attempt: Callable[[], Any], met: Counter[str]) -> Any:
    """The answer, however often it must be asked for."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return attempt()
        except (errors.ExtractionStopped, errors.CuratorUnavailable, errors.RequestInProgress) as error:
            met[type(error).__name__] += 1
        except errors.DpswdError as error:
            met[f"{type(error).__name__}: {error}"[:160]] += 1
        if time.monotonic() > deadline:
            raise SystemExit(f"not answered within {PATIENCE_S:g} s: {met}")
        time.sleep(1.0)


@contextlib.contextmanager
def live(records: int) -> Iterator[Site]:
    with tempfile.TemporaryDirectory(prefix="dpswd-cluster-faults-") as name:
        site = Site(Path(name), records=records)
        try:
            yield site
        finally:
            site.close()
            if sys.exc_info()[0] is not None:
                print((Path(name) / "curator.log").read_text()[-4000:], file=sys.stderr)


def tried(site: Site, *, count: int, seed: int) -> dict[str, Any]:
    rng = random.Random(seed)
    kinds = faults(site, rng)
    begun, met, waits = Counter[str](), Counter[str](), []
    declared = StatisticsDeclaration(CLASSES, 1.0, 0.0, 0.0, SIGMA, FeatureMap.identity(FEATURES))
    answered: list[tuple[PendingStep, bytes]] = []
    wrong = 0
    address = site.home.address.read_text().strip()
    with Curator.connect(address, credentials=site.credentials, patience_s=60.0) as curator:
        graph = trace(site.module, (VALUES,))
        uploaded = curator.upload_extractor(graph.to_bytes(), weights_to_bytes(module_weights(site.module, graph)))
        parameters = RunParameters(
            graph_digest=uploaded.graph_digest, weights_digest=uploaded.weights_digest, mechanism="class_statistics",
            declaration=declared.to_bytes(), batch_size=int(site.counts.sum()), steps=1,
        )  # fmt: skip

        def stepped(run: Run, during: Callable[[], None]) -> tuple[PendingStep, bytes, float]:
            begun_at, pending = time.monotonic(), PendingStep(run.run_id, new_request_id(), b"")
            meddling = threading.Thread(target=during)
            meddling.start()
            release = repeated(lambda: curator.send(pending), met)
            seconds = time.monotonic() - begun_at
            meddling.join()
            return pending, release.payload, seconds

        usual: list[float] = []
        order = (sorted(kinds) * count)[:count]  # each as often
        rng.shuffle(order)
        for number in range(count + 3):
            run_id = new_request_id()
            run = repeated(lambda own=run_id: curator.open_run(parameters, request_id=own), met)
            kind = order[number - 3] if number >= 3 else ""

            def during(kind: str = kind) -> None:
                if kind:
                    time.sleep(rng.uniform(0.0, 0.9) * float(np.median(usual)))
                    end = kinds[kind]()
                    time.sleep(rng.choice((0.5, 3.0, 15.0, 40.0)))
                    end()

            pending, payload, seconds = stepped(run, during)
            (waits if kind else usual).append(seconds)
            begun[kind] += bool(kind)
            wrong += site.wrong(payload, declared)
            answered.append((pending, payload))
            print(f"{number - 2} {kind}: {seconds:.1f} s", file=sys.stderr, flush=True)
        again = sum(repeated(lambda own=own: curator.send(own), met).payload != payload for own, payload in answered)
    site.close()
    with site.home.open_ledger() as ledger:
        status, kinds_of = ledger.status(), Counter(entry.kind for entry in ledger.history())
        findings = Counter(finding.tampering.value for finding in ledger.verify().findings)
    return {
        "faults": sum(begun.values()),
        "of each kind": dict(sorted((+begun).items())),
        "charges": status.steps_charged,
        "runs": len(answered),
        "answered": status.steps_used,
        "entries": dict(sorted(kinds_of.items())),
        "lost": len(answered) - status.steps_used,
        "wrong": wrong,
        "other bytes for a repeat": again,
        "answered twice": kinds_of["step-answered"] - len(answered),
        "found by verification, where the curator's clock dates entries": dict(findings),
        "what the client was told meanwhile": dict(met),
        "seconds of a step without a fault": [round(each, 1) for each in usual],
        "seconds with a fault, median and longest": [round(float(np.median(waits)), 1), round(max(waits), 1)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--faults", type=int, default=40)
    parser.add_argument("--records", type=int, default=1_000_000)
    options(parser, RESULTS, seeds=(0,))
    chosen = parser.parse_args()
    every = [{"seed": seed, "asked": chosen.faults, "records": chosen.records} for seed in chosen.seeds]
    Rows(RESULTS, chosen.results).run([(asked, functools.partial(measured, **asked)) for asked in every])


def measured(*, seed: int, asked: int, records: int) -> Row:
    """One campaign."""
    with live(records) as site:
        return tried(site, count=asked, seed=seed)


if __name__ == "__main__":
    main()
