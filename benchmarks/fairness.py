"""What a client that floods costs another: steps a second of a good client, alone and beside it, in pairs.

    python -m benchmarks.fairness [--pairs 12] [--seconds 4] [--threads 60]

A curator in a process of its own, as `dpswd-curator serve` starts it, real sockets and certificates. The good client
draws steps one after the other. The other is registered as well, has a connection for each of its threads, and
repeats at once whatever it is answered or refused: descriptions, or steps of a run of its own. It runs at the lowest
priority, because its machine is not the hospital's. Alone and beside take turns; the median over pairs counts. Four
minutes. Takes no seeds: what it draws moves no figure.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

from benchmarks.records import Row, Rows, machine, options, table

RESULTS = Path(__file__).parent / "results" / "fairness.json"
ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "story")]
KINDS = ("Describe", "DrawStep")
COLUMNS = {
    "the flood": "{flood}",
    "its requests a second": "{flood_requests_a_second:.0f}",
    "steps a second alone": "{alone:.1f}",
    "beside": "{beside:.1f}",
    "share (lowest, highest)": "{share:.2f} ({lowest:.2f}, {highest:.2f})",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--threads", type=int, default=60)
    parser.add_argument(
        "--flood", nargs=4, metavar=("ADDRESS", "CREDENTIALS", "KIND", "THREADS"), help=argparse.SUPPRESS
    )
    options(parser, RESULTS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.flood:
        address, credentials, kind, threads = arguments.flood
        _flood(address, Path(credentials), kind, int(threads))
        return
    asked = {"pairs": arguments.pairs, "each_s": arguments.seconds, "threads": arguments.threads}
    jobs = [({"flood": kind, **asked}, functools.partial(measured, kind, **asked)) for kind in KINDS]
    rows = Rows(RESULTS, arguments.results).run(jobs, again=True)
    sys.stdout.write(table(rows, COLUMNS))


def measured(kind: str, *, pairs: int, each_s: float, threads: int) -> Row:
    """Of one kind of flood: the good client's rate alone and beside, and the median of its share over the pairs."""
    from curator_process import CuratorProcess
    from raw_client import RawClient

    with tempfile.TemporaryDirectory() as directory:
        records = np.random.default_rng(4).normal(size=(600, 5)).astype(np.float32)
        curator = CuratorProcess(Path(directory), records, epsilon=9000.0, isolation="in-process")
        for name in ("good", "flood"):
            curator.command("add", name, "--out", curator.credentials(name))
        curator.start()
        try:
            with RawClient(curator.address, credentials=curator.credentials("good")) as good:
                run = opened(good)
                _rate(good, run, each_s)
                return {"machine": machine(), **_kind(curator, good, run, kind, pairs, each_s, threads)}
        finally:
            curator.stop()


def opened(client: object) -> str:
    """A long run of cheap steps."""
    from declarations import quantiles

    from dpswd.shared.core.wire.messages import RunParameters

    name, declaration = quantiles(2, 50.0, directions=10)
    torch.manual_seed(1)
    uploaded = client.upload(nn.Linear(5, 4))  # type: ignore[attr-defined]
    parameters = RunParameters(
        **uploaded, mechanism=name, declaration=declaration.to_bytes(), batch_size=20, steps=20_000
    )
    return str(client.open_run(parameters).run_id)  # type: ignore[attr-defined]


def _kind(
    curator: object, good: object, run: str, kind: str, pairs: int, seconds: float, threads: int
) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.fairness", "--flood", curator.address]  # type: ignore[attr-defined]
    command += [str(curator.credentials("flood")), kind, str(threads)]  # type: ignore[attr-defined]
    flood = subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        preexec_fn=lambda: os.nice(19),
    )  # fmt: skip

    def order(word: str) -> int:
        flood.stdin.write(f"{word}\n")
        flood.stdin.flush()
        return int(flood.stdout.readline())

    assert flood.stdout.readline() == "ready\n"
    alone, beside, asked = [], [], 0
    for _ in range(pairs):
        alone.append(_rate(good, run, seconds))
        order("go")
        time.sleep(0.3)
        beside.append(_rate(good, run, seconds))
        asked += order("stop")
        time.sleep(0.5)
    flood.stdin.close()
    flood.wait(timeout=60)
    shares = [one / other for one, other in zip(beside, alone, strict=True)]
    return {
        "alone": statistics.median(alone), "beside": statistics.median(beside), "share": statistics.median(shares),
        "lowest": min(shares), "highest": max(shares), "flood_requests_a_second": asked / pairs / seconds,
    }  # fmt: skip


def _rate(client: object, run: str, seconds: float) -> float:
    done, begun = 0, time.monotonic()
    while time.monotonic() - begun < seconds:
        client.step(run)  # type: ignore[attr-defined]
        done += 1
    return done / (time.monotonic() - begun)


def _flood(address: str, credentials: Path, kind: str, threads: int) -> None:
    from raw_client import RawClient

    from dpswd.shared.core.errors import DpswdError

    clients = [RawClient(address, credentials=credentials) for _ in range(threads)]
    run = opened(clients[0]) if kind == "DrawStep" else ""
    going, counts, ended = threading.Event(), [0] * threads, threading.Event()

    def ask(number: int) -> None:
        while not ended.is_set():
            if not going.wait(timeout=0.1):
                continue
            with contextlib.suppress(DpswdError):
                clients[number].step(run) if run else clients[number].describe()
            counts[number] += 1

    for number in range(threads):
        threading.Thread(target=ask, args=(number,), daemon=True).start()
    print("ready", flush=True)
    for line in sys.stdin:
        if line.strip() == "go":
            going.set()
        else:
            going.clear()
        print(sum(counts) if not going.is_set() else 0, flush=True)
        if not going.is_set():
            counts[:] = [0] * threads
    ended.set()


if __name__ == "__main__":
    main()
