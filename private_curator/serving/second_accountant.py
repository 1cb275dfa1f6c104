"""autodp's figures, from a process that holds no key, no record and no open ledger.

The check needs public numbers only: a step goes there as the ledger's JSON, and twenty-four numbers come back. The
process is a fresh interpreter with an environment of its own; of the curator's open files it inherits three pipes.
``python -m dpswd.private_curator.serving.second_accountant`` is that process.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import subprocess
import sys
import threading

from dpswd.shared.accounting.crosscheck import ORDERS, CrossCheck, Figures, check_with_autodp, figures
from dpswd.shared.core.errors import AccountantsDisagree, DpswdError
from dpswd.shared.core.privacy.event_json import event_from_json, event_to_json
from dpswd.shared.core.privacy.events import RunEvent, StepEvent

PROGRAM = (sys.executable, "-P", "-m", "dpswd.private_curator.serving.second_accountant")

_ANSWER_S = 120.0  # the first answer waits for the import, on a cold disk and a busy machine
_CACHED = 256  # events whose check is remembered; a disagreement never is
_LONGEST = 16_384  # bytes of an answer
_PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "SYSTEMROOT")


class SecondAccountant:
    """Checks runs by autodp in another process, which is started at the first and ended by `close`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._checked = functools.lru_cache(maxsize=_CACHED)(lambda event: check_with_autodp(event, self.figures))

    def __call__(self, event: RunEvent) -> CrossCheck:
        """See `check_with_autodp`.

        Raises:
            AccountantsDisagree: the figures are not in their known order, or there are none.
        """
        return self._checked(event)

    def figures(self, step: StepEvent) -> Figures:
        """What autodp says; asked a second time of a fresh process if the first one ended.

        Raises:
            AccountantsDisagree: it gives no answer.
        """
        question = event_to_json(RunEvent(step, steps=1)).encode() + b"\n"
        with self._lock:
            answer = self._asked(question) or self._asked(question)
        try:
            said = json.loads(answer)
            both = [tuple(map(float, said[name])) for name in ("theorem_27", "theorem_9")]
        except (ValueError, KeyError, TypeError) as error:
            raise AccountantsDisagree(
                "the second accountant's process gives no answer; the run is refused, tell the operator to look "
                "whether autodp can be imported"
            ) from error
        if any(len(values) != len(ORDERS) for values in both):
            raise AccountantsDisagree("the second accountant answers another question; the run is refused")
        return Figures(*both)

    def close(self) -> None:
        """Ends the process; another check would start one again."""
        with self._lock:
            self._end()

    def _asked(self, question: bytes) -> bytes:
        """One line for one line; nothing where the process has ended or is silent."""
        if self._process is None:
            environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
            environment |= {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                PROGRAM,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env=environment,
                start_new_session=True,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(question)
            self._process.stdin.flush()
            answer = b""
            while not answer.endswith(b"\n") and len(answer) < _LONGEST:
                if not select.select([self._process.stdout], [], [], _ANSWER_S)[0]:
                    break
                part = os.read(self._process.stdout.fileno(), _LONGEST)
                if not part:
                    break
                answer += part
        except OSError:
            answer = b""
        if not answer.endswith(b"\n"):
            self._end()
            return b""
        return answer

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):
                    if pipe is not None:
                        pipe.close()


def main() -> None:
    """Answers questions until the curator closes the pipe."""
    for line in sys.stdin:
        try:
            said = figures(event_from_json(line.strip()).step)
            answer: dict[str, object] = {"theorem_27": said.theorem_27, "theorem_9": said.theorem_9}
        except (DpswdError, ArithmeticError) as error:
            answer = {"error": type(error).__name__}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
