"""The descent of methods that draw many steps: a public half, one charged step of every site, one update.

What a step asks, and the loss that its answer stands for, is the method's (`DescentRun`).
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dpswd.public_client.data.progress import reporting
from dpswd.public_client.data.ranks import Ranks
from dpswd.public_client.replay.posterior import cosine
from dpswd.public_client.training.loop import Training, status, write_histories
from dpswd.public_client.training.run import DrawnStep, Release, Reply
from dpswd.public_client.training.sites import Group, Site
from dpswd.shared.core.mechanisms.interface import Payload

_POINTS = 20  # evaluations and epsilon figures in one training, beside those of the last step


class AnsweredStep(NamedTuple):
    """One step, answered.

    Attributes:
        loss: scalar; its gradient is that of the public half in what it was computed from, and the sanitized one in
            the adapted parameters.
        distance: how far source and target are from each other: the estimated distance F of `losses`, or what the
            method says in its place.
    """

    loss: Tensor
    distance: float


class Descent:
    """Parameters on their way down noised losses: an optimiser under a cosine, and the average that is kept at the end.

    Args:
        optimizer: of what is trained, in place, with the rates of the start.
        steps: after which the rates have fallen to 0.
        averaging: decay of the running average of the parameters.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, *, steps: int, averaging: float) -> None:
        self.parameters: list[Tensor] = [own for part in optimizer.param_groups for own in part["params"]]
        self.optimizer, self._averaging, self._averages = optimizer, averaging, detached(self.parameters)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: cosine(min(t, steps) / steps))

    def step(self, ranks: Ranks, *, moves: bool = True) -> None:
        """One step by the gradients that stand in the parameters, or by none; they are the mean over all ranks."""
        if moves:
            ranks.average_gradients(self.parameters)
            self.optimizer.step()
        self.schedule.step()
        for average, parameter in zip(self._averages, self.parameters, strict=True):
            average.lerp_(parameter.detach(), 1.0 - self._averaging)

    @torch.no_grad()
    def end(self) -> None:
        """Puts the averages in the parameters' place."""
        for average, parameter in zip(self._averages, self.parameters, strict=True):
            parameter.copy_(average)

    def stored(self) -> dict[str, Any]:
        """All but the parameters, for a checkpoint."""
        return {
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "average": self._averages,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes back to what `stored` gave."""
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        self._averages = [value.to(self.parameters[0].device) for value in state["average"]]


@dataclass(frozen=True)
class PublicStep:
    """The public half of a step.

    Attributes:
        features: (m, d) of source records, raw; may require gradients.
        class_loss: on the same batch, or None where the classes are not trained.
    """

    features: Tensor
    class_loss: Tensor | None = None


class DescentRun(Release[Reply], abc.ABC):
    """A run whose steps are losses to descend on. See `Release`."""

    def loss(self, features: Tensor) -> Tensor:
        """Draws one charged step of the run and returns what it says as a scalar loss; autograd works.

        Args:
            features: (m, d) of public source records; may require gradients.

        Returns:
            Scalar: the estimated distance. Its gradient is the source branch in `features`, and the sanitized target
            branch in the adapted parameters.

        Raises:
            RunFinished: all declared steps are used.
        """
        half = PublicStep(features)
        return self.answered(half, self.draw(self.request(half))).loss

    @abc.abstractmethod
    def request(self, half: PublicStep) -> Payload:
        """What the mechanism is asked in the next step."""

    @abc.abstractmethod
    def answered(self, half: PublicStep, drawn: DrawnStep[Reply]) -> AnsweredStep:
        """A drawn step as a loss, by the public half that it was asked with."""


def detached(parameters: Sequence[Tensor]) -> list[Tensor]:
    """Copies without gradients."""
    return [parameter.detach().clone() for parameter in parameters]


def unfinished(group: Group) -> list[Site]:
    """Sites that take part and have steps left."""
    return [site for site in group.live if site.steps + site.run.steps_lost < site.plan.steps]


def _answers(group: Group, half: PublicStep) -> dict[str, AnsweredStep]:
    """One charged step of every site that has steps left, in parallel; of a stale step the answer is left out."""

    def run_of(site: Site) -> DescentRun[Any]:
        assert isinstance(site.run, DescentRun), "another kind of run belongs to another method"
        return site.run

    asked = {site.name: site for site in unfinished(group)}
    drawn = group.each(lambda site: run_of(site).draw(run_of(site).request(half)), list(asked.values()))
    answers = {}
    for name, step in drawn.items():
        site = asked[name]
        site.steps += 1
        site.request_id, stale, site.stale = step.request_id, site.stale, False
        if not stale:
            answers[name] = run_of(site).answered(half, step)
    return answers


def align(
    group: Group, optimizer: torch.optim.Optimizer, public: Callable[[], PublicStep], training: Training, *,
    averaging: float, weight: float = 1.0, heard: Callable[[Mapping[str, float]], None] = lambda _: None,
) -> None:  # fmt: skip
    """The training loop: a public half, a charged step of every site, one descent; store, record, go on.

    Args:
        group: with open runs.
        optimizer: of what is trained, in place, with the rates of the start.
        public: the public half of the next step.
        training: what all sites share.
        averaging: decay of the running average of the parameters that is kept at the end.
        weight: of answered steps' losses.
        heard: told before each descent which sites' answers it follows, and their shares.
    """
    steps = max(site.plan.steps for site in group.live)
    descent = Descent(optimizer, steps=steps, averaging=averaging)
    absent: dict[str, tuple[int, str]] = {}
    t = _restored(group, descent, absent)
    distances: dict[str, list[float]] = {site.name: [] for site in group.sites}
    with reporting(f"aligning with {group}", steps, shown=training.progress, done=t) as bar:
        for site in group.live if t == 0 else []:
            training.record(site, 0, math.nan)
        while unfinished(group):
            t += 1
            half = public()
            answers = _answers(group, half)
            shares = group.shares([site for site in group.sites if site.name in answers])
            loss = half.class_loss if half.class_loss is not None else torch.zeros((), device=training.device)
            for name, answer in answers.items():
                loss = loss + shares[name] * weight * answer.loss
            if loss.requires_grad:
                heard(shares)
                optimizer.zero_grad()
                torch.autograd.backward(loss)
            descent.step(training.ranks, moves=loss.requires_grad)
            if group.store is not None:
                group.store.write("state", _state(group, descent, t, absent))
            rate = float(descent.schedule.get_last_lr()[0])
            class_loss = {} if half.class_loss is None else {"class_loss": float(half.class_loss.detach())}
            if not unfinished(group):
                descent.end()
            for site in (site for site in group.live if site.name in answers):
                distance, fresh = answers[site.name].distance, distances[site.name]
                fresh.append(distance)
                training.log.scalars(site.name, site.steps, distance=distance, learning_rate=rate, **class_loss)
                if site.steps % max(1, site.plan.steps // _POINTS) == 0 or site.steps == site.plan.steps:
                    training.record(site, site.steps, sum(fresh) / len(fresh))
                    fresh.clear()
            bar.advance(status(group))
    descent.end()
    write_histories(group)


def _state(group: Group, descent: Descent, step: int, absent: Mapping[str, tuple[int, str]]) -> dict[str, Any]:
    """What each step changes on the client's side, with what the stored state knew of sites that are absent now."""
    reached = {**absent, **{site.name: (site.steps, site.request_id) for site in group.sites}}
    requests = {name: request_id for name, (_, request_id) in reached.items() if request_id}
    return {
        "step": step,
        "steps": {name: steps for name, (steps, _) in reached.items()},
        "requests": requests,
        "request_ids": list(requests.values()),  # also of answers that were dropped: they are counted
        "parameters": detached(descent.parameters),
        **descent.stored(),
    }


def _restored(group: Group, descent: Descent, absent: dict[str, tuple[int, str]]) -> int:
    """Goes back to the stored state; returns the steps that are done.

    Args:
        group: whose sites go back too.
        descent: likewise.
        absent: gets steps and last request of sites that are stored and not in this group; they may come back.
    """
    state = group.store.read("state") if group.store is not None else None
    if state is None:
        return 0
    with torch.no_grad():
        for parameter, stored in zip(descent.parameters, state["parameters"], strict=True):
            parameter.copy_(stored)
    descent.restore(state)
    done = int(state["step"])
    absent.update((name, (int(steps), str(state["requests"].get(name, "")))) for name, steps in state["steps"].items())
    for site in group.sites:  # also of one that is set aside now and may be back at the next resumption
        site.steps, site.request_id = absent.pop(site.name, (0, ""))
    for site in group.live:
        # A site that was set aside earlier comes back with a request that was made for weights of that time.
        site.stale = site.run.pending is not None and site.steps < done
    return done
