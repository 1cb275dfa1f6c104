"""The ways to train against curators, chosen by the plan's `parameters`.

- *adapters*: the source-trained extractor and classifier stay as they are. A copy of the extractor with a few adapter
  parameters is what private records go through; the sanitized gradient alone trains these.
- *none*: nothing comes back through the target branch. The stored releases are replayed (`replay`): a small model of
  how the target sees things is fitted to them, and all weights are fine-tuned on the source seen through it.
- *all*: the paper's Algorithm 2. One extractor serves both sides; every step adds the class loss, the distance's
  gradient through the source branch (autograd) and its sanitized gradient through the target branch.
- *critic*: an adapter again, moved by a domain critic's sanitized gradients (`dann`).

Each way trains a `Group`: one site alone, or several that share the model. `align` is the loop of all but the replay
(`loop`).
"""

from __future__ import annotations

import copy
import itertools
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from public_client.data.datasets import Labelled
from public_client.data.progress import reporting
from public_client.data.source import collect
from public_client.methods.alignment import Alignment, Seen
from public_client.methods.dann import begin_critic, critic_declarable, fit_critic
from public_client.plans.declarable import Declarable
from public_client.plans.plan import Plan
from public_client.plans.run_plan import RunPlan
from public_client.replay import fit as replay
from public_client.replay.residuals import Misfit
from public_client.replay.views import MixedViews, View
from public_client.training.adapters import with_adapters
from public_client.training.loop import PublicStep, Training, align, status, write_histories
from public_client.training.sites import Group, Model, Site
from shared.kernels.feature_map import FeatureMap
from shared.protocol.messages import StepRelease

_log = logging.getLogger(__name__)


def begin_adapter(group: Group, training: Training) -> None:
    """Opens the sites' runs for one adapter; the source side is fixed, so its features go up once."""
    shape = group.record_shape()
    target = with_adapters(
        training.model.extractor, shape, plan=_plan(group.live[0]), source=training.source, own=training.adapter
    ).to(training.device)

    _open(group, target, shape, training)

    def upload(site: Site) -> None:
        site.source = _run(site).upload(training.features)

    group.each(upload)
    group.install(Model(target, training.model.classifier))  # only now: a refused run leaves the model as it was


def fit_adapter(group: Group, training: Training) -> None:
    """Trains the adapter."""
    site = group.live[0]
    align(
        group,
        torch.optim.Adam(site.run.parameters, lr=site.plan.learning_rate),
        lambda: PublicStep(training.features),
        lambda answer: 1.0 / answer.scale,  # steps of comparable size, whatever is left of the distance
        training,
    )


def begin_both(group: Group, training: Training) -> None:
    """Opens the sites' runs for all weights."""
    _open(group, training.model.extractor.eval(), group.record_shape(), training)
    group.install(training.model)


def fit_both(group: Group, training: Training) -> None:
    """Trains all weights on both sides, which the sites share: the source features change with each step."""
    extractor, classifier = training.model.extractor, training.model.classifier
    plan = _plan(group.live[0])
    batches = _endless(training.source)

    def public() -> PublicStep:
        images, labels = _next_batch(group, batches)
        own = extractor(images.to(training.device))  # (m, d), of this process
        class_loss = functional.cross_entropy(classifier(own), labels.to(training.device))
        features = training.ranks.gather(own)
        # Public statistics follow the weights; the map is a constant of the step, as it is at the curator.
        feature_map = FeatureMap.from_source(features.detach(), target_norm=plan.target_norm)
        return PublicStep(features, feature_map, class_loss)

    trained = [*group.live[0].run.parameters, *classifier.parameters()]
    optimizer = torch.optim.Adam(trained, lr=plan.learning_rate)
    align(group, optimizer, public, lambda _: plan.alignment_weight, training)


def begin_view(group: Group, training: Training) -> None:
    """Opens the sites' runs for the frozen extractor."""
    _open(group, training.model.extractor, group.record_shape(), training)


def fit_view(group: Group, training: Training) -> None:
    """Replays releases: the private steps come first, all training after them is post-processing."""
    extractor = copy.deepcopy(training.model.extractor).requires_grad_(False)
    for site in group.live:
        training.record(site, 0, math.nan)
    releases = group.each(lambda site: _draw_all(site, training))
    source = collect(training.source, most=replay.MOST_RECORDS // training.ranks.size).to(training.device)
    source = Labelled(training.ranks.gather(source.images), training.ranks.gather(source.labels))
    generator = torch.Generator().manual_seed(training.seed)
    views: list[View] = []
    left: dict[str, float] = {}
    convinced = False
    for site in group.live:
        alignment, own = _run(site), releases[site.name]
        with reporting(_title("fitting the view of", group, site), replay.VIEW_STEPS, shown=training.progress) as bar:
            fitted = replay.find_view(
                extractor,
                source,
                _misfit(alignment, own, training.features),
                learning_rate=site.plan.learning_rate,
                generator=generator,
                bar=bar,
                view=training.view,
            )
        views.append(fitted.view)
        convinced = convinced or fitted.convinced
        left[site.name] = fitted.left
        alignment.first = Seen(training.features, own[0], alignment.feature_map)
        with torch.no_grad():
            seen = fitted.view(extractor, source.images[: len(training.features)])
        alignment.last = Seen(seen, own[-1], alignment.feature_map)
    if convinced:
        view = views[0] if len(views) == 1 else MixedViews(views, [site.weight for site in group.live], training.seed)
        steps = _plan(group.live[0]).tuning_steps
        with reporting(_title("tuning on that view", group), steps, shown=training.progress) as bar:
            tuned = replay.tune(
                extractor, training.model.classifier, view, source, steps=steps, generator=generator, bar=bar
            )
            _install(group, training, Model(*tuned), left)
            bar.tell(status(group))
    else:
        _log.warning(
            "what %s released speaks for no shift that a view could follow: the model stays as it was trained on the "
            "source. A larger epsilon, or an adapter, may see more",
            group,
        )
        for site in group.live:
            site.convinced = False
        _install(group, training, Model(copy.deepcopy(extractor), copy.deepcopy(training.model.classifier)), left)
    write_histories(group)


def _install(group: Group, training: Training, model: Model, left: Mapping[str, float]) -> None:
    """Gives the sites the model that the replay came to, and ends their courses with what is left of the distance."""
    training.ranks.synchronise(model.extractor, model.classifier)  # all computed the same, but for their processors
    group.install(model)
    for site in group.live:
        site.steps = site.plan.steps
        training.record(site, site.steps, left[site.name])


def _misfit(alignment: Alignment, releases: Sequence[StepRelease], features: Tensor) -> Misfit:
    plan = alignment.plan
    assert plan.sigma is not None, "Alignment plans with noise"
    return Misfit(
        releases,
        like=features,
        feature_map=alignment.feature_map,
        batch=plan.batch_size,
        sigma=plan.sigma,
        row_coefficients=plan.coefficients if plan.release == "rows" else None,
    )


def _open(group: Group, extractor: nn.Module, shape: tuple[int, ...], training: Training) -> None:
    """Opens the sites' runs, which charges all of each, or continues those that the directories hold."""
    declarable = Declarable.of(extractor, shape, _plan(group.live[0]))
    # One site alone keeps its state beside its run; sites that share a model keep it above them.
    applied = group.store.applied() if group.store is not None else None

    def begin(site: Site) -> None:
        run = Alignment(
            site.curator, extractor, _plan(site),
            source_features=training.features, checkpoint=site.store, declarable=declarable, applied=applied,
        )  # fmt: skip
        site.begin(run)
        site.record_shape = shape

    group.each(begin)


def _plan(site: Site) -> Plan:
    """The site's plan, of the kind that chose this way."""
    assert isinstance(site.plan, Plan), "another kind of plan has another way"
    return site.plan


def _run(site: Site) -> Alignment:
    """The site's run, of the kind that this way opens."""
    assert isinstance(site.run, Alignment), "another kind of run belongs to another way"
    return site.run


def _draw_all(site: Site, training: Training) -> list[StepRelease]:
    title = f"private releases of {site.name}"
    with reporting(title, site.plan.steps, shown=training.progress) as bar:
        return replay.draw_all(_run(site), site.store, bar)


def _next_batch(group: Group, batches: Iterator[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """The loader's next batch; for a step that was under way when the process ended, the batch it was asked with."""
    waiting = any(site.run.has_pending and not site.stale for site in group.unfinished)
    kept = group.store.read_batch() if group.store is not None and waiting else None
    if kept is not None:
        return kept
    images, labels = next(batches)
    if group.store is not None:
        group.store.write_batch(images, labels)
    return images, labels


def _title(doing: str, group: Group, site: Site | None = None) -> str:
    return f"{doing} {site.name if site is not None else group}"


def _endless(batches: Iterable[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    """Passes over the source again and again, each in the loader's own order."""
    return itertools.chain.from_iterable(itertools.repeat(batches))


@dataclass(frozen=True)
class Way:
    """One way to train a group.

    Attributes:
        begin: opens the runs; traces, so it never runs beside another training.
        fit: trains; safe beside others.
        declarable: what a source extractor's runs would declare, for records of a shape, by a plan, with an adapter of
            the caller's own or None.
        target_side: the source-trained extractor stays for the source; what is adapted stands before the target alone.
    """

    begin: Callable[[Group, Training], None]
    fit: Callable[[Group, Training], None]
    declarable: Callable[[nn.Module, tuple[int, ...], RunPlan, nn.Module | None], Declarable]
    target_side: bool = False


def _declarable(
    extractor: nn.Module, record_shape: tuple[int, ...], plan: RunPlan, own: nn.Module | None
) -> Declarable:
    assert isinstance(plan, Plan), "another kind of plan has another way"
    return Declarable.of_source(extractor, record_shape, plan, own=own)


WAYS: Mapping[str, Way] = {
    "adapters": Way(begin_adapter, fit_adapter, _declarable, target_side=True),
    "none": Way(begin_view, fit_view, _declarable),
    "all": Way(begin_both, fit_both, _declarable),
    "critic": Way(begin_critic, fit_critic, critic_declarable, target_side=True),
}
"""The way of each value of a plan's `parameters`."""
