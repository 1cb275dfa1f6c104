"""The training loop, and what it keeps: the state on disk, the points of the history.

`align` is the whole loop of the methods that draw many steps: a public half, one charged step of every site, one
descent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from dpswd.public_client.data.datasets import Batches
from dpswd.public_client.data.progress import reporting
from dpswd.public_client.data.ranks import Ranks
from dpswd.public_client.replay.posterior import cosine
from dpswd.public_client.replay.views import View
from dpswd.public_client.training.history import Average, HistoryPoint, detached, write_history
from dpswd.public_client.training.logs import Recorder
from dpswd.public_client.training.run import AnsweredStep
from dpswd.public_client.training.sites import Group, Model, Site
from dpswd.shared.core.noise.feature_map import FeatureMap

Evaluate = Callable[[nn.Module, nn.Module], float]
"""(extractor, classifier) to accuracy in percent; for rehearsals, where labels of the target are at hand."""

_POINTS = 20  # evaluations and epsilon figures in one training


@dataclass
class Training:
    """What the sites of one training have in common.

    Attributes:
        model: source-trained; methods with a target side of their own leave it as it is.
        source: labelled public batches.
        features: (m, d) of source records under the source-trained extractor.
        device: where the modules are.
        seed: of the client's random choices.
        progress: whether bars are shown.
        evaluate: by site, where labels of the target are at hand.
        log: told of every step.
        adapter: a module of the caller's own in the place of the method's adapter, or None.
        view: the identity of the view that the replay fits, or None for the ready one.
        ranks: the processes that train together.
    """

    model: Model
    source: Batches
    features: Tensor
    device: torch.device
    seed: int = 0
    progress: bool = True
    evaluate: Mapping[str, Evaluate] = field(default_factory=dict)
    log: Recorder = field(default_factory=Recorder)
    adapter: nn.Module | None = None
    view: View | None = None
    ranks: Ranks = field(default_factory=Ranks.current)

    def record(self, site: Site, step: int, distance: float) -> None:
        """Adds a point to a site's history: costs, and accuracy where it can be known."""
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
    optimizer: torch.optim.Optimizer,
    public: Callable[[], PublicStep],
    weight: Callable[[AnsweredStep], float],
    training: Training,
    *,
    averaging: float,
    heard: Callable[[Mapping[str, float]], None] = lambda _: None,
) -> None:
    """The training loop: a public half, a charged step of every site, one descent; store, record, go on.

    Args:
        group: with open runs.
        optimizer: of what is trained, in place, with the rates of the start.
        public: the public half of the next step.
        weight: of an answered step's loss.
        training: what all sites share.
        averaging: decay of the running average of the parameters that is kept at the end.
        heard: told before each descent which sites' answers it follows, and their shares.
    """
    steps = max(site.plan.steps for site in group.live)
    parameters = [parameter for part in optimizer.param_groups for parameter in part["params"]]
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: cosine(min(t, steps) / steps))
    average = Average(parameters, averaging)
    descent = _Descent(parameters, optimizer, schedule, average)
    t = descent.restore(group)
    distances: dict[str, list[float]] = {site.name: [] for site in group.sites}
    with reporting(f"aligning with {group}", steps, shown=training.progress, done=t) as bar:
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
                heard(shares)
                optimizer.zero_grad()
                torch.autograd.backward(loss)
                training.ranks.average_gradients(parameters)
                optimizer.step()
            schedule.step()
            average.update(parameters)
            descent.store(group, t)
            rate = float(schedule.get_last_lr()[0])
            class_loss = {} if half.class_loss is None else {"class_loss": float(half.class_loss.detach())}
            for site in group.sites:
                if site.name in answers:
                    distance = answers[site.name].distance
                    distances[site.name].append(distance)
                    training.log.scalars(site.name, site.steps, distance=distance, learning_rate=rate, **class_loss)
            if not group.unfinished:
                average.copy_to(parameters)
            _record_points(training, group, distances)
            bar.advance(status(group))
    average.copy_to(parameters)
    write_histories(group)


@dataclass(frozen=True, eq=False)
class _Descent:
    """What each step changes on the client's side: parameters, optimiser, schedule, average."""

    parameters: Sequence[Tensor]
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler
    average: Average
    absent: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Steps and last request of sites that are in the stored state and not in this group; they may come back."""

    def store(self, group: Group, step: int) -> None:
        if group.store is None:
            return
        reached = self.absent | {site.name: (site.steps, site.request_id) for site in group.sites}
        requests = {name: request_id for name, (_, request_id) in reached.items() if request_id}
        group.store.write(
            "state",
            {
                "step": step,
                "steps": {name: steps for name, (steps, _) in reached.items()},
                "requests": requests,
                "request_ids": list(requests.values()),  # also of answers that were dropped: they are counted
                "optimizer": self.optimizer.state_dict(),
                "schedule": self.schedule.state_dict(),
                "parameters": detached(self.parameters),
                "average": self.average.values,
            },
        )

    def restore(self, group: Group) -> int:
        """Goes back to the stored state; returns the steps that are done."""
        state = group.store.read("state") if group.store is not None else None
        if state is None:
            return 0
        with torch.no_grad():
            for parameter, stored in zip(self.parameters, state["parameters"], strict=True):
                parameter.copy_(stored)
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        self.average.values = [value.to(self.parameters[0].device) for value in state["average"]]
        done = int(state["step"])
        reached = {name: (int(steps), str(state["requests"].get(name, ""))) for name, steps in state["steps"].items()}
        for site in group.sites:  # also of one that is set aside now and may be back at the next resumption
            site.steps, site.request_id = reached.pop(site.name, (0, ""))
        self.absent.update(reached)
        for site in group.live:
            # A site that was set aside earlier comes back with a request that was made for weights of that time.
            site.stale = site.run.has_pending and site.steps < done
        if not group.unfinished:
            self.average.copy_to(self.parameters)
        return done


def _record_points(training: Training, group: Group, distances: dict[str, list[float]]) -> None:
    """A point for each site about twenty times, and at its last step."""
    for site in group.live:
        every = max(1, site.plan.steps // _POINTS)
        fresh = distances[site.name]
        if fresh and (site.steps % every == 0 or site.steps == site.plan.steps):
            training.record(site, site.steps, sum(fresh) / len(fresh))
            fresh.clear()


def status(group: Group) -> str:
    """The first site's cost and accuracy, where it is known; how many sites still take part, if there are several."""
    site = group.live[0]
    last = site.history[-1] if site.history else None
    accuracy = "" if last is None or math.isnan(last.accuracy) else f"  accuracy {last.accuracy:.1f}%"
    several = f"  {len(group.live)} of {len(group.sites)} sites" if len(group.sites) > 1 else ""
    return f"{site.plan.charged}{accuracy}{several}"


def write_histories(group: Group) -> None:
    """Writes each site's history beside its run, where it has a directory."""
    for site in group.sites:
        if site.store is not None and site.store.writes:
            write_history(site.history, site.store.directory / "history.csv")
