"""Domain-adversarial training with a curator: a critic's sanitized gradients move a target-side adapter.

The source-trained extractor and classifier stay. A copy of the extractor with a few adapter parameters is what private
records go through; a small critic learns to tell their features from the source's, and the adapter learns to fool it
(Ganin and others 2016). The source half of the critic's loss is computed here; of the target half each step brings the
noised sum of clipped per-record gradients, critic and adapter as one vector (docs/privacy/critic-gradients.md).

What is public costs nothing and is used: the critic sees the features on the source's own principal axes, whitened;
the clip is a quantile of the norms that public records would have.
"""

from __future__ import annotations

import copy
import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from public_client import evaluation
from public_client.adapted import save_adapted
from public_client.adapters import adapted_names, with_adapters
from public_client.course import Average, HistoryPoint
from public_client.critic_plan import CriticPlan
from public_client.curator import Curator
from public_client.devices import resolve_device
from public_client.exchange import Run
from public_client.loop import Evaluate
from public_client.methods import Method, Problem, Trained
from public_client.progress import reporting
from public_client.sites import ALONE, Model
from public_client.source import Batches, collect
from shared.errors import InvalidValue, SettingsError
from shared.extractor.building import Extractor
from shared.extractor.tracing import trace
from shared.extractor.weights import module_weights, weights_to_bytes
from shared.mechanisms.domain_loss import source_loss, target_cotangents
from shared.source_statistics import SourceStatistics

_POINTS = 20  # evaluations and epsilon figures in one training
_CLIP_QUANTILE = 0.75  # of public norms; most gradients keep their length, none is much longer than C
_PUBLIC_NORMS = 512  # public records whose gradients' norms are looked at


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


def domain_critic(features: Tensor, *, components: int, hidden: int) -> nn.Module:
    """A critic for features like these: whitened principal axes (fixed, public), one hidden layer, one logit.

    Args:
        features: (m, d) of the public source.
        components: axes that it sees, at most d.
        hidden: units.

    Returns:
        (b, d) to (b, 1); only ``first`` and ``last`` are trained.
    """
    kept = min(components, features.shape[1], len(features) - 1)
    center = features.mean(dim=0)
    _, deviations, axes = torch.linalg.svd(features - center, full_matrices=False)
    scale = (deviations[:kept] / math.sqrt(len(features) - 1)).clamp(min=1e-6)
    view = nn.Linear(features.shape[1], kept)
    with torch.no_grad():
        view.weight.copy_(axes[:kept] / scale[:, None])
        view.bias.copy_(-(view.weight @ center))
    view.requires_grad_(False)
    layers = OrderedDict(view=view, first=nn.Linear(kept, hidden), act=nn.Tanh(), last=nn.Linear(hidden, 1))
    return nn.Sequential(layers).to(features.device)


@dataclass
class DomainAdversary:
    """One training against one curator.

    Args:
        extractor: source-trained; left as it is.
        classifier: source-trained; left as it is.
        curator: the connection.
        plan: from `CriticPlan.of`.
        device: where to compute.
        seed: of the critic's first weights.

    Attributes:
        target: the extractor with its adapter, once `fit` has begun.
        run: the charged run.
        history: points of the training.
    """

    extractor: nn.Module
    classifier: nn.Module
    curator: Curator
    plan: CriticPlan
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    seed: int = 0
    target: nn.Module | None = None
    run: Run | None = None
    history: list[HistoryPoint] = field(default_factory=list)

    def fit(self, source: Batches, *, evaluate: Evaluate | None = None, progress: bool = True) -> DomainAdversary:
        """Opens the run, which charges all of it, and trains the adapter.

        Args:
            source: labelled public batches; their labels are not needed.
            evaluate: called at a few points, where labels of the target are at hand.
            progress: shows a bar.

        Raises:
            BudgetExhausted: the plan does not fit; nothing was spent.
        """
        torch.manual_seed(self.seed)
        shape = self.curator.describe().record_shape
        images = collect(source, most=self.plan.source_records).images.to(self.device)
        features = evaluation.features(self.extractor, images)
        target = with_adapters(self.extractor, shape).to(self.device)
        critic = domain_critic(features, components=self.plan.components, hidden=self.plan.hidden)
        whole = Discriminated(target, critic).eval()
        names, split = _declared(target)
        tensors = dict(whole.named_parameters())
        parameters = [tensors[name] for name in names]
        self._open(whole, names, parameters, images)
        self.target = target  # only now: a refused run leaves everything as it was
        self._train(features, critic, parameters, split, evaluate, progress=progress)
        return self

    def save(self, path: Path, source: Batches) -> list[Path]:
        """Writes the adapted extractor and the classifier to one file.

        Raises:
            SettingsError: nothing was trained yet.
        """
        if self.target is None:
            raise SettingsError("nothing was trained yet; call fit first")
        images = collect(source, most=self.plan.source_records).images
        features = evaluation.features(self.extractor, images.to(self.device))
        with torch.no_grad():
            statistics = SourceStatistics.of(images, features, self.classifier(features))
        save_adapted(
            path,
            extractor=self.target,
            classifier=self.classifier,
            record_shape=self.curator.describe().record_shape,
            plan=self.plan.to_json(),
            statistics=statistics,
        )
        return [path]

    def _open(self, whole: nn.Module, names: tuple[str, ...], parameters: Sequence[Tensor], images: Tensor) -> None:
        graph = trace(whole, tuple(images.shape[1:]))
        weights = module_weights(whole, graph)
        clip = self.plan.clip_norm
        if clip is None:
            clip = public_clip(Extractor.from_graph(graph, weights, device=self.device), names, images[:_PUBLIC_NORMS])
        self.plan = self.plan.for_model(
            gradient_parameters=sum(parameter.numel() for parameter in parameters), clip_norm=clip
        )
        uploaded = self.curator.upload_extractor(graph.to_bytes(), weights_to_bytes(weights))
        self.run = self.curator.open_run(
            self.plan.declaration(
                graph_digest=uploaded.graph_digest, weights_digest=uploaded.weights_digest, names=names
            )
        )

    def _train(
        self,
        features: Tensor,
        critic: nn.Module,
        parameters: Sequence[Tensor],
        split: int,
        evaluate: Evaluate | None,
        *,
        progress: bool,
    ) -> None:
        """The loop: a step's gradient, the critic down, the adapter up."""
        plan, run = self.plan, self.run
        assert run is not None
        adapter, trained = parameters[:split], parameters[split:]
        optimizer = torch.optim.Adam(
            [{"params": adapter, "lr": plan.learning_rate}, {"params": trained, "lr": plan.critic_rate}],
            betas=(0.5, 0.99),  # the opponent moves: a long memory of its gradients misleads (Radford and others 2015)
        )
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: _cosine(t, plan.steps))
        average = Average(adapter, plan.averaging)
        self._record(0, math.nan, evaluate)
        with reporting("training against a critic", plan.steps, shown=progress) as bar:
            for t in range(1, plan.steps + 1):
                flat = torch.cat([parameter.detach().reshape(-1) for parameter in parameters]).cpu().numpy()
                release = self.curator.release_critic_gradient(run, adapted_parameters=flat)
                private = torch.from_numpy(release.gradient).to(self.device) / plan.batch_size
                optimizer.zero_grad()
                public, smooth = source_terms(critic, features, weight=plan.smoothness)
                torch.autograd.backward(public + smooth)
                weight = plan.reversal * (2.0 / (1.0 + math.exp(-10.0 * t / plan.steps)) - 1.0)
                _add(adapter, -weight * private[: _numbers(adapter)])
                _add(trained, private[_numbers(adapter) :])
                optimizer.step()
                schedule.step()
                average.update(adapter)
                if t == plan.steps:
                    average.copy_to(adapter)
                if t % max(1, plan.steps // _POINTS) == 0 or t == plan.steps:
                    self._record(t, float(public.detach()), evaluate)
                bar.advance(f"critic's loss on the source {float(public.detach()):.3f}")

    def _record(self, step: int, distance: float, evaluate: Evaluate | None) -> None:
        assert self.target is not None
        accuracy = evaluate(self.target, self.classifier) if evaluate is not None else math.nan
        self.history.append(HistoryPoint(step, distance, self.plan.epsilon_after(step), accuracy))


def public_clip(model: Extractor, names: Sequence[str], images: Tensor) -> float:
    """The clip norm: a quantile of the gradients' norms that public records have in the private ones' place.

    Args:
        model: records to the critic's logit.
        names: of the declared parameters.
        images: public records.
    """
    forward = model.begin(images, names)
    norms = forward.gradients(target_cotangents(forward.outputs)).norm(dim=1)
    return max(float(norms.quantile(_CLIP_QUANTILE)), 1e-6)


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


def train(method: Method, problem: Problem) -> Trained:
    """`methods.Method.run` of DP-DANN.

    Raises:
        SettingsError: several curators, or a checkpoint, which this method does not keep.
        InvalidValue: a wish is unknown or out of range.
    """
    if not isinstance(problem.curator, Curator):
        raise SettingsError(f"method {method.name} trains for one curator; train for each apart")
    if problem.checkpoint is not None:
        raise SettingsError(f"method {method.name} keeps no checkpoint; leave it out, or use another method")
    wishes = {**method.wishes, **problem.wishes}
    wishes.pop("directions", None)  # every experiment states them; a critic needs none
    if "epsilon" not in wishes:
        raise InvalidValue("epsilon is missing; say what the run may cost")
    device = resolve_device(problem.device)
    extractor, classifier = (copy.deepcopy(m).to(device).eval() for m in (problem.extractor, problem.classifier))
    adversary = DomainAdversary(
        extractor,
        classifier,
        problem.curator,
        CriticPlan.of(problem.curator.describe(), **wishes),
        device=device,
        seed=problem.seed,
    )
    evaluate = problem.evaluate if callable(problem.evaluate) else (problem.evaluate or {}).get(ALONE)
    adversary.fit(problem.source, evaluate=evaluate, progress=problem.progress)
    assert adversary.target is not None
    return Trained(
        models={ALONE: Model(adversary.target, classifier)},
        histories={ALONE: adversary.history},
        reports=[
            {
                "site": ALONE,
                "state": "finished",
                "steps": adversary.plan.steps,
                "planned_steps": adversary.plan.steps,
                "charged_epsilon": adversary.plan.epsilon,
                "reason": None,
            }
        ],
        save=lambda path: adversary.save(path, problem.source),
    )


def _declared(target: nn.Module) -> tuple[tuple[str, ...], int]:
    """Names of what is adapted in the whole module, the adapter's first, and how many tensors are the adapter's."""
    adapter = tuple(f"extractor.{name}" for name in adapted_names(target, "adapters"))
    critic = ("critic.first.weight", "critic.first.bias", "critic.last.weight", "critic.last.bias")
    return adapter + critic, len(adapter)


def _add(parameters: Sequence[Tensor], flat: Tensor) -> None:
    start = 0
    for parameter in parameters:
        part = flat[start : start + parameter.numel()].reshape(parameter.shape)
        parameter.grad = part.clone() if parameter.grad is None else parameter.grad + part
        start += parameter.numel()


def _numbers(parameters: Sequence[Tensor]) -> int:
    return sum(parameter.numel() for parameter in parameters)


def _cosine(step: int, steps: int) -> float:
    """From 1 down to 0.05: large moves first, then the noise is averaged out."""
    return 0.05 + 0.95 * 0.5 * (1.0 + math.cos(math.pi * min(step, steps) / steps))


METHOD = Method(
    "dp-dann",
    "a target-side adapter against a domain critic, by sanitized gradients (DANN)",
    "curator",
    train,
)
