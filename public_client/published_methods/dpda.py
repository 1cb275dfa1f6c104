"""The hospital is the labelled source, and the team's own records are the target: adaptation by transport (DPDA).

LeTien, Habrard and Sebban (IJCAI 2019) release noised rows class by class, move them onto the public target by optimal
transport with a group lasso, and train a network of three layers on what was moved. Here the hospital releases its
class statistics once (docs/adr/README.md, 11, says why not rows); the client draws labelled points from the classes'
laws, and the rest is as in the paper. All of it but the release is free.

The plan minimises sum(plan * cost) + penalty * entropy + group_penalty * sum over targets and classes of the norm of
what a target gets from the class (Courty, Flamary, Tuia and Rakotomamonjy 2017): a target that gets mass from one class
alone costs least. Each point is then moved to the mean of the targets that its mass went to (the barycentric map).
Large samples are cut at random and matched part by part.
"""

from __future__ import annotations

import copy
import importlib.util
import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from dpswd.public_client.data.accuracy import features as features_of
from dpswd.public_client.data.progress import reporting
from dpswd.public_client.data.source import collect
from dpswd.public_client.methods.statistics_head import Classes, ClassSums, classes_of
from dpswd.public_client.methods.statistics_method import StatisticsMethod, common_map
from dpswd.public_client.plans.recipe import not_between, not_counts, not_positive
from dpswd.public_client.replay.posterior import cosine
from dpswd.public_client.training.loop import Training, write_histories
from dpswd.public_client.training.sites import Group, Model
from dpswd.shared.core.errors import InvalidValue, SettingsError
from dpswd.shared.core.noise.clipping import RECORD_NORM
from dpswd.shared.core.noise.feature_map import FeatureMap
from dpswd.shared.core.wire.limits import UNLABELLED

Values = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]

_ITERATIONS, _INNER, _CHANGE = 5, 100, 1e-6  # of the conditional gradient, of each of its plans, and where both stop


@dataclass(frozen=True, eq=False)
class Points:
    """Labelled points of any law.

    Attributes:
        places: (s, d).
        labels: (s,), 0 to C - 1.
        masses: (s,), positive, adding up to 1.
    """

    places: Values
    labels: Labels
    masses: Values


def require_solver() -> None:
    """Refuses where the library that solves is missing.

    Raises:
        SettingsError: with what to install.
    """
    if importlib.util.find_spec("ot") is None:
        raise SettingsError("plans are solved by POT, which is not installed: pip install 'dpswd[transport]'")


def moved(points: Points, targets: Values, labels: Labels, matching: Dpda, seed: int) -> tuple[Points, Values]:
    """The points where the plan moves them, and what the plan says of each target's class.

    Args:
        points: what is moved; every part of the targets gets all of them.
        targets: (m, d).
        labels: (m,) labels of the targets, `UNLABELLED` for most; a labelled one takes mass of its class alone.
        matching: penalties of the plans, and how many targets are matched at a time.
        seed: of the cuts.

    Returns:
        Moved points, for each part of the targets one copy of them all, of mass 1 together; and (m, C) shares of the
        mass that each target got from each class.
    """
    parts = math.ceil(len(targets) / matching.part)
    kinds = np.eye(int(points.labels.max()) + 1)[points.labels]  # (s, C)
    order = np.random.default_rng(seed).permutation(len(targets))
    places, masses = [], []
    shares = np.zeros((len(targets), kinds.shape[1]))
    for own in np.array_split(order, parts):
        plan = _matched(points, kinds, targets[own], labels[own], matching)
        mass = np.maximum(plan.sum(axis=1), 1e-300)
        places.append(plan @ targets[own] / mass[:, None])
        masses.append(mass * len(own) / len(targets))
        shares[own] = kinds.T.dot(plan).T
    together = np.concatenate(masses)
    shares /= np.maximum(shares.sum(axis=1, keepdims=True), 1e-300)
    return Points(np.concatenate(places), np.tile(points.labels, parts), together / together.sum()), shares


def _matched(points: Points, kinds: Values, targets: Values, labels: Labels, matching: Dpda) -> Values:
    """(s, m) a plan of mass 1 onto uniform weights."""
    import ot  # takes a second to load

    costs = np.asarray(ot.dist(points.places, targets))
    costs /= max(float(np.median(costs)), 1e-12)
    # Far above all others: a target whose class is known takes mass of it alone, while any is left.
    forbidden = (labels[None, :] != UNLABELLED) & (labels[None, :] != points.labels[:, None])
    costs = np.where(forbidden, costs + 4.0 * costs.max(), costs)
    even = np.full(len(targets), 1.0 / len(targets))
    size = math.sqrt(len(kinds) / kinds.shape[1])  # a class's mass, spread over its points, has a norm as much smaller

    def norms(plan: Values) -> Values:
        return np.asarray(np.sqrt(kinds.T @ plan**2))  # (C, m)

    # Far from the largest float's logarithm, 709, the plain iteration is as exact as the one of logarithms, and faster.
    plain = float(costs.max()) < 500.0 * matching.penalty
    entropic = {"stopThr": _CHANGE, "warn": False, "method": "sinkhorn" if plain else "sinkhorn_log"}
    plan: Values = ot.optim.gcg(
        points.masses, even, costs, matching.penalty, matching.group_penalty * size,
        lambda plan: float(norms(plan).sum()), lambda plan: plan / np.maximum(kinds @ norms(plan), 1e-12),
        numItermax=_ITERATIONS, numInnerItermax=_INNER, **entropic,
    )  # fmt: skip
    return plan


_BATCH, _DECAY = 128, 1e-3
_HIDDEN = 100


def principal_components(records: Tensor, *, count: int = 50) -> nn.Sequential:
    """An extractor that needs no labels: the largest principal components of the team's own records.

    Args:
        records: (m, ...), m at least 2.
        count: of components; fewer where the records have fewer.

    Returns:
        Records (b, ...) to features (b, count), all over one number that gives them mean square 1; fixed.
    """
    flat = records.flatten(1).double()
    mean = flat.mean(dim=0)
    values, vectors = torch.linalg.eigh((flat - mean).T @ (flat - mean) / len(flat))
    chosen = vectors.flip(1)[:, : min(count, len(flat) - 1)].T
    scale = values.flip(0)[: len(chosen)].mean().clamp(min=1e-12).sqrt()
    layer = nn.Linear(flat.shape[1], len(chosen))
    with torch.no_grad():
        layer.weight.copy_(chosen / scale)
        layer.bias.copy_(-(chosen @ mean) / scale)
    return nn.Sequential(nn.Flatten(), layer).requires_grad_(False).eval()


def target_network(features: int, classes: int, *, hidden: int = _HIDDEN) -> nn.Sequential:
    """The paper's classifier of three layers."""
    inner = (nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
    return nn.Sequential(*inner, nn.Linear(hidden, classes))


@dataclass(frozen=True, kw_only=True)
class Dpda(StatisticsMethod):
    """From a labelled hospital to the team's own records, of which few or none have labels, by optimal transport.

    The records that the team trains with are the target: a label of -1 says that it is not known, and a few may be.
    The extractor stays; the classifier is trained from where it stands. Needs POT.

    Attributes:
        learning_rate: of the classifier, at the start.
        points: labelled points for each class, drawn from what was released.
        penalty: of the plan's entropy, in units of the median cost.
        group_penalty: of targets that get mass from several classes; 0 for none.
        part: target records that are matched at a time; a larger target is cut at random.
        updates: of the classifier.
        source_records: of the target that are matched and trained with, at most.
    """

    name = "dpda"
    own_target: ClassVar[bool] = True

    learning_rate: float = 2e-3
    points: int = 50
    penalty: float = 0.1
    group_penalty: float = 1.0
    part: int = 500
    updates: int = 1000
    source_records: int = 50_000

    def problems(self) -> list[str]:
        return [
            *super().problems(),
            *not_counts(self, "points", "part", "updates"),
            *not_positive(self, "penalty"),
            *not_between(self, 0.0, math.inf, "group_penalty"),
        ]

    def adapts(self, record_shape: tuple[int, ...] | None) -> str:
        return "the classifier, for the team's own records, from the hospital's labels; the extractor stays"

    @classmethod
    def usual_model(cls, records: Tensor, classes: int) -> tuple[nn.Module, nn.Module]:
        extractor = principal_components(records)
        with torch.no_grad():
            return extractor, target_network(extractor(records[:1]).shape[1], classes)

    def begin(self, group: Group, training: Training) -> None:
        """See `Method`.

        Raises:
            SettingsError: the library that solves is not installed; nothing was spent.
            InvalidValue: several processes train together; nothing was spent.
        """
        require_solver()
        if training.ranks.size > 1:
            raise InvalidValue("dpda trains in one process: its plan couples all records; start one")
        super().begin(group, training)

    def fit(self, group: Group, training: Training) -> None:
        """See `Method`; hospitals that share a model are one source together."""
        released = self.learned(group, training)
        live = [site for site in group.live if site.name in released]
        feature_map = common_map(live)
        laws = classes_of(ClassSums.together([released[site.name] for site in live]))
        classifier = self._trained(laws, feature_map, training)
        for site in live:
            training.deliver(site, Model(training.model.extractor, classifier))
        write_histories(group)

    def _trained(self, laws: Classes, feature_map: FeatureMap, training: Training) -> nn.Module:
        """The classifier, trained on points of the hospital's classes where the plan moves them."""
        taken = collect(training.source, most=self.source_records)  # once: a loader may shuffle
        labels = taken.labels.cpu().numpy()
        target = features_of(training.model.extractor, taken.images.to(training.device))  # (m, d)
        places = feature_map.clipped(target).to("cpu", torch.float64).numpy() / RECORD_NORM
        laws = led_by(laws, places, labels)
        reached, _ = moved(drawn_points(laws, self.points, training.seed), places, labels, self, training.seed)
        gain = feature_map.scale.to("cpu", torch.float64).numpy() / RECORD_NORM
        features = reached.places / gain + feature_map.center.to("cpu", torch.float64).numpy()
        own = labels != UNLABELLED
        # Labels that are known count as much in all as what they say of the target's size lets them.
        share = 0.5 * own.any()
        return self._descended(
            training,
            torch.cat((torch.from_numpy(features).to(target), target[torch.from_numpy(own).to(target.device)])),
            torch.from_numpy(np.concatenate((reached.labels, labels[own]))).to(target.device),
            np.concatenate(((1.0 - share) * reached.masses, np.full(own.sum(), share / max(1, own.sum())))),
        )

    def _descended(self, training: Training, records: Tensor, labels: Tensor, masses: Values) -> nn.Module:
        """A copy of the classifier after Adam on the cross-entropy of records drawn by their masses."""
        classifier = copy.deepcopy(training.model.classifier)
        optimizer = torch.optim.Adam(classifier.parameters(), lr=self.learning_rate, weight_decay=_DECAY)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: cosine(t / self.updates))
        rng = np.random.default_rng(training.seed)
        classifier.train()
        with reporting("training on moved points", self.updates, shown=training.progress) as bar:
            for _ in range(self.updates):
                chosen = torch.from_numpy(rng.choice(len(masses), size=_BATCH, p=masses)).to(records.device)
                loss = functional.cross_entropy(classifier(records[chosen]), labels[chosen])
                optimizer.zero_grad()
                torch.autograd.backward(loss)
                optimizer.step()
                schedule.step()
                bar.advance("")
        return classifier.eval()


def led_by(laws: Classes, places: Values, labels: Labels) -> Classes:
    """The classes' laws, moved towards the target's few labelled records as far as these are no accident.

    Of n records the mean is off by the covariance's trace over n in square; what a class's distance has beyond that is
    a shift (the positive part of James and Stein's estimate).

    Args:
        laws: of the hospital's classes.
        places: (m, d) of the target.
        labels: (m,), `UNLABELLED` for most.
    """
    means = laws.means.copy()
    for c in range(len(means)):
        own = places[labels == c]
        if len(own):
            away = own.mean(axis=0) - means[c]
            chance = float(np.trace(laws.covariance)) / len(own)
            means[c] += away * max(0.0, 1.0 - chance / max(float(away @ away), 1e-12))
    return replace(laws, means=means)


def drawn_points(laws: Classes, count: int, seed: int) -> Points:
    """Points of the classes' normal laws, as many of each class, each law's mean met exactly.

    Args:
        laws: of the hospital's classes.
        count: of each class.
        seed: of the draw.
    """
    classes, d = laws.means.shape
    values, vectors = np.linalg.eigh(laws.covariance)
    spread = np.random.default_rng(seed).normal(size=(classes, count, d))
    spread -= spread.mean(axis=1, keepdims=True)
    places = laws.means[:, None] + spread * np.sqrt(np.maximum(values, 0.0)) @ vectors.T
    flat = places.reshape(-1, d)
    flat /= np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1.0)  # as the records that were summed
    return Points(flat, np.repeat(np.arange(classes), count), np.repeat(laws.shares / count, count))
