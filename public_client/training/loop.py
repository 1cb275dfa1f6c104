"""What the sites of one training have in common, and the points of their histories."""

from __future__ import annotations

import csv
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import TypeVar

import torch
from torch import Tensor, nn

from dpswd.public_client.data.accuracy import features as features_of
from dpswd.public_client.data.datasets import Batches, Labelled
from dpswd.public_client.data.progress import Reporter, reporting
from dpswd.public_client.data.ranks import Ranks
from dpswd.public_client.data.source import collect
from dpswd.public_client.replay.verdict import UNCHANGED
from dpswd.public_client.replay.views import View
from dpswd.public_client.training.logs import Recorder
from dpswd.public_client.training.sites import Group, HistoryPoint, Model, Site

_log = logging.getLogger(__name__)
_Read = TypeVar("_Read")
Evaluate = Callable[[nn.Module, nn.Module], float]
"""(extractor, classifier) to accuracy in percent; for rehearsals, where labels of the target are at hand."""


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
    view: View | None = None
    ranks: Ranks = field(default_factory=Ranks.current)

    def shown(self, most: int) -> Labelled:
        """Records of the source, at most so many of all processes together."""
        own = collect(self.source, most=max(1, most // self.ranks.size)).to(self.device)
        return Labelled(self.ranks.gather(own.images), self.ranks.gather(own.labels))

    def source_features(self, most: int) -> tuple[Tensor, Tensor]:
        """Features (m, d) and labels (m,) of the same, under the source-trained extractor."""
        own = collect(self.source, most=max(1, most // self.ranks.size)).to(self.device)
        features = features_of(self.model.extractor, own.images)
        return self.ranks.gather(features), self.ranks.gather(own.labels)

    def read_each(self, group: Group, title: str, read: Callable[[Site, Reporter], _Read]) -> dict[str, _Read]:
        """What each site's run says, with a bar; sites that give up are set aside, and are not in it.

        Args:
            group: with open runs.
            title: of the bar.
            read: draws a site's steps.
        """
        for site in group.live:
            self.record(site, 0, math.nan)

        def one(site: Site) -> _Read:
            with reporting(f"{title} of {site.name}", site.plan.steps, shown=self.progress) as bar:
                return read(site, bar)

        return group.each(one)

    def deliver(self, site: Site, model: Model, finding: str = "", *, distance: float = math.nan) -> None:
        """Gives a site the model that its releases led to, whose outcome is set, and ends its course."""
        site.model, site.finding = model, finding
        if finding:
            over = site.outcome in UNCHANGED and site.plan.method.adapts(site.plan.record_shape)  # a glance goes on
            (_log.warning if over else _log.info)("%s: %s; %s", site.name, site.outcome, finding)
        site.steps = site.plan.steps
        self.record(site, site.steps, distance)

    def record(self, site: Site, step: int, distance: float) -> None:
        """Adds a point to a site's history: costs, and accuracy where it can be known."""
        evaluate, model = self.evaluate.get(site.name), site.model or self.model
        accuracy = evaluate(model.extractor, model.classifier) if evaluate is not None else math.nan
        point = HistoryPoint(step, distance, site.plan.epsilon_after(step), accuracy)
        site.history.append(point)
        self.log.scalars(site.name, step, distance=distance, epsilon=point.epsilon, accuracy=accuracy)


def status(group: Group) -> str:
    """The first site's cost and accuracy, where it is known; how many sites still take part, if there are several."""
    site = group.live[0]
    last = site.history[-1] if site.history else None
    accuracy = "" if last is None or math.isnan(last.accuracy) else f"  accuracy {last.accuracy:.1f}%"
    several = f"  {len(group.live)} of {len(group.sites)} sites" if len(group.sites) > 1 else ""
    return f"{site.plan.charged}{accuracy}{several}"


def write_histories(group: Group) -> None:
    """Writes each site's history beside its run, where it has a directory, as CSV: one point a line."""
    for site in group.sites:
        if site.store is not None and site.store.writes:
            with (site.store.directory / "history.csv").open("w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, fieldnames=[own.name for own in fields(HistoryPoint)])
                writer.writeheader()
                writer.writerows(map(asdict, site.history))
