"""One run in progress: uploads, opens (hence charges), draws steps, and turns each into a loss.

`DomainAdaptation` and `Curator.alignment_loss` are both loops around `Alignment.step`.
"""

from __future__ import annotations

import base64
import logging
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from public_client.checkpoint import Checkpoint
from public_client.curator import Curator
from public_client.declaring import Declarable, public_map, within_quote
from public_client.exchange import PendingStep, Run, UploadedExtractor, new_request_id
from public_client.losses import quantile_loss, row_loss, sanitized_term
from public_client.planning import Plan
from shared.errors import CuratorFault, CuratorUnavailable, InvalidValue, RequestInProgress, SettingsError, StepGivenUp
from shared.mechanisms.feature_map import FeatureMap
from shared.protocol.messages import RunParameters, StepRelease
from shared.protocol.v1 import curator_pb2 as pb

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


@dataclass(frozen=True)
class AlignmentStep:
    """One step, answered.

    Attributes:
        number: 1 for the first step of the run.
        loss: scalar; its value is the estimated distance F of `losses`, its gradient the source branch in the source
            features and the sanitized target branch in the adapted parameters.
        distance: the loss's value.
        scale: the public scale of the step's cotangents; loss / scale has gradients of comparable size at all steps.
        request_id: of the step.
    """

    number: int
    loss: Tensor
    distance: float
    scale: float
    request_id: str


@dataclass(frozen=True, eq=False)
class Seen:
    """What the client saw of the target at one step; all of it is public or was charged.

    Attributes:
        source_features: (m, d), raw, without gradients, that the release was compared with.
        release: of the step.
        feature_map: the public map of the step.
    """

    source_features: Tensor
    release: StepRelease
    feature_map: FeatureMap


class Alignment:
    """A run of `plan` for one extractor; making it charges the whole run.

    Args:
        curator: a connection.
        extractor: the module that the private records go through; the declared parameters are its own.
        plan: what to declare.
        source_features: (m, d) public features, for the public map of steps that bring none.
        feature_map: instead of the map from `source_features`.
        checkpoint: where requests are written before they are sent.
        declarable: the extractor, traced already.
        applied: ids of steps whose answers are in the state that training goes on from; by default the checkpoint's.

    Attributes:
        plan: with its noise.
        parameters: the adapted tensors, in the declared order.
        feature_map: the run's public map.
        first, last: what was seen of the target at the first and at the last step of this process.

    Raises:
        ExtractorUnsupported: the module cannot travel as data; the message names the layer.
        BudgetExhausted: the plan does not fit; nothing was spent.
    """

    def __init__(
        self,
        curator: Curator,
        extractor: nn.Module,
        plan: Plan,
        *,
        source_features: Tensor,
        feature_map: FeatureMap | None = None,
        checkpoint: Checkpoint | None = None,
        declarable: Declarable | None = None,
        applied: frozenset[str] | None = None,
    ) -> None:
        self._curator = curator
        self._checkpoint = checkpoint
        ready = declarable or Declarable.of(extractor, curator.describe().record_shape, plan)
        if source_features.dim() != 2 or source_features.shape[1] != ready.graph.feature_dimension:
            raise InvalidValue(
                f"the source features have shape {tuple(source_features.shape)}; needed is (m, "
                f"{ready.graph.feature_dimension}), as the extractor computes them"
            )
        self.parameters, self.plan = ready.parameters, ready.noisy(plan)
        self.feature_map = feature_map or FeatureMap.from_source(source_features, target_norm=plan.target_norm)
        self.first: Seen | None = None
        self.last: Seen | None = None
        self._pending: PendingStep | None = None
        self.steps_lost = 0  # charged steps that the curator has given up
        uploaded = curator.upload_extractor(ready.graph.to_bytes(), ready.weights)
        if checkpoint is not None and checkpoint.begun:
            self.run = self._resume(checkpoint, uploaded, checkpoint.applied() if applied is None else applied)
        else:
            self.run = self._open(ready, uploaded)

    @property
    def has_pending(self) -> bool:
        """Whether the next step drawn is one that was under way when an earlier process, or connection, ended."""
        return self._pending is not None

    def upload(self, features: Tensor) -> PublicSource:
        """Uploads public source features once, for many steps."""
        return PublicSource(features.detach(), self._curator.upload_source(features.detach().cpu().numpy()))

    def step(self, source: Tensor | PublicSource, *, feature_map: FeatureMap | None = None) -> AlignmentStep:
        """Draws one step of the run.

        Args:
            source: raw public source features (m, d), inline or uploaded.
            feature_map: replaces the run's public map for this step.

        Raises:
            RunFinished: all declared steps are used.
        """
        release, request_id = self.draw(source, feature_map=feature_map)
        return self.answered(source, release, request_id, feature_map=feature_map)

    def answered(
        self,
        source: Tensor | PublicSource,
        release: StepRelease,
        request_id: str,
        *,
        feature_map: FeatureMap | None = None,
    ) -> AlignmentStep:
        """A drawn release as a loss; the arguments are those that it was drawn with."""
        features = source.features if isinstance(source, PublicSource) else source
        loss = self.distance(features, release, feature_map=feature_map)
        value = float(loss.detach())
        self.last = Seen(features.detach(), release, feature_map or self.feature_map)
        self.first = self.first or self.last
        if self.parameters and release.gradient is not None:
            loss = loss + sanitized_term(self.parameters, release, batch=self.plan.batch_size)
        return AlignmentStep(release.step, loss, value, release.cotangent_scale or 1.0, request_id)

    def draw(
        self, source: Tensor | PublicSource | None = None, *, feature_map: FeatureMap | None = None
    ) -> tuple[StepRelease, str]:
        """The next step's release as it came, with its request id; `source` is needed for a gradient only."""
        pending, self._pending = self._pending or self._prepare(source, feature_map), None
        try:
            return self._curator.send(pending), pending.request_id
        except StepGivenUp as error:
            self.steps_lost += 1
            _log.warning("a step of run %s is lost, going on with the next: %s", self.run.run_id, error)
            return self.draw(source, feature_map=feature_map)
        except (CuratorUnavailable, RequestInProgress, CuratorFault):
            self._pending = pending  # it may have used up a step: what is drawn next is this one, by the same id
            raise

    def distance(self, features: Tensor, release: StepRelease, *, feature_map: FeatureMap | None = None) -> Tensor:
        """The estimated distance F between raw source features (m, d) and a release of this run."""
        sigma = self.plan.sigma
        assert sigma is not None, "Alignment plans with noise"
        used = feature_map or self.feature_map
        if self.plan.release == "quantiles":
            return quantile_loss(features, release, feature_map=used, batch=self.plan.batch_size, sigma=sigma)
        return row_loss(features, release, feature_map=used, sigma=sigma)

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
        self.plan = Plan.from_json(run["plan"])
        if parameters.feature_map is not None:
            self.feature_map = FeatureMap(
                center=torch.from_numpy(parameters.feature_map.center).to(self.feature_map.center),
                scale=torch.from_numpy(parameters.feature_map.scale).to(self.feature_map.scale),
            )
        pending = checkpoint.read_pending()
        if pending is not None and pending.request_id not in applied:
            self._pending = pending  # not yet applied when the process ended
        return self._curator.open_run(parameters, request_id=str(run["request_id"]))

    def _open(self, ready: Declarable, uploaded: UploadedExtractor) -> Run:
        """Prices the run at the curator, raises the noise if its ledger counts more than the plan did, and opens it."""
        mapped = public_map(self.feature_map)
        self.plan = within_quote(
            self.plan, lambda plan: self._curator.price_run(ready.declare(plan, uploaded, mapped)).epsilon
        )
        parameters, request_id = ready.declare(self.plan, uploaded, mapped), new_request_id()
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

    def _prepare(self, source: Tensor | PublicSource | None, feature_map: FeatureMap | None) -> PendingStep:
        adapted, sent = None, None
        if self.parameters:
            if source is None:
                raise InvalidValue("a step with a sanitized gradient needs public source features")
            adapted = torch.cat([p.detach().reshape(-1) for p in self.parameters]).cpu().numpy()
            sent = source.digest if isinstance(source, PublicSource) else source.detach().cpu().numpy()
        pending = self._curator.prepare_step(
            self.run,
            source=sent,
            adapted_parameters=adapted,
            feature_map=None if feature_map is None else public_map(feature_map),
        )
        if self._checkpoint is not None:
            self._checkpoint.write_pending(pending)
        return pending
