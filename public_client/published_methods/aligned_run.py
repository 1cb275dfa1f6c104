"""A run of sliced releases with the sanitized gradient: what a step asks, and the loss that its answer stands for."""

from __future__ import annotations

from torch import Tensor

from dpswd.public_client.curator.stub import Curator
from dpswd.public_client.data.feature_maps import map_from_source
from dpswd.public_client.plans.declarable import Declarable
from dpswd.public_client.plans.plan import Plan
from dpswd.public_client.published_methods.descent import AnsweredStep, DescentRun
from dpswd.public_client.published_methods.losses import sanitized_term, sliced_loss
from dpswd.public_client.training.checkpoint import Checkpoint
from dpswd.public_client.training.run import DrawnStep
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.mechanisms.interface import FloatArray, Payload
from dpswd.shared.core.noise.feature_map import FeatureMap
from dpswd.shared.published_mechanisms.gradient.mechanism import GradientReply, GradientRequest


class AlignedRun(DescentRun[GradientReply]):
    """A run of `plan` for one extractor. See `DescentRun`.

    Args:
        target_norm: mean norm of mapped source features, where the run declares no map: the first step's make it.
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
        super().__init__(curator, ready, plan, feature_map=feature_map, checkpoint=checkpoint)
        self._target_norm = target_norm
        self._own_map: FeatureMap | None = None

    def request(self, source: Tensor, feature_map: FeatureMap | None = None) -> Payload:
        if self.declared.sliced.feature_map is None:
            feature_map = feature_map or self._map_of(source)
        sent: FloatArray = self._checked(source).detach().cpu().numpy()
        return GradientRequest(sent, self.adapted_values(), feature_map)

    def answered(
        self, source: Tensor, drawn: DrawnStep[GradientReply], feature_map: FeatureMap | None = None
    ) -> AnsweredStep:
        """See `DescentRun`: the value is the estimated distance F of `losses`."""
        reply, batch = drawn.reply, self.plan.batch_size
        used = feature_map or self._map_of(source)
        loss = sliced_loss(source, reply.sliced, self.declared.sliced, feature_map=used, batch=batch)
        value = float(loss.detach())
        loss = loss + sanitized_term(self.parameters, reply, batch=batch)
        return AnsweredStep(drawn.number, loss, value, drawn.request_id)

    def _map_of(self, features: Tensor) -> FeatureMap:
        """The map that the run declares, or, where it declares none, one of the first step's features."""
        declared: FeatureMap | None = self.declared.sliced.feature_map or self._own_map
        if declared is None:
            declared = self._own_map = map_from_source(self._checked(features).detach(), target_norm=self._target_norm)
        return declared

    def _checked(self, features: Tensor) -> Tensor:
        d = self.plan.feature_dimension
        if features.dim() != 2 or features.shape[1] != d:
            raise InvalidValue(
                f"the source features have shape {tuple(features.shape)}; needed is (m, {d}), as the "
                "extractor computes them"
            )
        return features
