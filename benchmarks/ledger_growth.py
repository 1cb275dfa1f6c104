"""What a long ledger costs: starting on it, verifying it, charging to it and answering from it.

    python -m benchmarks.ledger_growth [--entries 0 100000] [--times 100]

Ledgers in files, in memory where there is such a place. One step is two entries, a run has a thousand steps; the
entries are made by the ledger's own acts, a run's in one transaction. Times of charges and answers are medians of acts
on the short and the long ledger in turns, and tell nothing by themselves: their ratio does.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from private_curator.ledger.ledger import Ledger
from private_curator.ledger.requests import bind
from private_curator.ledger.statements import Kind, Request, StepGranted
from shared.ledger.receipts import canonical_json, sha256
from shared.privacy.budget import PrivacyBudget
from shared.privacy.events import RowProjections, RunEvent, StepEvent

STEPS = 1000
RECORDS = 7438
EVENT = RunEvent(StepEvent(RECORDS, 128, (RowProjections(784, 200, 20.0),)), steps=STEPS)
_MEMORY = Path("/dev/shm")


def filled(path: Path, entries: int) -> Ledger:
    """A ledger of about so many entries."""
    key = Ed25519PrivateKey.generate()
    ledger = Ledger.create(path, key=key, records=RECORDS, budget=PrivacyBudget(epsilon=1e4, delta=1e-5))
    ledger.add_client("team", "f" * 64)
    while (seq := ledger.head().seq) + 2 * STEPS <= entries:
        run_id = ledger.open_run(_request(f"fill {seq}"), event=EVENT, parameters=b"parameters").run_id
        with ledger._transaction("fill") as transaction:
            for step in range(1, STEPS + 1):
                request = _request(f"{run_id} {step}")
                bind(transaction, request, run_id=run_id, max_attempts=None, unstored=None)
                reply, audit = b"a reply of some bytes", canonical_json({"duration_s": 0.25}).decode()
                digests = {"reply": sha256(reply), "audit": sha256(audit.encode())}
                stated = {"run": run_id, "step": step, **request.fields, **digests}
                transaction.connection.execute(
                    "INSERT INTO replies (run_id, step, seq, reply, audit) VALUES (?, ?, ?, ?, ?)",
                    (run_id, step, transaction.append(Kind.STEP_ANSWERED, stated).seq, reply, audit),
                )
    return ledger


def _request(name: str) -> Request:
    return Request(client="team", request_id=name, digest=sha256(name.encode()))


def _seconds(act: Callable[[], object]) -> float:
    begun = time.perf_counter()
    act()
    return time.perf_counter() - begun


def acts(ledgers: Sequence[Ledger], *, times: int) -> list[tuple[float, float, float]]:
    """Medians in seconds, for each ledger: a run is charged, a step is drawn, budgets are told."""
    found: list[list[tuple[float, float, float]]] = [[] for _ in ledgers]
    for number in range(times):
        for ledger, kept in zip(ledgers, found, strict=True):
            kept.append(_acts_on(ledger, number))
    return [_medians(kept) for kept in found]


def _medians(rows: Sequence[tuple[float, float, float]]) -> tuple[float, float, float]:
    charges, steps, budgets = zip(*rows, strict=True)
    return statistics.median(charges), statistics.median(steps), statistics.median(budgets)


def _acts_on(ledger: Ledger, number: int) -> tuple[float, float, float]:
    opening = _request(f"run {number}")
    charge = _seconds(lambda: ledger.open_run(opening, event=EVENT, parameters=b""))
    run = ledger.open_run(opening, event=EVENT, parameters=b"")  # the same

    def step() -> None:
        granted = ledger.begin_step(_request(f"step {number}"), run_id=run.run_id)
        assert isinstance(granted, StepGranted)
        ledger.finish_step(granted, reply=b"reply", audit={})

    return charge, _seconds(step), _seconds(lambda: (ledger.budget_of("team"), ledger.state))


def main() -> None:
    """Measures and reports."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, nargs="+", default=[0, 100_000])
    parser.add_argument("--times", type=int, default=50)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as directory, ExitStack() as opened:
        ledgers = []
        for number, entries in enumerate(arguments.entries):
            ledgers.append(opened.enter_context(filled(Path(directory) / f"ledger {number}", entries)))
        for ledger in ledgers:
            begun = time.process_time()
            report = ledger.verify(every_signature=False)
            at_start, begun = time.process_time() - begun, time.process_time()
            assert report.ok, report.findings
            assert ledger.verify().ok
            print(
                f"{report.entries} entries: verified in {at_start:.2f} s of the processor as `serve` does, in "
                f"{time.process_time() - begun:.2f} s with each signature"
            )
        first = None
        for ledger, figures in zip(ledgers, acts(ledgers, times=arguments.times), strict=True):
            first = first or figures
            shown = ", ".join(
                f"{name} {1000 * value:.2f} ms ({value / reference:.2f} of the first ledger's)"
                for name, value, reference in zip(("a charge", "a step", "budgets"), figures, first, strict=True)
            )
            print(f"{ledger.head().seq} entries: {shown}")
    print(f"largest memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10} MiB")


if __name__ == "__main__":
    main()
