"""One charge and what it pays for: a model and a plan, declared, opened (hence charged), and asked step by step.

Where there is a checkpoint, every request is on disk before it is sent and every answer after it came, so that a killed
training goes on with what it has. What a step asks and what its answer means is the method's.
"""

from __future__ import annotations

import base64
import logging
from dataclasses import dataclass, field
from typing import Any, Generic, Self, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dpswd.public_client.curator.stub import Curator
from dpswd.public_client.curator.values import PendingStep, Run, UploadedExtractor, new_request_id
from dpswd.public_client.data.progress import Reporter
from dpswd.public_client.plans.declarable import Declarable, within_quote
from dpswd.public_client.plans.plan import Plan
from dpswd.public_client.plans.recipe import refuse
from dpswd.public_client.training.checkpoint import Checkpoint
from dpswd.shared.core.errors import (
    CuratorFault,
    CuratorUnavailable,
    InvalidValue,
    LedgerCorrupt,
    RequestInProgress,
    SettingsError,
    StepGivenUp,
)
from dpswd.shared.core.mechanisms.interface import Payload
from dpswd.shared.core.noise.feature_map import FeatureMap
from dpswd.shared.core.wire.messages import RunParameters

_log = logging.getLogger(__name__)
Reply = TypeVar("Reply", bound=Payload)


@dataclass(frozen=True)
class RequestIds:
    """The ids of a charge and of its one step, new ones by default; with the same ids and model a repeat is free.

    Attributes:
        run: of the charge.
        step: of the release.
    """

    run: str = field(default_factory=new_request_id)
    step: str = field(default_factory=new_request_id)


@dataclass(frozen=True, eq=False)
class DrawnStep(Generic[Reply]):
    """One step as it came.

    Attributes:
        number: 1 for the first step of the run.
        reply: the mechanism's.
        request_id: of the step.
        asked: the request's payload; of a step that was under way when an earlier process ended, that one's.
    """

    number: int
    reply: Reply
    request_id: str
    asked: bytes


class Release(Generic[Reply]):
    """A plan for one model; `open` charges all of it, after which its steps are drawn.

    Use as a context manager in a loop of one's own::

        with hospital.open(plan, extractor) as run:
            step = run.draw()

    Args:
        curator: a connection.
        ready: the model that the private records go through, as it travels.
        plan: what to declare.
        feature_map: the public map that the run declares, or None.
        checkpoint: where requests are written before they are sent, and answers kept.
        ids: of a run of one step that must be repeatable without a checkpoint; the plan is then opened as it is, with
            its noise.

    Attributes:
        plan: with its noise.
        parameters: the adapted tensors, in the declared order.
        run: as it was opened.
        declared: what the run declares of its mechanism.
        answers: that were drawn by `ask`, in order, with those of an earlier process.
        steps_drawn: by this process.
        steps_lost: charged steps that the curator has given up.
        pending: the step that was under way when an earlier process, or connection, ended, and is drawn next; or None.
    """

    run: Run
    declared: Any

    def __init__(
        self,
        curator: Curator,
        ready: Declarable,
        plan: Plan,
        *,
        feature_map: FeatureMap | None = None,
        checkpoint: Checkpoint | None = None,
        ids: RequestIds | None = None,
    ) -> None:
        self._curator, self._ready, self._checkpoint, self._ids = curator, ready, checkpoint, ids
        self._feature_map = feature_map
        self.pending: PendingStep | None = None
        self.parameters, self.plan = ready.parameters, plan if ids is not None else ready.sized(plan)
        self.mechanism = plan.method.mechanism
        self.answers: list[DrawnStep[Reply]] = []
        self.steps_drawn = self.steps_lost = 0

    def open(self) -> Self:
        """Uploads the model and opens the run, **which charges all its steps**, or continues the checkpoint's.

        Raises:
            BudgetExhausted: the plan does not fit; nothing was spent.
            InvalidValue: the release could not change anything (`Recipe.worthless`); nothing was spent.
            SettingsError: the checkpoint's run was declared for another model.
        """
        uploaded = self._ready.uploaded(self._curator)
        if self._checkpoint is not None and self._checkpoint.begun:
            self.run = self._resumed(self._checkpoint, uploaded)
        else:
            self.run = self._opened(uploaded)
        self.declared = self.mechanism.declaration.from_bytes(self.run.parameters.declaration)
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Closes nothing: what is charged stays charged, and its steps can be drawn later."""
        left = self.plan.steps - self.steps_drawn - self.steps_lost
        if left and kind is None:
            _log.info("%d charged steps of run %s were not drawn", left, self.run.run_id)

    @property
    def left(self) -> int:
        """Steps that `ask` can still draw."""
        return self.plan.steps - len(self.answers) - self.steps_lost

    def draw(self, request: Payload | None = None) -> DrawnStep[Reply]:
        """The next step's reply as it came.

        Args:
            request: what the mechanism is asked; by default what asks for nothing in particular.

        Raises:
            RunFinished: all declared steps are used.
        """
        pending, self.pending = self.pending or self._written(request), None
        try:
            release = self._curator.send(pending)
            self.steps_drawn += 1
            reply = self.mechanism.reply.from_bytes(release.payload)
            return DrawnStep(release.step, reply, pending.request_id, pending.payload)
        except StepGivenUp as error:
            self.steps_lost += 1
            _log.warning("a step of run %s is lost, going on with the next: %s", self.run.run_id, error)
            return self.draw(request)
        except (CuratorUnavailable, RequestInProgress, CuratorFault, LedgerCorrupt):
            self.pending = pending  # it may have used up a step: what is drawn next is this one, by the same id
            raise

    def ask(self, request: Payload | None = None) -> DrawnStep[Reply]:
        """Draws a step and keeps its answer, in the checkpoint too; see `draw`."""
        answer = self.draw(request)
        self.answers.append(answer)
        if self._checkpoint is not None:
            stored = [
                {"asked": _as_tensor(own.asked), "reply": _as_tensor(own.reply.to_bytes())} for own in self.answers
            ]
            state = {"step": len(stored), "request_ids": [answer.request_id], "answers": stored}
            self._checkpoint.write("state", state)
        return answer

    def ask_all(self, bar: Reporter | None = None) -> list[Reply]:
        """The replies to all steps, each asked for nothing in particular, at no further cost; again they are the same.

        Args:
            bar: told of every step.

        Raises:
            InvalidValue: the curator has given up every step.
        """
        bar = bar or Reporter()
        for _ in self.answers:
            bar.advance(self.plan.charged)
        while self.left > 0:
            self.ask()
            bar.advance(self.plan.charged)
        self.require_answers()
        return [answer.reply for answer in self.answers]

    def require_answers(self) -> None:
        """Refuses to read a run of which nothing came.

        Raises:
            InvalidValue: the curator has given up every step.
        """
        if not self.answers:
            raise InvalidValue("the curator gave up every step of this run; nothing was released")

    def adapted_values(self) -> npt.NDArray[np.float32] | None:
        """Present values of the adapted parameters, flat, in the declared order; None where there are none."""
        if not self.parameters:
            return None
        flat: npt.NDArray[np.float32] = torch.cat([p.detach().reshape(-1) for p in self.parameters]).cpu().numpy()
        return flat

    def _written(self, request: Payload | None) -> PendingStep:
        payload = (self.mechanism.request() if request is None else request).to_bytes()
        request_id = new_request_id() if self._ids is None else self._ids.step
        pending = PendingStep(self.run.run_id, request_id, payload)
        if self._checkpoint is not None:
            self._checkpoint.write_pending(pending)
        return pending

    def _resumed(self, checkpoint: Checkpoint, uploaded: UploadedExtractor) -> Run:
        """Opens the checkpoint's run again, by the bytes it was declared with; recalls the step that was under way."""
        run = checkpoint.read_run()
        parameters = RunParameters.from_bytes(base64.b64decode(run["declaration"]))
        digests = (uploaded.graph_digest, uploaded.weights_digest)
        if (parameters.graph_digest, parameters.weights_digest) != digests:
            raise SettingsError(
                f"the run of {checkpoint.directory} was declared for another extractor; continue it with its own, or "
                "choose another directory"
            )
        self.plan = Plan.from_json(run["plan"], method=type(self.plan.method))
        pending = checkpoint.read_pending()
        if pending is not None and pending.request_id not in checkpoint.applied():
            self.pending = pending  # not yet applied when the process ended
        for number, stored in enumerate((checkpoint.read("state") or {}).get("answers", ()), start=1):
            asked, reply = (bytes(stored[name].numpy()) for name in ("asked", "reply"))
            self.answers.append(DrawnStep(number, self.mechanism.reply.from_bytes(reply), "", asked))
        return self._curator.open_run(parameters, request_id=str(run["request_id"]))

    def _opened(self, uploaded: UploadedExtractor) -> Run:
        """Prices the run at the curator, raises the noise if its ledger counts more than the plan did, and opens it."""
        names, feature_map = self._ready.names, self._feature_map
        if self._ids is None:
            self.plan = within_quote(
                self.plan, lambda plan: self._curator.price_run(plan.parameters(uploaded, names, feature_map)).epsilon
            )
        refuse(self.plan.method.worthless(self.plan))
        parameters = self.plan.parameters(uploaded, names, feature_map)
        request_id = new_request_id() if self._ids is None else self._ids.run
        if self._checkpoint is not None:
            declaration = base64.b64encode(parameters.to_bytes()).decode("ascii")
            asked = {"plan": self.plan.to_json(), "request_id": request_id, "declaration": declaration}
            self._checkpoint.write_run(asked)
        return self._curator.open_run(parameters, request_id=request_id)


def _as_tensor(data: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(data, dtype=np.uint8).copy())
