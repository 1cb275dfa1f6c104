"""The three ways to train against curators, chosen by the plan's `parameters`.

- *adapters*: the source-trained extractor and classifier stay as they are. A copy of the extractor with a few adapter
  parameters is what private records go through; the sanitized gradient alone trains these.
- *none*: nothing comes back through the target branch. The stored releases are replayed (`replay`): a small model of
  how the target sees things is fitted to them, and all weights are fine-tuned on the source seen through it.
- *all*: the paper's Algorithm 2. One extractor serves both sides; every step adds the class loss, the distance's
  gradient through the source branch (autograd) and its sanitized gradient through the target branch.

Each way trains a `Group`: one site alone, or several that share the model. `align` is the loop of the first and the
third.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

from public_client import replay
from public_client.adapters import with_adapters
from public_client.alignment import Alignment, AlignmentStep, Seen
from public_client.course import Average, HistoryPoint, detached, write_history
from public_client.logs import NoLog, Recorder
from public_client.misfit import Misfit
from public_client.progress import reporting
from public_client.sites import Group, Model, Site
from public_client.source import Batches, collect
from public_client.views import MixedViews, View
from shared.mechanisms.feature_map import FeatureMap
from shared.protocol.messages import StepRelease

Evaluate = Callable[[nn.Module, nn.Module], float]
"""(extractor, classifier) to accuracy in percent; for rehearsals, where labels of the target are at hand."""

_POINTS = 20  # evaluations and epsilon figures in one training


@dataclass
class Training:
    """What the sites of one training have in common.

    Attributes:
        model: source-trained; the adapter way and the replay leave it as it is.
        source: labelled public batches.
        features: (m, d) of source records under the source-trained extractor.
        device: where the modules are.
        seed: of the client's random choices.
        progress: whether bars are shown.
        evaluate: by site, where labels of the target are at hand.
        log: told of every step.
        adapter: a module of the caller's own in the place of the plan's adapter, or None.
    """

    model: Model
    source: Batches
    features: Tensor
    device: torch.device
    seed: int = 0
    progress: bool = True
    evaluate: Mapping[str, Evaluate] = field(default_factory=dict)
    log: Recorder = field(default_factory=NoLog)
    adapter: nn.Module | None = None

    def record(self, site: Site, step: int, distance: float) -> None:
        """Adds a point to a site's course: costs, and accuracy where it can be known."""
        evaluate, model = self.evaluate.get(site.name), site.model or self.model
        accuracy = evaluate(model.extractor, model.classifier) if evaluate is not None else math.nan
        point = HistoryPoint(step, distance, site.plan.epsilon_after(step), accuracy)
        site.history.append(point)
        self.log.scalars(site.name, step, distance=distance, epsilon=point.epsilon, accuracy=accuracy)


@dataclass(frozen=True)
class PublicStep:
    """The public half of a step.

    Attributes:
        features: (m, d) of the source.
        feature_map: of this step; None for each run's own.
        class_loss: on the same batch, or None where the classes are not trained.
    """

    features: Tensor
    feature_map: FeatureMap | None = None
    class_loss: Tensor | None = None


def align(
    group: Group,
    parameters: Sequence[Tensor],
    public: Callable[[], PublicStep],
    weight: Callable[[AlignmentStep], float],
    training: Training,
) -> None:
    """The training loop: a public half, a charged step of every site, one descent; store, record, go on.

    Args:
        group: with open runs.
        parameters: what is trained, in place.
        public: the public half of the next step.
        weight: of an answered step's loss.
        training: what all sites share.
    """
    plan = group.live[0].plan
    steps = max(site.plan.steps for site in group.live)
    optimizer = torch.optim.Adam(parameters, lr=plan.learning_rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: _cosine(t, steps))
    average = Average(parameters, plan.averaging)
    t = _restore(group, parameters, optimizer, schedule, average)
    distances: dict[str, list[float]] = {site.name: [] for site in group.sites}
    with reporting(_title("aligning with", group), steps, shown=training.progress, done=t) as bar:
        for site in group.live if t == 0 else []:
            training.record(site, 0, math.nan)
        while group.unfinished:
            t += 1
            half = public()
            answers = group.step(half.features, feature_map=half.feature_map)
            shares = group.shares([site for site in group.sites if site.name in answers])
            loss = half.class_loss if half.class_loss is not None else torch.zeros((), device=training.device)
            for name, answer in answers.items():
                loss = loss + shares[name] * weight(answer) * answer.loss
            if loss.requires_grad:
                optimizer.zero_grad()
                torch.autograd.backward(loss)
                optimizer.step()
            schedule.step()
            average.update(parameters)
            _store(group, t, answers, parameters, optimizer, schedule, average)
            for site in group.sites:
                if site.name in answers:
                    distances[site.name].append(answers[site.name].distance)
                    _log_step(training, site, answers[site.name], half, schedule)
            if not group.unfinished:
                average.copy_to(parameters)
            _record_points(training, group, distances)
            bar.advance(_status(group))
    average.copy_to(parameters)
    _write_histories(group)


def fit_adapter(group: Group, training: Training) -> None:
    """Trains one adapter for the sites of a group; the source side is fixed, so its features go up once."""
    shape = group.live[0].curator.describe().record_shape
    target = with_adapters(
        training.model.extractor, shape, plan=group.live[0].plan, source=training.source, own=training.adapter
    ).to(training.device)

    def begin(site: Site) -> None:
        _open(site, group, target, training)
        site.source = site.run.upload(training.features)

    group.each(begin)
    _install(group, Model(target, training.model.classifier))  # only now: a refused run leaves the model as it was
    align(
        group,
        group.live[0].run.parameters,
        lambda: PublicStep(training.features),
        lambda answer: 1.0 / answer.scale,  # steps of comparable size, whatever is left of the distance
        training,
    )


def fit_both(group: Group, training: Training) -> None:
    """Trains all weights on both sides, which the sites share: the source features change with each step."""
    extractor, classifier = training.model.extractor.eval(), training.model.classifier
    group.each(lambda site: _open(site, group, extractor, training))
    _install(group, training.model)
    plan = group.live[0].plan
    batches = _endless(training.source)

    def public() -> PublicStep:
        images, labels = _next_batch(group, batches)
        features = extractor(images.to(training.device))  # (m, d)
        class_loss = functional.cross_entropy(classifier(features), labels.to(training.device))
        # Public statistics follow the weights; the map is a constant of the step, as it is at the curator.
        feature_map = FeatureMap.from_source(features.detach(), target_norm=plan.target_norm)
        return PublicStep(features, feature_map, class_loss)

    trained = [*group.live[0].run.parameters, *classifier.parameters()]
    align(group, trained, public, lambda _: plan.alignment_weight, training)


def fit_view(group: Group, training: Training) -> None:
    """Replays releases: the private steps come first, all training after them is post-processing."""
    extractor = copy.deepcopy(training.model.extractor).requires_grad_(False)
    group.each(lambda site: _open(site, group, extractor, training))
    for site in group.live:
        training.record(site, 0, math.nan)
    releases = group.each(lambda site: _draw_all(site, training))
    source = collect(training.source, most=replay.MOST_RECORDS).to(training.device)
    generator = torch.Generator().manual_seed(training.seed)
    views: list[View] = []
    left: dict[str, float] = {}
    for site in group.live:
        alignment, own = site.run, releases[site.name]
        with reporting(_title("fitting the view of", group, site), replay.VIEW_STEPS, shown=training.progress) as bar:
            fitted = replay.find_view(
                extractor,
                source,
                _misfit(alignment, own, training.features),
                learning_rate=site.plan.learning_rate,
                generator=generator,
                bar=bar,
            )
        views.append(fitted.view)
        left[site.name] = fitted.left
        alignment.first = Seen(training.features, own[0], alignment.feature_map)
        with torch.no_grad():
            seen = fitted.view(extractor, source.images[: len(training.features)])
        alignment.last = Seen(seen, own[-1], alignment.feature_map)
    view = views[0] if len(views) == 1 else MixedViews(views, [site.weight for site in group.live], training.seed)
    steps = group.live[0].plan.tuning_steps
    with reporting(_title("tuning on that view", group), steps, shown=training.progress) as bar:
        tuned = replay.tune(
            extractor, training.model.classifier, view, source, steps=steps, generator=generator, bar=bar
        )
    _install(group, Model(*tuned))
    for site in group.live:
        site.steps = site.plan.steps
        training.record(site, site.steps, left[site.name])
    _write_histories(group)


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


def _open(site: Site, group: Group, extractor: nn.Module, training: Training) -> None:
    """Opens the site's run, which charges all of it, or continues the one that its directory holds."""
    # One site alone keeps its state beside its run; sites that share a model keep it above them.
    applied = group.store.applied() if group.store is not None else None
    site.alignment = Alignment(
        site.curator, extractor, site.plan,
        source_features=training.features, checkpoint=site.store, applied=applied,
    )  # fmt: skip
    site.plan = site.alignment.plan


def _install(group: Group, model: Model) -> None:
    for site in group.live:
        site.model = model


def _draw_all(site: Site, training: Training) -> list[StepRelease]:
    title = f"private releases of {site.name}"
    with reporting(title, site.plan.steps, shown=training.progress) as bar:
        return replay.draw_all(site.run, site.store, bar)


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


def _store(
    group: Group,
    step: int,
    answers: Mapping[str, AlignmentStep],
    parameters: Sequence[Tensor],
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
    average: Average,
) -> None:
    if group.store is None:
        return
    group.store.write_state(
        {
            "step": step,
            "steps": {site.name: site.steps for site in group.sites},
            "request_ids": [answer.request_id for answer in answers.values()],
            "optimizer": optimizer.state_dict(),
            "schedule": schedule.state_dict(),
            "parameters": detached(parameters),
            "average": average.values,
        }
    )


def _restore(
    group: Group,
    parameters: Sequence[Tensor],
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
    average: Average,
) -> int:
    """Goes back to the stored state; returns the steps that are done."""
    state = group.store.read_state() if group.store is not None else None
    if state is None:
        return 0
    with torch.no_grad():
        for parameter, stored in zip(parameters, state["parameters"], strict=True):
            parameter.copy_(stored)
    optimizer.load_state_dict(state["optimizer"])
    schedule.load_state_dict(state["schedule"])
    average.values = [value.to(parameters[0].device) for value in state["average"]]
    done = int(state["step"])
    for site in group.live:
        site.steps = int(state["steps"].get(site.name, 0))
        # A site that was set aside earlier comes back with a request that was made for weights of that time.
        site.stale = site.run.has_pending and site.steps < done
    if not group.unfinished:
        average.copy_to(parameters)
    return done


def _log_step(
    training: Training,
    site: Site,
    answer: AlignmentStep,
    half: PublicStep,
    schedule: torch.optim.lr_scheduler.LRScheduler,
) -> None:
    values = {"distance": answer.distance, "learning_rate": float(schedule.get_last_lr()[0])}
    if half.class_loss is not None:
        values["class_loss"] = float(half.class_loss.detach())
    training.log.scalars(site.name, site.steps, **values)


def _record_points(training: Training, group: Group, distances: dict[str, list[float]]) -> None:
    """A point for each site about twenty times, and at its last step."""
    for site in group.live:
        every = max(1, site.plan.steps // _POINTS)
        fresh = distances[site.name]
        if fresh and (site.steps % every == 0 or site.steps == site.plan.steps):
            training.record(site, site.steps, sum(fresh) / len(fresh))
            fresh.clear()


def _status(group: Group) -> str:
    """The first site's costs and accuracy; how many sites still take part, where there are several."""
    site = group.live[0]
    last = site.history[-1] if site.history else None
    epsilon = 0.0 if last is None else last.epsilon
    accuracy = "" if last is None or math.isnan(last.accuracy) else f"  accuracy {last.accuracy:.1f}%"
    several = f"  {len(group.live)} of {len(group.sites)} sites" if len(group.sites) > 1 else ""
    return f"epsilon {epsilon:.3f} of {site.plan.epsilon:.3f}{accuracy}{several}"


def _title(doing: str, group: Group, site: Site | None = None) -> str:
    return f"{doing} {site.name if site is not None else group}"


def _write_histories(group: Group) -> None:
    for site in group.sites:
        if site.store is not None:
            write_history(site.history, site.store.directory / "history.csv")


def _cosine(step: int, steps: int) -> float:
    """From 1 down to 0.05: large moves first, then the noise is averaged out."""
    return 0.05 + 0.95 * 0.5 * (1.0 + math.cos(math.pi * min(step, steps) / steps))


def _endless(batches: Batches) -> Iterator[tuple[Tensor, Tensor]]:
    """Passes over the source again and again, each in the loader's own order."""
    return itertools.chain.from_iterable(itertools.repeat(batches))


WAYS: Mapping[str, Callable[[Group, Training], None]] = {
    "adapters": fit_adapter,
    "none": fit_view,
    "all": fit_both,
}
"""The way of each value of a plan's `parameters`."""
