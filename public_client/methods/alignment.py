"""A run of DP-SWD's releases in progress: what each step asks, and its answer as a loss.

`DomainAdaptation` and `Curator.alignment_loss` are both loops around `Alignment.draw` and `Alignment.answered`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from public_client.curator.stub import Curator
from public_client.curator.values import PendingStep
from public_client.methods.losses import quantile_loss, row_loss, sanitized_term
from public_client.plans.declarable import Declarable, public_map
from public_client.plans.plan import Plan
from public_client.training.charged_run import AnsweredStep, ChargedRun, PublicSource
from public_client.training.checkpoint import Checkpoint
from shared.errors import InvalidValue
from shared.kernels.feature_map import FeatureMap
from shared.protocol.messages import StepRelease


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


class Alignment(ChargedRun[Plan, StepRelease]):
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
        ready = declarable or Declarable.of(extractor, curator.describe().record_shape, plan)
        if source_features.dim() != 2 or source_features.shape[1] != ready.graph.feature_dimension:
            raise InvalidValue(
                f"the source features have shape {tuple(source_features.shape)}; needed is (m, "
                f"{ready.graph.feature_dimension}), as the extractor computes them"
            )
        self.feature_map = feature_map or FeatureMap.from_source(source_features, target_norm=plan.target_norm)
        self.first: Seen | None = None
        self.last: Seen | None = None
        super().__init__(
            curator,
            ready,
            plan,
            feature_map=public_map(self.feature_map),
            checkpoint=checkpoint,
            applied=applied,
        )
        declared = self.run.parameters.feature_map
        if declared is not None:  # of a run that goes on, not the map that would be chosen now
            self.feature_map = FeatureMap(
                center=torch.from_numpy(declared.center).to(self.feature_map.center),
                scale=torch.from_numpy(declared.scale).to(self.feature_map.scale),
            )

    def upload(self, features: Tensor) -> PublicSource:
        """Uploads public source features once, for many steps."""
        return PublicSource(features.detach(), self._curator.upload_source(features.detach().cpu().numpy()))

    def step(self, source: Tensor | PublicSource, *, feature_map: FeatureMap | None = None) -> AnsweredStep:
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
    ) -> AnsweredStep:
        """A drawn release as a loss; the arguments are those that it was drawn with.

        The loss's value is the estimated distance F of `losses`, its gradient the source branch in the source features
        and the sanitized target branch in the adapted parameters.
        """
        features = PublicSource.of(source)
        loss = self.distance(features, release, feature_map=feature_map)
        value = float(loss.detach())
        self.last = Seen(features.detach(), release, feature_map or self.feature_map)
        self.first = self.first or self.last
        if self.parameters and release.gradient is not None:
            loss = loss + sanitized_term(self.parameters, release, batch=self.plan.batch_size)
        return AnsweredStep(release.step, loss, value, release.cotangent_scale or 1.0, request_id)

    def distance(self, features: Tensor, release: StepRelease, *, feature_map: FeatureMap | None = None) -> Tensor:
        """The estimated distance F between raw source features (m, d) and a release of this run."""
        sigma = self.plan.sigma
        assert sigma is not None, "an open run's plan has its noise"
        used = feature_map or self.feature_map
        if self.plan.release == "quantiles":
            return quantile_loss(features, release, feature_map=used, batch=self.plan.batch_size, sigma=sigma)
        return row_loss(features, release, feature_map=used, sigma=sigma)

    def _prepare(self, source: Tensor | PublicSource | None, feature_map: FeatureMap | None) -> PendingStep:
        adapted, sent = None, None
        if self.parameters:
            if source is None:
                raise InvalidValue("a step with a sanitized gradient needs public source features")
            adapted = self._adapted()
            sent = source.digest if isinstance(source, PublicSource) else source.detach().cpu().numpy()
        return self._curator.prepare_step(
            self.run,
            source=sent,
            adapted_parameters=adapted,
            feature_map=None if feature_map is None else public_map(feature_map),
        )

    def _send(self, pending: PendingStep) -> StepRelease:
        return self._curator.send(pending)
