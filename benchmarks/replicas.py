"""How long a step takes at the ledger: in a file, and in PostgreSQL with one to three replicas.

    python -m benchmarks.replicas [--steps 200] [--rounds 5] [--directory DIR] [--page FILE]

A step is what the ledger does of it: begin, and finish with a reply of the paper's size (51 kB); nothing is computed.
Each replica is a process of its own, takes its steps one after the other, and all begin at once. The contenders take
turns and the best of `rounds` counts, because the machine may be shared; look at the ratios. The file and the server's
directory lie on the disk under `--directory`; the server is started and ended here (Debian's package postgresql). Takes
no seeds: what is drawn moves no figure.
"""

from __future__ import annotations

import argparse
import secrets
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks.records import Row, Rows, machine, options, table, written
from dpswd.private_curator.books.ledger import Ledger
from dpswd.private_curator.books.location import LedgerLocation
from dpswd.private_curator.books.sqlite_file import SqliteFile
from dpswd.private_curator.core.ledger.statements import Request, StepGranted
from dpswd.private_curator.postgres.schema import PostgresSchema
from dpswd.shared.core.privacy.budget import PrivacyBudget
from dpswd.shared.core.privacy.events import RowProjections, RunEvent, StepEvent

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

RESULTS = Path(__file__).parent / "results" / "replicas.json"
KEY = Ed25519PrivateKey.from_private_bytes(b"k" * 32)
DIGEST = "d" * 64
REPLY = secrets.token_bytes(51_200)
REPLICAS = (1, 2, 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200, help="of each replica, in each round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--page", type=Path, help="a Markdown file for the page")
    parser.add_argument("--work", nargs=3, metavar=("PLACE", "RUN", "NAME"), help=argparse.SUPPRESS)
    options(parser, RESULTS)
    arguments = parser.parse_args()
    if arguments.work:
        _work(*arguments.work, steps=arguments.steps)
        return
    asked = {"steps": arguments.steps, "rounds": arguments.rounds}
    rows = Rows(RESULTS, arguments.results)
    (row,) = rows.run([(asked, lambda: _measure(arguments.directory, **asked))], again=True)
    written(_page(row), arguments.page)


def _measure(directory: Path, *, steps: int, rounds: int) -> Row:
    """For each contender its best round: steps a second, and ms for a step of one replica."""
    from postgres_server import PostgresServer

    server = PostgresServer(directory)
    best: dict[str, tuple[int, float]] = {}
    at = machine()
    try:
        with tempfile.TemporaryDirectory(dir=directory) as scratch:
            for number in range(rounds):
                file = SqliteFile(Path(scratch) / f"ledger-{number}.db")
                contenders: list[tuple[str, LedgerLocation, int]] = [("a file (SQLite)", file, 1)]
                for count in REPLICAS:
                    location = PostgresSchema(server.url(), schema=f"round_{number}_{count}")
                    contenders.append((f"PostgreSQL, {count} replica{'s' if count > 1 else ''}", location, count))
                for name, location, count in contenders:
                    time_s = _race(location, count=count, steps=steps)
                    best[name] = count, min(time_s, best.get(name, (count, float("inf")))[1])
                print(f"round {number + 1} of {rounds}", flush=True)
    finally:
        server.close()
    by_name = {name: {"steps_a_second": n * steps / s, "step_ms": 1000 * s / steps} for name, (n, s) in best.items()}
    return {"machine": at, "ledgers": by_name}


def _race(location: LedgerLocation, *, count: int, steps: int) -> float:
    """Seconds until every replica has taken its steps."""
    event = RunEvent(
        step=StepEvent(
            records=5000, batch=64, parts=(RowProjections(feature_dimension=64, directions=50, sigma=50.0),)
        ),
        steps=count * steps,
    )
    with Ledger.create(location, key=KEY, records=5000, budget=PrivacyBudget(epsilon=1e4, delta=1e-5)) as ledger:
        ledger.add_client("bench", "f" * 64)
        run = ledger.open_run(Request(client="bench", request_id="run", digest=DIGEST), event=event, parameters=b"")
    where = str(location) if isinstance(location, SqliteFile) else f"{location.url}#{location.schema}"  # type: ignore[attr-defined]
    program = [sys.executable, "-m", "benchmarks.replicas", "--steps", str(steps), "--work", where, run.run_id]
    workers = [
        subprocess.Popen(
            [*program, str(name)],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for name in range(count)
    ]  # fmt: skip
    for worker in workers:
        worker.stdout.readline()
    begun = time.perf_counter()
    for worker in workers:
        worker.stdin.write("go\n")
        worker.stdin.flush()
    for worker in workers:
        worker.stdout.readline()
    taken = time.perf_counter() - begun
    for worker in workers:
        worker.stdin.close()
        worker.stdout.close()
        if worker.wait(timeout=60) != 0:
            raise SystemExit("a replica failed; its error stands above")
    with Ledger.open(location, key=KEY) as ledger:
        if ledger.status().steps_used != count * steps:
            raise SystemExit("not every step was taken")
    return taken


def _work(where: str, run: str, name: str, *, steps: int) -> None:
    """One replica: waits for the word, takes its steps, says that it is done."""
    url, _, schema = where.partition("#")
    location: LedgerLocation = PostgresSchema(url, schema=schema) if schema else SqliteFile(Path(url))
    with Ledger.open(location, key=KEY, lock_timeout_s=120) as ledger:
        ledger.serve()
        print("ready", flush=True)
        sys.stdin.readline()
        for number in range(steps):
            grant = ledger.begin_step(Request(client="bench", request_id=f"{name}-{number}", digest=DIGEST), run_id=run)
            assert isinstance(grant, StepGranted)
            ledger.finish_step(grant, reply=REPLY, audit={})
        print("done", flush=True)


def _page(row: Row) -> str:
    columns = {
        "ledger": "{name}",
        "steps a second": "{steps_a_second:.0f}",
        "ms for a step of one replica": "{step_ms:.2f}",
    }
    return f"""# How long a step takes at the ledger

A step is begin and finish with a reply of {len(REPLY):,} bytes; nothing is computed. Server and file stand
on one machine and disk; every commit is synced. Best of {row["rounds"]} rounds
({row["machine"]}).

{table(({"name": name, **each} for name, each in row["ledgers"].items()), columns)}
Writers take turns, so replicas add little here; what they add is computing.

`python -m benchmarks.replicas`
"""


if __name__ == "__main__":
    main()
