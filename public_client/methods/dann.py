"""Domain-adversarial training with curators: a critic's sanitized gradients move a target-side adapter.

The source-trained extractor and classifier stay. A copy of the extractor with a few adapter parameters is what private
records go through; a small critic learns to tell their features from the source's, and the adapter learns to fool it
(Ganin and others 2016). The source half of the critic's loss is computed here; of the target half each step brings the
noised sum of clipped per-record gradients, critic and adapter as one vector (docs/privacy/critic-gradients.md). Sites
that share a model share its critic.

What is public costs nothing and is used: the critic sees the features on the source's own principal axes, whitened;
the clip is a quantile of the norms that public records would have.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from public_client.curator.stub import Curator
from public_client.curator.values import PendingStep
from public_client.data.source import collect
from public_client.methods.losses import gradient_term
from public_client.plans.critic_plan import CriticPlan
from public_client.plans.declarable import Declarable
from public_client.plans.run_plan import RunPlan
from public_client.training.adapters import adapted_names, with_adapters
from public_client.training.charged_run import AnsweredStep, ChargedRun, PublicSource
from public_client.training.checkpoint import Checkpoint
from public_client.training.loop import PublicStep, Training, align
from public_client.training.sites import Group, Model, Site
from shared.errors import SettingsError
from shared.extractor.building import Extractor
from shared.extractor.tracing import trace
from shared.extractor.weights import weights_from_bytes
from shared.kernels.feature_map import FeatureMap
from shared.mechanisms.critic.domain_loss import source_loss, target_cotangents
from shared.protocol.critics import CriticRelease

_CLIP_QUANTILE = 0.75  # of public norms; most gradients keep their length, none is much longer than C
_PUBLIC_NORMS = 512  # public records whose gradients' norms are looked at
_TRAINED = ("critic.first.weight", "critic.first.bias", "critic.last.weight", "critic.last.bias")


class Discriminated(nn.Module):
    """Extractor and critic as one module, from a record to the logit of "this record is the target's"."""

    def __init__(self, extractor: nn.Module, critic: nn.Module) -> None:
        super().__init__()
        self.extractor = extractor
        self.critic = critic

    def forward(self, x: Tensor) -> Tensor:
        """(b, ...) to (b, 1)."""
        logits: Tensor = self.critic(self.extractor(x))
        return logits


def domain_critic(features: Tensor, *, components: int, hidden: int, seed: int = 0) -> nn.Module:
    """A critic for features like these: whitened principal axes (fixed, public), one hidden layer, one logit.

    Args:
        features: (m, d) of the public source.
        components: axes that it sees, at most d.
        hidden: units.
        seed: of its first weights; the process's own random state stays as it is.

    Returns:
        (b, d) to (b, 1); only ``first`` and ``last`` are trained.
    """
    kept = min(components, features.shape[1], len(features) - 1)
    center = features.mean(dim=0)
    _, deviations, axes = torch.linalg.svd(features - center, full_matrices=False)
    # An axis is known up to its sign; with the largest entry positive, the records' order does not choose it.
    axes = axes * axes.gather(1, axes.abs().argmax(dim=1, keepdim=True)).sign()
    scale = (deviations[:kept] / math.sqrt(len(features) - 1)).clamp(min=1e-6)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        view, first, last = nn.Linear(features.shape[1], kept), nn.Linear(kept, hidden), nn.Linear(hidden, 1)
    with torch.no_grad():
        view.weight.copy_(axes[:kept] / scale[:, None])
        view.bias.copy_(-(view.weight @ center.to(view.weight)))
    view.requires_grad_(False)
    return nn.Sequential(OrderedDict(view=view, first=first, act=nn.Tanh(), last=last)).to(features.device)


@dataclass(frozen=True, eq=False)
class Adversaries:
    """The two players of one training, and both as they are declared.

    Attributes:
        target: the extractor with its adapter.
        critic: of its features.
        declarable: both as one graph; the adapter's parameters first.
        adapter_tensors: how many of the declared tensors are the adapter's.
    """

    target: nn.Module
    critic: nn.Module
    declarable: Declarable
    adapter_tensors: int

    @classmethod
    def of(cls, target: nn.Module, critic: nn.Module, record_shape: tuple[int, ...]) -> Adversaries:
        """Traces them.

        Raises:
            ExtractorUnsupported: the extractor cannot travel as data; the message names the layer.
        """
        adapter = tuple(f"extractor.{name}" for name in adapted_names(target, "adapters"))
        whole = Discriminated(target, critic).eval()
        return cls(target, critic, Declarable.of_parameters(whole, record_shape, adapter + _TRAINED), len(adapter))

    @property
    def adapter(self) -> list[Tensor]:
        """The adapter's parameters."""
        return self.declarable.parameters[: self.adapter_tensors]

    @property
    def trained(self) -> list[Tensor]:
        """The critic's parameters."""
        return self.declarable.parameters[self.adapter_tensors :]

    def gradient_norms(self, images: Tensor) -> Tensor:
        """(m,) norms of the gradients that public records (m, ...) would have in the private ones' place."""
        graph = self.declarable.graph
        weights = weights_from_bytes(self.declarable.weights, graph.tensor_shapes)
        model = Extractor.from_graph(graph, weights, device=images.device)
        forward = model.begin(images, self.declarable.names)
        norms: Tensor = forward.gradients(target_cotangents(forward.outputs)).norm(dim=1)
        return norms


class CriticRun(ChargedRun[CriticPlan, CriticRelease]):
    """A run of sanitized critic gradients; making it charges the whole run.

    Args:
        curator: a connection.
        players: what is declared.
        plan: with its clip.
        checkpoint: where requests are written before they are sent.
        applied: ids of steps whose answers are in the state that training goes on from; by default the checkpoint's.
    """

    def __init__(
        self,
        curator: Curator,
        players: Adversaries,
        plan: CriticPlan,
        *,
        checkpoint: Checkpoint | None = None,
        applied: frozenset[str] | None = None,
    ) -> None:
        self.players = players
        super().__init__(curator, players.declarable, plan, checkpoint=checkpoint, applied=applied)

    def answered(
        self,
        source: Tensor | PublicSource,
        release: CriticRelease,
        request_id: str,
        *,
        feature_map: FeatureMap | None = None,  # noqa: ARG002 - of a run's interface; critics see features as they are
    ) -> AnsweredStep:
        """The critic's loss: its gradient leads the critic down, and the adapter, by the sanitized part alone, up."""
        public, smooth = source_terms(self.players.critic, PublicSource.of(source), weight=self.plan.smoothness)
        done = release.step / self.plan.steps
        reversal = self.plan.reversal * (2.0 / (1.0 + math.exp(-10.0 * done)) - 1.0)  # Ganin and others 2016, 5.2.2
        private = torch.from_numpy(release.gradient) / self.plan.batch_size  # (p,)
        adapter = sum(parameter.numel() for parameter in self.players.adapter)
        turned = torch.cat((-reversal * private[:adapter], private[adapter:]))
        loss = public + smooth + gradient_term(self.parameters, turned)
        return AnsweredStep(release.step, loss, float(public.detach()), 1.0, request_id)

    def _prepare(
        self,
        source: Tensor | PublicSource | None,  # noqa: ARG002 - the source half stays here
        feature_map: FeatureMap | None,  # noqa: ARG002 - as in `answered`
    ) -> PendingStep:
        return self._curator.prepare_step(self.run, adapted_parameters=self._adapted())

    def _send(self, pending: PendingStep) -> CriticRelease:
        return self._curator.send_critic(pending)


def begin_critic(group: Group, training: Training) -> None:
    """Opens the sites' runs for one adapter and one critic, or continues those that the directories hold."""
    plans = {site.name: _plan(site) for site in group.live}
    plan = next(iter(plans.values()))
    if any((own.components, own.hidden) != (plan.components, plan.hidden) for own in plans.values()):
        raise SettingsError(
            f"the plans of {group} differ in components or hidden; sites that share a model share one critic, so plan "
            "these alike"
        )
    shape = group.record_shape()
    target = with_adapters(training.model.extractor, shape, own=training.adapter).to(training.device)
    critic = domain_critic(training.features, components=plan.components, hidden=plan.hidden, seed=training.seed)
    training.ranks.synchronise(critic)
    kept = group.store.read_critic() if group.store is not None else None
    if kept is not None:  # what the runs were declared with, to the last bit
        critic.load_state_dict(kept["critic"])
    players = Adversaries.of(target, critic, shape)
    clip_norm = float(kept["clip_norm"]) if kept is not None else _public_clip(players, training)
    if kept is None and group.store is not None:
        group.store.write_critic({"critic": critic.state_dict(), "clip_norm": clip_norm})
    applied = group.store.applied() if group.store is not None else None

    def begin(site: Site) -> None:
        own = plans[site.name]
        if own.clip_norm is None:
            own = replace(own, clip_norm=clip_norm)
        site.begin(CriticRun(site.curator, players, own, checkpoint=site.store, applied=applied))
        site.record_shape = shape

    group.each(begin)
    group.install(Model(target, training.model.classifier))  # only now: a refused run leaves the model as it was


def fit_critic(group: Group, training: Training) -> None:
    """Trains the adapter against the critic."""
    run = group.live[0].run
    assert isinstance(run, CriticRun), "this way opened it"
    optimizer = torch.optim.Adam(
        [
            {"params": run.players.adapter, "lr": run.plan.learning_rate},
            {"params": run.players.trained, "lr": run.plan.critic_rate},
        ],
        betas=(0.5, 0.99),  # the opponent moves: a long memory of its gradients misleads (Radford and others 2015)
    )
    align(group, optimizer, lambda: PublicStep(training.features), lambda _: 1.0, training)


def critic_declarable(
    extractor: nn.Module, record_shape: tuple[int, ...], plan: RunPlan, own: nn.Module | None
) -> Declarable:
    """What a critic's run would declare, as far as its price goes: sizes are right, the critic's axes are not yet.

    Args:
        extractor: records to features, in any mode.
        record_shape: of one record.
        plan: the critic's.
        own: an adapter of the caller's own, or None.
    """
    assert isinstance(plan, CriticPlan), "chosen by the plan"
    target = with_adapters(extractor, record_shape, own=own).cpu()
    dimension = trace(target, record_shape).feature_dimension
    stand_in = torch.randn(plan.components + 1, dimension, generator=torch.Generator().manual_seed(0))
    critic = domain_critic(stand_in, components=plan.components, hidden=plan.hidden)
    return Adversaries.of(target, critic, record_shape).declarable


def source_terms(critic: nn.Module, features: Tensor, *, weight: float) -> tuple[Tensor, Tensor]:
    """The critic's loss on source features, and what a steep critic pays there (free: the source is public).

    The penalty is weight/2 times the mean squared gradient of the logit in the whitened features, R1 of Mescheder,
    Geiger and Nowozin 2018 (equation 9), without which the two players circle each other.

    Args:
        critic: from `domain_critic`.
        features: (m, d).
        weight: of the penalty.
    """
    seen = critic.get_submodule("view")(features).detach().requires_grad_()
    logits = critic.get_submodule("last")(critic.get_submodule("act")(critic.get_submodule("first")(seen)))
    (slopes,) = torch.autograd.grad(logits.sum(), seen, create_graph=True)
    return source_loss(logits), 0.5 * weight * slopes.square().sum(dim=1).mean()


def public_clip(norms: Tensor) -> float:
    """The clip norm: a quantile of the gradients' norms (m,) that public records have in the private ones' place."""
    return max(float(norms.quantile(_CLIP_QUANTILE)), 1e-6)


def _public_clip(players: Adversaries, training: Training) -> float:
    images = collect(training.source, most=max(1, _PUBLIC_NORMS // training.ranks.size)).images
    return public_clip(training.ranks.gather(players.gradient_norms(images.to(training.device))))


def _plan(site: Site) -> CriticPlan:
    assert isinstance(site.plan, CriticPlan), "this way is chosen by the plan"
    return site.plan
