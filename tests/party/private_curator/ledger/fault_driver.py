"""A curator on a disk that fills up, or turns read-only, and recovers; run by test_faults.py in its own process.

``fault_driver.py DIRECTORY FAULT`` with FAULT one of: ``limit`` (a limit on file sizes), ``full`` (DIRECTORY is a
small tmpfs of ours), ``read-only`` (the same, remounted). Exits with 0 when every expectation held.
"""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

sys.path.insert(0, str(Path(__file__).parents[3]))
sys.path.insert(0, str(Path(__file__).parents[4]))

from toy_accounting import ToyAccounting, ToyBudget, toy_run

from dpswd.private_curator.books.ledger import Ledger
from dpswd.private_curator.core.ledger.statements import Request, StepGranted, StoredReply
from dpswd.shared.core.errors import LedgerUnavailable

DIGEST = "d" * 64
REPLY = b"n" * 20_000


class LimitedFiles:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # the write fails instead

    def strike(self) -> None:
        largest = max(file.stat().st_size for file in self.directory.iterdir())
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest + 50_000, resource.RLIM_INFINITY))

    def mend(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


class FullDisk:
    def __init__(self, directory: Path) -> None:
        self.ballast = directory / "ballast"

    def strike(self) -> None:
        with self.ballast.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                return

    def mend(self) -> None:
        self.ballast.unlink()


class ReadOnlyDisk:
    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def strike(self) -> None:
        # The kernel refuses while a file is open for writing, so the disk turns between two lives.
        subprocess.run(["mount", "-o", "remount,ro", "none", self.directory], check=True)

    def mend(self) -> None:
        subprocess.run(["mount", "-o", "remount,rw", "none", self.directory], check=True)


def refused(act) -> None:
    try:
        act()
    except LedgerUnavailable:
        return
    raise SystemExit(f"{act} was not refused")


def main() -> None:
    directory, fault = Path(sys.argv[1]), sys.argv[2]
    key = Ed25519PrivateKey.generate()
    path = directory / "ledger.sqlite"
    budget = ToyBudget(10.0)
    ledger = Ledger.create(path, key=key, records=100, budget=budget, accounting=ToyAccounting())
    ledger.add_client("alice", "f" * 64)
    run = ledger.open_run(
        Request(client="alice", request_id="run", digest=DIGEST), event=toy_run(steps=500), parameters=b""
    )

    def begin(request):
        return ledger.begin_step(Request(client="alice", request_id=request, digest=DIGEST), run_id=run.run_id)

    def step(request):
        grant = begin(request)
        assert isinstance(grant, StepGranted), grant
        return ledger.finish_step(grant, reply=REPLY, audit={})

    def charge():
        return ledger.open_run(
            Request(client="alice", request_id="late", digest=DIGEST), event=toy_run(), parameters=bytes(400_000)
        )

    answered = {"first": step("first")}
    if fault == "read-only":
        disk = ReadOnlyDisk(directory)
        ledger.close()
        disk.strike()
        refused(lambda: Ledger.open(path, key=key, accounting=ToyAccounting()).freeze(reason="x"))
        disk.mend()
        ledger = Ledger.open(path, key=key, accounting=ToyAccounting())
    else:
        disk = LimitedFiles(directory) if fault == "limit" else FullDisk(directory)
        before = ledger.status()
        disk.strike()
        lost = None
        for number in range(100):
            try:
                answered[f"step-{number}"] = step(f"step-{number}")
            except LedgerUnavailable:
                lost = f"step-{number}"
                break
        assert lost, "the fault never struck"
        refused(charge)
        if fault == "full":  # a repeat is answered on a full disk as well
            assert begin("first") == answered["first"]
        disk.mend()
        # Without anybody's hands: the same object works on, what was answered is there, nothing else was spent.
        status = ledger.status()
        assert (status.runs, status.data_set) == (before.runs, before.data_set), status
        assert status.steps_used in (len(answered), len(answered) + 1), status  # the lost step may be consumed
        answered[lost] = step(lost)
        assert ledger.status().steps_used == len(answered)
        assert charge().steps == 10
    for request, stored in answered.items():
        again = begin(request)
        assert isinstance(again, StoredReply), request
        assert again == stored, request
    report = ledger.verify()
    assert report.ok, report.findings
    ledger.close()


if __name__ == "__main__":
    main()
