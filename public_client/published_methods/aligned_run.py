"""A run of sliced releases as a loss, with or without the sanitized gradient."""

from __future__ import annotations

from torch import Tensor

from dpswd.public_client.methods.sliced_run import ComparedStep, SlicedRun
from dpswd.public_client.published_methods.losses import quantile_loss, row_loss, sanitized_term
from dpswd.public_client.training.run import AnsweredStep, DrawnStep, PublicSource
from dpswd.public_client.training.sites import Site
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.mechanisms.interface import FloatArray, Payload
from dpswd.shared.core.mechanisms.sliced import SlicedDeclaration, SlicedReply
from dpswd.shared.core.noise.feature_map import FeatureMap
from dpswd.shared.published_mechanisms.gradient.mechanism import GradientRequest


class AlignedRun(SlicedRun):
    """A run of `plan` for one extractor whose steps are losses. See `SlicedRun`."""

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
        if not self.parameters:
            return super().request(source, feature_map)
        if source is None:
            raise InvalidValue("a step with a sanitized gradient needs public source features")
        sent: FloatArray | str
        sent = source.digest if isinstance(source, PublicSource) else self.checked(source).detach().cpu().numpy()
        return GradientRequest(sent, self.adapted_values(), self.step_map(source, feature_map))

    def answered(
        self, source: Tensor | PublicSource, drawn: DrawnStep, *, feature_map: FeatureMap | None = None
    ) -> AnsweredStep:
        """See `ChargedRun`: the value is the estimated distance F of `losses`."""
        features, release = PublicSource.of(source), self.sliced_reply(drawn)
        used = feature_map or self.map_of(features)
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
        used = (feature_map or self.map_of(features)).to(features.device)
        sigma = self.sliced.sigma
        if self.sliced.coefficients:
            return quantile_loss(features, release, feature_map=used, batch=self.plan.batch_size, sigma=sigma)
        return row_loss(features, release, feature_map=used, sigma=sigma)


def run_of(site: Site) -> AlignedRun:
    """The site's run, of the kind that the methods here open."""
    assert isinstance(site.run, AlignedRun), "another kind of run belongs to another method"
    return site.run
