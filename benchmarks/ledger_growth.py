"""What a long ledger costs: starting on it, verifying it, charging to it, answering from it, and dying on it.

    python -m benchmarks.ledger_growth [--entries 1000000] [--clients 1000] [--run-steps 500] [--times 100]
        [--postgres] [--kills 30] [--directory DIR] [--results FILE]

A ledger without entries and one of so many, of as many clients with runs of so many steps; a step is two entries. The
builder signs each entry with the ledger's key and links it to the one before, in the order and with the content that
the ledger's own acts write; `verify` then derives everything anew. What it leaves out is what those acts look up before
they write. Runs are charged by the ledger itself. With `--directory` the ledgers are kept there and taken up again.

Files lie in memory where there is such a place. Times of reading are of this process's processor (and of those that
check signatures), since the machine may be shared. Times of charges and steps are the shortest of acts on the two
ledgers in turns, by the clock; their ratio tells something. With `--postgres` the same ledgers are restored into a
server that is started here (Debian's package postgresql), whose own processor time is not in these figures. With
`--kills` a process is killed by SIGKILL at named points of a step on the long ledger, again and again; the step is
repeated with its id, and the ledger verified in the end. Takes no seeds: what is drawn are names.
"""

from __future__ import annotations

import argparse
import functools
import os
import resource
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks.records import Row, Rows, machine, options
from dpswd.private_curator.books.ledger import Ledger
from dpswd.private_curator.books.location import LedgerLocation
from dpswd.private_curator.books.sqlite_file import SqliteFile
from dpswd.private_curator.core.ledger.statements import Kind, Request, StepGranted
from dpswd.private_curator.core.ledger.store import utc_now
from dpswd.shared.core.ledger.receipts import SignedEntry, canonical_json, sha256
from dpswd.shared.core.privacy.budget import PrivacyBudget
from dpswd.shared.core.privacy.events import RowProjections, RunEvent, StepEvent

RESULTS = Path(__file__).parent / "results" / "ledger-growth.json"
RECORDS = 7438
KEY = Ed25519PrivateKey.from_private_bytes(b"k" * 32)
REPLY = b"a reply of some bytes"
KILLED_AT = ("begin_step:step-consumed", "begin_step:durable", "finish_step:step-answered", "finish_step:durable")
_MEMORY = Path("/dev/shm")
_TELL_EACH = 100_000


def run_of(steps: int) -> RunEvent:
    """The event of a run."""
    return RunEvent(StepEvent(RECORDS, 128, (RowProjections(784, 200, 200.0),)), steps=steps)


def filled(path: Path, entries: int, *, clients: int, run_steps: int) -> SqliteFile:
    """A ledger of at least so many entries, made anew where none stands."""
    location = SqliteFile(path)
    if location.exists():
        return location
    draft = SqliteFile(path.with_name(f"{path.name}.draft"))
    with Ledger.create(draft, key=KEY, records=RECORDS, budget=PrivacyBudget(epsilon=1e4, delta=1e-5)) as ledger:
        names = [f"team-{number}" for number in range(clients if entries else 1)]
        for number, name in enumerate(names):
            ledger.add_client(name, f"{number:064x}")
        # Both ledgers have the filter of such a run.
        ledger.open_run(_request(names[0], "first"), event=run_of(run_steps), parameters=b"")
        number, written = 0, len(names) + 3
        while written < entries:
            _fill_run(ledger, names[number % clients], f"run {number}", run_steps)
            number, written = number + 1, written + 1 + 2 * run_steps
            if written % _TELL_EACH < 1 + 2 * run_steps:
                print(f"{written} entries are written, {time.process_time():.0f} s", file=sys.stderr, flush=True)
    path.with_name(f"{path.name}.draft").rename(path)
    return location


def _fill_run(ledger: Ledger, client: str, name: str, steps: int) -> None:
    """A run, charged by the ledger, and all of its steps, answered, in one transaction."""
    run_id = ledger.open_run(_request(client, name), event=run_of(steps), parameters=b"parameters").run_id
    last = ledger.head()
    with ledger._transaction("fill") as transaction:
        rows: dict[str, list[tuple[object, ...]]] = {"entries": [], "requests": [], "replies": []}

        def append(kind: Kind, payload: dict[str, object]) -> int:
            nonlocal last
            now = utc_now().isoformat(timespec="microseconds").replace("+00:00", "Z")
            last = SignedEntry.following(last, kind=kind.value, payload=payload, time=now, sign=KEY.sign)
            rows["entries"].append((last.seq, last.kind, last.statement, last.signature))
            return last.seq

        for step in range(1, steps + 1):
            request = _request(client, f"{name} {step}")
            stated: dict[str, object] = {"run": run_id, "step": step, **request.fields}
            seq = append(Kind.STEP_CONSUMED, stated)
            rows["requests"].append((seq, *request.mark, request.digest, run_id, step, 1))
            audit = canonical_json({"audit": {"duration_s": 0.25}, "salt": secrets.token_hex(16)}).decode()
            seq = append(Kind.STEP_ANSWERED, {**stated, "reply": sha256(REPLY), "audit": sha256(audit.encode())})
            rows["replies"].append((seq, run_id, step, REPLY, audit))
        for table, each in rows.items():
            for row in each:
                transaction.connection.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)
        transaction.connection.execute("UPDATE runs SET steps_used = ? WHERE run_id = ?", (steps, run_id))


def _request(client: str, name: str) -> Request:
    return Request(client=client, request_id=name, digest=sha256(name.encode()))


def _seconds(act: Callable[[], object]) -> float:
    begun = time.perf_counter()
    act()
    return time.perf_counter() - begun


def acts(ledgers: Sequence[Ledger], *, times: int) -> list[tuple[float, ...]]:
    """The shortest times in seconds, for each ledger: a run is charged, a step is drawn, budgets are told."""
    measured: list[list[tuple[float, ...]]] = [[] for _ in ledgers]
    for number in range(times):
        for ledger, rows in zip(ledgers, measured, strict=True):
            rows.append(_acts_on(ledger, f"{number} of {secrets.token_hex(4)}"))
    return [tuple(min(column) for column in zip(*rows, strict=True)) for rows in measured]


def _acts_on(ledger: Ledger, name: str) -> tuple[float, ...]:
    opening, event = _request("team-0", f"run {name}"), run_of(10)
    charge = _seconds(lambda: ledger.open_run(opening, event=event, parameters=b""))
    run = ledger.open_run(opening, event=event, parameters=b"")  # the same

    def step() -> None:
        granted = ledger.begin_step(_request("team-0", f"step {name}"), run_id=run.run_id)
        assert isinstance(granted, StepGranted)
        ledger.finish_step(granted, reply=REPLY, audit={})

    return charge, _seconds(step), _seconds(lambda: (ledger.budget_of("team-0"), ledger.state))


def _processor() -> float:
    """Seconds of a processor, of this process and of those that it waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def _largest_mib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def starts(location: LedgerLocation, *, every_signature: bool) -> Row:
    """What `serve` and `ledger verify` read before they go on: seconds, and MiB before and after."""
    begun, before = _processor(), _largest_mib()
    with Ledger.open(location, key=KEY, followed=False) as ledger:
        figures: Row = {"opened_s": _processor() - begun}
        for way, every in [("as_serve_does", False), ("with_each_signature", True)][: 1 + every_signature]:
            begun, clock = _processor(), time.monotonic()
            report = ledger.verify(every_signature=every)
            assert report.ok, report.findings[:3]
            figures[way] = {"processor_s": _processor() - begun, "clock_s": time.monotonic() - clock}
            print(f"{report.entries} entries verified {way}: {figures[way]}", flush=True)
        return figures | {"entries": report.entries, "largest_mib_before": before, "largest_mib_after": _largest_mib()}


def compared(locations: Sequence[LedgerLocation], *, times: int) -> Row:
    """What acts cost on the long ledger, in ms, and by what they cost on the short one."""
    with ExitStack() as opened:
        ledgers = [opened.enter_context(Ledger.open(each, key=KEY, followed=False)) for each in locations]
        few, many = acts(ledgers, times=times)
    return {
        name: {"short_ms": 1000 * short, "long_ms": 1000 * long, "ratio": long / short}
        for name, short, long in zip(("charge", "step", "budgets"), few, many, strict=True)
    }


def killed(location: LedgerLocation, *, kills: int) -> Row:
    """Kills a process in the middle of a step, repeats the step, and looks whether it stands there once."""
    with Ledger.open(location, key=KEY, followed=False) as ledger:
        opening = _request("team-0", f"killed {secrets.token_hex(8)}")
        run_id = ledger.open_run(opening, event=run_of(kills), parameters=b"").run_id
        begun = ledger.head().seq
    resumed = 0
    for number in range(kills):
        point, request = KILLED_AT[number % len(KILLED_AT)], _request("team-0", f"{run_id} {number}")
        if (child := os.fork()) == 0:
            _step(location, run_id, request, functools.partial(_die, at=point))
            os._exit(1)  # it should be dead
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL, point
        _step(location, run_id, request, lambda _: None)
        resumed += point in ("begin_step:durable", "finish_step:step-answered")
    with Ledger.open(location, key=KEY, followed=False) as ledger:
        report = ledger.verify(every_signature=False)
        assert report.ok, report.findings[:3]
        assert ledger.run(client="team-0", run_id=run_id).steps_used == kills
        assert report.entries == begun + 2 * kills + resumed, "each step is consumed once and answered once"
        return {"kills": kills, "points": len(KILLED_AT), "every step there once, and it verifies": True}


def _die(name: str, *, at: str) -> None:
    if name == at:
        os.kill(os.getpid(), signal.SIGKILL)


def _step(location: LedgerLocation, run_id: str, request: Request, checkpoint: Callable[[str], object]) -> None:
    with Ledger.open(location, key=KEY, followed=False, checkpoint=checkpoint) as ledger:
        granted = ledger.begin_step(request, run_id=run_id)
        if isinstance(granted, StepGranted):
            ledger.finish_step(granted, reply=REPLY, audit={})


@contextmanager
def restored(files: Sequence[SqliteFile]) -> Iterator[list[LedgerLocation]]:
    """The same ledgers in schemas of a server of our own."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
    from postgres_server import PostgresServer

    from dpswd.private_curator.postgres.schema import PostgresSchema

    server = PostgresServer()
    try:
        locations: list[LedgerLocation] = []
        for number, file in enumerate(files):
            location, begun = PostgresSchema(server.url(), schema=f"ledger_{number}"), time.monotonic()
            with location.alone():
                location.replace(file.path, lambda _: None)
            print(f"restored into PostgreSQL in {time.monotonic() - begun:.0f} s by the clock", flush=True)
            locations.append(location)
        server.run("vacuumdb", "--analyze")  # what it would begin by itself in the middle of the measurement
        yield locations
    finally:
        server.close()


def measured(
    directory: Path, *, entries: int, clients: int, run_steps: int, times: int, kills: int, postgres: bool
) -> Row:
    """All figures, of ledgers in files and, where it is asked for, in a server."""
    directory.mkdir(exist_ok=True)
    files = [
        filled(directory / f"ledger-{count}-{clients}-{run_steps}.db", count, clients=clients, run_steps=run_steps)
        for count in (0, entries)
    ]
    figures: Row = {"machine": machine()}
    with ExitStack() as opened:
        places: list[tuple[str, list[LedgerLocation]]] = [("SQLite", [*files])]
        if postgres:
            places.append(("PostgreSQL", opened.enter_context(restored(files))))
        for name, locations in places:
            figures[name] = starts(locations[1], every_signature=name == "SQLite") | compared(locations, times=times)
            if kills:
                figures[name] |= {"killed": killed(locations[1], kills=kills)}
            print(f"{name}: {figures[name]}", flush=True)
    return figures


def main() -> None:
    """Measures and reports."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--run-steps", type=int, default=500)
    parser.add_argument("--times", type=int, default=100)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--postgres", action="store_true")
    parser.add_argument("--directory", type=Path, default=None, help="where the ledgers are kept; by default nowhere")
    options(parser, RESULTS)
    chosen = vars(parser.parse_args())
    rows, directory = Rows(RESULTS, chosen.pop("results")), chosen.pop("directory")
    with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as fleeting:
        rows.run([(chosen, lambda: measured(directory or Path(fleeting), **chosen))], again=True)


if __name__ == "__main__":
    main()
