"""One run in progress, whatever it releases: uploads, opens (hence charges), draws steps, goes on after a crash.

Where there is a checkpoint, every request is on disk before it is sent. What a step asks and what its answer means is
`alignment`'s and `dann`'s.
"""

from __future__ import annotations

import abc
import base64
import logging
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from public_client.curator.stub import Curator
from public_client.curator.values import PendingStep, Run, UploadedExtractor, new_request_id
from public_client.plans.declarable import Declarable, within_quote
from public_client.plans.run_plan import RunPlan
from public_client.training.checkpoint import Checkpoint
from shared.errors import CuratorFault, CuratorUnavailable, RequestInProgress, SettingsError, StepGivenUp
from shared.kernels.feature_map import FeatureMap
from shared.protocol.messages import PublicMap, RunParameters
from shared.protocol.v1 import curator_pb2 as pb

_log = logging.getLogger(__name__)
_Plan = TypeVar("_Plan", bound=RunPlan)
_Release = TypeVar("_Release")


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


class ChargedRun(abc.ABC, Generic[_Plan, _Release]):
    """A run of one plan for one module; making it charges the whole run, or continues the checkpoint's.

    Args:
        curator: a connection.
        ready: the module that the private records go through, as it travels.
        plan: what to declare.
        feature_map: the public map that the run declares, or None.
        checkpoint: where requests are written before they are sent.
        applied: ids of steps whose answers are in the state that training goes on from; by default the checkpoint's.

    Attributes:
        plan: with its noise.
        parameters: the adapted tensors, in the declared order.
        run: as it was opened.
        steps_lost: charged steps that the curator has given up.

    Raises:
        BudgetExhausted: the plan does not fit; nothing was spent.
        SettingsError: the checkpoint's run was declared for another module.
    """

    def __init__(
        self,
        curator: Curator,
        ready: Declarable,
        plan: _Plan,
        *,
        feature_map: PublicMap | None = None,
        checkpoint: Checkpoint | None = None,
        applied: frozenset[str] | None = None,
    ) -> None:
        self._curator = curator
        self._checkpoint = checkpoint
        self._pending: PendingStep | None = None
        self.parameters, self.plan = ready.parameters, ready.noisy(plan)
        self.steps_lost = 0
        uploaded = curator.upload_extractor(ready.graph.to_bytes(), ready.weights)
        if checkpoint is not None and checkpoint.begun:
            self.run = self._resume(checkpoint, uploaded, checkpoint.applied() if applied is None else applied)
        else:
            self.run = self._open(ready, uploaded, feature_map)

    @property
    def has_pending(self) -> bool:
        """Whether the next step drawn is one that was under way when an earlier process, or connection, ended."""
        return self._pending is not None

    def draw(
        self, source: Tensor | PublicSource | None = None, *, feature_map: FeatureMap | None = None
    ) -> tuple[_Release, str]:
        """The next step's release as it came, with its request id.

        Args:
            source: raw public source features (m, d), where the curator needs them.
            feature_map: replaces the run's public map for this step.

        Raises:
            RunFinished: all declared steps are used.
        """
        pending, self._pending = self._pending or self._written(source, feature_map), None
        try:
            return self._send(pending), pending.request_id
        except StepGivenUp as error:
            self.steps_lost += 1
            _log.warning("a step of run %s is lost, going on with the next: %s", self.run.run_id, error)
            return self.draw(source, feature_map=feature_map)
        except (CuratorUnavailable, RequestInProgress, CuratorFault):
            self._pending = pending  # it may have used up a step: what is drawn next is this one, by the same id
            raise

    @abc.abstractmethod
    def answered(
        self,
        source: Tensor | PublicSource,
        release: _Release,
        request_id: str,
        *,
        feature_map: FeatureMap | None = None,
    ) -> AnsweredStep:
        """A drawn release as a loss; the arguments are those that it was drawn with."""

    @abc.abstractmethod
    def _prepare(self, source: Tensor | PublicSource | None, feature_map: FeatureMap | None) -> PendingStep:
        """The next step's request."""

    @abc.abstractmethod
    def _send(self, pending: PendingStep) -> _Release:
        """Sends a request, now or again."""

    def _adapted(self) -> npt.NDArray[np.float32]:
        """Present values of the adapted parameters, flat, in the declared order."""
        flat: npt.NDArray[np.float32] = torch.cat([p.detach().reshape(-1) for p in self.parameters]).cpu().numpy()
        return flat

    def _written(self, source: Tensor | PublicSource | None, feature_map: FeatureMap | None) -> PendingStep:
        pending = self._prepare(source, feature_map)
        if self._checkpoint is not None:
            self._checkpoint.write_pending(pending)
        return pending

    def _resume(self, checkpoint: Checkpoint, uploaded: UploadedExtractor, applied: frozenset[str]) -> Run:
        """Opens the checkpoint's run again, by the bytes it was declared with; recalls the step that was under way."""
        run = checkpoint.read_run()
        parameters = RunParameters.from_message(pb.RunParameters.FromString(base64.b64decode(run["declaration"])))
        digests = (uploaded.graph_digest, uploaded.weights_digest)
        if (parameters.graph_digest, parameters.weights_digest) != digests:
            raise SettingsError(
                f"the run of {checkpoint.directory} was declared for another extractor; continue it with its own, or "
                "choose another directory"
            )
        self.plan = type(self.plan).from_json(run["plan"])
        pending = checkpoint.read_pending()
        if pending is not None and pending.request_id not in applied:
            self._pending = pending  # not yet applied when the process ended
        return self._curator.open_run(parameters, request_id=str(run["request_id"]))

    def _open(self, ready: Declarable, uploaded: UploadedExtractor, feature_map: PublicMap | None) -> Run:
        """Prices the run at the curator, raises the noise if its ledger counts more than the plan did, and opens it."""
        self.plan = within_quote(
            self.plan, lambda plan: self._curator.price_run(ready.declare(plan, uploaded, feature_map)).epsilon
        )
        parameters, request_id = ready.declare(self.plan, uploaded, feature_map), new_request_id()
        if self._checkpoint is not None:
            declaration = parameters.to_message().SerializeToString(deterministic=True)
            self._checkpoint.write_run(
                {
                    "plan": self.plan.to_json(),
                    "request_id": request_id,
                    "declaration": base64.b64encode(declaration).decode("ascii"),
                }
            )
        return self._curator.open_run(parameters, request_id=request_id)
