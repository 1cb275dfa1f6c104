"""A curator and its client that are killed over and over: the process behind test_crashes.py.

Started once; reads one JSON line for each life, with the ledger (a file, or URL#SCHEMA) and the log, forks a curator
for it (so that a life costs milliseconds), and prints how it ended. A life opens the ledger and goes on
with the client's work: open runs, and take their steps. It dies by SIGKILL at the named point, or when this process
kills it after a delay.

The log is what the world outside has seen; a line is written with one ``write`` and survives the death of its writer:

- ``opened RUN REQUEST``: the client was told of its run
- ``computing RUN STEP REQUEST``: a record is read now
- ``received RUN REQUEST SHA-256``: the client has the reply
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

sys.path.insert(0, str(Path(__file__).parents[3]))
sys.path.insert(0, str(Path(__file__).parents[4]))

from toy_accounting import ToyAccounting, toy_run

from dpswd.private_curator.books.ledger import Ledger
from dpswd.private_curator.books.location import LedgerLocation
from dpswd.private_curator.books.sqlite_file import SqliteFile
from dpswd.private_curator.core.ledger.statements import Request, StepGranted, StoredReply
from dpswd.private_curator.postgres.schema import PostgresSchema
from dpswd.shared.core.errors import RequestInProgress
from dpswd.shared.core.ledger.receipts import sha256

KEY = Ed25519PrivateKey.from_private_bytes(b"k" * 32)
DIGEST = "d" * 64
STEPS = 4  # of each run


def place_of(text: str) -> LedgerLocation:
    url, _, schema = text.partition("#")
    return PostgresSchema(url, schema=schema) if schema else SqliteFile(Path(url))


class Life:
    """One life of the curator, and the client that talks to it."""

    def __init__(self, order: dict[str, object]) -> None:
        self.location = place_of(str(order["ledger"]))
        self.log_path = Path(str(order["log"]))
        self.log_file = os.open(self.log_path, os.O_WRONLY | os.O_APPEND)
        self.point, self.countdown = order.get("point"), int(order.get("occurrence", 1))
        self.goal = int(order["runs"])

    def checkpoint(self, name: str) -> None:
        if name == self.point:
            self.countdown -= 1
            if self.countdown == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def log(self, *words: object) -> None:
        os.write(self.log_file, (" ".join(map(str, words)) + "\n").encode())

    def live(self) -> None:
        seen = [line.split() for line in self.log_path.read_text().splitlines()]
        opened = {words[2] for words in seen if words[0] == "opened"}
        received = {words[2] for words in seen if words[0] == "received"}
        with Ledger.open(self.location, key=KEY, accounting=ToyAccounting(), checkpoint=self.checkpoint) as ledger:
            for number in range(self.goal):
                request = f"run-{number}"
                steps = [f"{request}-step-{step}" for step in range(STEPS)]
                if request in opened and received.issuperset(steps):
                    continue
                run = ledger.open_run(
                    Request(client="alice", request_id=request, digest=DIGEST),
                    event=toy_run(steps=STEPS),
                    parameters=b"p",
                )
                self.log("opened", run.run_id, request)
                for step in steps:
                    if step not in received:
                        self.step(ledger, run.run_id, step)

    def step(self, ledger: Ledger, run_id: str, request: str) -> None:
        stored = self.begun(ledger, run_id, request)
        if isinstance(stored, StepGranted):
            self.log("computing", run_id, stored.step_number, request)
            self.checkpoint("compute")
            reply = os.urandom(9000)  # fresh noise, larger than a page
            stored = ledger.finish_step(stored, reply=reply, audit={"pid": os.getpid()})
        self.checkpoint("answer")
        self.log("received", run_id, request, sha256(stored.reply))

    def begun(self, ledger: Ledger, run_id: str, request: str) -> StepGranted | StoredReply:
        """Asks until the server has noticed that the life before has ended."""
        deadline = time.monotonic() + 30
        while True:
            try:
                return ledger.begin_step(Request(client="alice", request_id=request, digest=DIGEST), run_id=run_id)
            except RequestInProgress:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.005)


def main() -> None:
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            try:
                Life(order).live()
            except BaseException as error:
                sys.stderr.write(f"{error!r}\n")
                os._exit(1)
            os._exit(0)
        if "delay_s" in order:
            time.sleep(order["delay_s"])
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
