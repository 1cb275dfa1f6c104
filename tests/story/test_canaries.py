"""Nothing leaks sideways: values that stand in records, and in no output of any component.

Every record holds two numbers with bit patterns and decimals of their own, every label is another, and the records'
file has a name that occurs nowhere else. Then the curator is used, and made to fail in every way that we know, and
all that it, its operator's commands and its client said or wrote is searched for them.

Noise could hold a pattern of four bytes by chance (about 1e-3 for a ledger of this size), so where charged noise is
(the ledger, replies) patterns of eight and more bytes are searched: both numbers beside each other, as every dump of a
record would hold them, and either one as a double.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
import urllib.request
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))  # under importlib mode a test directory is no package

from curator_process import ROOT, START_S, upload
from declarations import gradient, quantiles, rows
from drawn_steps import new_step, parameters, reply_of
from forked_starts import suspended

from dpswd.private_curator.cli.main import main as operator_main
from dpswd.private_curator.settings.groups import RecordsSettings
from dpswd.private_curator.storage import home_directory as homes
from dpswd.public_client.cli.main import main as client_main
from dpswd.public_client.curator.stub import Curator
from dpswd.shared.core import errors
from dpswd.shared.published_mechanisms.clipped_sum import ClippedSum

SERVER = Path(__file__).with_name("serve_with_canaries.py")
CLIENT = "ml-team"
N, INPUTS, FEATURES = 120, 6, 4
SLICED = quantiles(2, 4.0, directions=10)
NUMBERS = (918273.625, 564738.375)
LABEL = 77300123
FILE_NAME = "quixotl-ward-4711.npz"
_PAIR = np.array(NUMBERS, dtype="<f4").tobytes()


def _spellings() -> tuple[dict[str, bytes], dict[str, bytes]]:
    """Patterns that noise cannot hold by chance, and short ones for everything else."""
    long: dict[str, bytes] = {
        "both, float32": _PAIR,
        "both, big-endian": np.array(NUMBERS, dtype=">f4").tobytes(),
        "both, hexadecimal": _PAIR.hex().encode(),
        "both, upper hexadecimal": _PAIR.hex().upper().encode(),
        "label, int64": np.int64(LABEL).tobytes(),
    }
    for shift in range(3):
        inner = base64.b64encode(b"\0" * shift + _PAIR)[4:].rstrip(b"=")[:8]
        long[f"both, base64 at {shift}"] = inner
    short: dict[str, bytes] = {"label, decimal": str(LABEL).encode(), "file name": Path(FILE_NAME).stem.encode()}
    for number in NUMBERS:
        text = str(number)[:8]  # one decimal: enough for any way of printing it
        long[f"{number}, decimal"] = text.encode()
        long[f"{number}, scientific"] = f"{text[0]}.{text[1:6]}".encode()
        long[f"{number}, as torch prints it"] = f"{number:.4e}"[:7].encode()
        long[f"{number}, float64"] = np.float64(number).tobytes()
        long[f"{number}, float.hex"] = float.hex(number).split("p")[0].encode()
        short[f"{number}, float32"] = np.float32(number).tobytes()
    return long, long | short


LONG, ALL = _spellings()


_TIME = re.compile(rb"\d\d:\d\d:\d\d\.\d{6}Z")  # of the ledger: digits that may be a canary's by chance


def matches(data: bytes, patterns: dict[str, bytes]) -> list[str]:
    data = _TIME.sub(b"", data)
    return [name for name, pattern in patterns.items() if pattern in data]


def holds_noise(path: Path) -> bool:
    return path.name.startswith(("ledger.db", "backup.db"))


class Site:
    """A curator's process, its operator's commands, a client, and all that any of them said."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        generator = np.random.default_rng(17)
        self.records = generator.normal(size=(N, INPUTS)).astype(np.float32)
        self.records[:, 2:4] = NUMBERS
        (directory / "private").mkdir()
        self.file = directory / "private" / FILE_NAME
        np.savez(self.file, records=self.records, labels=np.full(N, LABEL, dtype=np.int64))
        self.home = homes.create(
            directory / "home",
            records=RecordsSettings(name="ward", file=self.file, array="records", labels_array="labels"),
            epsilon=50.0,
            delta=1e-5,
            names=["localhost"],
        )
        self.said: dict[str, bytes] = {}
        self.log = directory / "curator.log"
        self.process: subprocess.Popen[bytes] | None = None
        for name in ("working", "temporary"):
            (directory / name).mkdir()
        self.operator("add", CLIENT, "--out", self.credentials)

    @property
    def credentials(self) -> Path:
        return self.directory / "credentials"

    @property
    def run_directory(self) -> Path:
        return self.directory / "run"

    def start(self) -> None:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            "TMPDIR": str(self.directory / "temporary"),
        }
        # All of a curator's processes and their memory are looked at: no nursery stands among them.
        with self.log.open("ab") as log, suspended():
            self.process = subprocess.Popen(
                [sys.executable, str(SERVER), str(self.home.path)],
                cwd=self.directory / "working", env=environment, stdout=log, stderr=log,
            )  # fmt: skip
        deadline = time.monotonic() + 2 * START_S
        while not self.home.address.exists():
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            assert time.monotonic() < deadline, "the curator did not start in time"
            time.sleep(0.05)

    def stop(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(timeout=120)
            self.process = None

    def operator(self, *arguments: object, status: int | None = 0) -> str:
        return self._command(operator_main, "dpswd-curator", arguments, status)

    def client(self, *arguments: object, status: int | None = 0) -> str:
        return self._command(client_main, "dpswd-client", arguments, status)

    def _command(self, command, name, arguments, status):
        words = [str(argument) for argument in arguments]
        result = CliRunner().invoke(command, words, env={"DPSWD_CURATOR_HOME": str(self.home.path)})
        self.say(f"{name} {' '.join(words[:2])}", result.output)
        if status is not None:
            assert result.exit_code == status, result.output
        return result.output

    def say(self, who: str, text: str | bytes) -> None:
        data = text if isinstance(text, bytes) else text.encode()
        self.said[f"{len(self.said)}: {who}"] = data

    @contextlib.contextmanager
    def refused(self, kind: type[Exception]):
        """An error that reaches the client: kept with all that it holds and what caused it."""
        with pytest.raises(kind) as caught:
            yield caught
        error: BaseException | None = caught.value
        while error is not None:
            self.say(type(error).__name__, f"{error} {error!r} {vars(error)!r}")
            trailing = getattr(error, "trailing_metadata", None)
            self.say("trailing metadata", repr(trailing() if trailing else ""))
            error = error.__cause__ or error.__context__

    def connect(self) -> Curator:
        address = self.home.address.read_text().strip()
        return Curator.connect(address, credentials=self.credentials, patience_s=20.0, run_directory=self.run_directory)

    def children(self) -> list[int]:
        assert self.process is not None
        pids = []
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            with contextlib.suppress(OSError):  # a thread that has just ended
                pids += [int(pid) for pid in (task / "children").read_text().split()]
        return pids

    def leaks(self) -> list[str]:
        """Where a canary stands; the settings may name the records' file, whose name the operator has chosen."""
        places = []
        for who, data in self.said.items():
            places += [f"{who}: {name}" for name in matches(data, LONG if "reply" in who else ALL)]
        for path in sorted(self.directory.rglob("*")):
            if path.is_file() and path.parent != self.directory / "private":
                patterns = dict(LONG if holds_noise(path) else ALL)
                if path.parent == self.home.path and path.suffix in (".toml", ".json"):
                    patterns.pop("file name")
                places += [
                    f"{path.relative_to(self.directory)}: {name}" for name in matches(path.read_bytes(), patterns)
                ]
        return places


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    made = Site(tmp_path_factory.mktemp("site"))
    made.start()
    yield made
    made.stop()


def _declare(curator, module, declared=SLICED, **changes):
    return replace(parameters(upload(curator, module), declared, batch_size=N, steps=6), **changes)


def _linear(scale=1.0):
    torch.manual_seed(3)
    module = nn.Linear(INPUTS, FEATURES)
    module.weight.data *= scale
    return module


def _step(site, curator, run, source=None):
    """A step, with the bytes as they came, and its values decoded."""
    release = curator.send(new_step(run, source))
    site.say("reply", release.payload)
    reply = reply_of(run, release)
    for values in (reply.values,) if source is None else (reply.sliced.values, reply.gradient):
        assert np.isfinite(values.to_numpy()).all()
        site.say("reply", values.to_numpy().astype(np.float32).tobytes())
    return release


def test_the_search_can_fail(site, tmp_path):
    """The control: each spelling is found where it stands, and the records' own file is full of them."""
    for name, pattern in ALL.items():
        assert name in matches(b"before " + pattern + b" after", ALL)
    own = matches(site.file.read_bytes(), ALL)
    assert {"both, float32", "label, int64", f"{NUMBERS[0]}, float32"} <= set(own)
    shown = {
        "python": repr(site.records[0].tolist()),
        "numpy": str(site.records[0]),
        "torch": str(torch.from_numpy(site.records[0])),
        "json": json.dumps(site.records[0].tolist()),
        "hex": site.records[0].tobytes().hex(),
        "base64": base64.b64encode(site.records[0].tobytes()).decode(),
        "format": f"{NUMBERS[0]:.3f} {NUMBERS[0]:e}",
    }
    for way, text in shown.items():
        assert matches(text.encode(), LONG), (way, text)


def test_success_and_provoked_failures_leave_no_trace(site):
    source = np.random.default_rng(5).normal(size=(30, FEATURES)).astype(np.float32)
    with site.connect() as curator:
        site.say("describe", str(curator.describe()))
        _successes(site, curator, source)
        _bad_uploads(site, curator)
        _numbers_that_overflow(site, curator, source)
        _exceptions_that_quote_records(site, curator)
        _a_worker_that_dies(site, curator)
        _a_full_disk(site, curator)
    _operators_commands(site)
    _no_core_dumps(site)
    assert site.log.stat().st_size > 500
    assert len(site.said) > 40
    assert site.leaks() == []


def _successes(site, curator, source):
    with_gradient = gradient(SLICED, ClippedSum(("weight",), 1.0, 50.0))
    for kind, given in ((with_gradient, source), (rows(20.0, directions=10), None)):
        declared = _declare(curator, _linear(), kind, steps=2)
        site.say("quote", str(curator.price_run(declared)))
        run = curator.open_run(declared)
        site.say("run", str(run))
        for _ in range(2):
            _step(site, curator, run, given)
        with site.refused(errors.RunFinished):
            curator.send(new_step(run, given))


def _bad_uploads(site, curator):
    module = _linear()
    from dpswd.public_client.extractor.tracing import module_weights, trace, weights_to_bytes

    graph = trace(module, (INPUTS,))
    weights = weights_to_bytes(module_weights(module, graph))
    for bad_graph, bad_weights in (
        (b"{}", b""), (b"\xff" * 50, weights), (graph.to_bytes(), b"\0" * 100), (graph.to_bytes()[:-9], weights),
        (graph.to_bytes(), weights[:-8]), (graph.to_bytes(), weights[:-4] + np.float32(np.nan).tobytes()),
    ):  # fmt: skip
        with site.refused(errors.RequestInvalid):
            curator.upload_extractor(bad_graph, bad_weights)
    for changes in ({"batch_size": N + 1}, {"steps": 0}, {"graph_digest": "0" * 64}, {"declaration": b"\xff" * 9}):
        with site.refused(errors.ProtocolError):
            curator.open_run(_declare(curator, module, **changes))
    with site.refused(errors.ProtocolError):
        curator.open_run(_declare(curator, module, quantiles(2, 4.0, directions=10**6)))
    with site.refused(errors.BudgetExhausted):
        curator.open_run(_declare(curator, module, rows(1e-3, directions=10)))


def _numbers_that_overflow(site, curator, source):
    """Records times 1e38 are infinite, and infinity minus infinity is NaN: charged, computed, neutralised."""
    torch.manual_seed(4)
    module = nn.Sequential(nn.Linear(INPUTS, 8), nn.Linear(8, FEATURES))
    module[0].weight.data *= 1e37
    declared = _declare(curator, module, gradient(SLICED, ClippedSum(("1.weight",), 1.0, 50.0)), steps=2)
    run = curator.open_run(declared)
    for _ in range(2):
        _step(site, curator, run, source)


def _exceptions_that_quote_records(site, curator):
    for point in ("sampled", "extracted", "released"):
        run = curator.open_run(_declare(curator, _linear(), steps=1))
        pending = new_step(run)
        (site.home.path / "raise-at").write_text(point)
        with site.refused(errors.CuratorFault):
            curator.send(pending)
        (site.home.path / "raise-at").unlink()
        assert curator.send(pending).step == 1
    assert len(json.loads(site.operator("incidents", "--format", "json"))) == 3


def _a_worker_that_dies(site, curator):
    run = curator.open_run(_declare(curator, _linear(2.0), steps=3))
    _step(site, curator, run)
    workers = site.children()
    assert workers, "extractors run in worker processes"
    for pid in workers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    answered = 0
    for _ in range(20):  # the step that meets the dead worker may fail; later ones have a new one
        pending = new_step(run)
        try:
            curator.send(pending)
            answered += 1
        except errors.RunFinished:
            break
        except errors.DpswdError as error:
            site.say("after the worker's death", f"{error} {error!r}")
            assert curator.send(pending).step
            answered += 1
    assert answered >= 2


def _a_full_disk(site, curator):
    """No file of the curator's may grow: what a full disk does to a ledger."""
    assert site.process is not None
    run = curator.open_run(_declare(curator, _linear(), steps=2))
    pending = new_step(run)
    before = resource.prlimit(site.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(site.process.pid, resource.RLIMIT_FSIZE, (site.log.stat().st_size + 4096, before[1]))
    try:
        with (
            Curator.connect(
                site.home.address.read_text().strip(), credentials=site.credentials, patience_s=0.5
            ) as hasty,
            site.refused(errors.CuratorUnavailable),
        ):
            hasty.send(pending)
    finally:
        resource.prlimit(site.process.pid, resource.RLIMIT_FSIZE, before)
    assert curator.send(pending).step == 1


def _operators_commands(site):
    for arguments in (
        ("budget",), ("clients",), ("certificates",), ("runs",), ("extractors",),
        ("ledger", "verify"), ("ledger", "export"), ("ledger", "export", "--client", CLIENT),
    ):  # fmt: skip
        site.operator(*arguments)
    view = site.directory / "view.jsonl"
    site.operator("ledger", "export", "--client", CLIENT, "--out", view)
    site.client("check", site.run_directory, "--ledger", view, "--credentials", site.credentials, "--partial")
    site.operator("ledger", "backup", site.directory / "backup.db")
    for row in json.loads(site.operator("incidents", "--format", "json")):
        site.operator("incidents", row["number"])
    port = (site.home.path / "metrics-address").read_text().strip()
    with urllib.request.urlopen(f"http://{port}/metrics", timeout=30) as page:
        text = page.read()
    assert b"dpswd" in text
    site.say("metrics", text)


def _no_core_dumps(site):
    assert site.process is not None
    limits = Path(f"/proc/{site.process.pid}/limits").read_text()
    (line,) = (line for line in limits.splitlines() if line.startswith("Max core file size"))
    assert line.split()[4:6] == ["0", "0"]
    for pid in site.children():
        assert "Max core file size        0                    0" in Path(f"/proc/{pid}/limits").read_text()


def test_a_planted_canary_is_detected(site):
    """The control, on the same live process: what must not be written is written on purpose, and the search sees it."""
    (site.home.path / "plant").touch()
    with site.connect() as curator:
        run = curator.open_run(_declare(curator, _linear(3.0), steps=1))
        curator.send(new_step(run))
    (site.home.path / "plant").unlink()
    assert any(place.startswith("curator.log") for place in site.leaks())
    planted = site.directory / "ledger.db-copy"
    planted.write_bytes(site.home.ledger.read_bytes() + site.records[7].tobytes())
    client_file = site.run_directory / "notes"
    client_file.write_text(f"record 7 of {site.file}")
    site.say("reply", b"\0" + _PAIR)
    site.say("error", str(NUMBERS[1]))
    places = " ".join(site.leaks())
    for expected in ("ledger.db-copy: both, float32", "run/notes: file name", "reply: both", "error: 564738.375"):
        assert expected in places
