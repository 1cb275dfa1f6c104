"""One step, from the charge to the answer: the order of events on which the promise rests (docs/privacy, 1).

1. *Consumed*: the ledger binds one charged step to this request, durably, before a record is read.
2. *Sampled*: a secret, ordered sample of b records without replacement, or all of them.
   A sum over every record is computed shard by shard (private_curator/steps/shards.py), here or on other machines.
3. The mechanism's own points: *directed* (a fresh seed for the directions U, after the weights have arrived; a worker
   extracts meanwhile), *extracted* (what the extractor computes of each record by itself), *released*, *sanitized*.
4. *Stored*: reply, audit record and receipt in one transaction. Only what is stored is sent.

A crash or an error anywhere before 4 releases nothing: the request may be repeated, and is computed anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Iterator
from typing import Any

from dpswd.private_curator.core.ledger.budget import Books
from dpswd.private_curator.core.ledger.runs import RunActs
from dpswd.private_curator.core.ledger.statements import Request, StepGranted, StoredReply
from dpswd.private_curator.core.steps.denormals import flushed_denormals
from dpswd.private_curator.core.steps.evaluating import Evaluator, ExtractorSource, Shards
from dpswd.shared.core.errors import DpswdError, ExtractionStopped
from dpswd.shared.core.mechanisms.declared import AdmittedRun, AdmittedStep
from dpswd.shared.core.mechanisms.linear import LinearMechanism
from dpswd.shared.core.steps.computing import Laboratory, completed, computed
from dpswd.shared.core.wire.messages import StepRelease

AUDIT_FORMAT = "dpswd-audit-2"


class StepFailed(DpswdError):
    """A step failed after records were read: whatever the cause says, its text may quote them."""


class ReleasePipeline:
    """Computes steps, a bounded number at a time.

    Args:
        ledger: charges and stored replies.
        evaluator: evaluates extractors.
        shards: computes sums over every record.
        lab: the records, the noise, and the hook of the named points: consumed, those of `computed`, stored.
        parallel_steps: steps computed at the same time.
        max_attempts: how often one step is computed anew after failures.
    """

    def __init__(
        self,
        *,
        ledger: RunActs[Books],
        evaluator: Evaluator,
        shards: Shards,
        lab: Laboratory,
        parallel_steps: int = 1,
        max_attempts: int = 16,
    ) -> None:
        self.evaluator = evaluator
        self.lab = lab
        self._ledger = ledger
        self._shards = shards
        self._parallel_steps = parallel_steps
        self._slots = threading.BoundedSemaphore(parallel_steps)
        self._max_attempts = max_attempts

    def answer(self, step: AdmittedStep, extractor: ExtractorSource, *, request: Request, run_id: str) -> StoredReply:
        """Computes a step once and returns what was stored; a repeat of its request returns the same bytes.

        Args:
            step: checked against its run.
            extractor: the run's.
            request: as the ledger knows it.
            run_id: of the charged run.

        Raises:
            GrantNotHeld, RunFinished, RequestIdReused, RequestInProgress, LedgerUnavailable: see `Ledger.begin_step`.
            StepGivenUp: the step failed too often.
            ExtractionStopped: the extractor exceeded a limit, or its worker ended; the step may be repeated. Or nobody
                computes shards now, which counts as no attempt.
        """
        # Before an attempt is counted: an outage has read no record, so how long it lasts tells nothing of one.
        self.ready(step.run)
        # How often a step fails is seen by the client, so its number is bounded.
        grant = self._ledger.begin_step(request, run_id=run_id, max_attempts=self._max_attempts)
        if isinstance(grant, StoredReply):
            return grant
        try:
            self.lab.reached("consumed")
            with self.place():
                payload = self._computed(step, extractor)
            reply = StepRelease(run_id, grant.step_number, payload).to_bytes()
            audit = self._audit_record(step.run, grant, payload)
        except BaseException:
            self._ledger.abandon_step(grant)
            raise
        stored = self._ledger.finish_step(grant, reply=reply, audit=audit)
        self.lab.reached("stored")
        return stored

    def ready(self, run: AdmittedRun) -> None:
        """Asks whether a step of this run can be computed now; counts nothing.

        Raises:
            ExtractionStopped: nobody computes shards now; the request may be repeated.
        """
        if isinstance(run.mechanism, LinearMechanism):
            self._shards.ready()

    @contextlib.contextmanager
    def place(self) -> Iterator[None]:
        """Waits for one of the places in which steps are computed."""
        with self._slots, flushed_denormals():
            yield

    def idle(self) -> bool:
        """Whether no step is being computed now."""
        taken = 0
        while taken < self._parallel_steps and self._slots.acquire(blocking=False):
            taken += 1
        for _ in range(taken):
            self._slots.release()
        return taken == self._parallel_steps

    def _computed(self, step: AdmittedStep, extractor: ExtractorSource) -> bytes:
        """The noised reply; an error from inside never travels to the client in its own words."""
        try:
            if (linear := step.linear) is not None:
                return completed(linear, self._shards.sums(linear, extractor), self.lab)
            with self.evaluator.session(extractor) as session:
                return computed(step, session, self.lab)
        except ExtractionStopped:  # its words are made of settings
            raise
        except DpswdError as error:
            raise StepFailed(f"a step failed with {type(error).__qualname__}") from error

    def _audit_record(self, run: AdmittedRun, grant: StepGranted, payload: bytes) -> dict[str, Any]:
        """What an auditor needs beside the run's declaration and the reply; nothing of a record, and not the sample."""
        return {
            "format": AUDIT_FORMAT,
            "attempt": grant.attempt,
            "device": self.lab.device.type,
            "mechanism": run.mechanism.name,
            "payload": hashlib.sha256(payload).hexdigest(),
        }
