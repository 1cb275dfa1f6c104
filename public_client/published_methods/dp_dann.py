"""Domain-adversarial training with curators: a critic's sanitized gradients move a target-side adapter.

The source-trained extractor and classifier stay. A copy of the extractor with a few adapter parameters is what private
records go through; a small critic learns to tell their features from the source's, and the adapter learns to fool it
(Ganin and others 2016). The source half of the critic's loss is computed here; of the target half each step brings the
noised sum of clipped per-record gradients, critic and adapter as one vector (docs/privacy/critic-gradients.md). Sites
that share a model share its critic.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from dpswd.public_client.curator.description import Description
from dpswd.public_client.curator.stub import Curator
from dpswd.public_client.data.source import collect
from dpswd.public_client.extractor.tracing import trace
from dpswd.public_client.plans.declarable import Declarable
from dpswd.public_client.plans.plan import Plan
from dpswd.public_client.plans.recipe import RunTerms, not_counts, not_positive
from dpswd.public_client.published_methods.adapters import with_adapters
from dpswd.public_client.published_methods.descent import AnsweredStep, DescentRun, PublicSource, PublicStep, align
from dpswd.public_client.published_methods.domain_critic import Adversaries, domain_critic, source_terms
from dpswd.public_client.published_methods.losses import gradient_term
from dpswd.public_client.training.checkpoint import Checkpoint
from dpswd.public_client.training.loop import Training
from dpswd.public_client.training.method import Method
from dpswd.public_client.training.run import DrawnStep, Release
from dpswd.public_client.training.sites import Group, Model
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.mechanisms.interface import AnyMechanism, Payload, RunSize
from dpswd.shared.core.noise.feature_map import FeatureMap
from dpswd.shared.published_mechanisms.clipped_sum import ClippedSum
from dpswd.shared.published_mechanisms.critic.mechanism import CRITIC, CriticDeclaration
from dpswd.shared.published_mechanisms.loss_gradient import LossGradientReply, LossGradientRequest

_CLIP_QUANTILE = 0.75  # of public norms; most gradients keep their length, none is much longer than C
_PUBLIC_NORMS = 512  # public records whose gradients' norms are looked at


@dataclass(frozen=True, kw_only=True)
class DpDann(Method):
    """A target-side adapter against a domain critic, by sanitized gradients.

    Attributes:
        critic_rate: learning rate of the critic, at its start.
        reversal: weight of the reversed gradient at the end; it grows as 2 / (1 + exp(-10 p)) - 1.
        smoothness: weight of the penalty on a steep critic.
        components: directions of largest source variance that the critic sees.
        hidden: units of the critic's hidden layer.
        clip_norm: C; by default a quantile of the norms that public records would have.
    """

    name = "dp-dann"
    target_side = True

    learning_rate: float = 0.005
    source_records: int = 2048
    averaging: float = 0.95
    critic_rate: float = 0.02
    reversal: float = 1.0
    smoothness: float = 1.0
    components: int = 8
    hidden: int = 8
    clip_norm: float | None = None

    def problems(self) -> list[str]:
        """See `Method`."""
        positive = ("critic_rate", "reversal", "smoothness", *(("clip_norm",) if self.clip_norm is not None else ()))
        return [*super().problems(), *not_positive(self, *positive), *not_counts(self, "components", "hidden")]

    @property
    def mechanism(self) -> AnyMechanism:
        """See `Recipe`."""
        return CRITIC

    def usual_size(self, description: Description) -> RunSize:
        """See `Recipe`."""
        return RunSize(batch=512, steps=200)

    def declaration(self, run: RunTerms) -> Payload:
        """See `Recipe`; without a clip of its own it is that of C = 1, since the price is any clip's."""
        if run.dimension != 1:
            raise InvalidValue(f"a critic computes one logit for each record, not {run.dimension} numbers")
        clip_norm = 1.0 if self.clip_norm is None else self.clip_norm
        return CriticDeclaration(ClippedSum(run.names, clip_norm, 2.0 * clip_norm * run.noise))

    def adapts(self, record_shape: tuple[int, ...] | None) -> str:
        """See `Recipe`."""
        return "a target-side adapter, against a critic; the classifier and the source side stay"

    def declarable(
        self,
        extractor: nn.Module,
        record_shape: tuple[int, ...],
        own: nn.Module | None,
        classifier: nn.Module | None = None,
    ) -> Declarable:
        """See `Method`, as far as the price goes: sizes are right, the critic's axes are not yet."""
        target = with_adapters(extractor, record_shape, own=own).cpu()
        dimension = trace(target, record_shape).feature_dimension
        stand_in = torch.randn(self.components + 1, dimension, generator=torch.Generator().manual_seed(0))
        critic = domain_critic(stand_in, components=self.components, hidden=self.hidden)
        return Adversaries.of(target, critic, record_shape).declarable

    def open(self, curator: Curator, plan: Plan, extractor: nn.Module) -> Release[Any]:
        """See `Method`.

        Raises:
            InvalidValue: always: the two players are trained together.
        """
        raise InvalidValue("dp-dann trains adapter and critic together; use DomainAdaptation, or open another method")

    def begin(self, group: Group, training: Training) -> None:
        """See `Method`: one adapter and one critic for all sites of a group."""
        shape = group.record_shape()
        target = with_adapters(training.model.extractor, shape, own=training.adapter).to(training.device)
        critic = domain_critic(training.features, components=self.components, hidden=self.hidden, seed=training.seed)
        training.ranks.synchronise(critic)
        stored = group.store.read("critic") if group.store is not None else None
        if stored is not None:  # what the runs were declared with, to the last bit
            critic.load_state_dict(stored["critic"])
        players = Adversaries.of(target, critic, shape)
        clip_norm = float(stored["clip_norm"]) if stored else self.clip_norm or _public_clip(players, training)
        if stored is None and group.store is not None:
            group.store.write("critic", {"critic": critic.state_dict(), "clip_norm": clip_norm})
        group.charge_each(lambda site: CriticRun(site.curator, players, site.plan, self, clip_norm, site.store).open())
        group.install(Model(target, training.model.classifier))  # only now: a refused run leaves the model as it was

    def fit(self, group: Group, training: Training) -> None:
        """See `Method`."""
        run = group.live[0].run
        assert isinstance(run, CriticRun), "this method opened it"
        optimizer = torch.optim.Adam(
            [
                {"params": run.players.adapter, "lr": self.learning_rate},
                {"params": run.players.trained, "lr": self.critic_rate},
            ],
            betas=(0.5, 0.99),  # the opponent moves: a long memory of its gradients misleads (Radford and others 2015)
        )
        features = PublicStep(training.features)
        align(group, optimizer, lambda: features, lambda _: 1.0, training, averaging=self.averaging)


class CriticRun(DescentRun[LossGradientReply]):
    """A run of sanitized critic gradients. See `DescentRun`.

    Args:
        players: what is declared.
        settings: of both players.
        clip_norm: C of the run.
    """

    def __init__(
        self,
        curator: Curator,
        players: Adversaries,
        plan: Plan,
        settings: DpDann,
        clip_norm: float,
        checkpoint: Checkpoint | None,
    ) -> None:
        self.players, self._settings = players, settings
        clipped = replace(plan, method=replace(settings, clip_norm=clip_norm))
        super().__init__(curator, players.declarable, clipped, checkpoint=checkpoint)

    def answered(
        self, source: Tensor | PublicSource, drawn: DrawnStep[LossGradientReply], feature_map: FeatureMap | None = None
    ) -> AnsweredStep:
        """The critic's loss: its gradient leads the critic down, and the adapter, by the sanitized part alone, up."""
        settings = self._settings
        public, smooth = source_terms(self.players.critic, PublicSource.of(source), weight=settings.smoothness)
        done = drawn.number / self.plan.steps
        reversal = settings.reversal * (2.0 / (1.0 + math.exp(-10.0 * done)) - 1.0)  # Ganin and others 2016, 5.2.2
        private = drawn.reply.gradient.to_tensor() / self.plan.batch_size  # (p,)
        adapter = sum(parameter.numel() for parameter in self.players.adapter)
        turned = torch.cat((-reversal * private[:adapter], private[adapter:]))
        loss = public + smooth + gradient_term(self.parameters, turned)
        return AnsweredStep(drawn.number, loss, float(public.detach()), 1.0, drawn.request_id)

    def request(self, source: Tensor | PublicSource, feature_map: FeatureMap | None = None) -> Payload:
        """See `DescentRun`."""
        return LossGradientRequest(self.adapted_values())


def _public_clip(players: Adversaries, training: Training) -> float:
    """A quantile of the gradients' norms that public records have in the private ones' place."""
    images = collect(training.source, most=max(1, _PUBLIC_NORMS // training.ranks.size)).images
    norms = training.ranks.gather(players.gradient_norms(images.to(training.device)))
    return max(float(norms.quantile(_CLIP_QUANTILE)), 1e-6)
