"""A run of sliced releases in progress: what each step asks, and what was seen of the target."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from dpswd.public_client.curator.stub import Curator
from dpswd.public_client.data.feature_maps import map_from_source
from dpswd.public_client.plans.declarable import Declarable
from dpswd.public_client.plans.plan import Plan
from dpswd.public_client.training.checkpoint import Checkpoint
from dpswd.public_client.training.run import AnsweredStep, ChargedRun, DrawnStep, PublicSource
from dpswd.public_client.training.sites import Site
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.mechanisms.interface import Payload
from dpswd.shared.core.mechanisms.sliced import SlicedDeclaration, SlicedReply, SlicedRequest
from dpswd.shared.core.noise.feature_map import FeatureMap


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


class SlicedRun(ChargedRun):
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
        declared: SlicedDeclaration = self.declared
        return declared

    def request(self, source: Tensor | PublicSource | None, feature_map: FeatureMap | None) -> Payload:
        """See `ChargedRun`."""
        return SlicedRequest(self.step_map(source, feature_map))

    def step_map(self, source: Tensor | PublicSource | None, feature_map: FeatureMap | None) -> FeatureMap | None:
        """The map that a step sends: none where the run declares one."""
        if source is not None and not self._declares_map:
            return feature_map or self.map_of(PublicSource.of(source))
        return feature_map

    def answered(
        self, source: Tensor | PublicSource, drawn: DrawnStep, *, feature_map: FeatureMap | None = None
    ) -> AnsweredStep:
        """See `ChargedRun`.

        Raises:
            InvalidValue: always: the release is replayed.
        """
        raise InvalidValue("one release of all records is no loss to descend on; draw it, and fit to it")

    def map_of(self, features: Tensor) -> FeatureMap:
        """The run's map, made of these features where there is none yet."""
        if self.feature_map is None:
            own = self.checked(features).detach()
            self.feature_map = map_from_source(own, target_norm=self._target_norm)
        return self.feature_map

    def checked(self, features: Tensor) -> Tensor:
        """Source features, held to the shape that the extractor gives."""
        d = self.plan.feature_dimension
        if features.dim() != 2 or features.shape[1] != d:
            raise InvalidValue(
                f"the source features have shape {tuple(features.shape)}; needed is (m, {d}), as the "
                "extractor computes them"
            )
        return features


def sliced_run(site: Site) -> SlicedRun:
    """The site's run, of the kind that `open_runs` opens."""
    assert isinstance(site.run, SlicedRun), "another kind of run belongs to another method"
    return site.run
