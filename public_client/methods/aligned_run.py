"""A run of sliced releases in progress, with or without the sanitized gradient: what each step asks, and its loss."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from dpswd.public_client.curator.stub import Curator
from dpswd.public_client.data.feature_maps import map_from_source
from dpswd.public_client.plans.declarable import Declarable
from dpswd.public_client.plans.plan import Plan
from dpswd.public_client.training.checkpoint import Checkpoint
from dpswd.public_client.training.losses import quantile_loss, row_loss, sanitized_term
from dpswd.public_client.training.run import AnsweredStep, ChargedRun, DrawnStep, PublicSource
from dpswd.public_client.training.sites import Site
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.mechanisms.interface import FloatArray, Payload
from dpswd.shared.core.mechanisms.sliced import SlicedDeclaration, SlicedReply, SlicedRequest
from dpswd.shared.core.noise.feature_map import FeatureMap
from dpswd.shared.published_mechanisms.gradient.mechanism import GradientRequest


@dataclass(frozen=True, eq=False)
class ComparedStep:
    """What the client saw of the target at one step; all of it is public or was charged.

    Attributes:
        source_features: (m, d), raw, without gradients, that the release was compared with.
        release: of the step.
        feature_map: the public map of the step.
    """

    source_features: Tensor
    release: SlicedReply
    feature_map: FeatureMap


class AlignedRun(ChargedRun):
    """A run of `plan` for one extractor; making it charges the whole run.

    Args:
        target_norm: mean norm of mapped source features.
        feature_map: the public map that the run declares; without one, the first step's source features make it.
        curator, ready, plan, checkpoint: see `ChargedRun`.

    Attributes:
        feature_map: the run's public map, once there is one.
        first, last: what was seen of the target at the first and at the last step of this process.

    Raises:
        BudgetExhausted: the plan does not fit; nothing was spent.
    """

    def __init__(
        self,
        curator: Curator,
        ready: Declarable,
        plan: Plan,
        *,
        target_norm: float,
        feature_map: FeatureMap | None = None,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        self._target_norm = target_norm
        self.first: ComparedStep | None = None
        self.last: ComparedStep | None = None
        super().__init__(curator, ready, plan, feature_map=feature_map, checkpoint=checkpoint)
        declared = self.sliced.feature_map  # of a run that goes on, not the map that would be chosen now
        self._declares_map = declared is not None
        if declared is not None and feature_map is not None:
            declared = declared.to(feature_map.center.device)
        self.feature_map = declared

    @property
    def sliced(self) -> SlicedDeclaration:
        """What the run declares of its sliced release."""
        declared: SlicedDeclaration = self.declared.sliced if self.parameters else self.declared
        return declared

    def sliced_reply(self, drawn: DrawnStep) -> SlicedReply:
        """The sliced release of a step, without its gradient."""
        reply: SlicedReply = drawn.reply.sliced if self.parameters else drawn.reply
        return reply

    def request(self, source: Tensor | PublicSource | None, feature_map: FeatureMap | None) -> Payload:
        """See `ChargedRun`."""
        if source is not None and not self._declares_map:
            feature_map = feature_map or self._map_of(PublicSource.of(source))
        if not self.parameters:
            return SlicedRequest(feature_map)
        if source is None:
            raise InvalidValue("a step with a sanitized gradient needs public source features")
        sent: FloatArray | str
        sent = source.digest if isinstance(source, PublicSource) else self._checked(source).detach().cpu().numpy()
        return GradientRequest(sent, self.adapted_values(), feature_map)

    def answered(
        self, source: Tensor | PublicSource, drawn: DrawnStep, *, feature_map: FeatureMap | None = None
    ) -> AnsweredStep:
        """See `ChargedRun`: the value is the estimated distance F of `losses`."""
        features, release = PublicSource.of(source), self.sliced_reply(drawn)
        used = feature_map or self._map_of(features)
        loss = self.distance(features, release, feature_map=used)
        value = float(loss.detach())
        self.last = ComparedStep(features.detach(), release, used)
        self.first = self.first or self.last
        scale = 1.0
        if self.parameters:
            loss = loss + sanitized_term(self.parameters, drawn.reply, batch=self.plan.batch_size)
            scale = drawn.reply.cotangent_scale or 1.0
        return AnsweredStep(drawn.number, loss, value, scale, drawn.request_id)

    def distance(self, features: Tensor, release: SlicedReply, *, feature_map: FeatureMap | None = None) -> Tensor:
        """The estimated distance F between raw source features (m, d) and a release of this run."""
        used = (feature_map or self._map_of(features)).to(features.device)
        sigma = self.sliced.sigma
        if self.sliced.coefficients:
            return quantile_loss(features, release, feature_map=used, batch=self.plan.batch_size, sigma=sigma)
        return row_loss(features, release, feature_map=used, sigma=sigma)

    def _map_of(self, features: Tensor) -> FeatureMap:
        """The run's map, made of these features where there is none yet."""
        if self.feature_map is None:
            own = self._checked(features).detach()
            self.feature_map = map_from_source(own, target_norm=self._target_norm)
        return self.feature_map

    def _checked(self, features: Tensor) -> Tensor:
        d = self.plan.feature_dimension
        if features.dim() != 2 or features.shape[1] != d:
            raise InvalidValue(
                f"the source features have shape {tuple(features.shape)}; needed is (m, {d}), as the "
                "extractor computes them"
            )
        return features


def run_of(site: Site) -> AlignedRun:
    """The site's run, of the kind that `open_runs` opens."""
    assert isinstance(site.run, AlignedRun), "another kind of run belongs to another method"
    return site.run
