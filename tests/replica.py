"""One of several curators on one ledger in PostgreSQL: ``replica.py NAME``; see test_replicas.py.

Reads orders, one JSON line each, and answers each with one line of JSON:

- ``serve`` (url, schema): goes over to another ledger
- ``race`` (requests, run): a thread for each request, all at once; each computes its step if it is granted
- ``open`` (clients, steps): a thread for each client, which opens a run
- ``begin`` (request, run): begins a step and keeps the grant
- ``finish`` (request): stores the reply of that grant
- ``cut``: the connection to the server breaks, as a network would break it
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

sys.path.insert(0, str(Path(__file__).parents[1]))

from toy_accounting import ToyAccounting, toy_run

from dpswd.private_curator.books.ledger import Ledger
from dpswd.private_curator.core.ledger.statements import Request, StepGranted
from dpswd.private_curator.postgres.schema import PostgresSchema

KEY = Ed25519PrivateKey.from_private_bytes(b"k" * 32)
DIGEST = "d" * 64


class Replica:
    """A curator without records: its noise is random bytes."""

    def __init__(self, name: str) -> None:
        self.ledger: Ledger | None = None
        self.name = name
        self.grants: dict[str, StepGranted] = {}

    def serve(self, url: str, schema: str) -> dict[str, object]:
        if self.ledger is not None:
            self.ledger.close()
        self.grants.clear()
        location = PostgresSchema(url, schema=schema)
        self.ledger = Ledger.open(location, key=KEY, accounting=ToyAccounting(), lock_timeout_s=60)
        self.ledger.serve()
        return {"outcome": "serving"}

    def take(self, request: str, run: str) -> tuple[str, bytes]:
        """A whole step."""
        begun = self.ledger.begin_step(Request(client="alice", request_id=request, digest=DIGEST), run_id=run)
        if not isinstance(begun, StepGranted):
            return "stored", begun.reply
        return "computed", self.ledger.finish_step(begun, reply=os.urandom(500), audit={"replica": self.name}).reply

    def race(self, requests: list[str], run: str) -> dict[str, object]:
        outcomes: dict[int, str] = {}
        replies: dict[int, str] = {}
        barrier = threading.Barrier(len(requests))

        def act(number: int, request: str) -> None:
            barrier.wait()
            try:
                outcomes[number], reply = self.take(request, run)
                replies[number] = reply.hex()
            except Exception as error:
                outcomes[number] = type(error).__name__

        _all(act, requests)
        return {"outcomes": list(outcomes.values()), "replies": list(replies.values())}

    def open(self, clients: list[str], steps: int) -> dict[str, object]:
        outcomes: dict[int, str] = {}
        barrier = threading.Barrier(len(clients))

        def act(number: int, client: str) -> None:
            barrier.wait()
            try:
                self.ledger.open_run(
                    Request(client=client, request_id="run", digest=DIGEST), event=toy_run(steps=steps), parameters=b""
                )
                outcomes[number] = "charged"
            except Exception as error:
                outcomes[number] = type(error).__name__

        _all(act, clients)
        return {"outcomes": list(outcomes.values())}

    def begin(self, request: str, run: str) -> dict[str, object]:
        try:
            begun = self.ledger.begin_step(Request(client="alice", request_id=request, digest=DIGEST), run_id=run)
        except Exception as error:
            return {"outcome": type(error).__name__}
        if not isinstance(begun, StepGranted):
            return {"outcome": "stored", "reply": begun.reply.hex(), "receipt": begun.receipt.entry.statement.hex()}
        self.grants[request] = begun
        return {"outcome": "granted", "attempt": begun.attempt, "step": begun.step_number}

    def finish(self, request: str) -> dict[str, object]:
        try:
            stored = self.ledger.finish_step(self.grants.pop(request), reply=self.name.encode(), audit={})
        except Exception as error:
            return {"outcome": type(error).__name__}
        return {"outcome": "stored", "reply": stored.reply.hex(), "receipt": stored.receipt.entry.statement.hex()}

    def cut(self) -> dict[str, object]:
        # Reaches below the ledger: what is tested is a network that breaks without telling either side's program.
        descriptor = os.dup(self.ledger._database._connection.fileno())
        with socket.socket(fileno=descriptor) as wire:
            wire.shutdown(socket.SHUT_RDWR)
        return {"outcome": "cut"}


def _all(act, values) -> None:
    threads = [threading.Thread(target=act, args=pair) for pair in enumerate(values)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main() -> None:
    replica = Replica(sys.argv[1])
    for line in sys.stdin:
        order = json.loads(line)
        print(json.dumps(getattr(replica, order.pop("do"))(**order)), flush=True)


if __name__ == "__main__":
    main()
