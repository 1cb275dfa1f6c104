"""What an operator is told without asking: one JSON object for a program of the operator's own, such as a mail.

Told are acts of operators, requests for budget, the first refusal of a client for one reason on one day, a budget that
became low, and a ledger that is odd. A program that fails stops nothing; the log says so. Notices name clients, figures
of the budget and addresses, and nothing of a record.
"""

from __future__ import annotations

import json
import logging
import queue
import subprocess
import threading
from collections.abc import Callable, Sequence
from typing import Any

from dpswd.private_curator.books.figures import ASKED_BY_CLIENTS, GO_WITH_A_CHARGE, AccountStatus, LedgerStatus
from dpswd.private_curator.books.operators import who
from dpswd.private_curator.core.ledger.statements import Kind
from dpswd.private_curator.storage.asks import Ask
from dpswd.shared.core.ledger.receipts import SignedEntry

MOST_WAITING = 100
"""Notices that wait for the program; further ones are dropped, and the log says so."""
_COMMAND_S = 30.0  # that the program may take for one notice
_REMEMBERED = 10_000  # refusals that were told; beyond it they are told anew
_log = logging.getLogger(__name__)


class Notices:
    """Runs the operator's program for each notice, in a thread of its own.

    Args:
        command: the program and its arguments; None tells nobody anything.
        data_set: public name.
        low_share: of a budget; below it the budget is low.
    """

    def __init__(self, command: Sequence[str] | None, *, data_set: str, low_share: float) -> None:
        self._command = command
        self._data_set = data_set
        self._low_share = low_share
        self._waiting: queue.Queue[dict[str, Any] | None] = queue.Queue(MOST_WAITING)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._refused: set[tuple[str, str, str]] = set()
        self._low: set[str] = set()

    def entry(self, entry: SignedEntry) -> None:
        """Tells an operator's act or a client's request for budget, once it is in the ledger."""
        asked = entry.kind == Kind.BUDGET_REQUESTED
        if asked or entry.kind not in ASKED_BY_CLIENTS | GO_WITH_A_CHARGE:
            stated = ("client", "by", "reason", "purpose", "epsilon", "number", "decision")
            fields = {name: entry.payload[name] for name in stated if name in entry.payload}
            fields |= {"by": who(fields["by"])} if "by" in fields else {}
            self._tell("request" if asked else "act", act=entry.kind, entry=entry.seq, time=entry.time, **fields)

    def refused(self, ask: Ask) -> None:
        """Tells the first refusal of a client for one reason on one day."""
        day = ask.time.date().isoformat()
        key = day, ask.fingerprint or ask.client, ask.outcome
        with self._lock:
            if len(self._refused) >= _REMEMBERED:
                self._refused.clear()
            noticed = key in self._refused
            self._refused.add(key)
        if not noticed:
            fields = {name: getattr(ask, name) for name in ("client", "operation", "fingerprint", "peer", "dry_run")}
            epsilon = {} if ask.epsilon is None else {"epsilon": ask.epsilon}
            self._tell("refused", reason=ask.outcome, time=ask.time.isoformat(), **fields, **epsilon)

    def budgets(self, read: Callable[[], LedgerStatus]) -> None:
        """Tells each budget that became low, once until it is larger again.

        Args:
            read: the ledger's status, which is worked out only where somebody is told.
        """
        if not self._command:
            return
        status = read()
        accounts: list[tuple[str, AccountStatus | None]] = [("", status.data_set)]
        accounts += [(client.name, account) for client, account in status.clients if not client.revoked]
        for client, account in accounts:
            if account is None:
                continue
            low = account.epsilon_remaining < self._low_share * account.epsilon
            with self._lock:
                new = low and client not in self._low
                (self._low.add if low else self._low.discard)(client)
            if new:
                left = {"remaining": account.epsilon_remaining, "epsilon": account.epsilon}
                self._tell("budget-low", client=client, **left)

    def odd(self, text: str) -> None:
        """Tells that the ledger is not as it should be."""
        self._tell("ledger-odd", text=text)

    def close(self) -> None:
        """Waits until what was told has been told. Idempotent."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._waiting.put(None)
            thread.join()

    def _tell(self, kind: str, **fields: Any) -> None:
        if not self._command:
            return
        try:
            self._waiting.put_nowait({"format": "dpswd-notice-1", "kind": kind, "data_set": self._data_set, **fields})
        except queue.Full:
            _log.warning("a notice was dropped: %d wait for operators.notify_command", MOST_WAITING)
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="notices", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while (notice := self._waiting.get()) is not None:
            assert self._command is not None  # nothing waits without one
            data = f"{json.dumps(notice, sort_keys=True)}\n".encode()
            try:
                # The operator's own program.
                subprocess.run(self._command, input=data, check=True, timeout=_COMMAND_S, stdout=subprocess.DEVNULL)  # noqa: S603
            except (OSError, subprocess.SubprocessError) as error:
                _log.warning("operators.notify_command did not take a notice: %s", type(error).__qualname__)
