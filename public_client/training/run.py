"""One run in progress, whatever it releases: uploads, opens (hence charges), draws steps, goes on after a crash.

Where there is a checkpoint, every request is on disk before it is sent. What a step asks and what its answer means is
the method's.
"""

from __future__ import annotations

import abc
import base64
import logging
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dpswd.public_client.curator.stub import Curator
from dpswd.public_client.curator.values import PendingStep, Run, UploadedExtractor, new_request_id
from dpswd.public_client.plans.declarable import Declarable, within_quote
from dpswd.public_client.plans.plan import Plan
from dpswd.public_client.plans.recipe import refuse
from dpswd.public_client.training.checkpoint import Checkpoint
from dpswd.shared.core.errors import (
    CuratorFault,
    CuratorUnavailable,
    LedgerCorrupt,
    RequestInProgress,
    SettingsError,
    StepGivenUp,
)
from dpswd.shared.core.mechanisms.interface import Payload
from dpswd.shared.core.noise.feature_map import FeatureMap
from dpswd.shared.core.wire.messages import RunParameters

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PublicSource:
    """Source features that the curator holds, for steps that name them by digest.

    Attributes:
        features: (m, d), raw, without gradients.
        digest: their name at the curator.
    """

    features: Tensor
    digest: str

    @staticmethod
    def of(source: Tensor | PublicSource) -> Tensor:
        """The features (m, d), uploaded or not."""
        return source.features if isinstance(source, PublicSource) else source


@dataclass(frozen=True, eq=False)
class DrawnStep:
    """One step as it came.

    Attributes:
        number: 1 for the first step of the run.
        reply: the mechanism's.
        request_id: of the step.
    """

    number: int
    reply: Any
    request_id: str


@dataclass(frozen=True)
class AnsweredStep:
    """One step, answered.

    Attributes:
        number: 1 for the first step of the run.
        loss: scalar; its gradient is that of the public half in what it was computed from, and the sanitized one in
            the adapted parameters.
        distance: how far source and target are from each other: the estimated distance F of `losses`, or a critic's
            loss on the source.
        scale: the public scale of the step's cotangents; loss / scale has gradients of comparable size at all steps.
        request_id: of the step.
    """

    number: int
    loss: Tensor
    distance: float
    scale: float
    request_id: str


class ChargedRun(abc.ABC):
    """A run of one plan for one model; making it charges the whole run, or continues the checkpoint's.

    Use as a context manager in a loop of one's own::

        with hospital.open(plan, extractor) as run:
            loss = run.loss(extractor(images))

    Args:
        curator: a connection.
        ready: the model that the private records go through, as it travels.
        plan: what to declare.
        feature_map: the public map that the run declares, or None.
        checkpoint: where requests are written before they are sent.

    Attributes:
        plan: with its noise.
        parameters: the adapted tensors, in the declared order.
        run: as it was opened.
        declared: what the run declares of its mechanism.
        steps_drawn: by this process.
        steps_lost: charged steps that the curator has given up.

    Raises:
        BudgetExhausted: the plan does not fit; nothing was spent.
        InvalidValue: the release could not change anything (`Recipe.worthless`); nothing was spent.
        SettingsError: the checkpoint's run was declared for another model.
    """

    def __init__(
        self,
        curator: Curator,
        ready: Declarable,
        plan: Plan,
        *,
        feature_map: FeatureMap | None = None,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        self._curator = curator
        self._checkpoint = checkpoint
        self._pending: PendingStep | None = None
        self.parameters, self.plan = ready.parameters, ready.sized(plan)
        self.mechanism = plan.method.mechanism
        self.steps_drawn = self.steps_lost = 0
        uploaded = ready.uploaded(curator)
        if checkpoint is not None and checkpoint.begun:
            self.run = self._resume(checkpoint, uploaded)
        else:
            self.run = self._open(ready, uploaded, feature_map)
        self.declared = self.mechanism.declaration.from_bytes(self.run.parameters.declaration)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Closes nothing: what is charged stays charged, and its steps can be drawn later."""
        left = self.plan.steps - self.steps_drawn - self.steps_lost
        if left and kind is None:
            _log.info("%d charged steps of run %s were not drawn", left, self.run.run_id)

    @property
    def has_pending(self) -> bool:
        """Whether the next step drawn is one that was under way when an earlier process, or connection, ended."""
        return self._pending is not None

    def upload(self, features: Tensor) -> PublicSource:
        """Uploads public source features (m, d) once, for many steps."""
        return PublicSource(features.detach(), self._curator.upload_source(features.detach().cpu().numpy()))

    def loss(self, features: Tensor) -> Tensor:
        """Draws one charged step of the run and returns what it says as a scalar loss; autograd works.

        Args:
            features: (m, d) of public source records; may require gradients.

        Returns:
            Scalar: the estimated distance. Its gradient is the source branch in `features`, and the sanitized target
            branch in the adapted parameters.

        Raises:
            RunFinished: all declared steps are used.
        """
        return self.answered(features, self.draw(features)).loss

    def draw(self, source: Tensor | PublicSource | None = None, *, feature_map: FeatureMap | None = None) -> DrawnStep:
        """The next step's reply as it came.

        Args:
            source: raw public source features (m, d), where the curator needs them.
            feature_map: replaces the run's public map for this step.

        Raises:
            RunFinished: all declared steps are used.
        """
        pending, self._pending = self._pending or self._written(source, feature_map), None
        try:
            release = self._curator.send(pending)
            self.steps_drawn += 1
            return DrawnStep(release.step, self.mechanism.reply.from_bytes(release.payload), pending.request_id)
        except StepGivenUp as error:
            self.steps_lost += 1
            _log.warning("a step of run %s is lost, going on with the next: %s", self.run.run_id, error)
            return self.draw(source, feature_map=feature_map)
        except (CuratorUnavailable, RequestInProgress, CuratorFault, LedgerCorrupt):
            self._pending = pending  # it may have used up a step: what is drawn next is this one, by the same id
            raise

    @abc.abstractmethod
    def answered(
        self, source: Tensor | PublicSource, drawn: DrawnStep, *, feature_map: FeatureMap | None = None
    ) -> AnsweredStep:
        """A drawn step as a loss; source and map are those that it was drawn with."""

    @abc.abstractmethod
    def request(self, source: Tensor | PublicSource | None, feature_map: FeatureMap | None) -> Payload:
        """What the mechanism is asked in the next step."""

    def adapted_values(self) -> npt.NDArray[np.float32] | None:
        """Present values of the adapted parameters, flat, in the declared order; None where there are none."""
        if not self.parameters:
            return None
        flat: npt.NDArray[np.float32] = torch.cat([p.detach().reshape(-1) for p in self.parameters]).cpu().numpy()
        return flat

    def _written(self, source: Tensor | PublicSource | None, feature_map: FeatureMap | None) -> PendingStep:
        payload = self.request(source, feature_map).to_bytes()
        pending = PendingStep(self.run.run_id, new_request_id(), payload)
        if self._checkpoint is not None:
            self._checkpoint.write_pending(pending)
        return pending

    def _resume(self, checkpoint: Checkpoint, uploaded: UploadedExtractor) -> Run:
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
            self._pending = pending  # not yet applied when the process ended
        return self._curator.open_run(parameters, request_id=str(run["request_id"]))

    def _open(self, ready: Declarable, uploaded: UploadedExtractor, feature_map: FeatureMap | None) -> Run:
        """Prices the run at the curator, raises the noise if its ledger counts more than the plan did, and opens it."""
        self.plan = within_quote(
            self.plan, lambda plan: self._curator.price_run(plan.parameters(uploaded, ready.names, feature_map)).epsilon
        )
        refuse(self.plan.method.worthless(self.plan))
        parameters, request_id = self.plan.parameters(uploaded, ready.names, feature_map), new_request_id()
        if self._checkpoint is not None:
            declaration = base64.b64encode(parameters.to_bytes()).decode("ascii")
            asked = {"plan": self.plan.to_json(), "request_id": request_id, "declaration": declaration}
            self._checkpoint.write_run(asked)
        return self._curator.open_run(parameters, request_id=request_id)
